"""delta, the sum of do o over a row: what the gradient of a softmax subtracts."""

from typing import Any

from numba import cuda, float32

from fa_numba import arrays, device, problem
from fa_numba.primitives import WARP, warp_sum

THREADS = 128


@cuda.jit
def delta_kernel(do, o, delta):
    """delta_i = sum_c do_ic o_ic, which is also sum_j p_ij dp_ij: one warp a row (Dao 2023, section 3.1.2)."""
    row = cuda.grid(1) // WARP
    b, i = row // do.shape[1], row % do.shape[1]
    if row < delta.size:
        total = float32(0)
        for c in range(cuda.laneid, do.shape[2], WARP):
            total += do[b, i, c] * o[b, i, c]
        total = warp_sum(total)
        if cuda.laneid == 0:
            delta[b, i] = total


def launch_delta(call: arrays.Call, posed: problem.Problem) -> Any:
    """Start the kernel for the do and o of a call, and return delta, of shape (heads, n_q)."""
    delta = call.empty("delta", (posed.heads, posed.n_q))
    do, o = posed.by_head("do", call["do"]), posed.by_head("o", call["o"])
    blocks = -(-posed.heads * posed.n_q * WARP // THREADS)
    device.launch(delta_kernel, blocks, THREADS, do, o, delta, stream=call.stream)
    return delta
