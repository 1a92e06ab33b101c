"""What exists only because of the four papers: claims, datasets, figures."""
