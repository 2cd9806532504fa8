import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixdim.lab.theory.spectra import (
    PowerLaw,
    fit_power_law,
    inverse_spectral_decay,
    power_law_spectrum,
    spectral_decay,
)

spectra = st.lists(st.integers(0, 6), min_size=1, max_size=8).map(lambda v: sorted(map(float, v))[::-1])


@given(spectra, st.integers(0, 8))
def test_decay_integrates_to_the_sum_of_the_first_singular_values(values, d):
    steps = np.arange(0, d, 0.125)
    assert (spectral_decay(values, steps) * 0.125).sum() == pytest.approx(sum(values[:d]))


@given(spectra, st.floats(-1, 7))
def test_the_inverse_counts_the_singular_values_that_reach_x(values, x):
    assert inverse_spectral_decay(values, x) == sum(value >= x for value in values)


@given(spectra, st.floats(0.1, 7))
def test_the_inverse_inverts_the_decay(values, x):
    """d = g^-1(x) is where g falls below x: g >= x before d and g < x from d on."""
    d = int(inverse_spectral_decay(values, x))
    assert spectral_decay(values, d) < x
    assert d == 0 or spectral_decay(values, d - 0.01) >= x


def test_a_power_law_is_fitted_exactly():
    fit = fit_power_law(power_law_spectrum(50, scale=3.0, decay=0.7))
    assert (fit.scale, fit.decay, fit.log_error) == pytest.approx((3.0, 0.7, 0.0), abs=1e-12)
    assert fit.singular_values(4) == pytest.approx(3.0 * np.array([1, 2, 3, 4]) ** -0.7)


def test_the_error_of_a_fit_is_that_of_its_logarithms():
    values = power_law_spectrum(200, decay=1.0) * np.exp(0.05 * np.tile([1, -1], 100))
    values = np.sort(values)[::-1]
    fit = fit_power_law(values)
    residual = np.log(values) - np.log(fit.singular_values(200))
    assert fit.log_error == pytest.approx(np.sqrt((residual**2).mean()))
    assert 0.01 < fit.log_error < 0.06


def test_rounding_zeros_are_left_out_of_a_fit():
    clean = power_law_spectrum(10, decay=0.5)
    assert fit_power_law(np.append(clean, [1e-17, 0.0])) == fit_power_law(clean)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "at least 2 above 0 to fit, got 1"),
        ([0.0, 0.0], "at least 2 above 0 to fit, got 0"),
        ([1.0, 2.0], "must be in descending order"),
        ([1.0, np.nan], "must be finite"),
        ([1.0, -1.0], "not negative"),
        ([], "must not be empty"),
    ],
)
def test_bad_spectra_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        fit_power_law(values)


def test_bad_arguments_of_the_decay_are_refused():
    with pytest.raises(ValueError, match="x must not be negative, got -1"):
        spectral_decay([1.0], -1)
    with pytest.raises(ValueError, match="x must not be NaN"):
        inverse_spectral_decay([1.0], np.nan)


def test_a_power_law_is_a_value():
    assert PowerLaw(1.0, 2.0, 0.0) == PowerLaw(1.0, 2.0, 0.0)
