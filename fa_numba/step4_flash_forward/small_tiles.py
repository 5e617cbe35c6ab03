"""The second rung of step 4, the kernel to read first: four rows and four keys a thread, in registers."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, from_dtype

from fa_numba import device, problem
from fa_numba.factory import kernel_factory
from fa_numba.primitives import FULL_MASK
from fa_numba.step2_online_softmax import rescale, weight
from fa_numba.tiles import PAD, R, add_dots, add_products, add_visible_products, clear, load_tile, multiply

BLOCKS = (8, 16, 32, 64)  # block_q and block_k


@kernel_factory
def make_flash_forward(block_q: int, block_k: int, d: int, d_v: int, causal: bool, dtype: Any) -> Any:
    """Return the kernel for tiles of block_q queries and block_k keys; d and d_v are multiples of block_k.

    Block and tile: block_q / 4 rows by block_k / 4 columns of threads; a thread has 4 queries, 4 keys of a tile at a
    time, and d_v / (block_k / 4) columns of the output.
    """
    rows, columns = block_q // R, block_k // R
    threads = rows * columns
    width = R * d_v // block_k
    k_start = block_q * (d + PAD)
    v_start = k_start + block_k * (d + PAD)
    p_start = v_start + block_k * (d_v + PAD)

    @cuda.jit(device=True, forceinline=True)
    def row_max(value):
        """The maximum over the threads that share a row."""
        shift = columns // 2
        while shift > 0:
            value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, shift))
            shift //= 2
        return value

    @cuda.jit(device=True, forceinline=True)
    def row_sum(value):
        """The sum over the threads that share a row."""
        shift = columns // 2
        while shift > 0:
            value += cuda.shfl_xor_sync(FULL_MASK, value, shift)
            shift //= 2
        return value

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def online_softmax_tile(s, p_tile, acc, m, l, x, y, first_q, first_k, n_k, offset):
        """One step of the online softmax for the thread's four rows: m, l and acc move on, p goes to shared memory."""
        for r in range(R):
            i = first_q + y + r * rows
            m_tile = dtype(-math.inf)
            for j in range(R):
                key = first_k + x + j * columns
                if key >= n_k or (causal and key > i + offset):
                    s[r, j] = dtype(-math.inf)
                m_tile = max(m_tile, s[r, j])
            m[r], alpha = rescale(m[r], row_max(m_tile))
            l[r] *= alpha  # what was added up against the old maximum
            for c in range(width):
                acc[r, c] *= alpha
            for j in range(R):
                p = weight(s[r, j], m[r])
                l[r] += p
                p_tile[(y + r * rows) * (block_k + PAD) + x + j * columns] = p

    @cuda.jit(fastmath=True, launch_bounds=(threads, 1))
    def flash_forward_kernel(q, k, v, o, m_out, l_out, scale, group, offset):
        """One block: block_q queries of a head against all its keys (Dao 2023, algorithm 1)."""
        memory = cuda.shared.array(0, dtype)
        q_tile, k_tile, v_tile, p_tile = (
            memory[:k_start],
            memory[k_start:v_start],
            memory[v_start:p_start],
            memory[p_start:],
        )
        x, y = cuda.threadIdx.x % columns, cuda.threadIdx.x // columns
        n_q, n_k = q.shape[1], k.shape[1]
        blocks = (n_q + block_q - 1) // block_q
        b, first_q = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * block_q
        s = cuda.local.array((R, R), dtype)
        acc = cuda.local.array((R, width), dtype)
        m = cuda.local.array(R, dtype)
        l = cuda.local.array(R, dtype)
        for r in range(R):
            m[r] = dtype(-math.inf)
            l[r] = dtype(0)
        clear(acc)
        load_tile(q_tile, q, b, first_q, block_q, d, threads)
        last_k = min(n_k, first_q + block_q + offset) if causal else n_k
        for first_k in range(0, last_k, block_k):
            cuda.syncthreads()  # all are done with the tiles before
            load_tile(k_tile, k, b // group, first_k, block_k, d, threads)
            load_tile(v_tile, v, b // group, first_k, block_k, d_v, threads)
            cuda.syncthreads()
            clear(s)
            add_dots(s, q_tile, y, rows, k_tile, x, columns, d)  # S = Q K^T scale
            multiply(s, scale)
            online_softmax_tile(s, p_tile, acc, m, l, x, y, first_q, first_k, n_k, offset)
            cuda.syncthreads()  # the whole of p is there
            if causal and first_k + block_k - 1 > first_q + offset:  # O += P V
                most = first_q + offset - first_k
                add_visible_products(acc, p_tile, y, rows, v_tile, x, columns, block_k, d_v, 1, most)
            else:
                add_products(acc, p_tile, y, rows, v_tile, x, columns, block_k, d_v)
        for r in range(R):
            i = first_q + y + r * rows
            l_i = row_sum(l[r])
            inverse = dtype(1) / l_i if l_i != dtype(0) else dtype(0)  # a row that saw no key: o = 0
            if i < n_q:
                if x == 0:
                    m_out[b, i] = m[r]
                    l_out[b, i] = l_i
                for c in range(width):
                    column = c // 4 * block_k + 4 * x + c % 4
                    if column < o.shape[2]:
                        o[b, i, column] = acc[r, c] * inverse

    return flash_forward_kernel


def launch(call: Any, posed: problem.Problem, o: Any, m: Any, l: Any, block_q: Any = None, block_k: Any = None) -> None:
    """Start the kernel for the inputs of a call; ValueError for tiles that do not fit."""
    block_q, block_k = choose_blocks(posed, call.dtype, block_q, block_k, _elements)
    d, d_v = (padded(width, max(block_q, block_k)) for width in (posed.d, posed.d_v))
    kernel = make_flash_forward(block_q, block_k, d, d_v, posed.causal, from_dtype(call.dtype))
    device.warn_if_slow("flash_forward", device.ACCESSES_PER_PRODUCT * posed.products(block_q, block_k))
    device.launch(
        kernel,
        posed.heads * -(-posed.n_q // block_q),
        block_q * block_k // (R * R),
        *(posed.by_head(name, call[name]) for name in "qkv"),
        *(posed.by_head(name, array) for name, array in (("o", o), ("m", m), ("l", l))),
        call.dtype.type(posed.scale),
        posed.group,
        posed.n_k - posed.n_q,
        shared=_elements(block_q, block_k, d, d_v) * call.dtype.itemsize,
        stream=call.stream,
    )


def check_blocks(call: Any, posed: problem.Problem, block_q: Any, block_k: Any) -> None:
    """Raise ValueError for tiles that do not fit: for a problem that nothing is launched for."""
    choose_blocks(posed, call.dtype, block_q, block_k, _elements)


def _elements(block_q: int, block_k: int, d: int, d_v: int) -> int:
    """Count the elements of the tiles of q, k, v and p."""
    return (block_q + block_k) * (d + PAD) + block_k * (d_v + PAD) + block_q * (block_k + PAD)


def padded(width: int, block_k: int) -> int:
    """Return a head dim rounded up to what the threads of a row cover together, four columns each."""
    return -(-width // block_k) * block_k


def choose_blocks(
    posed: problem.Problem, dtype: np.dtype, block_q: Any, block_k: Any, elements: Callable[..., int]
) -> tuple[int, int]:
    """Return block_q and block_k: those asked for, else the largest square that fits the device and the head.

    Parameters
    ----------
    elements : callable
        Given block_q, block_k and the padded head dims, how many elements the kernel keeps in shared memory.
    """
    limit = device.device_limits().shared_per_block
    fitting = _fitting_blocks(posed.d, posed.d_v, dtype.itemsize, elements, limit)
    if not fitting:
        raise ValueError(f"head dims {posed.d} and {posed.d_v} in {dtype} need more shared memory than {limit} bytes")
    whole = all(given is None or _is_whole(given) for given in (block_q, block_k))
    asked = [pair for pair in fitting if whole and all(g in (None, n) for g, n in zip((block_q, block_k), pair))]
    if not asked:
        raise ValueError(
            f"block_q={block_q!r}, block_k={block_k!r} do not fit; (block_q, block_k) can be {list(fitting)}"
        )
    squares = [pair for pair in asked if pair[0] == pair[1] <= max(16, padded(max(posed.d, posed.d_v), BLOCKS[0]))]
    return squares[-1] if squares else asked[0]


def _is_whole(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


@functools.cache
def _fitting_blocks(
    d: int, d_v: int, itemsize: int, elements: Callable[..., int], limit: int
) -> tuple[tuple[int, int], ...]:
    """Return the (block_q, block_k) whose tiles fit in so many bytes of shared memory."""

    def fits(rows: int, columns: int) -> bool:
        widths = (padded(width, max(rows, columns)) for width in (d, d_v))
        return elements(rows, columns, *widths) * itemsize <= limit

    return tuple((rows, columns) for rows in BLOCKS for columns in BLOCKS if fits(rows, columns))
