"""The third rung of step 4: eight rows and up to eight keys a thread, in registers; float32 only."""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from fa_numba import arrays, device, problem
from fa_numba.factory import kernel_factory
from fa_numba.primitives import WARP, part, wait_for_copies
from fa_numba.step2_online_softmax import rescale, weight
from fa_numba.step4_flash_forward import split_keys
from fa_numba.tiles import PAD, clear, multiply
from fa_numba.wide_tiles import (
    PAD_P,
    PRODUCTS,
    R8,
    add_turned_dots,
    add_visible_wide_products,
    add_wide_products,
    copy_turned_rows,
    copy_turned_tile,
    copy_wide_tile,
    place,
    store_wide,
    store_wide_rows,
    wide_row_max,
    wide_row_sum,
)


class Tile(NamedTuple):
    """A tile: queries of a block, keys a thread has of it at a time, and threads across."""

    block_q: int
    columns: int
    across: int

    @property
    def block_k(self) -> int:
        """Keys of the tile."""
        return self.columns * self.across

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block_q // R8 * self.across


# By head dim up to which they serve; of each the first that fits the device's shared memory. Measured on an H200: two
# blocks of 128 threads a multiprocessor, or one of 256, with as many keys as shared memory and registers have room for.
TILES = {
    32: (Tile(128, 8, 8), Tile(64, 4, 8)),
    64: (Tile(128, 8, 8), Tile(128, 4, 8), Tile(64, 4, 8)),
    96: (Tile(128, 4, 8), Tile(64, 4, 8)),
    128: (Tile(128, 6, 16), Tile(64, 2, 16)),
    192: (Tile(128, 4, 16), Tile(128, 2, 16), Tile(64, 2, 16)),
    256: (Tile(128, 2, 16),),
}
FEW = Tile(64, 8, 8)  # for problems of few queries, up to head dim 64
COLUMNS = (2, 4, 6, 8)  # that a thread can have of a tile: fours, and a pair
LEAST_TILES = 2  # of keys that a split should have
BLOCKS = 2  # a multiprocessor should have


