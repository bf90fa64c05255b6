"""Tracing: any PyTorch model becomes a model file (docs/model-file.md).

What is here imports torch when it runs (extra `[trace]`); no other room imports this one, but for
the command.
"""
