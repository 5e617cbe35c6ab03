"""The recurrences step by step: every intermediate, by the device functions that the kernels call."""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from fa_numba import arrays, device, problem
from fa_numba.step2_online_softmax import rescale, weight


class SoftmaxStep(NamedTuple):
    """The elements that arrived together, and after them: the maximum, what repaired the sum, and the sum."""

    values: np.ndarray
    m: np.floating
    alpha: np.floating
    l: np.floating


@cuda.jit(fastmath=True)
def softmax_steps_kernel(x, width, steps):
    """steps[t] = (m, alpha, l) after t groups of elements: the loop of online_softmax_kernel, for one thread."""
    m, l = steps[0, 0], steps[0, 2]
    for t in range(1, steps.shape[0]):
        first, last = (t - 1) * width, min(t * width, x.shape[0])
        m_part = x[first]
        for j in range(first + 1, last):
            m_part = max(m_part, x[j])
        m, alpha = rescale(m, m_part)
        l *= alpha  # what was added up against the old maximum
        for j in range(first, last):
            l += weight(x[j], m)
        steps[t, 0], steps[t, 1], steps[t, 2] = m, alpha, l


def online_softmax(x: Any, width: int = 4) -> list[SoftmaxStep]:
    """Return every step of the online softmax of one row, as one thread takes them.

    Parameters
    ----------
    x : numpy.ndarray of shape (n,)
        float32 or float64; every step is computed in that precision.
    width : int
        How many elements arrive together; at the end of the row there may be fewer.

    Returns
    -------
    list of SoftmaxStep
        One for each group of elements. The softmax of the row is exp(x - m) / l, with m and l of the last.

    Raises
    ------
    TypeError
        For other dtypes.
    ValueError
        For another shape, and a width below 1.
    """
    x = np.asarray(x)
    if x.dtype not in arrays.DTYPES:
        raise TypeError(f"x has dtype {x.dtype}; taken: float32 or float64")
    if x.ndim != 1 or width < 1:
        raise ValueError(f"a walk takes one row and a width of at least 1, not shape {x.shape} and width {width}")
    groups = np.split(x, range(width, x.size, width)) if x.size else []
    steps = np.zeros((1 + len(groups), 3), x.dtype)
    steps[0, 0] = -math.inf  # m of nothing; its l is 0
    if groups:
        device.launch(softmax_steps_kernel, 1, 1, x, width, steps)
    return [SoftmaxStep(group, *step) for group, step in zip(groups, steps[1:])]


class FlashStep(NamedTuple):
    """What flash attention holds for one query after one tile of keys.

    Attributes
    ----------
    s : numpy.ndarray of shape (keys of the tile,)
        The scores; -inf for keys that the query does not see.
    m : float
        The maximum so far.
    alpha : float
        What sum and accumulator were multiplied by: exp(m before - m).
    p : numpy.ndarray of shape (keys of the tile,)
        The weights exp(s - m), before division.
    l : float
        The sum of the weights so far.
    acc : numpy.ndarray of shape (d_v,)
        The output so far, before division: o = acc / l after the last tile.
    """

    s: np.ndarray
    m: float
    alpha: float
    p: np.ndarray
    l: float
    acc: np.ndarray


@cuda.jit(fastmath=True)
def flash_row_kernel(q, k, v, row, seen, scale, s, m, alpha, p, l, acc):
    """One thread takes one query through its tiles; m, l and acc hold the state before the first tile at 0."""
    block_k = s.shape[1]
    for t in range(s.shape[0]):
        first_k = t * block_k
        keys = min(block_k, seen - first_k)  # the others keep s = -inf, p = 0
        m_tile = float32(-math.inf)
        for j in range(keys):  # s_j = q·k_j scale
            dot = float32(0)
            for c in range(q.shape[1]):
                dot += q[row, c] * k[first_k + j, c]
            s[t, j] = dot * scale
            m_tile = max(m_tile, s[t, j])
        m[t + 1], alpha[t] = rescale(m[t], m_tile)
        l[t + 1] = alpha[t] * l[t]  # what was added up against the old maximum
        for c in range(v.shape[1]):
            acc[t + 1, c] = alpha[t] * acc[t, c]
        for j in range(keys):
            p[t, j] = weight(s[t, j], m[t + 1])
            l[t + 1] += p[t, j]
            for c in range(v.shape[1]):
                acc[t + 1, c] += p[t, j] * v[first_k + j, c]


def flash_row(
    q: Any, k: Any, v: Any, *, row: int = 0, block_k: int = 16, causal: bool = False, scale: float | None = None
) -> list[FlashStep]:
    """Return what flash attention holds for one query of one head after each tile of keys.

    Parameters
    ----------
    q, k, v : array of shape (n_q, d), (n_k, d), (n_k, d_v)
        float32 or float64.
    row : int
        The query.
    block_k : int
        The keys of a tile; the last tile may have fewer.
    causal : bool
        Whether the query sees key j only if j <= row + n_k - n_q. Tiles that it does not see are walked through too,
        and change nothing: :func:`fa_numba.flash_forward` skips those that no query of a block sees.
    scale : float, optional
        What scores are multiplied by; 1 / sqrt(d) if None.

    Returns
    -------
    list of FlashStep
        One for each tile, on the host.

    Raises
    ------
    TypeError, ValueError
        As :func:`fa_numba.flash_forward`; also for more than one head, a row that q does not have, and an empty tile.
    """
    call = arrays.Call(q=q, k=k, v=v)
    posed = problem.check(call.shapes, causal, scale, call.dtype)
    if posed.leading:
        raise ValueError(f"flash_row takes one head, (length, dim); q has shape {call.shapes['q']}")
    if not 0 <= row < posed.n_q or block_k < 1:
        raise ValueError(f"row={row} must be from 0 to {posed.n_q - 1}, and block_k={block_k} at least 1")
    seen = min(posed.n_k, row + 1 + posed.n_k - posed.n_q) if causal else posed.n_k
    tiles = -(-posed.n_k // block_k)
    s = np.full((tiles, block_k), -math.inf, call.dtype)
    m = np.full(tiles + 1, -math.inf, call.dtype)
    p, alpha, l = np.zeros_like(s), np.zeros(tiles, call.dtype), np.zeros(tiles + 1, call.dtype)
    acc = np.zeros((tiles + 1, posed.d_v), call.dtype)
    if tiles:
        with call:
            inputs = (call["q"], call["k"], call["v"], row, seen, call.dtype.type(posed.scale))
            device.launch(flash_row_kernel, 1, 1, *inputs, s, m, alpha, p, l, acc, stream=call.stream)
    keys = [min(block_k, posed.n_k - t * block_k) for t in range(tiles)]
    return [FlashStep(s[t, : keys[t]], m[t + 1], alpha[t], p[t, : keys[t]], l[t + 1], acc[t + 1]) for t in range(tiles)]
