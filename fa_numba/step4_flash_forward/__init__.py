"""Step 4: attention in one kernel that never writes a score to memory (FlashAttention's forward pass).

The rungs, each a module: one thread a row; small tiles, four by four scores a thread; wide tiles, eight by eight.
Beside them few queries, for decoding, and split keys, for heads too few to fill a device.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fa_numba import arrays, device, problem
from fa_numba.step4_flash_forward import few_queries, one_thread_a_row, small_tiles, wide_tiles
from fa_numba.step4_flash_forward.small_tiles import make_flash_forward
from fa_numba.step4_flash_forward.wide_tiles import make_wide_flash_forward

__all__ = ["RUNGS", "FlashOutput", "flash_attention", "flash_forward", "make_flash_forward", "make_wide_flash_forward"]


class FlashOutput(NamedTuple):
    """The output of flash attention, and the two numbers a row that its backward needs."""

    o: Any
    m: Any
    l: Any

    @property
    def lse(self) -> Any:
        """m + log(l): the natural logarithm of a row's sum of exp(scores); -inf for a row that saw no key."""
        return arrays.log_sum_exp(self.m, self.l)


def flash_forward(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None, block_q: Any = None, block_k: Any = None
) -> FlashOutput:
    """Return attention's output softmax(q k^T scale) v, and each row's maximum m and normalizer l.

    Parameters
    ----------
    q : array of shape (..., n_q, d)
    k : array of shape (..., n_k, d)
    v : array of shape (..., n_k, d_v)
        float32 or float64, with none, one (heads) or two (batch, heads) leading axes. k and v may have fewer heads, a
        divisor of q's. d and d_v from 1 to 256.
    causal : bool
        Query i sees key j only if j <= i + n_k - n_q.
    scale : float, optional
        What scores are multiplied by; 1 / sqrt(d) if None.
    block_q, block_k : int, optional
        The tile of the small-tile kernel: 8, 16, 32 or 64 queries and keys. None chooses tile and kernel: in float32
        on a GPU the fastest for the shapes, else small tiles.

    Returns
    -------
    FlashOutput
        o of shape (..., n_q, d_v); m and l of shape (..., n_q), m the maximum of the scaled scores.

    Raises
    ------
    TypeError, ValueError
        For arrays, shapes, scales and tiles that do not fit.

    Notes
    -----
    Dao, "FlashAttention-2" (2023), algorithm 1. Where the blocks of queries would leave a GPU idle, the keys are split
    over several blocks, whose results are merged (Dao et al., "Flash-Decoding", 2023); these hold, beside o, m and l,
    at most two blocks of queries for each multiprocessor.
    """
    return _forward(_launch, q, k, v, causal=causal, scale=scale, block_q=block_q, block_k=block_k)


def flash_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None, return_lse: bool = False
) -> Any:
    """Return attention's output, computed by the fastest kernel that fits inputs and device.

    Parameters
    ----------
    q, k, v, causal, scale
        As for :func:`flash_forward`.
    return_lse : bool
        Whether to return the logarithm of each row's sum of exp(scores) too.

    Returns
    -------
    array or tuple of array
        o of shape (..., n_q, d_v), or (o, lse) with lse of shape (..., n_q).

    Raises
    ------
    TypeError, ValueError
        Those of :func:`flash_forward`.
    """
    output = flash_forward(q, k, v, causal=causal, scale=scale)
    return (output.o, output.lse) if return_lse else output.o


def _forward(
    launch: Callable[..., None], q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None, **tile: Any
) -> FlashOutput:
    """Compute attention by one of the kernels, with its own tile or the one that is given."""
    call = arrays.Call(q=q, k=k, v=v)
    posed = problem.check(call.shapes, causal, scale, call.dtype)
    with call:
        o = call.empty("o", posed.shape_o)
        m = call.empty("m", posed.shape_rows)
        l = call.empty("l", posed.shape_rows)
        if m.size > 0:
            launch(call, posed, o, m, l, **tile)
        elif "block_q" in tile:
            small_tiles.check_blocks(call, posed, **tile)
        return FlashOutput(call.result(o), call.result(m), call.result(l))


def _launch(call: arrays.Call, posed: problem.Problem, o: Any, m: Any, l: Any, block_q: Any, block_k: Any) -> None:
    """Start the fastest kernel that takes these inputs."""
    if device.SIMULATED or call.dtype != np.float32 or (block_q, block_k) != (None, None) or posed.n_k == 0:
        small_tiles.launch(call, posed, o, m, l, block_q, block_k)
    elif few_queries.takes(posed):
        few_queries.launch(call, posed, o, m, l)
    elif wide_tiles.choose_tile(posed) is not None:
        wide_tiles.launch(call, posed, o, m, l)
    else:
        small_tiles.launch(call, posed, o, m, l)


RUNGS: dict[str, Callable[..., FlashOutput]] = {
    "one thread a row": functools.partial(_forward, one_thread_a_row.launch),
    "4x4 register tiles": functools.partial(_forward, small_tiles.launch),
    "8x8 register tiles": functools.partial(_forward, wide_tiles.launch),
}
