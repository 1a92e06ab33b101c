"""The laboratory's commands, one module each, like the package's own."""
