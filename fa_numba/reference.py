"""The truth that kernels are measured against: the definitions in float64 NumPy, as plainly as possible."""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of ``x`` over its last axis, in float64.

    y_j = exp(x_j - m) / sum_k exp(x_k - m), with m = max_k x_k (Milakov & Gimelshein 2018, equation 2). A row of -inf
    gives zeros; a row that holds NaN or +inf gives NaN.

    Parameters
    ----------
    x : numpy.ndarray of shape (..., n)
        Any real dtype.
    """
    x = np.asarray(x, dtype=np.float64)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(m == -np.inf, 0.0, m)
    with np.errstate(invalid="ignore"):  # inf - inf
        e = np.exp(x - m)
    l = e.sum(axis=-1, keepdims=True)
    return e / np.where(l == 0.0, 1.0, l)
