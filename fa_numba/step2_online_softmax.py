"""Step 2: softmax with one block a row: first in three passes over the row, then online, in two."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, from_dtype

from fa_numba import arrays, device
from fa_numba.primitives import WARP, load, store, warp_max, warp_sum

THREADS = (32, 64, 128, 256)  # a block
SHARE = 16  # elements of a row that a thread should have, if the row is long enough


@cuda.jit(device=True, forceinline=True)
def block_max(value, scratch, threads):
    """Return the maximum over the threads of a block, to all of them; scratch has room for one element a warp."""
    value = warp_max(value)
    if cuda.laneid == 0:
        scratch[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    m = scratch[0]
    for w in range(1, threads // WARP):
        m = max(m, scratch[w])
    cuda.syncthreads()  # all have read scratch before one of them writes it again
    return m


@cuda.jit(device=True, forceinline=True)
def block_sum(value, scratch, threads):
    """Return the sum over the threads of a block, to all of them; scratch has room for one element a warp."""
    value = warp_sum(value)
    if cuda.laneid == 0:
        scratch[cuda.threadIdx.x // WARP] = value
    cuda.syncthreads()
    l = scratch[0]
    for w in range(1, threads // WARP):
        l += scratch[w]
    cuda.syncthreads()
    return l


@cuda.jit(device=True, forceinline=True)
def subtrahend(m):
    """Return what exp subtracts: m, or 0 as long as m is -inf, for -inf - -inf would be NaN, and exp(-inf - 0) is 0."""
    return float32(0) if m == float32(-math.inf) else m


@cuda.jit(device=True, forceinline=True, fastmath=True)
def weight(x, m):
    """Return exp(x - m): what a term x is worth against the maximum m; 0 for a term of -inf, whatever m."""
    return math.exp(x - subtrahend(m))


@cuda.jit(device=True, forceinline=True, fastmath=True)
def rescale(m, m_part):
    """Return the maximum of m and m_part, and alpha, which repairs what was added up against m: exp(m - maximum)."""
    m_new = max(m, m_part)
    return m_new, weight(m, m_new)


@functools.cache
def make_block_softmax(threads: int, width: int, dtype: Any) -> Any:
    """Return the kernel for blocks of so many threads, each of which reads one element at a time or four (width)."""

    @cuda.jit(fastmath=True)
    def block_softmax_kernel(x, y):
        """y[i] = softmax(x[i]): one block a row, in which neighbouring threads read neighbouring elements."""
        scratch = cuda.shared.array(WARP, dtype)
        values = cuda.local.array(width, dtype)
        i, n = cuda.blockIdx.x, x.shape[1]
        first = width * cuda.threadIdx.x
        m = dtype(-math.inf)
        for j in range(first, n, width * threads):  # m_i = max_j x_ij: each thread its share, then the block
            load(values, x, (i, j))
            for e in range(width):
                m = max(m, values[e])
        m = subtrahend(block_max(m, scratch, threads))
        l = dtype(0)
        for j in range(first, n, width * threads):  # l_i = sum_j exp(x_ij - m_i)
            load(values, x, (i, j))
            for e in range(width):
                l += math.exp(values[e] - m)
        l = block_sum(l, scratch, threads)
        inverse = dtype(1) / l if l != dtype(0) else dtype(0)  # a row of -inf: its softmax is 0, not 0/0
        for j in range(first, n, width * threads):  # y_ij = exp(x_ij - m_i) / l_i
            load(values, x, (i, j))
            for e in range(width):
                values[e] = math.exp(values[e] - m) * inverse
            store(y, (i, j), values)

    return block_softmax_kernel


@cuda.jit(device=True, forceinline=True, fastmath=True)
def merge(m_a, l_a, m_b, l_b):
    """Merge the (m, l) of two parts of a row: l = l_a exp(m_a - m) + l_b exp(m_b - m), with m = max(m_a, m_b)."""
    m = max(m_a, m_b)
    return m, l_a * weight(m_a, m) + l_b * weight(m_b, m)


@cuda.jit(device=True, forceinline=True, fastmath=True)
def warp_merge(m, l):
    """Merge the (m, l) of the 32 lanes of a warp: first all agree on m, then what each one's l is worth is added up."""
    m_warp = warp_max(m)
    return m_warp, warp_sum(l * weight(m, m_warp))


@functools.cache
def make_online_softmax(threads: int, width: int, dtype: Any) -> Any:
    """Return the kernel for blocks of so many threads, each of which reads one element at a time or four (width)."""

    @cuda.jit(fastmath=True)
    def online_softmax_kernel(x, y):
        """y[i] = softmax(x[i]): one block a row, m and l in one pass (Milakov & Gimelshein 2018, algorithm 3)."""
        warp_m = cuda.shared.array(WARP, dtype)
        warp_l = cuda.shared.array(WARP, dtype)
        values = cuda.local.array(width, dtype)
        i, n = cuda.blockIdx.x, x.shape[1]
        first = width * cuda.threadIdx.x
        m = dtype(-math.inf)
        l = dtype(0)
        for j in range(first, n, width * threads):
            load(values, x, (i, j))
            m_part = values[0]
            for e in range(1, width):
                m_part = max(m_part, values[e])
            m, alpha = rescale(m, m_part)
            l *= alpha  # what was added up against the old maximum
            for e in range(width):
                l += weight(values[e], m)
        m, l = warp_merge(m, l)
        if cuda.laneid == 0:
            warp_m[cuda.threadIdx.x // WARP] = m
            warp_l[cuda.threadIdx.x // WARP] = l
        cuda.syncthreads()
        m, l = warp_m[0], warp_l[0]
        for w in range(1, threads // WARP):
            m, l = merge(m, l, warp_m[w], warp_l[w])
        inverse = dtype(1) / l if l != dtype(0) else dtype(0)  # a row of -inf
        for j in range(first, n, width * threads):  # y_ij = exp(x_ij - m_i) / l_i
            load(values, x, (i, j))
            for e in range(width):
                values[e] = weight(values[e], m) * inverse
            store(y, (i, j), values)

    return online_softmax_kernel


def block_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, computed by one block a row in three passes.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.
    """
    return arrays.over_rows(x, functools.partial(_launch, "block_softmax", make_block_softmax, 4))


def online_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, computed by one block a row in two passes.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.

    Notes
    -----
    Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
    """
    return arrays.over_rows(x, functools.partial(_launch, "online_softmax", make_online_softmax, 3))


def _launch(name: str, make_kernel: Callable[..., Any], passes: int, x: Any, y: Any, stream: Any) -> None:
    rows, n = x.shape
    device.warn_if_slow(name, passes * rows * n)
    threads = next((threads for threads in THREADS if threads * SHARE >= n), THREADS[-1])
    width = 4 if n % 4 == 0 and x.dtype == np.float32 else 1  # four: if every row starts at a multiple of 16 bytes
    device.launch(make_kernel(threads, width, from_dtype(x.dtype)), rows, threads, x, y, stream=stream)


RUNGS = {"a block a row, three passes": block_softmax, "online, two passes": online_softmax}
