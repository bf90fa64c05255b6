"""Explore: one field, or two, against a number; and which GPUs serve. Each point is a plan."""

from app import explore

explore.draw()
