"""Layers: the operations that models are made of, on the tape."""
