"""The first rung of step 4: a thread owns a query, and keeps its row of q and of o in registers."""

import math
from typing import Any

from numba import cuda, from_dtype

from fa_numba import device, problem
from fa_numba.factory import kernel_factory
from fa_numba.step2_online_softmax import rescale, weight
from fa_numba.step4_flash_forward.small_tiles import padded

THREADS = 64  # queries of a block
BLOCK_K = 16
WIDEST = 64  # of a head in float32: twice that, and q and o no longer fit in a thread's registers


@kernel_factory
def make_flash_forward_rows(d: int, d_v: int, causal: bool, dtype: Any) -> Any:
    """Return the kernel for head dims d and d_v, the threads of a block each with a query of their own."""

    @cuda.jit(fastmath=True, launch_bounds=THREADS)
    def flash_forward_rows_kernel(q, k, v, o, m_out, l_out, scale, group, offset):
        """One thread: one query of a head against all its keys (Dao et al. 2022, algorithm 1, by rows)."""
        k_tile = cuda.shared.array((BLOCK_K, d), dtype)
        v_tile = cuda.shared.array((BLOCK_K, d_v), dtype)
        n_q, n_k = q.shape[1], k.shape[1]
        blocks = (n_q + THREADS - 1) // THREADS
        b, i = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * THREADS + cuda.threadIdx.x
        q_row = cuda.local.array(d, dtype)
        acc = cuda.local.array(d_v, dtype)
        for c in range(d):
            q_row[c] = q[b, i, c] if i < n_q and c < q.shape[2] else dtype(0)
        for c in range(d_v):
            acc[c] = dtype(0)
        m, l = dtype(-math.inf), dtype(0)
        for first_k in range(0, n_k, BLOCK_K):
            cuda.syncthreads()
            for e in range(cuda.threadIdx.x, BLOCK_K * d, THREADS):
                j, c = first_k + e // d, e % d
                k_tile[e // d, c] = k[b // group, j, c] if j < n_k and c < k.shape[2] else dtype(0)
            for e in range(cuda.threadIdx.x, BLOCK_K * d_v, THREADS):
                j, c = first_k + e // d_v, e % d_v
                v_tile[e // d_v, c] = v[b // group, j, c] if j < n_k and c < v.shape[2] else dtype(0)
            cuda.syncthreads()
            for j in range(min(BLOCK_K, n_k - first_k)):
                if not causal or first_k + j <= i + offset:
                    s = dtype(0)
                    for c in range(d):  # s_ij = q_i k_j scale
                        s += q_row[c] * k_tile[j, c]
                    s *= scale
                    m, alpha = rescale(m, s)
                    p = weight(s, m)  # p_ij = exp(s_ij - m_i)
                    l = l * alpha + p
                    for c in range(d_v):  # o_i = alpha o_i + p_ij v_j
                        acc[c] = acc[c] * alpha + p * v_tile[j, c]
        inverse = dtype(1) / l if l != dtype(0) else dtype(0)  # a row that saw no key: o = 0
        if i < n_q:
            m_out[b, i] = m
            l_out[b, i] = l
            for c in range(d_v):
                if c < o.shape[2]:
                    o[b, i, c] = acc[c] * inverse

    return flash_forward_rows_kernel


def launch(call: Any, posed: problem.Problem, o: Any, m: Any, l: Any) -> None:
    """Start the kernel for the inputs of a call; ValueError for heads wider than a thread's registers hold."""
    widest = WIDEST * 4 // call.dtype.itemsize
    if max(posed.d, posed.d_v) > widest:
        raise ValueError(
            f"one thread a row takes head dims up to {widest} in {call.dtype}, not {posed.d} and {posed.d_v}"
        )
    device.warn_if_slow("flash_forward", device.ACCESSES_PER_PRODUCT * posed.products(THREADS, BLOCK_K))
    d, d_v = (padded(width, 16) for width in (posed.d, posed.d_v))
    device.launch(
        make_flash_forward_rows(d, d_v, posed.causal, from_dtype(call.dtype)),
        posed.heads * -(-posed.n_q // THREADS),
        THREADS,
        *(posed.by_head(name, call[name]) for name in "qkv"),
        *(posed.by_head(name, array) for name, array in (("o", o), ("m", m), ("l", l))),
        call.dtype.type(posed.scale),
        posed.group,
        posed.n_k - posed.n_q,
        stream=call.stream,
    )
