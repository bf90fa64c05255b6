"""Tape: operations on symbolic tensors, and the rows that follow from them."""
