"""Somebody's trained model in, the same model with small tables out. Knows nothing about runs."""
