"""The truth that kernels are measured against: the definitions in float64 NumPy, as plainly as possible.

Attention can also be computed in float32, to show how far from the truth that precision is by itself.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike


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


class Attention(NamedTuple):
    """What attention computes on the way to its output, and the output."""

    o: np.ndarray
    p: np.ndarray
    m: np.ndarray
    l: np.ndarray
    lse: np.ndarray


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Attention:
    """Return attention in float64: s = q k^T scale, p = softmax(s), o = p v (Dao et al. 2022, section 2.2).

    Parameters
    ----------
    q, k, v : numpy.ndarray of shape (..., n_q, d), (..., n_k, d), (..., n_k, d_v)
        None, one (heads) or two (batch, heads) leading axes; k and v may have fewer heads.
    causal : bool
        Query i sees key j only if j <= i + n_k - n_q.
    scale : float, optional
        1 / sqrt(d) if None.
    dtype : dtype
        What every step is computed in.

    Returns
    -------
    Attention
        o (..., n_q, d_v), p (..., n_q, n_k); m, l and lse (..., n_q). A row that sees no key gives o = 0, l = 0 and
        m = lse = -inf.
    """
    q, k, v = (np.asarray(x, dtype) for x in (q, k, v))
    k, v = _for_query_heads(q, k, v)
    see = visible(q.shape[-2], k.shape[-2], causal)
    with np.errstate(invalid="ignore", over="ignore"):
        s = np.where(see, q @ k.swapaxes(-1, -2) * _scale(q, scale), -np.inf)
        m = s.max(axis=-1, initial=-np.inf)
        e = np.where(see, np.exp(s - np.where(m == -np.inf, 0.0, m)[..., None]), 0.0)
    l = e.sum(axis=-1)
    p = np.where(see, e / np.where(l == 0.0, 1.0, l)[..., None], 0.0)
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
    return Attention(_select_product(p, v, see), p, m, l, lse)


def attention_backward(
    do: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients (dq, dk, dv) in float64 (Dao et al. 2022, appendix B.2).

    dv = p^T do; dp = do v^T; ds = p (dp - delta), with delta = rowsum(p dp); dq = ds k scale; dk = ds^T q scale. The
    gradients of a key head are summed over the query heads that share it. Arguments as for :func:`attention`.
    """
    do, q, k, v = (np.asarray(x, dtype) for x in (do, q, k, v))
    shape_k, shape_v = k.shape, v.shape
    k, v = _for_query_heads(q, k, v)
    see = visible(q.shape[-2], k.shape[-2], causal)
    p = attention(q, k, v, causal=causal, scale=scale, dtype=dtype).p
    with np.errstate(invalid="ignore"):
        dp = np.where(see, do @ v.swapaxes(-1, -2), 0.0)
        ds = np.where(see, p * (dp - (p * dp).sum(axis=-1, keepdims=True)), 0.0) * _scale(q, scale)
    dv = _select_product(p.swapaxes(-1, -2), do, see.T)
    dk = _select_product(ds.swapaxes(-1, -2), q, see.T)
    return _select_product(ds, k, see), _sum_groups(dk, shape_k), _sum_groups(dv, shape_v)


def visible(n_q: int, n_k: int, causal: bool) -> np.ndarray:
    """Return which key each query sees, as booleans of shape (n_q, n_k); causal aligns the last of both."""
    i, j = np.ogrid[:n_q, :n_k]
    return (j <= i + n_k - n_q) | (not causal)


def _select_product(p: np.ndarray, x: np.ndarray, see: np.ndarray) -> np.ndarray:
    """p @ x over the terms that are seen: a hidden term may be NaN, and 0 times NaN is NaN."""
    if np.isfinite(p).all() and np.isfinite(x).all():
        return p @ x
    with np.errstate(invalid="ignore"):
        return np.where(see[..., None], p[..., None] * x[..., None, :, :], 0.0).sum(axis=-2)


def _for_query_heads(q: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    """Repeat key heads for the query heads that share them."""
    if q.ndim == 2 or q.shape[-3] == values[0].shape[-3]:
        return list(values)
    return [np.repeat(value, q.shape[-3] // value.shape[-3], axis=-3) for value in values]


def _sum_groups(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if gradient.shape == shape:
        return gradient
    group = gradient.shape[-3] // max(1, shape[-3])
    return gradient.reshape(*shape[:-2], group, *shape[-2:]).sum(axis=-3)


def _scale(q: np.ndarray, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else float(scale)
