"""Frameworks: what each one keeps, when, and what it sends."""
