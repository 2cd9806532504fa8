import pytest

from mixdim.planning.budget import format_bytes, parse_budget


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("1000", 1000),
        ("1,000_000", 1_000_000),
        ("2k", 2000),
        ("1.5M", 1_500_000),
        ("2^21", 2_097_152),
        ("64MB", 16_000_000),
        ("64 MiB", 16_777_216),
        ("0.1gb", 25_000_000),
        ("7B", 1),
        (12, 12),
    ],
)
def test_budgets_read_as_people_write_them(text, parameters):
    assert parse_budget(text) == parameters


@pytest.mark.parametrize("text", ["", "MB", "-3", "1e6", "3 bananas", "2^", "nan", "1.2.3", "١٢ MB x"])
def test_an_unreadable_budget_shows_what_is_readable(text):
    with pytest.raises(ValueError, match=r"such as '64MB'"):
        parse_budget(text)


@pytest.mark.parametrize("budget", ["0", "3B", "2^54", "9999999TB"])
def test_a_budget_must_hold_a_parameter_and_be_countable(budget):
    with pytest.raises(ValueError, match="between 1 and"):
        parse_budget(budget)


def test_a_budget_may_be_what_a_uniform_width_has():
    assert parse_budget("width:3", num_rows=1000) == 3000
    with pytest.raises(ValueError, match="the width of a budget must be at least 1, got 0"):
        parse_budget("width:0", num_rows=1000)
    with pytest.raises(ValueError, match="budget must be a number of parameters"):
        parse_budget("width:3")  # of how many rows?


def test_a_budget_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"budget must be a whole number, got 1\.5"):
        parse_budget(1.5)
    with pytest.raises(ValueError, match="budget must be at least 1, got -1"):
        parse_budget(-1)


def test_bytes_are_written_in_decimal_units():
    assert [format_bytes(n) for n in (0, 999, 1000, 10**6, 15 * 10**14)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.0 MB",
        "1500.0 TB",
    ]
