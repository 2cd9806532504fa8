"""Widths and costs written independently of planning, and random problems for hypothesis."""

import math

from hypothesis import strategies as st


def rounded(exact, base_dim, rounding, min_dim):
    """A width as docs/plans.md says it."""
    if exact < 0.5 and min_dim == 0:
        return 0
    if exact == base_dim:
        return base_dim
    if rounding == "integer":
        return min(max(round(exact), 1), base_dim)
    return min(2 ** round(math.log2(max(exact, 1))), base_dim)


def cost_of(sizes, dims, base_dim):
    """The parameters of blocks, written independently of storages."""
    total = 0
    for size, dim in zip(sizes, dims, strict=True):
        if dim == 0:
            total += base_dim
        else:
            total += size * dim + (dim * base_dim if dim < base_dim else 0)
    return total


def nine_decimals(number):
    """So that no two differ by as little as rounding does."""
    return round(number, 9)


problems = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 40), min_size=n, max_size=n),  # rows of each block
        st.lists(st.floats(0.01, 1).map(nine_decimals), min_size=n, max_size=n),  # and their row_probs
        st.sampled_from(["integer", "power_of_two"]),
        st.sampled_from([0, 1]),  # the least width
    )
)
