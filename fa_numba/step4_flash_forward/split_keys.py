"""Keys split over several blocks, and their results merged: for heads too few to fill a device.

What a block computes from its share of the keys is an output, normalized over that share, with its m and l. They merge
by step 2's recurrence (Dao et al., "Flash-Decoding", 2023).
"""

import math
from collections.abc import Callable
from typing import Any

from numba import cuda, float32

from fa_numba import arrays, device, problem
from fa_numba.primitives import WARP
from fa_numba.step2_online_softmax import weight

ROWS = 4  # of a block of the merge: a warp each


@cuda.jit(fastmath=True)
def merge_splits_kernel(o_parts, m_parts, l_parts, o, m, l):
    """o, m and l of every row, from those of the splits; the parts have the splits of all heads one after another."""
    row = cuda.blockIdx.x * ROWS + cuda.threadIdx.x // WARP
    b, i = row // o.shape[1], row % o.shape[1]
    heads = o.shape[0]
    if row < m.size:
        m_i = float32(-math.inf)
        for part in range(b, o_parts.shape[0], heads):  # m = max over the splits
            m_i = max(m_i, m_parts[part, i])
        l_i = float32(0)
        for part in range(b, o_parts.shape[0], heads):  # l = sum of l exp(m_split - m)
            l_i += l_parts[part, i] * weight(m_parts[part, i], m_i)
        inverse = float32(1) / l_i if l_i != float32(0) else float32(0)  # a row that saw no key: o = 0
        for c in range(cuda.laneid, o.shape[2], WARP):  # o = sum of o_split l_split exp(m_split - m) / l
            total = float32(0)
            for part in range(b, o_parts.shape[0], heads):
                total += o_parts[part, i, c] * (l_parts[part, i] * weight(m_parts[part, i], m_i))
            o[b, i, c] = total * inverse
        if cuda.laneid == 0:
            m[b, i] = m_i
            l[b, i] = l_i


def run(
    call: arrays.Call, posed: problem.Problem, splits: int, o: Any, m: Any, l: Any, start: Callable[..., None]
) -> None:
    """Run a kernel over splits of the keys, and merge what they give.

    Parameters
    ----------
    start : callable
        Given o, m and l, with the splits of all heads as their first axis, it starts the kernel.
    """
    outputs = [posed.by_head(name, array) for name, array in (("o", o), ("m", m), ("l", l))]
    if splits == 1:
        start(*outputs)
        return
    parts = [
        call.empty(f"parts of {name}", (splits * posed.heads, *array.shape[1:]))
        for name, array in zip(("o", "m", "l"), outputs)
    ]
    start(*parts)
    blocks = -(-posed.heads * posed.n_q // ROWS)
    device.launch(merge_splits_kernel, blocks, ROWS * WARP, *parts, *outputs, stream=call.stream)
