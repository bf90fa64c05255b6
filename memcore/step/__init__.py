"""Step: the states and the schedule of one pipeline stage."""
