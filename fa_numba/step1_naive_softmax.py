"""Step 1: softmax with one thread a row, in three passes."""

import math
from typing import Any

from numba import cuda, float32

from fa_numba import arrays, device

THREADS = 256  # in a block


@cuda.jit
def naive_softmax_kernel(x, y):
    """y[i] = softmax(x[i]): one thread a row, three passes (Milakov & Gimelshein 2018, algorithm 2)."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        m = float32(-math.inf)
        for j in range(x.shape[1]):  # m_i = max_j x_ij
            m = max(m, x[i, j])
        if m == float32(-math.inf):  # the row holds nothing larger, and -inf - -inf would be NaN
            m = float32(0)
        l = float32(0)
        for j in range(x.shape[1]):  # l_i = sum_j exp(x_ij - m_i)
            l += math.exp(x[i, j] - m)
        if l == float32(0):  # a row of -inf: its softmax is 0, not 0/0
            l = float32(1)
        for j in range(x.shape[1]):  # y_ij = exp(x_ij - m_i) / l_i
            y[i, j] = math.exp(x[i, j] - m) / l


def naive_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, computed by one thread a row.

    Parameters
    ----------
    x : array of shape (..., n)
        float32 or float64, with 1 or more dimensions, on the host or the device; any strides.

    Returns
    -------
    array of the shape and dtype of ``x``
        On the host if ``x`` is, else on the device. A row of -inf gives zeros; a row that holds NaN or +inf gives NaN.

    Raises
    ------
    TypeError
        For other kinds of input and other dtypes.
    ValueError
        For a 0-dimensional ``x``.
    RuntimeError
        If a GPU was asked for and none can be used.

    Warns
    -----
    SlowSimulation
        If it will take more than a minute on the simulator.

    Notes
    -----
    Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 2: safe softmax.
    """
    return arrays.over_rows(x, _launch)


def _launch(x: Any, y: Any, stream: Any) -> None:
    rows, n = x.shape
    device.warn_if_slow("naive_softmax", 4 * rows * n)  # x is read three times, y written once
    device.launch(naive_softmax_kernel, -(-rows // THREADS), THREADS, x, y, stream=stream)
