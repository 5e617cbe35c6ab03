"""Step 2: softmax with one block a row: first in three passes over the row, then online, in two."""

import functools
import math
from typing import Any

from numba import cuda, float32

from fa_numba import arrays, device
from fa_numba.primitives import FULL_MASK, WARP, warp_max, warp_sum

MOST_THREADS = 256  # a block


@cuda.jit(device=True)
def block_max(value, scratch):
    """Return the maximum over the threads of a block, to all of them; scratch has room for one element a warp."""
    value = warp_max(value)
    if cuda.laneid == 0:
        scratch[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    m = scratch[0]
    for w in range(1, cuda.blockDim.x // WARP):
        m = max(m, scratch[w])
    cuda.syncthreads()  # all have read scratch before one of them writes it again
    return m


@cuda.jit(device=True)
def block_sum(value, scratch):
    """Return the sum over the threads of a block, to all of them; scratch has room for one element a warp."""
    value = warp_sum(value)
    if cuda.laneid == 0:
        scratch[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    l = scratch[0]
    for w in range(1, cuda.blockDim.x // WARP):
        l += scratch[w]
    cuda.syncthreads()
    return l


@cuda.jit
def block_softmax_kernel(x, y):
    """y[i] = softmax(x[i]): one block a row, in which neighbouring threads read neighbouring elements."""
    scratch = cuda.shared.array(WARP, x.dtype)
    i = cuda.blockIdx.x
    threads = cuda.blockDim.x
    m = float32(-math.inf)
    for j in range(cuda.threadIdx.x, x.shape[1], threads):  # m_i = max_j x_ij: each thread its share, then the block
        m = max(m, x[i, j])
    m = block_max(m, scratch)
    if m == float32(-math.inf):  # the row holds nothing larger, and -inf - -inf would be NaN
        m = float32(0)
    l = float32(0)
    for j in range(cuda.threadIdx.x, x.shape[1], threads):  # l_i = sum_j exp(x_ij - m_i)
        l += math.exp(x[i, j] - m)
    l = block_sum(l, scratch)
    if l == float32(0):  # a row of -inf: its softmax is 0, not 0/0
        l = float32(1)
    for j in range(cuda.threadIdx.x, x.shape[1], threads):  # y_ij = exp(x_ij - m_i) / l_i
        y[i, j] = math.exp(x[i, j] - m) / l


@cuda.jit(device=True)
def worth(x, m):
    """Return exp(x - m): what a term x is worth against the maximum m. A term of -inf is worth 0, whatever m."""
    return float32(0) if x == float32(-math.inf) else math.exp(x - m)


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    """Merge the (m, l) of two parts of a row: l = l_a exp(m_a - m) + l_b exp(m_b - m), with m = max(m_a, m_b)."""
    m = max(m_a, m_b)
    return m, l_a * worth(m_a, m) + l_b * worth(m_b, m)


@cuda.jit(device=True)
def warp_merge(m, l):
    """Merge the (m, l) of the 32 lanes of a warp, by a butterfly of shuffles."""
    for shift in (16, 8, 4, 2, 1):
        m, l = merge(m, l, cuda.shfl_xor_sync(FULL_MASK, m, shift), cuda.shfl_xor_sync(FULL_MASK, l, shift))
    return m, l


@cuda.jit
def online_softmax_kernel(x, y):
    """y[i] = softmax(x[i]): one block a row, m and l in one pass (Milakov & Gimelshein 2018, algorithm 3)."""
    warp_m = cuda.shared.array(WARP, x.dtype)
    warp_l = cuda.shared.array(WARP, x.dtype)
    i = cuda.blockIdx.x
    threads = cuda.blockDim.x
    m = float32(-math.inf)
    l = float32(0)
    # A new element is a part of the row of its own, with m = x_ij and l = 1.
    for j in range(cuda.threadIdx.x, x.shape[1], threads):
        m, l = merge(m, l, x[i, j], float32(1))
    m, l = warp_merge(m, l)
    if cuda.laneid == 0:
        warp_m[cuda.threadIdx.x // WARP] = m
        warp_l[cuda.threadIdx.x // WARP] = l
    cuda.syncthreads()
    m, l = warp_m[0], warp_l[0]
    for w in range(1, threads // WARP):
        m, l = merge(m, l, warp_m[w], warp_l[w])
    if l == float32(0):  # a row of -inf
        l = float32(1)
    for j in range(cuda.threadIdx.x, x.shape[1], threads):  # y_ij = exp(x_ij - m_i) / l_i
        y[i, j] = worth(x[i, j], m) / l


def block_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, computed by one block a row in three passes.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.
    """
    return arrays.over_rows(x, functools.partial(_launch, "block_softmax", block_softmax_kernel, 4))


def online_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, computed by one block a row in two passes.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.

    Notes
    -----
    Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
    """
    return arrays.over_rows(x, functools.partial(_launch, "online_softmax", online_softmax_kernel, 3))


def _launch(name: str, kernel: Any, passes: int, x: Any, y: Any, stream: Any) -> None:
    rows, n = x.shape
    device.warn_if_slow(name, passes * rows * n)
    threads = min(MOST_THREADS, -(-n // WARP) * WARP)
    device.launch(kernel, rows, threads, x, y, stream=stream)
