"""Times in the forms that people write, against Python's datetime."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest

from mixdim.data.folder import read_meta
from mixdim.data.table import prepare_table
from mixdim.data.times import FORMATS, advice_for, times_of

MOMENTS = [datetime(2016, 4, 20, 13, 5, tzinfo=UTC) + timedelta(hours=31 * n) for n in range(40)]


@pytest.mark.parametrize(
    "form",
    [
        *("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S"),
        *(
            "%B %d, %Y",
            "%b %d, %Y",
            "%d %b %Y",
            "%d-%b-%Y %I:%M %p",
            "%m %d, %Y",
            "%a %b %d %H:%M:%S %Y",
        ),
        *("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S UTC", "%a, %d %b %Y %H:%M:%S GMT", "%Y%m%dT%H%M%S"),
    ],
)
def test_a_text_is_the_seconds_since_1970_that_python_reads(form):
    texts = [moment.strftime(form) for moment in MOMENTS]
    wanted = [datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() for text in texts]
    assert times_of(pl.Series([*texts, None, "soon"])).to_list() == [*wanted, None, None]


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M %z", "%a %b %d %H:%M:%S %z %Y"])
def test_a_zone_is_taken_off(form):
    zones = [timezone(timedelta(minutes=minutes)) for minutes in (0, 120, -300, 345)]
    texts = [moment.astimezone(zone).strftime(form) for moment in MOMENTS for zone in zones]
    wanted = [moment.timestamp() for moment in MOMENTS for _ in zones]
    assert times_of(pl.Series(texts)).to_list() == wanted


def test_forms_may_differ_within_a_column_and_numbers_stay_numbers():
    texts = ["x"] * 500 + [
        "2016-04-20",
        "April 20, 2016",
        "1461110400",
        "20.04.2016",
        "1461110400123",
        "",
    ]
    found = times_of(pl.Series(texts)).to_list()
    assert found[:500] == [None] * 500
    assert found[500:] == [1461110400.0] * 4 + [1461110400123.0, None]


def test_typed_columns_are_times_too():
    days = pl.Series([MOMENTS[0].date()])
    assert times_of(days).to_list() == [1461110400.0]
    assert times_of(pl.Series(MOMENTS)).to_list() == [moment.timestamp() for moment in MOMENTS]
    assert times_of(pl.Series([3, None])).to_list() == [3.0, None]
    assert times_of(pl.Series([[1], [2]])).to_list() == [None, None]


def test_a_year_needs_four_digits():
    assert times_of(pl.Series(["16-04-20"])).to_list() == [None]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("31/12/2016", "say what is the month: --split 'time:day:%d/%m/%Y'"),
        ("03/04/2016", "say what is the month: --split 'time:day:%m/%d/%Y' or %d/%m/%Y"),
        ("2016-13-01", "times most like it: 2016-04-20, 2016-04, 2016/04/20"),
        ("Q1 2016", "times most like it: April 20 2016, April 20, 2016, 04 20, 2016"),
    ],
)
def test_advice_is_what_reads_the_text_or_the_nearest_forms(text, advice):
    assert advice_for(text, "day") == advice
    assert all(times_of(pl.Series([MOMENTS[0].strftime(f)])).null_count() == 0 for f in FORMATS[:9])


def write(path, days):
    path.write_text(
        "\n".join(["y,c,day", *[f"{n % 2},u{n},{day}" for n, day in enumerate(days)]]) + "\n"
    )
    return path


@pytest.mark.parametrize("form", ["%B %d, %Y", "%Y/%m/%d %H:%M", "%Y-%m-%dT%H:%M:%S+02:00", "%s000"])
def test_a_table_is_split_by_such_times(tmp_path, form):
    order = np.random.default_rng(0).permutation(20).tolist()
    raw = write(tmp_path / "t.csv", [f'"{MOMENTS[n].strftime(form)}"' for n in order])
    given = {"target": "y", "categorical": ["c"], "split": "time:day"}
    prepare_table([raw], tmp_path / "out", **given)
    start, stop = read_meta(tmp_path / "out").splits["test"]
    latest = [place for place in range(20) if order[place] >= 18]
    assert np.load(tmp_path / "out" / "target.npy")[start:stop].tolist() == [n % 2 for n in latest]


def test_a_named_format_says_what_is_the_month(tmp_path):
    raw = write(tmp_path / "t.csv", [f"{n + 1:02d}/{3 + n % 2:02d}/2016" for n in range(10)])
    given = {"target": "y", "categorical": ["c"]}
    prepare_table([raw], tmp_path / "out", split="time:day:%d/%m/%Y", **given)
    start, stop = read_meta(tmp_path / "out").splits["test"]
    assert np.load(tmp_path / "out" / "target.npy")[start:stop].tolist() == [1]  # 10/04
    with pytest.raises(
        ValueError, match=r"t\.csv line 2: .* '01/03/2016'; \.\.\.; the format '%Q' does not read it"
    ):
        prepare_table([raw], tmp_path / "no", split="time:day:%Q", **given)


def test_an_unreadable_time_is_one_line_with_one_place_and_the_nearest_formats(tmp_path):
    raw = write(tmp_path / "t.csv", ["2016-04-20", *["Week 12 of 2016"] * 9])
    with pytest.raises(ValueError, match="9 of 10 rows") as caught:
        prepare_table([raw], tmp_path / "out", target="y", categorical=["c"], split="time:day")
    message = str(caught.value)
    assert message.count("t.csv") == 1
    assert str(tmp_path) not in message
    assert "t.csv line 3: day is not a time: 'Week 12 of 2016'; ...; times most like it: " in message
    assert len(message.split("times most like it: ")[1].split(", ")) >= 3
