"""Speed and memory of this package's parts next to alternatives."""
