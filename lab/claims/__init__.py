"""The papers' claims: recipes that are run, measured and tested."""
