"""The commands, one module each; `run(config) -> int` is the exit status."""
