"""Drawings: records in, figure out. Numbers never import this room."""
