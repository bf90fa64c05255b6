"""Models: configs, families, and the blocks that they build."""
