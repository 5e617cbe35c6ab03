"""Rows of scores that every softmax must get right, and the plain computation that errors are measured by."""

import math

import numpy as np

INF, NAN = math.inf, math.nan
DTYPES = [np.float32, np.float64]

# CASES A1, A2, A22, C1, C2, C9, C38: overflow, -inf, +inf, NaN, cancellation, ties.
HARD_ROWS = [
    [1000, 1001],
    [89, 90],
    [-INF, -INF, -INF],
    [-INF, 0, -INF],
    [INF, 0, 0],
    [0, 0, INF],
    [INF, INF],
    [NAN, 1, 2],
    [1, 2, NAN],
    [1, NAN, -INF],
    [NAN, -INF],
    [-INF, NAN],
    [NAN],
    [INF, -INF],
    [-1e7, -1e7 + 1, -1e7 + 2],
    [-3.4028235e38] * 3,
    [3.4028235e38, -3.4028235e38],
    [0, 0, 0, 0, 0],
    [1e4, -1e4],
]


def plain_softmax(x):
    """The same computation in plain NumPy, in the input's own precision."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def allowed_error(x, truth):
    """Twice the error of the plain computation, and a little (DESIGN, accuracy)."""
    rounding = 1e-6 if x.dtype == np.float32 else 1e-15
    return 2 * np.abs(plain_softmax(x) - truth).max() + rounding


def between_ordinary_rows(row, dtype):
    """A matrix with the row in the middle, whose neighbours must stay finite."""
    return np.array([np.linspace(-1, 1, len(row)), row, np.linspace(1, -1, len(row))], dtype)
