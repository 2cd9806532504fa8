"""For the paper and for play: theory, synthetic data, figures and claims. No other room stands on it."""
