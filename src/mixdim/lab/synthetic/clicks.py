"""Clicks drawn from their true probabilities, and what those lose. Knows nothing about values."""

from __future__ import annotations

import numpy as np


def draw_clicks(
    rng: np.random.Generator, logits: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Clicks (0 or 1) given the true logits, and per row what the best possible prediction loses."""
    odds = np.exp(-np.abs(logits))  # of the less likely outcome
    likelier = 1 / (1 + odds)
    probability = np.where(logits >= 0, likelier, 1 - likelier)
    clicks = rng.random(len(logits)) < probability
    doubt = np.log1p(odds)  # minus the log probability of the likelier outcome
    right = clicks == (logits >= 0)
    return clicks, {
        "bayes_log_loss": doubt + np.abs(logits) * (1 - likelier),
        "bayes_accuracy": likelier,
        "realised_log_loss": doubt + np.where(right, 0.0, np.abs(logits)),
        "realised_accuracy": right,
        "mean_probability": probability,
        "click_rate": clicks,
    }
