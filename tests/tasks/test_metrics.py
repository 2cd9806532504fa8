import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixdim.tasks.metrics import (
    accuracy,
    auc,
    calibration,
    calibration_error,
    log_loss,
    mae,
    mse,
    rmse,
)

# Few distinct logits, so that most of them are tied.
tied_rows = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=40)
smooth_rows = st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 1)), min_size=1, max_size=40)
either_rows = tied_rows | smooth_rows
rating_rows = st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 5)), min_size=1, max_size=40)


def columns(rows):
    outputs, targets = zip(*rows, strict=True)
    return list(outputs), list(targets)


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def auc_of_all_pairs(scores, targets):
    positives = [s for s, y in zip(scores, targets, strict=True) if y == 1]
    negatives = [s for s, y in zip(scores, targets, strict=True) if y == 0]
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives)) if positives and negatives else None


def calibration_error_by_loop(logits, targets, bins):
    """Rows of one logit go to the bin of the highest cut that falls among or before them."""
    rows = sorted(zip(logits, targets, strict=True))
    members = {}
    for z, y in rows:
        last_of_ties = max(rank for rank, (other, _) in enumerate(rows) if other == z)
        latest_cut = max(
            b * len(rows) // bins for b in range(bins) if b * len(rows) // bins <= last_of_ties
        )
        members.setdefault(rows[latest_cut][0], []).append((z, y))
    gaps = [abs(sum(sigmoid(z) - y for z, y in group)) for group in members.values()]
    return sum(gaps) / len(rows)


@given(smooth_rows)
def test_log_loss_is_the_mean_negative_logarithm_of_the_probability_of_what_happened(rows):
    logits, targets = columns(rows)
    expected = [-math.log(sigmoid(z if y else -z)) for z, y in rows]
    assert log_loss(logits, targets) == pytest.approx(sum(expected) / len(rows), rel=1e-12, abs=1e-15)


@given(smooth_rows)
def test_log_loss_is_that_of_torch(rows):
    logits, targets = (torch.tensor(column, dtype=torch.float64) for column in columns(rows))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets).item()
    assert log_loss(logits, targets) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("size", [800.0, 1e4])
def test_log_loss_of_huge_logits_neither_overflows_nor_vanishes(size):
    logits = np.array([size, -size], np.float32)
    assert log_loss(logits, [1, 0]) == 0
    assert log_loss(logits, [0, 1]) == size


def test_log_loss_keeps_the_digits_of_a_confident_right_guess():
    assert log_loss([40.0, -40.0], [1, 0]) == pytest.approx(math.exp(-40), rel=1e-12, abs=0)


def test_float32_logits_are_averaged_in_float64():
    logits = np.full(100_001, 0.1, np.float32)
    logits[0] = 1e4
    ordinary, huge = math.log1p(math.exp(float(np.float32(0.1)))), 1e4
    expected = (huge + 100_000 * ordinary) / 100_001
    assert log_loss(logits, np.zeros(100_001, np.float32)) == pytest.approx(expected, rel=1e-12)


@given(either_rows)
def test_accuracy_counts_the_rows_on_the_right_side_of_zero(rows):
    right = sum((z > 0) == bool(y) for z, y in rows)
    assert accuracy(*columns(rows)) == pytest.approx(right / len(rows))


def test_a_logit_of_zero_guesses_zero():
    assert accuracy([0.0], [0]) == 1
    assert accuracy([0.0], [1]) == 0


@given(either_rows)
def test_auc_is_the_share_of_pairs_in_the_right_order(rows):
    scores, targets = columns(rows)
    # Halves and counts are exact, so the two agree to the last bit.
    assert auc(scores, targets) == auc_of_all_pairs(scores, targets)


def test_auc_of_a_perfect_a_reversed_and_a_constant_score():
    assert auc([1, 2, 3, 4], [0, 0, 1, 1]) == 1
    assert auc([4, 3, 2, 1], [0, 0, 1, 1]) == 0
    assert auc([7, 7, 7, 7], [0, 0, 1, 1]) == 0.5
    assert auc([-0.0, 0.0], [0, 1]) == 0.5


def test_auc_of_many_rows_does_not_overflow():
    half = 100_000  # 10**10 pairs are more than an int32 holds
    scores = np.concatenate([np.zeros(half, np.float32), np.ones(half, np.float32)])
    assert auc(scores, np.repeat([0, 1], half)) == 1


