"""Evidence: what others say of the same things, and how far our figures are from theirs.

The tables are in presets/evidence, each with its source; one module here for each kind of source.
Constants were read off those that say so (TUNED), and off no other. `figures.compare` has all of
them; `last.last_compared` the same as it was last written down, which imports none of the others.
"""
