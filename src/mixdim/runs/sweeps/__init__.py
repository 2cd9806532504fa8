"""Many runs, one record each, and which of them is worth training. Draws nothing."""
