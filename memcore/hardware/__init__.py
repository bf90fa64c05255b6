"""Hardware: accelerators, their links, and measured constants."""
