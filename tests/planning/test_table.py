import mixdim
from mixdim.planning.table import LAST_LINES, MOST_LINES


def test_a_plan_prints_as_a_table_with_its_cost():
    plan = mixdim.plan({"user": 6040, "item": 3706}, temperature=0.3, base_dim=64)
    assert str(plan).splitlines() == [
        "Mixed dimension plan: base_dim 64, temperature 0.3",
        "",
        "feature   rows  dim  row prob  parameters  share",
        "user     6,040   64  1.66e-04     386,560  62.0%",
        "item     3,706   64  2.70e-04     237,184  38.0%",
        "total    9,746                    623,744",
        "",
        "623,744 parameters: 623,744 in tables, 0 in projections",
        "2.5 MB in float32, 10.0 MB with AMSGrad state",
        "the cost of uniform width 64",
        "a model's first-order weights or biases, if it has any, add 39.0 kB",
    ]


def test_bands_are_numbered_and_notes_say_what_the_table_does_not():
    counts = {"item": [0, 90, 4, 3, 2, 1]}
    plan = mixdim.plan({"item": 6}, counts=counts, bands=4, temperature=0.5, base_dim=16)
    text = str(plan)
    assert "item      1/2     1   16" in text
    assert "          2/2     5    2" in text
    assert "note: item has 2 of the 4 bands requested" in text
    assert "note: the ids of item are not in order of popularity" in text
    assert f"{4 * plan.num_parameters + 24} B in float32" in text
    assert "AMSGrad state, 24 B of it the rank of each id" in text


def test_ids_in_order_of_popularity_need_no_note():
    plan = mixdim.plan([4], counts=[[9, 9, 1, 0]], bands=2, temperature=0.5, base_dim=4)
    assert "note" not in str(plan)


def test_a_long_plan_shows_its_beginning_and_its_end():
    plan = mixdim.plan([100] * 1000, temperature=0, base_dim=2)
    lines = str(plan).splitlines()
    assert "... 940 more" in lines
    assert lines.index("... 940 more") == 3 + MOST_LINES - LAST_LINES
    assert any(line.startswith("999 ") for line in lines)
