"""Counts -> blocks -> widths -> a plan, as a value: print it, save it, cost it. Knows no tensors."""
