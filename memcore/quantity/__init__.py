"""Quantity: a number, its words and its formula, in one place."""
