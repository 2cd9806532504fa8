"""The experiments of the theory: recovery, allocation, completion."""
