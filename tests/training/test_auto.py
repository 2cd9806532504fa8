import pytest

from mixdim.training import auto_options
from mixdim.training.auto import batch_size_for, in_words

SIZES = (1, 31, 857, 3_200, 40_000, 80_000, 800_169, 5_000_000, 40_000_000, 10**10)


@pytest.mark.parametrize(("task", "shows"), [("binary", False), ("rating", False), ("rating", True)])
def test_small_data_gets_enough_steps_and_large_data_few_epochs(task, shows):
    for rows in SIZES:
        options = auto_options(task, rows, shows_vectors=shows)
        steps = options.epochs * -(-rows // options.batch_size)
        assert steps >= (1_000 if rows >= 3_200 else options.epochs)
        assert options.patience is not None
        assert (options.weight_decay > 0, options.penalty > 0) == (not shows, shows)
        assert options.schedule == ("linear" if shows else "constant")
        assert options.epochs * rows <= max(100_000_000, 5 * rows)
    assert auto_options("binary", 40_000_000).epochs == 1
    assert auto_options("rating", 22_000_000).epochs == 5


def test_batches_are_powers_of_two_that_leave_a_hundred_steps():
    for rows in SIZES:
        size = batch_size_for(rows)
        assert 32 <= size <= 4096
        assert size & (size - 1) == 0
        assert size == 32 or rows / size >= 100
        assert size == 4096 or rows / size < 200 or size == 32


def test_ids_become_unknown_only_if_nothing_else_trains_their_row():
    assert auto_options("rating", 100, untrained_unknown=["user"]).unknown_dropout
    assert not auto_options("rating", 100).unknown_dropout


def test_a_rate_that_is_said_is_not_that_of_tables_and_never_turns_weights_over():
    options = auto_options("rating", 100, lr=0.02)
    assert (options.lr, options.table_lr, options.weight_decay) == (0.02, 0.01, 0.3)
    assert auto_options("rating", 100, lr=1e6).weight_decay == 0


def test_many_ratings_are_learnt_in_smaller_steps():
    rates = [auto_options("rating", rows).table_lr for rows in (499_999, 500_000)]
    assert rates == [0.01, 0.005]
    assert auto_options("rating", 500_000, shows_vectors=True).table_lr == 0.01
    assert auto_options("binary", 10**6).table_lr == 0.003


def test_the_line_says_what_was_chosen_and_why():
    line = in_words(auto_options("rating", 80_000), 80_000)
    assert line == (
        "batches of 512, so 80,000 rows give 157 steps an epoch; at most 100 epochs, stopped after 20 "
        "evaluations (4 an epoch) without improvement, best weights kept; weight decay 0.3"
    )
    line = in_words(auto_options("rating", 80_000, shows_vectors=True), 80_000)
    assert line == (
        "batches of 512, so 80,000 rows give 157 steps an epoch; at most 20 epochs, stopped after 16 "
        "evaluations (4 an epoch) without improvement, best weights kept; penalty 1.3 on what is looked "
        "up; learning rates fall to 0 (linear)"
    )


@pytest.mark.parametrize("rows", [0, -3])
def test_data_without_rows_is_refused(rows):
    with pytest.raises(ValueError, match=f"train_rows must be at least 1, got {rows}"):
        auto_options("binary", rows)
