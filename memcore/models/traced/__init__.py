"""Model files: what `memplan trace` wrote, read again without torch (docs/model-file.md)."""
