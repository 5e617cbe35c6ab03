"""Step 2: softmax with one block a row: first in three passes over the row, then online, in two, then in one."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, from_dtype, int32

from fa_numba import arrays, device
from fa_numba.factory import kernel_factory
from fa_numba.primitives import WARP, load, store, warp_max, warp_sum

THREADS = (32, 64, 128, 256)  # a block
SHARE = 16  # elements of a row that a thread should have, if the row is long enough
SHARE_IN_REGISTERS = 8  # the same where the row stays in registers

# A row in registers, of which a thread has 64 if 1024 threads share a multiprocessor's 65,536.
MOST_THREADS = 1024
MOST_GROUPS = {4: 8, 1: 16}  # that a thread may keep, of four elements and of one; longer rows take more threads first
BLOCK_THREADS = 128  # a block of rows that have a warp each


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


@kernel_factory
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


@kernel_factory
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


@kernel_factory
def make_register_softmax(threads: int, rows: int, groups: int, width: int, dtype: Any) -> Any:
    """Return the kernel for so many threads a row and rows a block; each thread keeps groups of one element or four."""

    @cuda.jit(fastmath=True, launch_bounds=(threads * rows, MOST_THREADS // (threads * rows)))
    def register_softmax_kernel(x, y):
        """y[i] = softmax(x[i]), and x is read once: each thread keeps its share of the row in registers."""
        warp_m = cuda.shared.array(WARP, dtype)
        warp_l = cuda.shared.array(WARP, dtype)
        e = cuda.local.array((groups, width), dtype)
        i = cuda.blockIdx.x * rows + cuda.threadIdx.y
        n = x.shape[1] if i < x.shape[0] else 0  # a row after the last has no elements
        first = width * cuda.threadIdx.x
        left = int32(n - first)  # a group that starts before so many elements more is there
        for g in range(groups):  # all loads before anything waits for one
            if g * width * threads < left:
                load(e[g], x, (i, first + g * width * threads))
            else:
                for c in range(width):
                    e[g, c] = dtype(-math.inf)  # is worth 0
        m = dtype(-math.inf)
        for g in range(groups):  # m = max_j x_ij, of the warp's part of the row
            for c in range(width):
                m = max(m, e[g, c])
        m = warp_max(m)
        l = dtype(0)
        for g in range(groups):  # l = sum_j exp(x_ij - m), and its terms are kept
            for c in range(width):
                e[g, c] = weight(e[g, c], m)
                l += e[g, c]
        l = warp_sum(l)
        m_row = m
        if threads > WARP:  # the parts of the warps, one a lane, are merged as those of the lanes were
            if cuda.laneid == 0:
                warp_m[cuda.threadIdx.x // WARP] = m
                warp_l[cuda.threadIdx.x // WARP] = l
            cuda.syncthreads()
            lane = cuda.laneid
            m_part, l_part = dtype(-math.inf), dtype(0)
            if lane < threads // WARP:
                m_part, l_part = warp_m[lane], warp_l[lane]
            m_row, l = warp_merge(m_part, l_part)
        # y_ij = exp(x_ij - m) exp(m - m_i) / l_i; a row of -inf gives 0
        factor = weight(m, m_row) / l if l != dtype(0) else dtype(0)
        for g in range(groups):
            for c in range(width):
                e[g, c] *= factor
            if g * width * threads < left:
                store(y, (i, first + g * width * threads), e[g])

    return register_softmax_kernel


def block_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, with the row in registers, or in three passes if it is too long.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.
    """
    return arrays.over_rows(x, functools.partial(_start_fastest, "block_softmax", _start_three_passes))


def online_softmax(x: Any) -> Any:
    """Return the softmax of ``x`` over its last axis, with the row in registers, or in two passes if it is too long.

    Arguments, results and errors are those of :func:`fa_numba.naive_softmax`.

    Notes
    -----
    Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
    """
    return arrays.over_rows(x, functools.partial(_start_fastest, "online_softmax", _start_two_passes))


def _start_fastest(name: str, start_long: Callable[..., None], x: Any, y: Any, stream: Any) -> None:
    start = _start_in_registers if x.shape[1] <= _widest(_width(x)) else start_long
    start(name, x, y, stream)


def _start_three_passes(name: str, x: Any, y: Any, stream: Any) -> None:
    _launch_passes(name, make_block_softmax, 4, x, y, stream)


def _start_two_passes(name: str, x: Any, y: Any, stream: Any) -> None:
    _launch_passes(name, make_online_softmax, 3, x, y, stream)


def _launch_passes(name: str, make_kernel: Callable[..., Any], accesses: int, x: Any, y: Any, stream: Any) -> None:
    rows, n = x.shape
    device.warn_if_slow(name, accesses * rows * n)
    threads = next((threads for threads in THREADS if threads * SHARE >= n), THREADS[-1])
    kernel = make_kernel(threads, _width(x), from_dtype(x.dtype))
    device.launch(kernel, rows, threads, x, y, stream=stream)


def _start_in_registers(name: str, x: Any, y: Any, stream: Any) -> None:
    rows, n = x.shape
    width = _width(x)
    if n > _widest(width):
        raise ValueError(
            f"a row of {n} {x.dtype} elements does not fit in the registers of a block; up to {_widest(1)} do, "
            f"and up to {_widest(4)} of float32 if their number is a multiple of 4"
        )
    device.warn_if_slow(name, 2 * rows * n)
    threads, groups = _register_tile(n, width)
    rows_a_block = BLOCK_THREADS // WARP if threads == WARP else 1  # with one warp a row, no barrier binds the rows
    kernel = make_register_softmax(threads, rows_a_block, groups, width, from_dtype(x.dtype))
    device.launch(kernel, -(-rows // rows_a_block), (threads, rows_a_block), x, y, stream=stream)


def _register_tile(n: int, width: int) -> tuple[int, int]:
    """Return the threads a row and the groups a thread: powers of 2, so that few kernels do for all n."""
    has_one_warp = n <= WARP * width * MOST_GROUPS[width]
    threads = WARP if has_one_warp else min(MOST_THREADS, _power_of_2(n, SHARE_IN_REGISTERS))
    return threads, _power_of_2(n, threads * width)


def _widest(width: int) -> int:
    """Return the length of the longest row that the threads of a block keep in registers."""
    return MOST_THREADS * width * MOST_GROUPS[width]


def _power_of_2(n: int, unit: int) -> int:
    """Return the lowest power of 2 of which so many units hold n."""
    return 1 << (-(-n // unit) - 1).bit_length()


def _width(x: Any) -> int:
    """Return how many elements a thread reads at once: four, if every row starts at a multiple of 16 bytes."""
    return 4 if x.shape[1] % 4 == 0 and x.dtype == np.float32 else 1


def _rung(start: Callable[..., None], x: Any) -> Any:
    return arrays.over_rows(x, functools.partial(start, "softmax"))


# The ways to compute it, each at whatever width it takes, for measurements side by side.
RUNGS: dict[str, Callable[[Any], Any]] = {
    "three passes": functools.partial(_rung, _start_three_passes),
    "two passes": functools.partial(_rung, _start_two_passes),
    "row in registers": functools.partial(_rung, _start_in_registers),
}
