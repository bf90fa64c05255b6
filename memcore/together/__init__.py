"""Together: training and an engine on the same GPUs, phase by phase."""
