"""The levels of codes, against Lloyd and Max's conditions and integrals of the normal density."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from mixdim.storages.levels import BITS, LEVELS, NOISE, first_level, levels_of


def cells(levels):
    """The edges between what becomes each level, the mass of each cell and its mean times that."""
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    return edges, np.diff(norm.cdf(edges)), -np.diff(norm.pdf(edges))


def noise(levels):
    """E[(x - level)^2] of normal numbers, each with its nearest level."""
    _, mass, first = cells(levels)
    return 1 - 2 * levels @ first + levels**2 @ mass


def lloyd_max(count):
    """The levels of least squared error, by Lloyd's iteration from equal mass."""
    levels = norm.ppf((np.arange(count) + 0.5) / count)
    for _ in range(1500):
        _, mass, first = cells(levels)
        levels = first / mass
    return levels


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_few_bits_have_the_levels_of_lloyd_and_max(bits):
    np.testing.assert_allclose(levels_of(bits), lloyd_max(2**bits), atol=2e-6)


@pytest.mark.parametrize("bits", [5, 6])
def test_more_bits_have_levels_that_are_the_means_of_their_cells(bits):
    levels = levels_of(bits).astype(np.float64)
    _, mass, first = cells(levels)
    np.testing.assert_allclose(levels, first / mass, atol=2e-6)


def test_what_is_lost_is_what_the_integral_says_and_what_was_measured_before():
    for bits in BITS:
        assert NOISE[bits] == pytest.approx(noise(levels_of(bits).astype(np.float64)), rel=2e-5)
    said = {0: 1, 1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499, 6: 0.00065, 8: 0.00005}
    assert {bits: NOISE[bits] for bits in said} == pytest.approx(said, rel=0.012, abs=6e-6)
    assert NOISE[32] == 0


@pytest.mark.parametrize("bits", BITS)
def test_a_step_of_the_standard_deviation_is_the_best_for_normal_numbers(bits):
    levels = levels_of(bits).astype(np.float64)
    best = minimize_scalar(lambda step: noise(step * levels), bounds=(0.5, 2), method="bounded")
    assert best.x == pytest.approx(1, abs=1e-4)


def test_levels_rise_and_are_symmetric_and_those_of_8_bits_have_a_zero():
    for bits in BITS:
        levels = levels_of(bits)
        assert len(levels) == 2**bits
        assert (np.diff(levels) > 0).all()
        odd = levels[1:] if bits == 8 else levels
        np.testing.assert_array_equal(odd, -odd[::-1])
        np.testing.assert_array_equal(LEVELS[first_level(bits) :][: len(levels)], levels)
    assert levels_of(8)[128] == 0
    assert len(LEVELS) == 126 + 256
