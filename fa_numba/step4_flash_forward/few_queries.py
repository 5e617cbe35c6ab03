"""Attention of few queries against many keys, as in decoding: a query reads every key and value once.

With one query a tile has one row; nothing is used twice, and the speed is that of memory. So keys and values go from
memory straight into registers: half a warp or a whole one reads a key, each lane four of its numbers.
"""

import math
from typing import Any

from numba import cuda, float32

from fa_numba import arrays, device, problem
from fa_numba.factory import kernel_factory
from fa_numba.primitives import FULL_MASK, WARP, load4, store4
from fa_numba.step2_online_softmax import rescale, weight
from fa_numba.step4_flash_forward import split_keys

MOST_QUERIES = 4
WIDEST = 128
WARPS = 4  # of a block
KEYS = 4  # that a group of lanes reads at a time
BLOCKS = 8  # a multiprocessor should have
LEAST_KEYS = 256  # that a block should have


@kernel_factory
def make_few_queries(lanes: int, causal: bool) -> Any:
    """Return the kernel for groups of so many lanes a key, 16 or 32: four numbers of q, k and v each."""
    groups = WARPS * WARP // lanes  # of a block
    width = 4 * lanes
    elements = groups * width

    @cuda.jit(device=True, forceinline=True)
    def group_sum(value):
        """The sum over the lanes of a group."""
        if lanes == 32:
            value += cuda.shfl_xor_sync(FULL_MASK, value, 16)
        value += cuda.shfl_xor_sync(FULL_MASK, value, 8)
        value += cuda.shfl_xor_sync(FULL_MASK, value, 4)
        value += cuda.shfl_xor_sync(FULL_MASK, value, 2)
        return value + cuda.shfl_xor_sync(FULL_MASK, value, 1)

    @cuda.jit(device=True, forceinline=True)
    def load_rows(rows, x, b, first, end, c):
        """rows[u] = four numbers of row first + u * groups of x[b], and 0 past the ends."""
        for u in range(KEYS):
            j = first + u * groups
            if j < end and c < x.shape[2]:
                four = load4(x, (b, j, c))
                for e in range(4):
                    rows[u, e] = four[e]
            else:
                for e in range(4):
                    rows[u, e] = float32(0)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def add_keys(acc, m, l, s, v_rows):
        """One step of the online softmax for KEYS keys: returns m and l, and acc moves on."""
        m_part = s[0]
        for u in range(1, KEYS):
            m_part = max(m_part, s[u])
        m, alpha = rescale(m, m_part)
        l *= alpha
        for e in range(4):
            acc[e] *= alpha
        for u in range(KEYS):
            p = weight(s[u], m)  # 0 for a key past the end, whose v was loaded as 0
            l += p
            for e in range(4):
                acc[e] += p * v_rows[u, e]
        return m, l

    @cuda.jit(fastmath=True, launch_bounds=WARPS * WARP)
    def few_queries_kernel(q, k, v, o, m_out, l_out, scale, group, offset, share):
        """One block: a query against a share of its keys, each group of lanes with every so-manieth key."""
        m_parts = cuda.shared.array(groups, float32)
        l_parts = cuda.shared.array(groups, float32)
        acc_parts = cuda.shared.array(elements, float32, alignment=16)
        n_q, n_k = q.shape[1], k.shape[1]
        b, i = cuda.blockIdx.x // n_q, cuda.blockIdx.x % n_q
        lane, number = cuda.threadIdx.x % lanes, cuda.threadIdx.x // lanes
        c = 4 * lane
        q_row = cuda.local.array((1, 4), float32)
        k_rows = cuda.local.array((KEYS, 4), float32)
        v_rows = cuda.local.array((KEYS, 4), float32)
        s = cuda.local.array(KEYS, float32)
        acc = cuda.local.array(4, float32)
        for e in range(4):
            acc[e] = float32(0)
            q_row[0, e] = q[b, i, c + e] if c < q.shape[2] else float32(0)
        m, l = float32(-math.inf), float32(0)
        start = cuda.blockIdx.y * share
        end = min(start + share, min(n_k, i + 1 + offset) if causal else n_k)
        for first in range(start, end, KEYS * groups):
            load_rows(k_rows, k, b // group, first + number, end, c)
            load_rows(v_rows, v, b // group, first + number, end, c)
            for u in range(KEYS):  # s_j = q k_j scale
                dot = float32(0)
                for e in range(4):
                    dot += q_row[0, e] * k_rows[u, e]
                dot = group_sum(dot) * scale
                s[u] = dot if first + number + u * groups < end else float32(-math.inf)
            m, l = add_keys(acc, m, l, s, v_rows)
        if lane == 0:
            m_parts[number] = m
            l_parts[number] = l
        store4(acc_parts, number * width + c, (acc[0], acc[1], acc[2], acc[3]))
        cuda.syncthreads()
        m, l = m_parts[0], float32(0)
        for g in range(1, groups):  # m = max over the groups
            m = max(m, m_parts[g])
        for g in range(groups):  # l = sum of l exp(m_group - m)
            l += l_parts[g] * weight(m_parts[g], m)
        inverse = float32(1) / l if l != float32(0) else float32(0)
        part_b = cuda.blockIdx.y * q.shape[0] + b
        for column in range(cuda.threadIdx.x, o.shape[2], WARPS * WARP):  # o = sum of acc exp(m_group - m) / l
            total = float32(0)
            for g in range(groups):
                total += acc_parts[g * width + column] * weight(m_parts[g], m)
            o[part_b, i, column] = total * inverse
        if cuda.threadIdx.x == 0:
            m_out[part_b, i] = m
            l_out[part_b, i] = l

    return few_queries_kernel


def takes(posed: problem.Problem) -> bool:
    """Say whether the kernel takes a problem, and is the one for it: few queries, many keys, whole fours of numbers."""
    few = posed.n_q <= MOST_QUERIES and posed.n_k >= LEAST_KEYS
    return few and posed.d % 4 == 0 and posed.d_v % 4 == 0 and max(posed.d, posed.d_v) <= WIDEST


def launch(call: arrays.Call, posed: problem.Problem, o: Any, m: Any, l: Any) -> None:
    """Start the kernel for the inputs of a call."""
    device.warn_if_slow("flash_forward", device.ACCESSES_PER_PRODUCT * posed.products(1, 1))
    rows = posed.heads * posed.n_q
    most = BLOCKS * device.device_limits().multiprocessors // rows
    splits = max(1, min(most, posed.n_k // LEAST_KEYS))
    share = -(-posed.n_k // splits)
    lanes = 16 if max(posed.d, posed.d_v) <= 64 else 32

    def start(o: Any, m: Any, l: Any) -> None:
        device.launch(
            make_few_queries(lanes, posed.causal),
            (rows, splits),
            WARPS * WARP,
            *(posed.by_head(name, call[name]) for name in "qkv"),
            *(o, m, l),
            call.dtype.type(posed.scale),
            posed.group,
            posed.n_k - posed.n_q,
            share,
            stream=call.stream,
        )

    split_keys.run(call, posed, splits, o, m, l, start)
