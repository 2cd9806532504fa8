"""Synthetic data with a planted truth and a known best possible loss."""
