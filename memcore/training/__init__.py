"""Training: the memory and the time of one optimizer step."""
