"""The reference against values computed by hand and by other means."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fa_numba import reference

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([1000.0, 1001.0], [1 / (1 + math.e), math.e / (1 + math.e)]),
        ([0.0, math.log(3.0)], [0.25, 0.75]),
        ([-INF, 0.0, -INF], [0.0, 1.0, 0.0]),
        ([-INF, -INF], [0.0, 0.0]),
        ([INF, 0.0], [NAN, NAN]),
        ([NAN, 0.0], [NAN, NAN]),
        ([NAN, -INF], [NAN, NAN]),
        ([-1e7, -1e7 + 1, -1e7 + 2], [0.09003057317038046, 0.24472847105479767, 0.6652409557748219]),
    ],
)
def test_softmax_of_a_row(x, expected):
    np.testing.assert_allclose(reference.softmax(np.array(x)), expected, rtol=1e-15, atol=0)


def test_softmax_against_exact_arithmetic():
    """Weights of whole powers of two are exact fractions."""
    exponents = [0, 1, 5, 3, 2]
    total = sum(2**e for e in exponents)
    expected = [float(Fraction(2**e, total)) for e in exponents]
    np.testing.assert_allclose(reference.softmax(np.array(exponents) * math.log(2.0)), expected, rtol=1e-15)


def test_softmax_runs_over_the_last_axis_in_float64(rng):
    x = rng.standard_normal((2, 3, 5)).astype(np.float32)
    y = reference.softmax(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=1e-15)
    np.testing.assert_array_equal(y[1, 2], reference.softmax(x[1, 2]))
    assert reference.softmax(np.ones((3, 0))).shape == (3, 0)
