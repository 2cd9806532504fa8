"""How fast singular values fall: decay, its inverse, power laws. Knows nothing about blocks' sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import nonnegative_vector


@dataclass(frozen=True)
class PowerLaw:
    """The spectrum sigma(k) = scale * k ** -decay (the paper's rho and beta), and how well it fits.

    `log_error` is the root mean square of log(sigma) - log(fit): 0.1 is about 10 % off.
    """

    scale: float
    decay: float
    log_error: float

    def singular_values(self, rank: int) -> np.ndarray:
        """The first `rank` singular values of the law."""
        return power_law_spectrum(rank, scale=self.scale, decay=self.decay)


def power_law_spectrum(rank: int, *, scale: float = 1.0, decay: float = 0.0) -> np.ndarray:
    """Return scale * k ** -decay for k = 1..rank: power spectral decay (paper, Sec. 4.2).

    >>> power_law_spectrum(3, scale=2.0, decay=1.0).round(3).tolist()
    [2.0, 1.0, 0.667]
    """
    return scale * np.arange(1, rank + 1, dtype=np.float64) ** -decay


def checked_spectrum(singular_values: Any, name: str = "singular_values") -> np.ndarray:
    """Return singular values as float64: finite, not negative, in descending order."""
    values = nonnegative_vector(singular_values, name).astype(np.float64, copy=False)
    if (np.diff(values) > 0).any():
        raise ValueError(f"{name} must be in descending order")
    return values


def spectral_decay(singular_values: Any, x: Any) -> np.ndarray:
    """Return g(x) = sigma_k for k - 1 <= x < k, and 0 from the rank on (paper, App. C).

    The step function whose integral from 0 to d is the sum of the first d singular values.

    >>> spectral_decay([5.0, 3.0], [0, 0.9, 1, 2]).tolist()
    [5.0, 5.0, 3.0, 0.0]
    """
    values = np.append(checked_spectrum(singular_values), 0.0)
    x = np.asarray(x, dtype=np.float64)
    if not (x >= 0).all():
        raise ValueError(f"x must not be negative, got {x.min()}")
    return values[np.minimum(np.floor(x), len(values) - 1).astype(np.int64)]


def inverse_spectral_decay(singular_values: Any, x: Any) -> np.ndarray:
    """Return g^-1(x), the number of singular values that are at least x (paper, App. C).

    The paper prints g^-1(x) = k for sigma_k < x <= sigma_(k+1), which no x meets: singular values fall.

    >>> inverse_spectral_decay([5.0, 3.0, 3.0], [6, 5, 4, 3, 0]).tolist()
    [0, 1, 1, 3, 3]
    """
    ascending = checked_spectrum(singular_values)[::-1]
    x = np.asarray(x, dtype=np.float64)
    if np.isnan(x).any():
        raise ValueError("x must not be NaN")
    return len(ascending) - np.searchsorted(ascending, x, side="left")


def fit_power_law(singular_values: Any) -> PowerLaw:
    """Fit sigma(k) = scale * k ** -decay by least squares in logarithms, over the values above 0.

    Needs two of them; values below 1e-12 of the largest are rounding and left out.

    >>> round(fit_power_law([8.0, 4.0, 8 / 3, 2.0]).decay, 12)
    1.0
    """
    values = checked_spectrum(singular_values)
    values = values[values > 1e-12 * values[0]]
    if len(values) < 2:
        raise ValueError(f"singular_values must have at least 2 above 0 to fit, got {len(values)}")
    log_k, log_sigma = np.log(np.arange(1, len(values) + 1)), np.log(values)
    slope, intercept = np.polyfit(log_k, log_sigma, 1)
    residual = log_sigma - (intercept + slope * log_k)
    return PowerLaw(float(np.exp(intercept)), float(-slope), float(np.sqrt(np.mean(residual**2))))
