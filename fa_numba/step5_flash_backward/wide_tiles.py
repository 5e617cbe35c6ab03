"""The second rung of step 5: all gradients in one kernel, five products instead of seven; float32 only.

A block owns keys, as for dk and dv, and has ds at hand: from it also comes what its keys add to dq. Every block of keys
adds to the same dq, so they take turns, block after block, and the sum has the same order, and bits, in every run.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import arrays, device, problem
from fa_numba.factory import kernel_factory
from fa_numba.primitives import WARP, copy1, load4, part, store4, wait_for_copies
from fa_numba.step2_online_softmax import weight
from fa_numba.step4_flash_forward.wide_tiles import Tile, check_tile
from fa_numba.step5_flash_backward.delta import launch_delta
from fa_numba.tiles import PAD, clear, multiply
from fa_numba.wide_tiles import (
    PAD_P,
    R8,
    add_visible_wide_products,
    add_wide_dots,
    add_wide_products,
    copy_wide_tile,
    load_eight,
    place,
    store_wide,
    store_wide_rows,
)

# By head dim up to which they serve, of each those to choose from: block_q is here the keys of a block, columns the
# queries that a thread has of a tile. Measured on an H200.
TILES = {
    64: (Tile(128, 4, 8), Tile(64, 2, 8)),
    128: (Tile(128, 3, 16), Tile(64, 2, 16)),
}
NUMBERS = 4  # that the threads of a block share: 16 bytes, as what follows must start at a multiple of them
HEAD, BLOCK, SPLIT, FIRST = range(NUMBERS)  # of k's heads, of blocks of keys, of shares; the first tile of queries
COLUMNS = (2, 3, 4)  # that a thread can have of a tile
LEAST_TILES = 4  # of queries, of all the heads that share keys, that a split should have
WARPS = 8  # that a multiprocessor should have: two for each of its schedulers


@cuda.jit(device=True, forceinline=True)
def await_turn(turns, turn, number):
    """Wait until so many blocks have had their turn; what they have written is seen from here on."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(turns, turn, 0) < number:
            pass
        cuda.threadfence()
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def end_turn(turns, turn):
    """Let the next block have its turn, to which what the block has written is there."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(turns, turn, 1)


@kernel_factory
def make_wide_flash_backward(tile: Tile, d: int, d_v: int, causal: bool, asynchronous: bool) -> Any:
    """Return the kernel for a tile; d and d_v are multiples of 4 * across.

    If it is asynchronous, it copies the next do while it computes dK and dQ, and the next q while it adds to dq.
    """
    block_k, columns, across = tile
    block_q, threads, down = tile.block_k, tile.threads, block_k // R8
    lanes_down = WARP // across
    warp_rows = R8 * lanes_down
    width, width_v = d // across, d_v // across
    v_start = block_k * (d + PAD)
    q_start = v_start + block_k * (d_v + PAD)
    do_start = q_start + block_q * (d + PAD)
    p_start = do_start + block_q * (d_v + PAD)
    stride_p = block_k + PAD_P
    rows_start = p_start + block_q * stride_p
    fours = d // 4
    rows_q = block_q * fours // threads  # of dq, that a thread computes four columns of
    down_q = block_q // rows_q

    @cuda.jit(device=True, forceinline=True)
    def copy_row(tile, to, x, h, first):
        """tile[to + i] = x[h, first + i] for the tile's queries, and 0 past the end of x."""
        i = cuda.threadIdx.x
        if i < block_q and first + i >= x.shape[1]:
            tile[to + i] = float32(0)
        elif i < block_q and asynchronous:
            copy1(tile, to + i, x, h * x.shape[1] + first + i)
        elif i < block_q:
            tile[to + i] = x[h, first + i]

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def to_p(s, rows, x, scale):
        """P = exp(S scale - m) / l, transposed: a column is a query.

        What a query sees is at most m. What is hidden from it may be more, and overflow; and for a query past the end a
        key of -inf gives NaN, of which min makes m, which is 0. A NaN that is seen is in l too.
        """
        for j in range(columns):
            i = uint32(x + j * across)  # unsigned: it needs no case for counting from the end
            m_i, l_i = rows[i], rows[i + uint32(block_q)]
            inverse = float32(1) / l_i if l_i != float32(0) else float32(0)
            for r in range(R8):
                s[r, j] = weight(min(m_i, s[r, j] * scale), m_i) * inverse

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def to_ds(dp, p_tile, rows, x, y):
        """dS = P (dP - delta), transposed; the thread's own P comes back from shared memory."""
        p = cuda.local.array(R8, float32)
        for j in range(columns):
            delta_i = rows[uint32(2 * block_q + x + j * across)]
            load_eight(p, p_tile, x + j * across, y, down)
            for r in range(R8):
                dp[r, j] = p[r] * (dp[r, j] - delta_i)

    @cuda.jit(device=True, forceinline=True)
    def hide(s, x, keys, edge):
        """s = 0 for keys past the end, and for those that a query does not see."""
        for j in range(columns):
            for r in range(R8):
                if r * lanes_down >= keys or (causal and r * lanes_down - j * across > edge + x):
                    s[r, j] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def add_key(acc, ds, e, k_four):
        """acc[r, c] += ds[r, e] k[c]."""
        for c in range(4):
            for r in range(rows_q):
                acc[r, c] += ds[r, e] * k_four[c]

    @cuda.jit(device=True, forceinline=True)
    def key_of(y, r):
        """Return which key of the tile is row r of the threads in row y."""
        return y // lanes_down * warp_rows + y % lanes_down + r * lanes_down

    @cuda.jit(device=True, forceinline=True)
    def add_dq(acc, ds_tile, k_tile, qx, qy):
        """acc[r, c] += sum_k ds[qy + r down_q, k] k[k, 4 qx + c]: four keys at a time, where store_wide put them."""
        ds = cuda.local.array((rows_q, 4), float32)
        for y in range(down):
            for h in range(0, R8, 4):
                for r in range(rows_q):
                    four = load4(ds_tile, (qy + r * down_q) * stride_p + h * down + 4 * y)
                    for e in range(4):
                        ds[r, e] = four[e]
                key = key_of(y, h) * (d + PAD) + 4 * qx
                add_key(acc, ds, 0, load4(k_tile, key))
                add_key(acc, ds, 1, load4(k_tile, key + lanes_down * (d + PAD)))
                add_key(acc, ds, 2, load4(k_tile, key + 2 * lanes_down * (d + PAD)))
                add_key(acc, ds, 3, load4(k_tile, key + 3 * lanes_down * (d + PAD)))

    @cuda.jit(device=True, forceinline=True)
    def add_visible_dq(acc, ds_tile, k_tile, qx, qy, seen):
        """As add_dq, but a query takes only the keys it sees: what is hidden may be NaN."""
        for y in range(down):
            for r_k in range(R8):
                key = key_of(y, r_k)
                k_four = load4(k_tile, key * (d + PAD) + 4 * qx)
                for r in range(rows_q):
                    i = qy + r * down_q
                    if key <= i + seen:
                        ds = ds_tile[i * stride_p + r_k // 4 * 4 * down + 4 * y + r_k % 4]
                        for c in range(4):
                            acc[r, c] += ds * k_four[c]

    @cuda.jit(device=True, forceinline=True)
    def add_to_memory(dq, acc, h, first, qx, scale, is_first):
        """dq += acc scale, or = for the first block of keys."""
        for r in range(rows_q):
            i = first + r * down_q
            for c in range(4):
                acc[r, c] *= scale
            if i < dq.shape[1] and dq.shape[2] % 4 == 0 and 4 * qx < dq.shape[2]:
                old = (float32(0), float32(0), float32(0), float32(0)) if is_first else load4(dq, (h, i, 4 * qx))
                new = (old[0] + acc[r, 0], old[1] + acc[r, 1], old[2] + acc[r, 2], old[3] + acc[r, 3])
                store4(dq, (h, i, 4 * qx), new)
            elif i < dq.shape[1]:
                for c in range(4):
                    if 4 * qx + c < dq.shape[2]:
                        old_c = float32(0) if is_first else dq[h, i, 4 * qx + c]
                        dq[h, i, 4 * qx + c] = old_c + acc[r, c]

    @cuda.jit(device=True, forceinline=True)
    def copy_queries(do_tile, rows, do, m, l, delta, h, first_q):
        """Begin to copy what the products with do need of a tile of queries."""
        copy_wide_tile(do_tile, do, h, first_q, block_q, d_v, threads, asynchronous)
        copy_row(rows, 0, m, h, first_q)
        copy_row(rows, block_q, l, h, first_q)
        copy_row(rows, 2 * block_q, delta, h, first_q)

    @cuda.jit(fastmath=True, launch_bounds=(threads, 1))
    def wide_flash_backward_kernel(do, q, k, v, m, l, delta, dq, dk, dv, turns, scale, group, offset, splits):
        """One block: block_k keys of a head against its share of the queries that see them (Dao 2023, algorithm 2)."""
        memory = cuda.shared.array(0, float32)
        k_tile, v_tile = part(memory, 0, v_start), part(memory, v_start, block_k * (d_v + PAD))
        q_tile = part(memory, q_start, block_q * (d + PAD))
        do_tile = part(memory, do_start, block_q * (d_v + PAD))
        p_tile, rows = part(memory, p_start, block_q * stride_p), part(memory, rows_start, 3 * block_q)
        number = cuda.shared.array(NUMBERS, int32)  # read anew when wanted, lest they fill registers
        x, y, row = place(across)
        qx, qy = cuda.threadIdx.x // 2 % fours, cuda.threadIdx.x % 2 + cuda.threadIdx.x // (2 * fours) * 2
        n_q, n_k = q.shape[1], k.shape[1]
        tiles = (n_q + block_q - 1) // block_q
        if cuda.threadIdx.x == 0:  # blocks count themselves: one that must wait has started after all it waits for
            ticket = cuda.atomic.add(turns, turns.shape[0] - 1, 1)
            number[HEAD] = ticket % k.shape[0]
            number[SPLIT] = ticket // k.shape[0] % splits
            number[BLOCK] = ticket // k.shape[0] // splits
            # The first block also writes rows of dq that see nothing.
            hidden = causal and number[BLOCK] > 0
            number[FIRST] = max(0, number[BLOCK] * block_k - offset) // block_q if hidden else 0
        cuda.syncthreads()
        first_k = int32(number[BLOCK] * block_k)
        s = cuda.local.array((R8, columns), float32)
        acc_k = cuda.local.array((R8, width), float32)
        acc_v = cuda.local.array((R8, width_v), float32)
        acc_q = cuda.local.array((rows_q, 4), float32)
        clear(acc_k)
        clear(acc_v)
        copy_wide_tile(k_tile, k, number[HEAD], first_k, block_k, d, threads, asynchronous)
        copy_wide_tile(v_tile, v, number[HEAD], first_k, block_k, d_v, threads, asynchronous)
        # The last queries first: they see the keys of every block.
        h, i = int32(number[HEAD] * group), int32(tiles - 1 - number[SPLIT])
        if i >= number[FIRST]:
            copy_wide_tile(q_tile, q, h, i * block_q, block_q, d, threads, asynchronous)
            copy_queries(do_tile, rows, do, m, l, delta, h, i * block_q)
        while i >= number[FIRST]:  # for each tile, the query heads that share the key head
            first_q = int32(i * block_q)
            if asynchronous:
                wait_for_copies()
            cuda.syncthreads()
            seen = first_q + offset - first_k  # the last key of the block that the tile's first query sees
            edge = int32(max(-block_q, min(seen - row, block_k)))
            least = int32(max(-block_q, min(seen - row // warp_rows * warp_rows, block_k)))
            partly = causal and least < warp_rows - 1
            clear(s)
            if not causal or least + block_q > 0:
                keys = int32(min(n_k - first_k - row, block_k))
                add_wide_dots(s, k_tile, row, q_tile, x, across, d)  # S^T = K Q^T
                to_p(s, rows, x, scale)
                if partly or first_k + block_k > n_k:
                    hide(s, x, keys, edge)
                store_wide(p_tile, s, x, y, across, down)
                cuda.syncwarp()
                if partly:  # dV += P^T dO
                    begin = max(0, -least)
                    add_visible_wide_products(acc_v, p_tile, y, down, do_tile, x, across, begin, block_q, d_v, -1, edge)
                else:
                    add_wide_products(acc_v, p_tile, y, down, do_tile, x, across, block_q, d_v)
                clear(s)
                add_wide_dots(s, v_tile, row, do_tile, x, across, d_v)  # dP^T = V dO^T
                to_ds(s, p_tile, rows, x, y)
                if partly or first_k + block_k > n_k:
                    hide(s, x, keys, edge)
            cuda.syncwarp()  # the warp is done with p, whose place ds takes
            store_wide(p_tile, s, x, y, across, down)
            cuda.syncthreads()  # the whole of ds is there, and all are done with do
            next_h, next_i = int32(h + 1), i
            if next_h == (number[HEAD] + 1) * group:
                next_h, next_i = int32(number[HEAD] * group), int32(i - splits)
            if next_i >= number[FIRST]:
                copy_queries(do_tile, rows, do, m, l, delta, next_h, next_i * block_q)
            if partly:  # dK += dS^T Q
                begin = max(0, -least)
                add_visible_wide_products(acc_k, p_tile, y, down, q_tile, x, across, begin, block_q, d, -1, edge)
            else:
                add_wide_products(acc_k, p_tile, y, down, q_tile, x, across, block_q, d)
            clear(acc_q)
            if causal and seen < block_k - 1:  # dQ = dS K
                add_visible_dq(acc_q, p_tile, k_tile, qx, qy, seen)
            else:
                add_dq(acc_q, p_tile, k_tile, qx, qy)
            turn = h * tiles + i
            await_turn(turns, turn, number[BLOCK])  # of the blocks of keys
            if next_i >= number[FIRST]:
                copy_wide_tile(q_tile, q, next_h, next_i * block_q, block_q, d, threads, asynchronous)
            add_to_memory(dq, acc_q, h, i * block_q + qy, qx, scale, first_k == 0)
            end_turn(turns, turn)
            h, i = next_h, next_i
        multiply(acc_k, scale)
        if splits > 1:  # dk and dv are summed in turns, too
            await_turn(turns, q.shape[0] * tiles + number[BLOCK] * k.shape[0] + number[HEAD], number[SPLIT])
        store_wide_rows(dk, acc_k, number[HEAD], first_k + row, x, across, number[SPLIT] > 0)
        store_wide_rows(dv, acc_v, number[HEAD], first_k + row, x, across, number[SPLIT] > 0)
        if splits > 1:
            end_turn(turns, q.shape[0] * tiles + number[BLOCK] * k.shape[0] + number[HEAD])

    return wide_flash_backward_kernel


def choose_tile(posed: problem.Problem) -> Tile | None:
    """Return the tile for a problem on this device: the first that gives it most warps; None if none fits."""
    width = max(posed.d, posed.d_v)
    limit = device.device_limits().shared_per_block
    tiles = next((tiles for most, tiles in TILES.items() if width <= most), ())

    def warps(tile: Tile) -> int:
        """Count the warps of the blocks that fit side by side, as far as they help."""
        return min(WARPS, _side_by_side(tile, posed, limit) * tile.threads // WARP)

    return max((tile for tile in tiles if warps(tile) > 0), key=warps, default=None)


def takes(posed: problem.Problem) -> bool:
    """Say whether the kernel is the one for a problem: a tile fits, and its blocks have more than one tile of keys.

    Or else there are enough of them to occupy half the device.
    """
    tile = choose_tile(posed)
    multiprocessors = device.device_limits().multiprocessors
    return tile is not None and (posed.n_k > tile.block_q or 2 * posed.heads_kv >= multiprocessors)


def launch(call: arrays.Call, posed: problem.Problem, dq: Any, dk: Any, dv: Any, tile: Tile | None = None) -> None:
    """Start the kernels for the inputs of a call; ValueError if the device has no room for a tile."""
    tile = tile or choose_tile(posed)
    if tile is None or call.dtype != np.float32:
        heads = f"{posed.d} and {posed.d_v} wide"
        raise ValueError(f"8x8 register tiles take float32 and heads whose tiles fit, not {call.dtype}, {heads}")
    check_tile(tile, COLUMNS)
    block_k, block_q = tile.block_q, tile.block_k
    fours = _padded(tile, posed)[0] // 4
    if tile.threads % (2 * fours) or block_q % (tile.threads // fours):  # two rows of fours or more, each time as many
        raise ValueError(f"{tile} does not divide the rows of dq, {posed.d} wide, among its {tile.threads} threads")
    if block_q > tile.threads:
        raise ValueError(f"{tile} has {block_q} queries, more than threads, which copy m, l and delta of one each")
    accesses = device.ACCESSES_PER_PRODUCT * posed.products(block_q, block_k)
    device.warn_if_slow("flash_backward", accesses * 5 // 2)  # 5 products, where the forward has 2
    delta = launch_delta(call, posed)
    limits = device.device_limits()
    tiles, blocks = -(-posed.n_q // block_q), posed.heads_kv * -(-posed.n_k // block_k)
    turns = call.empty("turns", (posed.heads * tiles + blocks + 1,), np.int32)
    arrays.fill_with_zeros(turns, call.stream)
    room = limits.multiprocessors * _side_by_side(tile, posed, limits.shared_per_block)
    splits = max(1, min(room // blocks, tiles, tiles * posed.group // LEAST_TILES))
    if posed.d % 4 or posed.d_v % 4:
        splits = 1  # rows that are no whole fours are not added to
    device.launch(
        make_wide_flash_backward(tile, *_padded(tile, posed), posed.causal, limits.asynchronous),
        blocks * splits,
        tile.threads,
        *(posed.by_head(name, call[name]) for name in ("do", "q", "k", "v", "m", "l")),
        delta,
        *(posed.by_head(name, array) for name, array in (("dq", dq), ("dk", dk), ("dv", dv))),
        turns,
        call.dtype.type(posed.scale),
        posed.group,
        posed.n_k - posed.n_q,
        splits,
        shared=4 * (_elements(tile, posed) - NUMBERS),
        stream=call.stream,
    )


def _side_by_side(tile: Tile, posed: problem.Problem, shared: int) -> int:
    """Count the blocks for which a multiprocessor has shared memory."""
    return shared // (4 * _elements(tile, posed))


def _padded(tile: Tile, posed: problem.Problem) -> tuple[int, int]:
    """Return the head dims rounded up to what the kernel takes."""
    return tuple(-(-width // (4 * tile.across)) * 4 * tile.across for width in (posed.d, posed.d_v))


def _elements(tile: Tile, posed: problem.Problem) -> int:
    """Count the elements of the tiles of k, v, q, do and p, of m, l and delta, and the numbers, as wide as they."""
    d, d_v = _padded(tile, posed)
    block_k, block_q = tile.block_q, tile.block_k
    return (block_k + block_q) * (d + d_v + 2 * PAD) + block_q * (block_k + PAD_P + 3) + NUMBERS
