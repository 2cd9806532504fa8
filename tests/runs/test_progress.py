"""How far a command is, where there is no terminal."""

import io
import re

from rich.console import Console

from mixdim._util.text import Note
from mixdim.runs import progress
from mixdim.runs.progress import plain_lines, progress_bars


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_lines_come_now_and_then_with_what_is_done_elapsed_and_left(capsys):
    clock = Clock()
    show = plain_lines(clock=clock)
    for step in range(1, 61):
        clock.now += 1
        show("training", step * 10, 1000, f"epoch {step // 30 + 1}")
    assert capsys.readouterr().err.splitlines() == [
        # Of the 9 seconds since the first step, which is done when it is shown, 9 steps.
        "training: 100 of 1,000, 0:00:10 elapsed, about 0:01:30 left; epoch 1",
        "training: 200 of 1,000, 0:00:20 elapsed, about 0:01:20 left; epoch 1",
        "training: 300 of 1,000, 0:00:30 elapsed, about 0:01:10 left; epoch 2",
        "training: 400 of 1,000, 0:00:40 elapsed, about 0:01:00 left; epoch 2",
        "training: 500 of 1,000, 0:00:50 elapsed, about 0:00:50 left; epoch 2",
        "training: 600 of 1,000, 0:01:00 elapsed, about 0:00:40 left; epoch 3",
    ]
    clock.now += 3600
    show("measuring", 5, None)
    clock.now += 299
    show("measuring", 6, None)  # by now every five minutes
    assert capsys.readouterr().err == "measuring: 5, 1:01:00 elapsed\n"


def test_slow_steps_are_announced_at_once_and_finished_ones_found_before_do_not_count_as_fast(capsys):
    clock = Clock()
    show = plain_lines(slow="runs", clock=clock)
    show("runs", 6, 10)
    clock.now += 1
    show("runs", 6, 10, "now mf, seed 0")
    clock.now += 1
    show("runs", 6, 10, "too soon")
    clock.now += 58
    show("runs", 7, 10, "now mf, seed 1")
    clock.now += 600
    show("runs", 0, 4)  # another sweep begins
    clock.now += 600
    show("runs", 1, 4)
    assert capsys.readouterr().err.splitlines() == [
        "runs: 6 of 10, 0:00:01 elapsed; now mf, seed 0",
        "runs: 7 of 10, 0:01:00 elapsed, about 0:03:00 left; now mf, seed 1",
        "runs: 0 of 4, 0:11:00 elapsed",
        "runs: 1 of 4, 0:21:00 elapsed, about 0:30:00 left",
    ]


def test_what_a_note_says_of_the_time_left_goes_before_the_speed_of_the_bar(capsys, monkeypatch):
    clock = Clock()
    show = plain_lines(clock=clock)
    for done, left in ((800, None), (900, None), (901, 600.0)):
        clock.now += 60
        show("training", done, 1000, Note("epoch 1", left))
    assert capsys.readouterr().err.splitlines() == [
        "training: 800 of 1,000, 0:01:00 elapsed; epoch 1",
        "training: 900 of 1,000, 0:02:00 elapsed; epoch 1",
        "training: 901 of 1,000, 0:03:00 elapsed, about 0:10:00 left; epoch 1",
    ]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: terminal)
    monkeypatch.setattr(terminal, "get_time", clock)
    with progress_bars() as show:
        show("training", 900, 1000, Note("epoch 1", 600.0))
        clock.now += 60  # the bar runs down by itself
    lines = re.sub(r"\x1b\[[\d;]*m", "", terminal.file.getvalue())
    assert "0:10:00 epoch 1" in lines
    assert "0:09:00 epoch 1" in lines


def test_a_quick_command_says_nothing_about_progress_in_a_log(capsys):
    with progress_bars() as show:
        show("reading", 1, 2)
        show("reading", 2, 2)
    assert capsys.readouterr().err == ""
