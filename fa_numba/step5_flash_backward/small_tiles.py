"""The first rung of step 5, the kernels to read first: one for dk and dv, one for dq, with small tiles."""

from typing import Any

from numba import cuda, from_dtype

from fa_numba import arrays, device, problem
from fa_numba.factory import kernel_factory
from fa_numba.step2_online_softmax import weight
from fa_numba.step4_flash_forward.small_tiles import choose_blocks, padded
from fa_numba.step5_flash_backward.delta import launch_delta
from fa_numba.tiles import PAD, R, add_dots, add_products, add_visible_products, clear, load_tile


@kernel_factory
def make_flash_backward_dk_dv(block_q: int, block_k: int, d: int, d_v: int, causal: bool, dtype: Any) -> Any:
    """Return the kernel of dk and dv: a block owns block_k keys and loops over the queries."""
    rows, columns = block_k // R, block_q // R  # of the block's threads: keys down, queries across
    threads = rows * columns
    width, width_v = R * d // block_q, R * d_v // block_q
    v_start = block_k * (d + PAD)
    q_start = v_start + block_k * (d_v + PAD)
    do_start = q_start + block_q * (d + PAD)
    p_start = do_start + block_q * (d_v + PAD)

    @cuda.jit(fastmath=True, launch_bounds=(threads, 1))
    def flash_backward_dk_dv_kernel(do, q, k, v, m, l, delta, dk, dv, scale, group, offset):
        """One block: block_k keys of a head against all the queries that see them (Dao 2023, algorithm 2)."""
        memory = cuda.shared.array(0, dtype)
        k_tile, v_tile, q_tile = memory[:v_start], memory[v_start:q_start], memory[q_start:do_start]
        do_tile, p_tile = memory[do_start:p_start], memory[p_start:]
        x, y = cuda.threadIdx.x % columns, cuda.threadIdx.x // columns
        n_q, n_k = q.shape[1], k.shape[1]
        blocks = (n_k + block_k - 1) // block_k
        b, first_k = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * block_k
        p = cuda.local.array((R, R), dtype)
        ds = cuda.local.array((R, R), dtype)
        acc_k = cuda.local.array((R, width), dtype)
        acc_v = cuda.local.array((R, width_v), dtype)
        clear(acc_k)
        clear(acc_v)
        load_tile(k_tile, k, b, first_k, block_k, d, threads)
        load_tile(v_tile, v, b, first_k, block_k, d_v, threads)
        first = max(0, first_k - offset) // block_q * block_q if causal else 0
        for step in range(group * ((n_q - first + block_q - 1) // block_q)):
            h = b * group + step % group  # the query heads that share this key head
            first_q = first + step // group * block_q
            cuda.syncthreads()
            load_tile(q_tile, q, h, first_q, block_q, d, threads)
            load_tile(do_tile, do, h, first_q, block_q, d_v, threads)
            cuda.syncthreads()
            clear(p)
            clear(ds)
            add_dots(p, k_tile, y, rows, q_tile, x, columns, d)  # S^T = K Q^T
            add_dots(ds, v_tile, y, rows, do_tile, x, columns, d_v)  # dP^T = V dO^T
            for j in range(R):
                i = first_q + x + j * columns
                m_i, l_i, delta_i = dtype(0), dtype(0), dtype(0)
                if i < n_q:
                    m_i, l_i, delta_i = m[h, i], l[h, i], delta[h, i]
                inverse = dtype(1) / l_i if l_i != dtype(0) else dtype(0)
                for r in range(R):
                    key = first_k + y + r * rows
                    if i < n_q and key < n_k and not (causal and key > i + offset):
                        # P = exp(S scale - m) / l. No score is above m; min keeps the compiler from rounding it anew.
                        p[r, j] = weight(min(m_i, p[r, j] * scale), m_i) * inverse
                        ds[r, j] = p[r, j] * (ds[r, j] - delta_i)  # dS = P (dP - delta)
                    else:
                        p[r, j] = dtype(0)
                        ds[r, j] = dtype(0)
                    p_tile[(y + r * rows) * (block_q + PAD) + x + j * columns] = p[r, j]
            cuda.syncthreads()
            most = first_q + offset - first_k
            partly = causal and first_k + block_k - 1 > first_q + offset
            if partly:  # dV += P^T dO
                add_visible_products(acc_v, p_tile, y, rows, do_tile, x, columns, block_q, d_v, -1, most)
            else:
                add_products(acc_v, p_tile, y, rows, do_tile, x, columns, block_q, d_v)
            cuda.syncthreads()  # all have read p before ds takes its place
            for j in range(R):
                for r in range(R):
                    p_tile[(y + r * rows) * (block_q + PAD) + x + j * columns] = ds[r, j]
            cuda.syncthreads()
            if partly:  # dK += dS^T Q
                add_visible_products(acc_k, p_tile, y, rows, q_tile, x, columns, block_q, d, -1, most)
            else:
                add_products(acc_k, p_tile, y, rows, q_tile, x, columns, block_q, d)
        store_rows(dk, acc_k, b, first_k + y, rows, x, block_q, width, scale)
        store_rows(dv, acc_v, b, first_k + y, rows, x, block_q, width_v, dtype(1))

    return flash_backward_dk_dv_kernel


@cuda.jit(device=True, forceinline=True)
def store_rows(out, acc, b, first, rows, x, span, width, factor):
    """out[b, i, c] = factor acc, for the thread's four rows and its columns, four in every span."""
    for r in range(R):
        i = first + r * rows
        if i < out.shape[1]:
            for c in range(width):
                column = c // 4 * span + 4 * x + c % 4
                if column < out.shape[2]:
                    out[b, i, column] = acc[r, c] * factor


@kernel_factory
def make_flash_backward_dq(block_q: int, block_k: int, d: int, d_v: int, causal: bool, dtype: Any) -> Any:
    """Return the kernel of dq: a block owns block_q queries and loops over the keys."""
    rows, columns = block_q // R, block_k // R
    threads = rows * columns
    width = R * d // block_k
    do_start = block_q * (d + PAD)
    k_start = do_start + block_q * (d_v + PAD)
    v_start = k_start + block_k * (d + PAD)
    ds_start = v_start + block_k * (d_v + PAD)

    @cuda.jit(fastmath=True, launch_bounds=(threads, 1))
    def flash_backward_dq_kernel(do, q, k, v, m, l, delta, dq, scale, group, offset):
        """One block: block_q queries of a head against all the keys they see (Dao 2023, algorithm 2)."""
        memory = cuda.shared.array(0, dtype)
        q_tile, do_tile, k_tile = memory[:do_start], memory[do_start:k_start], memory[k_start:v_start]
        v_tile, ds_tile = memory[v_start:ds_start], memory[ds_start:]
        x, y = cuda.threadIdx.x % columns, cuda.threadIdx.x // columns
        n_q, n_k = q.shape[1], k.shape[1]
        blocks = (n_q + block_q - 1) // block_q
        b, first_q = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * block_q
        s = cuda.local.array((R, R), dtype)
        dp = cuda.local.array((R, R), dtype)
        acc = cuda.local.array((R, width), dtype)
        clear(acc)
        load_tile(q_tile, q, b, first_q, block_q, d, threads)
        load_tile(do_tile, do, b, first_q, block_q, d_v, threads)
        last_k = min(n_k, first_q + block_q + offset) if causal else n_k
        for first_k in range(0, last_k, block_k):
            cuda.syncthreads()
            load_tile(k_tile, k, b // group, first_k, block_k, d, threads)
            load_tile(v_tile, v, b // group, first_k, block_k, d_v, threads)
            cuda.syncthreads()
            clear(s)
            clear(dp)
            add_dots(s, q_tile, y, rows, k_tile, x, columns, d)  # S = Q K^T
            add_dots(dp, do_tile, y, rows, v_tile, x, columns, d_v)  # dP = dO V^T
            for r in range(R):
                i = first_q + y + r * rows
                m_i, l_i, delta_i = dtype(0), dtype(0), dtype(0)
                if i < n_q:
                    m_i, l_i, delta_i = m[b, i], l[b, i], delta[b, i]
                inverse = dtype(1) / l_i if l_i != dtype(0) else dtype(0)
                for j in range(R):
                    key = first_k + x + j * columns
                    ds = dtype(0)
                    if i < n_q and key < n_k and not (causal and key > i + offset):
                        p = weight(min(m_i, s[r, j] * scale), m_i) * inverse  # P = exp(S scale - m) / l
                        ds = p * (dp[r, j] - delta_i)  # dS = P (dP - delta)
                    ds_tile[(y + r * rows) * (block_k + PAD) + x + j * columns] = ds
            cuda.syncthreads()
            if causal and first_k + block_k - 1 > first_q + offset:  # dQ += dS K
                most = first_q + offset - first_k
                add_visible_products(acc, ds_tile, y, rows, k_tile, x, columns, block_k, d, 1, most)
            else:
                add_products(acc, ds_tile, y, rows, k_tile, x, columns, block_k, d)
        store_rows(dq, acc, b, first_q + y, rows, x, block_k, width, scale)

    return flash_backward_dq_kernel


def launch(
    call: arrays.Call,
    posed: problem.Problem,
    dq: Any,
    dk: Any,
    dv: Any,
    block_q: Any = None,
    block_k: Any = None,
) -> None:
    """Start the kernels for the inputs of a call; ValueError for tiles that do not fit."""
    block_q, block_k = choose_blocks(posed, call.dtype, block_q, block_k, _elements)
    accesses = device.ACCESSES_PER_PRODUCT * posed.products(block_q, block_k)
    device.warn_if_slow("flash_backward", accesses * 7 // 2)  # 7 products, where the forward has 2
    delta = launch_delta(call, posed)
    d, d_v = (padded(width, max(block_q, block_k)) for width in (posed.d, posed.d_v))
    form = (block_q, block_k, d, d_v, posed.causal, from_dtype(call.dtype))
    inputs = (*(posed.by_head(name, call[name]) for name in ("do", "q", "k", "v", "m", "l")), delta)
    numbers = (call.dtype.type(posed.scale), posed.group, posed.n_k - posed.n_q)
    threads = block_q * block_k // (R * R)
    options = dict(shared=_elements(block_q, block_k, d, d_v) * call.dtype.itemsize, stream=call.stream)
    blocks = posed.heads_kv * -(-posed.n_k // block_k)
    gradients = (posed.by_head("dk", dk), posed.by_head("dv", dv))
    device.launch(make_flash_backward_dk_dv(*form), blocks, threads, *inputs, *gradients, *numbers, **options)
    blocks = posed.heads * -(-posed.n_q // block_q)
    device.launch(make_flash_backward_dq(*form), blocks, threads, *inputs, posed.by_head("dq", dq), *numbers, **options)


def check_blocks(call: Any, posed: problem.Problem, block_q: Any, block_k: Any) -> None:
    """Raise ValueError for tiles that do not fit: for a problem that nothing is launched for."""
    choose_blocks(posed, call.dtype, block_q, block_k, _elements)


def _elements(block_q: int, block_k: int, d: int, d_v: int) -> int:
    """Count the elements of the tiles of q, do, k, v and of p or ds, in whichever kernel has more."""
    return (block_q + block_k) * (d + d_v + 2 * PAD) + max(block_k * (block_q + PAD), block_q * (block_k + PAD))
