"""Evidence: what others say of the same things, and how far our figures are from theirs.

The tables are in presets/evidence, each with its source; one module here for each kind of source.
Constants were read off those that say so (TUNED), and off no other. `figures.compare` has all of
them; `python -m evidence.markdown`, in the folder benchmarks, writes them into README.md,
docs/accuracy.md and the table that the page Accuracy shows. No plan needs any of this, and no wheel
holds it.
"""
