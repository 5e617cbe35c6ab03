"""Step 3: standard attention, forward and backward, with the matrices of scores in memory: the baseline."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, from_dtype, int32

from fa_numba import arrays, device, problem
from fa_numba.factory import kernel_factory
from fa_numba.primitives import WARP, load, load4, part, store, store4
from fa_numba.step2_online_softmax import block_max, block_sum, subtrahend
from fa_numba.tiles import PAD, R, add_dots, clear

TILES = (16, 64)  # rows and columns of a product that a block computes: for small matrices, and for others
DEPTH = 16  # how much of the sum a block has in shared memory at a time
WIDE = 8  # rows, and columns, of the register tile of the kernel for large matrices
WIDE_TILE = (128, 64)  # rows and columns of a product that a block of it computes
WIDE_DEPTH = 8  # how much of the sum that kernel has in shared memory at a time: twice, of which one half is read
EVERYTHING = 2**40  # an offset at which a mask hides nothing
ROW_THREADS = 128  # a block of the kernels that own a row each


@kernel_factory
def make_matmul(transpose_a: bool, transpose_b: bool, triangle: int, tile: int, dtype: Any) -> Any:
    """Return the kernel of c = factor A B, for matrices of every head.

    A and B are a and b, or their transposes. ``triangle`` says which terms a causal mask leaves in the sum of row i:
    all (0), those k <= i + offset (1: a row of A is a query's row of p or ds), or k >= i - offset (-1: the transpose).
    """
    rows = tile // R
    threads = rows * rows
    elements = tile * (DEPTH + PAD)

    @cuda.jit(device=True, forceinline=True)
    def load(to, x, h, row, column, by_column):
        """to[r, c] = X[row + r, column + c], X being x or its transpose, and 0 past the ends."""
        for i in range(cuda.threadIdx.x, tile * DEPTH, threads):
            r, c = (i % tile, i // tile) if by_column else (i // DEPTH, i % DEPTH)
            j, k = (column + c, row + r) if by_column else (row + r, column + c)
            inside = j < x.shape[1] and k < x.shape[2]
            to[r * (DEPTH + PAD) + c] = x[h, j, k] if inside else dtype(0)

    @cuda.jit(launch_bounds=threads)
    def matmul_kernel(a, b, c, factor, terms, share_a, share_b, offset):
        """c[h] = factor sum_g A[h_a] B[h_b]: a block computes a tile of c, a thread four by four numbers of it.

        The sum runs over the ``terms`` query heads g that share a key head (one, if c belongs to a query head); share_a
        and share_b are 1, or the number of query heads that share a matrix.
        """
        a_tile = cuda.shared.array(elements, dtype, alignment=16)
        b_tile = cuda.shared.array(elements, dtype, alignment=16)
        x, y = cuda.threadIdx.x % rows, cuda.threadIdx.x // rows
        down = (c.shape[1] + tile - 1) // tile
        across = (c.shape[2] + tile - 1) // tile
        h = cuda.blockIdx.x // (down * across)
        row, column = cuda.blockIdx.x // across % down * tile, cuda.blockIdx.x % across * tile
        depth = a.shape[1] if transpose_a else a.shape[2]
        s = cuda.local.array((R, R), dtype)
        clear(s)
        for term in range(h * terms, (h + 1) * terms):
            for k in range(0, depth, DEPTH):
                load(a_tile, a, term // share_a, row, k, transpose_a)
                load(b_tile, b, term // share_b, column, k, not transpose_b)
                cuda.syncthreads()
                if triangle == 0:
                    add_dots(s, a_tile, y, rows, b_tile, x, rows, DEPTH)
                else:
                    add_visible_dots(s, a_tile, b_tile, x, y, triangle * (row - k) + offset)
                cuda.syncthreads()  # all have read the tiles before they are overwritten
        for r in range(R):
            for j in range(R):
                if row + y + r * rows < c.shape[1] and column + x + j * rows < c.shape[2]:
                    c[h, row + y + r * rows, column + x + j * rows] = s[r, j] * factor

    @cuda.jit(device=True, forceinline=True)
    def add_visible_dots(s, a_tile, b_tile, x, y, most):
        """As add_dots, over the terms that the mask leaves. What it hides may be NaN, and 0 times NaN is NaN."""
        for k in range(DEPTH):
            for r in range(R):
                i = y + r * rows
                if triangle * (k - i) <= most:
                    for j in range(R):
                        s[r, j] += a_tile[i * (DEPTH + PAD) + k] * b_tile[(x + j * rows) * (DEPTH + PAD) + k]

    return matmul_kernel


@kernel_factory
def make_wide_matmul(
    transpose_a: bool, transpose_b: bool, triangle: int, rows: int, columns: int, aligned: bool
) -> Any:
    """Return the kernel of c = factor A B in float32 for large matrices: tiles of c of rows by columns elements.

    It computes what the kernel of :func:`make_matmul` does; where nothing is masked, ``triangle`` is 1 or -1 and the
    offset EVERYTHING. ``aligned`` says that the rows of a, b and c are multiples of four elements long.
    """
    xs, ys = columns // WIDE, rows // WIDE  # the grid of threads
    threads = xs * ys
    resident = max(1, min(3, 512 // threads) if aligned else 256 // threads)  # blocks on a multiprocessor
    strip = min(xs, 8)  # a warp is 8 by 4 threads: it reads 8 and 4 different vectors of a row of the tiles
    a_elements, b_elements = WIDE_DEPTH * (rows + PAD), WIDE_DEPTH * (columns + PAD)
    a_both, b_both = 2 * a_elements, 2 * b_elements
    a_share, b_share = rows * WIDE_DEPTH // (4 * threads), columns * WIDE_DEPTH // (4 * threads)

    @cuda.jit(device=True, forceinline=True)
    def fetch(fours, x, h, row, k, length, along):
        """fours = this thread's share of X[row : row + length, k : k + WIDE_DEPTH], X being x or its transpose.

        Four neighbours in memory each, and 0 past the ends. ``along`` says that memory runs along the sum.
        """
        j, i, height, lanes = (row, k, length, 2) if along else (k, row, WIDE_DEPTH, length // 4)
        down = threads // lanes  # rows of memory at a time
        j, i = j + cuda.threadIdx.x // lanes, i + 4 * (cuda.threadIdx.x % lanes)
        at = (h * x.shape[1] + j) * x.shape[2] + i
        left_j, left_i = int32(x.shape[1] - j), int32(x.shape[2] - i)
        for n in range(fours.shape[0]):
            y, z = n * down % height, n * down // height * 4 * lanes
            if aligned:
                for e in range(4):
                    fours[n, e] = float32(0)
                if y < left_j and z < left_i:
                    four = load4(x, at + y * x.shape[2] + z)
                    for e in range(4):
                        fours[n, e] = four[e]
            else:
                for e in range(4):
                    inside = y < left_j and z + e < left_i
                    fours[n, e] = x[h, j + y, i + z + e] if inside else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def put(tile, start, fours, length, along):
        """tile[k, r] = X[row + r, k] for what the thread has fetched: in shared memory the sum runs down the rows."""
        lanes, height = (2, length) if along else (length // 4, WIDE_DEPTH)
        down = threads // lanes
        j, i = cuda.threadIdx.x // lanes, 4 * (cuda.threadIdx.x % lanes)
        for n in range(fours.shape[0]):
            y, z = j + n * down % height, i + n * down // height * 4 * lanes
            if along:
                to = part(tile, start + z * (length + PAD) + y, 3 * (length + PAD) + 1)
                for e in range(4):
                    to[e * (length + PAD)] = fours[n, e]
            else:
                store4(tile, start + y * (length + PAD) + z, (fours[n, 0], fours[n, 1], fours[n, 2], fours[n, 3]))

    @cuda.jit(device=True, forceinline=True)
    def add_outer(s, a_tile, a_at, b_tile, b_at, k):
        """s[r, j] += A[row r, k] B[k, column j]: 64 multiplications for four vectors read."""
        u = cuda.local.array(WIDE, float32)
        for g in range(WIDE // 4):
            four = load4(a_tile, a_at + k * (rows + PAD) + 4 * ys * g)
            for e in range(4):
                u[4 * g + e] = four[e]
        for g in range(WIDE // 4):
            four = load4(b_tile, b_at + k * (columns + PAD) + 4 * xs * g)
            for e in range(4):
                for r in range(WIDE):
                    s[r, 4 * g + e] += u[r] * four[e]

    @cuda.jit(device=True, forceinline=True)
    def add_visible_outer(s, a_tile, a_at, b_tile, b_at, k, most):
        """As add_outer, but a row takes only a term that it sees. What the mask hides may be NaN: select."""
        u = cuda.local.array(WIDE, float32)
        for g in range(WIDE // 4):
            four = load4(a_tile, a_at + k * (rows + PAD) + 4 * ys * g)
            for e in range(4):
                u[4 * g + e] = four[e]
        for g in range(WIDE // 4):
            four = load4(b_tile, b_at + k * (columns + PAD) + 4 * xs * g)
            for r in range(WIDE):
                if triangle * (k - 4 * ys * (r // 4) - r % 4) <= most:
                    for e in range(4):
                        s[r, 4 * g + e] += u[r] * four[e]

    @cuda.jit(device=True, forceinline=True)
    def add_step(s, a_tile, a_at, b_tile, b_at):
        """Add up all terms of a step, written out: the compiler does not unroll so large a loop by itself."""
        for k in range(0, WIDE_DEPTH, 8):
            add_outer(s, a_tile, a_at, b_tile, b_at, k)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 1)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 2)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 3)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 4)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 5)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 6)
            add_outer(s, a_tile, a_at, b_tile, b_at, k + 7)

    @cuda.jit(device=True, forceinline=True)
    def write(c, h, s, row, column, factor):
        """c[h, row + 4 ys g + e, column + 4 xs j + f] = factor s[4 g + e, 4 j + f], where c has such elements."""
        for r in range(WIDE):
            i = row + 4 * ys * (r // 4) + r % 4
            for g in range(0, WIDE, 4):
                j = column + xs * g
                if aligned:
                    if i < c.shape[1] and j < c.shape[2]:
                        four = s[r, g] * factor, s[r, g + 1] * factor, s[r, g + 2] * factor, s[r, g + 3] * factor
                        store4(c, (h * c.shape[1] + i) * c.shape[2] + j, four)
                else:
                    for e in range(4):
                        if i < c.shape[1] and j + e < c.shape[2]:
                            c[h, i, j + e] = s[r, g + e] * factor

    @cuda.jit(launch_bounds=(threads, resident))
    def wide_matmul_kernel(a, b, c, factor, terms, share_a, share_b, offset, offset_c):
        """c[h] = factor sum_g A[h_a] B[h_b]: a block computes a tile of c, a thread eight by eight numbers of it.

        While the threads multiply one step's part of A and B, the next step's is on its way to their registers; it goes
        to the other half of shared memory, so that one barrier a step is enough. Tiles of c at which row i sees no
        column j <= i + offset_c are left as they are.
        """
        a_tile = cuda.shared.array(a_both, float32, alignment=16)
        b_tile = cuda.shared.array(b_both, float32, alignment=16)
        t = cuda.threadIdx.x
        x = t // 2 % strip + t // (strip * ys) * strip
        y = t % 2 + t // (2 * strip) * 2 % ys
        down, across = (c.shape[1] + rows - 1) // rows, (c.shape[2] + columns - 1) // columns
        h = cuda.blockIdx.x // (down * across)
        row, column = cuda.blockIdx.x // across % down * rows, cuda.blockIdx.x % across * columns
        depth = a.shape[1] if transpose_a else a.shape[2]
        if triangle == 1:
            row = (down - 1) * rows - row  # the blocks with most to do start first
        # the terms that the mask leaves
        first = max(0, row - offset) // WIDE_DEPTH * WIDE_DEPTH if triangle == -1 else 0
        last = min(depth, row + rows + offset) if triangle == 1 else depth
        s = cuda.local.array((WIDE, WIDE), float32)
        a_fours, b_fours = cuda.local.array((a_share, 4), float32), cuda.local.array((b_share, 4), float32)
        clear(s)
        half = 0
        if column < row + rows + offset_c:  # of c, someone sees this tile
            for term in range(h * terms, (h + 1) * terms):
                h_a, h_b = term // share_a, term // share_b
                fetch(a_fours, a, h_a, row, first, rows, not transpose_a)
                fetch(b_fours, b, h_b, column, first, columns, transpose_b)
                for k in range(int32(first), int32(last), int32(WIDE_DEPTH)):
                    a_at, b_at = half * a_elements, half * b_elements
                    put(a_tile, a_at, a_fours, rows, not transpose_a)
                    put(b_tile, b_at, b_fours, columns, transpose_b)
                    cuda.syncthreads()
                    if k + WIDE_DEPTH < last:
                        fetch(a_fours, a, h_a, row, k + WIDE_DEPTH, rows, not transpose_a)
                        fetch(b_fours, b, h_b, column, k + WIDE_DEPTH, columns, transpose_b)
                    a_at, b_at, most = a_at + 4 * y, b_at + 4 * x, triangle * (row - k) + offset
                    if (WIDE_DEPTH if triangle == 1 else rows) <= most + 1:
                        add_step(s, a_tile, a_at, b_tile, b_at)
                    else:
                        for e in range(WIDE_DEPTH):
                            add_visible_outer(s, a_tile, a_at, b_tile, b_at, e, most + triangle * 4 * y)
                    half = 1 - half
            write(c, h, s, row + 4 * y, column + 4 * x, factor)

    return wide_matmul_kernel


@cuda.jit(device=True, forceinline=True)
def read_four(four, x, h, i, j):
    """four[e] = x[h, i, j + e], as far as the row goes: in one instruction where every row starts at 16 bytes."""
    if x.shape[2] % 4 == 0:
        load(four, x, (h, i, j))
    else:
        for e in range(4):
            if j + e < x.shape[2]:
                four[e] = x[h, i, j + e]


@cuda.jit(device=True, forceinline=True)
def write_four(x, h, i, j, four):
    """x[h, i, j + e] = four[e], likewise."""
    if x.shape[2] % 4 == 0:
        store(x, (h, i, j), four)
    else:
        for e in range(4):
            if j + e < x.shape[2]:
                x[h, i, j + e] = four[e]


@cuda.jit(fastmath=True)
def row_softmax_kernel(s, p, causal, offset):
    """p[h, i] = softmax(s[h, i]) over the keys that query i sees, 0 for the others: one block a row."""
    scratch = cuda.shared.array(WARP, s.dtype)
    four = cuda.local.array(4, s.dtype)
    h, i = cuda.blockIdx.x // s.shape[1], cuda.blockIdx.x % s.shape[1]
    first = 4 * cuda.threadIdx.x
    seen = min(s.shape[2], max(0, i + 1 + offset)) if causal else s.shape[2]
    m = float32(-math.inf)
    for j in range(first, seen, 4 * ROW_THREADS):  # m_i = max_j s_ij
        read_four(four, s, h, i, j)
        for e in range(4):
            if j + e < seen:
                m = max(m, four[e])
    m = subtrahend(block_max(m, scratch, ROW_THREADS))
    l = float32(0)
    for j in range(first, seen, 4 * ROW_THREADS):  # l_i = sum_j exp(s_ij - m_i)
        read_four(four, s, h, i, j)
        for e in range(4):
            if j + e < seen:
                l += math.exp(four[e] - m)
    l = block_sum(l, scratch, ROW_THREADS)
    inverse = float32(1) / l if l != float32(0) else float32(0)  # nothing to see: p = 0
    for j in range(first, s.shape[2], 4 * ROW_THREADS):  # p_ij = exp(s_ij - m_i) / l_i
        if j < seen:
            read_four(four, s, h, i, j)
        for e in range(4):
            four[e] = math.exp(four[e] - m) * inverse if j + e < seen else float32(0)
        write_four(p, h, i, j, four)


@cuda.jit(fastmath=True)
def row_gradient_kernel(p, dp, ds, causal, offset):
    """ds[h, i] = p (dp - delta) over the keys that query i sees, with delta = sum_j p_ij dp_ij: one block a row."""
    scratch = cuda.shared.array(WARP, p.dtype)
    p_four, dp_four = cuda.local.array(4, p.dtype), cuda.local.array(4, p.dtype)
    h, i = cuda.blockIdx.x // p.shape[1], cuda.blockIdx.x % p.shape[1]
    first = 4 * cuda.threadIdx.x
    seen = min(p.shape[2], max(0, i + 1 + offset)) if causal else p.shape[2]
    delta = float32(0)
    for j in range(first, seen, 4 * ROW_THREADS):
        read_four(p_four, p, h, i, j)
        read_four(dp_four, dp, h, i, j)
        for e in range(4):
            if j + e < seen:
                delta += p_four[e] * dp_four[e]
    delta = block_sum(delta, scratch, ROW_THREADS)
    for j in range(first, p.shape[2], 4 * ROW_THREADS):
        if j < seen:
            read_four(p_four, p, h, i, j)
            read_four(dp_four, dp, h, i, j)
        for e in range(4):
            p_four[e] = p_four[e] * (dp_four[e] - delta) if j + e < seen else float32(0)
        write_four(ds, h, i, j, p_four)


class StandardOutput(NamedTuple):
    """The output of standard attention, and the probabilities that its backward needs."""

    o: Any
    p: Any


def standard_attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None) -> StandardOutput:
    """Return attention's output p v and its probabilities p = softmax(q k^T scale), which it keeps in memory.

    Parameters
    ----------
    q, k, v, causal, scale
        As for :func:`fa_numba.flash_forward`.

    Returns
    -------
    StandardOutput
        o of shape (..., n_q, d_v) and p of shape (..., n_q, n_k).

    Raises
    ------
    TypeError, ValueError
        For arrays, shapes and scales that do not fit.

    Notes
    -----
    Dao et al., "FlashAttention" (2022), algorithm 0.
    """
    return _attend(q, k, v, causal=causal, scale=scale)


def _attend(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None, wide: bool | None = None
) -> StandardOutput:
    call = arrays.Call(q=q, k=k, v=v)
    posed = problem.check(call.shapes, causal, scale, call.dtype)
    device.warn_if_slow("standard_attention", device.ACCESSES_PER_PRODUCT * posed.products(TILES[0], TILES[0]))
    with call:
        o = call.empty("o", posed.shape_o)
        s = call.empty("s", posed.shape_p)
        p = call.empty("p", posed.shape_p)
        heads = {name: posed.by_head(name, array) for name, array in (*call.items(), ("o", o), ("s", s), ("p", p))}
        # S = Q K^T scale
        _multiply(call, posed, heads["q"], heads["k"], heads["s"], transpose_b=True, factor=posed.scale, wide=wide)
        # P = softmax(S)
        _start_rows(call, posed, row_softmax_kernel, heads["s"], heads["p"])
        # O = P V
        _multiply(call, posed, heads["p"], heads["v"], heads["o"], triangle=1, wide=wide)
        return StandardOutput(call.result(o), call.result(p))


def standard_attention_backward(
    do: Any, q: Any, k: Any, v: Any, p: Any, *, causal: bool = False, scale: Any = None
) -> tuple[Any, Any, Any]:
    """Return the gradients (dq, dk, dv) of attention, from the probabilities that the forward kept.

    Parameters
    ----------
    do : array of shape (..., n_q, d_v)
        The gradient of the output.
    q, k, v, causal, scale
        As given to :func:`fa_numba.standard_attention`.
    p : array of shape (..., n_q, n_k)
        What it returned.

    Returns
    -------
    tuple of array
        dq, dk and dv, of the shapes of q, k and v. Where query heads share a key head, its gradients are their sum.

    Raises
    ------
    TypeError, ValueError
        For arrays, shapes and scales that do not fit.

    Notes
    -----
    Dao et al., "FlashAttention" (2022), algorithm 3.
    """
    call = arrays.Call(do=do, q=q, k=k, v=v, p=p)
    posed = problem.check(call.shapes, causal, scale, call.dtype)
    problem.check_like("do", call.shapes["do"], posed.shape_o)
    problem.check_like("p", call.shapes["p"], posed.shape_p)
    accesses = device.ACCESSES_PER_PRODUCT * posed.products(TILES[0], TILES[0])
    device.warn_if_slow("standard_attention_backward", accesses * 2)  # 4 products, where the forward has 2
    with call:
        dq, dk, dv = (call.empty(f"d{name}", call.shapes[name]) for name in "qkv")
        dp, ds = call.empty("dp", posed.shape_p), call.empty("ds", posed.shape_p)
        made = (("dq", dq), ("dk", dk), ("dv", dv), ("dp", dp), ("ds", ds))
        heads = {name: posed.by_head(name, array) for name, array in (*call.items(), *made)}
        # dV = P^T dO
        _multiply(call, posed, heads["p"], heads["do"], heads["dv"], transpose_a=True, triangle=-1)
        # dP = dO V^T
        _multiply(call, posed, heads["do"], heads["v"], heads["dp"], transpose_b=True)
        # dS = P (dP - delta)
        _start_rows(call, posed, row_gradient_kernel, heads["p"], heads["dp"], heads["ds"])
        # dQ = dS K scale
        _multiply(call, posed, heads["ds"], heads["k"], heads["dq"], triangle=1, factor=posed.scale)
        # dK = dS^T Q scale
        _multiply(call, posed, heads["ds"], heads["q"], heads["dk"], transpose_a=True, triangle=-1, factor=posed.scale)
        return call.result(dq), call.result(dk), call.result(dv)


def _multiply(
    call: arrays.Call,
    posed: problem.Problem,
    a: Any,
    b: Any,
    c: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    triangle: int = 0,
    factor: float = 1.0,
    wide: bool | None = None,
) -> None:
    """Start c = factor A B for every head; matrices of key heads are shared, or summed into, by their query heads.

    Where the mask leaves a ``triangle`` of 0, c holds scores, and those that it hides are not used. ``wide`` chooses
    the kernel: that for large matrices, or the other.
    """
    heads, rows, columns = c.shape
    if heads * rows * columns == 0:
        return
    terms = a.shape[0] // heads if transpose_a else 1  # c of a key head: the sum over its query heads
    share_a, share_b = (1 if array.shape[0] == heads * terms else posed.group for array in (a, b))
    numbers = (call.dtype.type(factor), terms, share_a, share_b)
    offset = posed.n_k - posed.n_q
    if _is_wide(call.dtype, rows, columns) if wide is None else wide and call.dtype == np.float32:
        aligned = all(array.shape[2] % 4 == 0 for array in (a, b, c))
        tile = WIDE_TILE
        threads = tile[0] * tile[1] // WIDE**2
        kernel = make_wide_matmul(transpose_a, transpose_b, triangle or 1, *tile, aligned)
        offsets = (offset if posed.causal and used else EVERYTHING for used in (triangle, triangle == 0))
        numbers = (*numbers, *offsets)
    else:
        tile = (TILES[max(rows, columns) > 2 * TILES[0]],) * 2
        threads = (tile[0] // R) ** 2
        kernel = make_matmul(transpose_a, transpose_b, triangle if posed.causal else 0, tile[0], from_dtype(call.dtype))
        numbers = (*numbers, offset)
    blocks = heads * -(-rows // tile[0]) * -(-columns // tile[1])
    device.launch(kernel, blocks, threads, a, b, c, *numbers, stream=call.stream)


def _is_wide(dtype: Any, rows: int, columns: int) -> bool:
    """Say whether a product is large enough for the kernel for large matrices."""
    return dtype == np.float32 and min(rows, columns) > 16 and max(rows, columns) >= 256


def _start_rows(call: arrays.Call, posed: problem.Problem, kernel: Any, *matrices: Any) -> None:
    """Start a kernel that owns a row of scores in each block."""
    heads, n_q, n_k = matrices[0].shape
    if heads * n_q * n_k > 0:
        offset = posed.n_k - posed.n_q
        device.launch(kernel, heads * n_q, ROW_THREADS, *matrices, posed.causal, offset, stream=call.stream)


# standard_attention with one kernel of products, whatever the size; in float64 there is but the first
RUNGS: dict[str, Callable[..., StandardOutput]] = {
    "4x4 register tiles": functools.partial(_attend, wide=False),
    "8x8 register tiles": functools.partial(_attend, wide=True),
}
