"""Drawings of plans, popularity and records. Numbers never import this room."""
