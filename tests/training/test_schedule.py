from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixdim.training.options import preset
from mixdim.training.schedule import Schedule

schedules = st.builds(
    lambda rows, batch_size, epochs, evaluations: Schedule(
        rows,
        replace(
            preset("paper-cf"), batch_size=batch_size, epochs=epochs, evaluations_per_epoch=evaluations
        ),
    ),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 9),
)


@given(schedules)
def test_steps_and_samples_are_those_of_walking_through_the_batches(schedule):
    rows, options = schedule.rows, schedule.options
    step, samples = 0, 0
    for epoch in range(options.epochs):
        for position, first in enumerate(range(0, rows, options.batch_size)):
            assert schedule.place_after(step) == (epoch, position)
            assert schedule.samples_after(step) == samples
            step += 1
            samples += min(options.batch_size, rows - first)
    assert (step, samples) == (schedule.total_steps, schedule.samples_after(schedule.total_steps))


@given(schedules)
def test_evaluations_are_even_in_every_epoch_and_one_is_at_its_end(schedule):
    steps, wanted = schedule.steps_per_epoch, schedule.options.evaluations_per_epoch
    evaluated = [step for step in range(schedule.total_steps + 1) if schedule.evaluates_after(step)]
    assert len(evaluated) == min(wanted, steps) * schedule.options.epochs
    assert set(range(steps, schedule.total_steps + 1, steps)) <= set(evaluated)
    assert 0 not in evaluated
    gaps = [after - before for before, after in zip([0, *evaluated], evaluated, strict=False)]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(("rows", "lines"), [(19, 1), (20 * 4, 4), (20 * 100, 100), (10**6, 100)])
def test_the_journal_gets_twenty_lines_an_epoch_and_one_every_hundred_steps(rows, lines):
    assert Schedule(rows, replace(preset("paper-ctr"), batch_size=1)).journal_every == lines