@kernel_factory
def make_wide_flash_forward(tile: Tile, d: int, d_v: int, causal: bool, asynchronous: bool) -> Any:
    """Return the kernel for a tile; d is a multiple of 8, d_v of 4 * across.

    If it is asynchronous, it copies v while it computes S, and the next k while it computes P V.
    """
    block_q, columns, across = tile
    block_k, threads, down = tile.block_k, tile.threads, block_q // R8
    lanes_down = WARP // across
    warp_rows = R8 * lanes_down
    width = d_v // across
    k_start = d * (block_q + PAD_P)
    v_start = k_start + d * (block_k + PAD)
    p_start = v_start + block_k * (d_v + PAD)

    @cuda.jit(device=True, forceinline=True)
    def hide(s, x, keys, edge):
        """s = -inf for what lies past the last key, or behind the edge that the mask leaves the thread's first row."""
        for j in range(columns):
            for r in range(R8):
                if j * across >= keys - x or (causal and j * across - r * lanes_down > edge - x):
                    s[r, j] = float32(-math.inf)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def online_softmax_tile(s, acc, m, l):
        """One step of the online softmax for the thread's eight rows: m, l and acc move on, and s becomes p."""
        for r in range(R8):
            m_tile = s[r, 0]
            for j in range(1, columns):
                m_tile = max(m_tile, s[r, j])
            m[r], alpha = rescale(m[r], wide_row_max(m_tile, across))
            l[r] *= alpha  # what was added up against the old maximum
            for c in range(width):
                acc[r, c] *= alpha
            for j in range(columns):
                s[r, j] = weight(s[r, j], m[r])
                l[r] += s[r, j]

    @cuda.jit(device=True, forceinline=True)
    def normalize(acc, m, l, m_out, l_out, b, first, x):
        """o = acc / l, and m and l go to memory: l summed over the threads that share a row."""
        for r in range(R8):
            i = first + r * lanes_down
            l_i = wide_row_sum(l[r], across)
            inverse = float32(1) / l_i if l_i != float32(0) else float32(0)  # a row that saw no key: o = 0
            for c in range(width):
                acc[r, c] *= inverse
            if i < m_out.shape[1] and x == 0:
                m_out[b, i] = m[r]
                l_out[b, i] = l_i

    @cuda.jit(fastmath=True, launch_bounds=(threads, 1))
    def wide_flash_forward_kernel(q, k, v, o, m_out, l_out, scale, group, offset, share):
        """One block: block_q queries of a head against a share of its keys (Dao 2023, algorithm 1)."""
        memory = cuda.shared.array(0, float32)
        q_tile, k_tile = part(memory, 0, k_start), part(memory, k_start, d * (block_k + PAD))
        v_tile = part(memory, v_start, block_k * (d_v + PAD))
        p_tile = part(memory, p_start, block_k * (block_q + PAD_P))
        x, y, row = place(across)
        n_q, n_k = q.shape[1], k.shape[1]
        blocks = (n_q + block_q - 1) // block_q
        b, block = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks
        if causal:  # those that see most keys start first, of all heads, so that the last to end are short
            b, block = cuda.blockIdx.x % q.shape[0], blocks - 1 - cuda.blockIdx.x // q.shape[0]
        first_q, b_k = block * block_q, int32(b // group)
        s = cuda.local.array((R8, columns), float32)
        acc = cuda.local.array((R8, width), float32)
        m = cuda.local.array(R8, float32)
        l = cuda.local.array(R8, float32)
        for r in range(R8):
            m[r] = float32(-math.inf)
            l[r] = float32(0)
        clear(acc)
        start = cuda.blockIdx.y * share
        end = min(start + share, min(n_k, first_q + block_q + offset) if causal else n_k)
        copy_turned_rows(q_tile, q, b, first_q, down, lanes_down, d, threads, asynchronous)
        if start < end:
            copy_turned_tile(k_tile, k, b_k, start, block_k, across, d, threads, asynchronous)
        for first_k in range(start, end, block_k):
            if asynchronous:
                wait_for_copies()
            cuda.syncthreads()  # k is there, and all are done with the v before
            copy_wide_tile(v_tile, v, b_k, first_k, block_k, d_v, threads, asynchronous)
            seen = first_q + offset - first_k  # the last key of the tile that the block's first query sees
            edge = int32(max(-block_q, min(seen + row, block_k)))  # the thread's first row
            least = int32(max(-block_q, min(seen + row // warp_rows * warp_rows, block_k)))  # the warp's first row
            sees_some = not causal or least + warp_rows > 0
            partly = causal and least < block_k - 1
            if sees_some:
                clear(s)
                add_turned_dots(s, q_tile, y, down, k_tile, x, across, d)  # S = Q K^T scale
                multiply(s, scale)
                if partly or first_k + block_k > n_k:
                    hide(s, x, int32(min(n_k - first_k, block_k)), edge)
                online_softmax_tile(s, acc, m, l)
                store_wide(p_tile, s, x, y, across, down)
            if asynchronous:
                wait_for_copies()
            cuda.syncthreads()  # v and p are there, and all are done with k
            if first_k + block_k < end:
                copy_turned_tile(k_tile, k, b_k, first_k + block_k, block_k, across, d, threads, asynchronous)
            if sees_some and partly:  # O += P V
                last = min(block_k, least + warp_rows)
                add_visible_wide_products(acc, p_tile, y, down, v_tile, x, across, 0, last, d_v, 1, edge)
            elif sees_some:
                add_wide_products(acc, p_tile, y, down, v_tile, x, across, block_k, d_v)
        part_b = cuda.blockIdx.y * q.shape[0] + b
        normalize(acc, m, l, m_out, l_out, part_b, first_q + row, x)
        store_wide_rows(o, acc, part_b, first_q + row, x, across, False)

    return wide_flash_forward_kernel


def choose_tile(posed: problem.Problem) -> Tile | None:
    """Return the tile for a problem on this device; None if none fits."""
    width = max(posed.d, posed.d_v)
    limits = device.device_limits()
    few = posed.heads * -(-posed.n_q // 128) * BLOCKS < limits.multiprocessors
    if width <= 64 and few and BLOCKS * 4 * _elements(FEW, posed) <= limits.shared_per_block:
        fitting = [FEW, *TILES[64]]
    else:
        fitting = next(tiles for most, tiles in TILES.items() if width <= most)
    return next((tile for tile in fitting if 4 * _elements(tile, posed) <= limits.shared_per_block), None)


def check_tile(tile: Tile, columns: tuple[int, ...]) -> None:
    """Raise ValueError for a tile that a kernel of wide tiles, which takes so many columns, cannot have."""
    whole_warps = tile.across in (8, 16) and tile.block_q > 0 and tile.block_q % (R8 * WARP // tile.across) == 0
    if tile.columns not in columns or not whole_warps or tile.block_k % PRODUCTS:
        raise ValueError(
            f"{tile} is no tile: across must be 8 or 16, columns one of {columns}, columns * across a multiple of "
            f"{PRODUCTS}, and block_q of {R8} * {WARP} / across"
        )


def launch(call: arrays.Call, posed: problem.Problem, o: Any, m: Any, l: Any, tile: Tile | None = None) -> None:
    """Start the kernel for the inputs of a call; ValueError if the device has no room for a tile."""
    tile = tile or choose_tile(posed)
    if tile is None or call.dtype != np.float32:
        heads = f"{posed.d} and {posed.d_v} wide"
        raise ValueError(f"8x8 register tiles take float32 and heads whose tiles fit, not {call.dtype}, {heads}")
    check_tile(tile, COLUMNS)
    device.warn_if_slow("flash_forward", device.ACCESSES_PER_PRODUCT * posed.products(tile.block_q, tile.block_k))
    d, d_v = _padded(tile, posed)
    blocks = posed.heads * -(-posed.n_q // tile.block_q)
    tiles = max(1, -(-posed.n_k // tile.block_k))
    splits = max(1, min(BLOCKS * device.device_limits().multiprocessors // blocks, tiles // LEAST_TILES))
    share = -(-tiles // splits) * tile.block_k
    splits = max(1, -(-posed.n_k // share))

    def start(o: Any, m: Any, l: Any) -> None:
        device.launch(
            make_wide_flash_forward(tile, d, d_v, posed.causal, device.device_limits().asynchronous),
            (blocks, splits),
            tile.threads,
            *(posed.by_head(name, call[name]) for name in "qkv"),
            *(o, m, l),
            call.dtype.type(posed.scale),
            posed.group,
            posed.n_k - posed.n_q,
            share,
            shared=4 * _elements(tile, posed),
            stream=call.stream,
        )

    split_keys.run(call, posed, splits, o, m, l, start)


def _padded(tile: Tile, posed: problem.Problem) -> tuple[int, int]:
    """Return the head dims rounded up to what the kernel takes."""
    return -(-posed.d // 8) * 8, -(-posed.d_v // (4 * tile.across)) * 4 * tile.across


def _elements(tile: Tile, posed: problem.Problem) -> int:
    """Count the elements of the tiles of q, k, v and p."""
    d, d_v = _padded(tile, posed)
    of_q_and_p = (d + tile.block_k) * (tile.block_q + PAD_P)
    return of_q_and_p + d * (tile.block_k + PAD) + tile.block_k * (d_v + PAD)