@pytest.mark.parametrize("target", [0, 1])
def test_auc_needs_both_classes(target):
    assert auc([0.1, 0.2], [target, target]) is None
    assert auc([], []) is None


@given(either_rows)
def test_calibration_is_predicted_over_observed_positives(rows):
    observed = sum(y for _, y in rows)
    answer = calibration(*columns(rows))
    if observed == 0:
        assert answer is None
    else:
        assert answer == pytest.approx(sum(sigmoid(z) for z, _ in rows) / observed, rel=1e-12)


def test_calibration_of_huge_logits_is_that_of_certainty():
    assert calibration([1e4, -1e4], [1, 0]) == 1
    assert calibration([-50.0], [1]) == pytest.approx(math.exp(-50), rel=1e-12, abs=0)


@given(either_rows, st.integers(1, 12))
def test_calibration_error_is_the_mean_gap_over_bins_that_keep_ties_together(rows, bins):
    logits, targets = columns(rows)
    expected = calibration_error_by_loop(logits, targets, bins)
    assert calibration_error(logits, targets, bins) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(either_rows, st.integers(1, 12), st.randoms(use_true_random=False))
def test_calibration_error_does_not_depend_on_the_order_of_rows(rows, bins, rng):
    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert calibration_error(*columns(rows), bins) == calibration_error(*columns(shuffled), bins)


def test_calibration_error_of_many_tied_rows_does_not_depend_on_their_order():
    # Enough rows that the sort is not the one of short arrays and sums are taken pairwise.
    rng = random.Random(0)
    rows = [(rng.randrange(50) / 7 - 3, rng.randrange(2)) for _ in range(20_000)]
    expected = calibration_error(*columns(rows))
    rng.shuffle(rows)
    assert calibration_error(*columns(rows)) == expected


def test_bins_hold_equal_counts_of_distinct_predictions():
    # Two bins of two rows. In each, the gap is |sum of probabilities - number of positives| / 4 rows.
    logits, targets = [-2.0, -1.0, 1.0, 2.0], [1, 1, 0, 1]
    gaps = [sigmoid(-2) + sigmoid(-1) - 2, sigmoid(1) + sigmoid(2) - 1]
    assert calibration_error(logits, targets, bins=2) == pytest.approx(sum(map(abs, gaps)) / 4)


def test_more_bins_than_rows_are_one_bin_for_each_row():
    expected = (sigmoid(-1) + (1 - sigmoid(2))) / 2
    assert calibration_error([2.0, -1.0], [1, 0], bins=10) == pytest.approx(expected)


def test_calibration_error_cuts_ten_bins_unless_told_otherwise():
    logits, targets = np.linspace(-3, 3, 100), np.arange(100) % 2
    assert calibration_error(logits, targets) == calibration_error(logits, targets, 10)
    assert calibration_error(logits, targets) != calibration_error(logits, targets, 9)
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        calibration_error(logits, targets, 0)


@given(rating_rows)
def test_rating_errors_are_their_formulas(rows):
    errors = [a - b for a, b in rows]
    squared = sum(e * e for e in errors) / len(rows)
    assert mse(*columns(rows)) == pytest.approx(squared, rel=1e-12)
    assert rmse(*columns(rows)) == pytest.approx(math.sqrt(squared), rel=1e-12)
    assert mae(*columns(rows)) == pytest.approx(sum(map(abs, errors)) / len(rows), rel=1e-12)


def test_rating_errors_of_float32_are_taken_in_float64():
    predictions, targets = np.array([2**24], np.float32), np.array([0.5], np.float32)
    assert mae(predictions, targets) == 2**24 - 0.5  # float32 has no digit for the half
    assert mse(predictions, targets) == (2**24 - 0.5) ** 2


def test_a_mean_of_no_rows_is_refused():
    for metric in (log_loss, accuracy, calibration_error):
        with pytest.raises(ValueError, match="the number of rows of logits must be at least 1, got 0"):
            metric([], [])
    for metric in (mse, rmse, mae):
        with pytest.raises(ValueError, match="the number of rows of predictions must be at least 1"):
            metric([], [])


def test_an_error_names_the_argument_of_the_metric_that_was_called():
    for metric, name in ((log_loss, "logits"), (auc, "scores"), (mse, "predictions")):
        with pytest.raises(ValueError, match=f"^{name} must be finite"):
            metric([float("nan")], [1])
