"""The `memplan` command: one file a command, and `program` that runs them."""

from memcore.cli.program import main

__all__ = ["main"]
