"""Step 5: the gradients of flash attention, by recomputing the probabilities tile by tile.

The rungs, each a module: small tiles, one kernel for dk and dv and one for dq; wide tiles, one kernel for all.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fa_numba import arrays, device, problem
from fa_numba.step5_flash_backward import small_tiles, wide_tiles
from fa_numba.step5_flash_backward.delta import delta_kernel
from fa_numba.step5_flash_backward.small_tiles import make_flash_backward_dk_dv, make_flash_backward_dq
from fa_numba.step5_flash_backward.wide_tiles import make_wide_flash_backward

__all__ = [
    "RUNGS",
    "delta_kernel",
    "flash_backward",
    "make_flash_backward_dk_dv",
    "make_flash_backward_dq",
    "make_wide_flash_backward",
]


def flash_backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    m: Any,
    l: Any,
    *,
    causal: bool = False,
    scale: Any = None,
    block_q: Any = None,
    block_k: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients (dq, dk, dv) of attention, from the output and the two numbers a row that the forward saved.

    Parameters
    ----------
    do : array of shape (..., n_q, d_v)
        The gradient of the output.
    q, k, v, causal, scale
        As given to :func:`fa_numba.flash_forward`.
    block_q, block_k : int, optional
        The tile of the small-tile kernels: 8, 16, 32 or 64 queries and keys. None chooses tile and kernels.
    o, m, l
        What it returned.

    Returns
    -------
    tuple of array
        dq, dk and dv, of the shapes of q, k and v. Where query heads share a key head, its gradients are their sum.

    Raises
    ------
    TypeError, ValueError
        For arrays, shapes, scales and tiles that do not fit.

    Notes
    -----
    Dao, "FlashAttention-2" (2023), algorithm 2, with sums in a fixed order: the result is the same bit for bit in every
    run. Small tiles take two kernels, so that no block adds to what another one writes. Wide tiles, in float32 and on a
    GPU, take one, whose blocks wait for their turn to add to dq; it holds a counter, an int32, for 16 to 48 queries
    and for each block of keys.

    P comes from scores that are computed again, and m is exact for them only if both passes round them alike. They do,
    but for a forward of four queries or fewer on a GPU, where several lanes share a dot product: scores of several
    hundred then cost the gradients accuracy, 2e-4 instead of 1e-7 at 740.
    """
    tile = {"block_q": block_q, "block_k": block_k}
    return _backward(_launch, do, q, k, v, o, m, l, causal=causal, scale=scale, **tile)


def _backward(
    launch: Callable[..., None],
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    m: Any,
    l: Any,
    *,
    causal: bool = False,
    scale: Any = None,
    **tile: Any,
) -> tuple[Any, Any, Any]:
    """Compute the gradients by some of the kernels, with their own tile or the one that is given."""
    call = arrays.Call(do=do, q=q, k=k, v=v, o=o, m=m, l=l)
    posed = problem.check(call.shapes, causal, scale, call.dtype)
    for name in ("do", "o"):
        problem.check_like(name, call.shapes[name], posed.shape_o)
    for name in ("m", "l"):
        problem.check_like(name, call.shapes[name], posed.shape_rows)
    with call:
        dq, dk, dv = (call.empty(f"d{name}", call.shapes[name]) for name in "qkv")
        if posed.heads * posed.n_q * posed.n_k > 0:
            launch(call, posed, dq, dk, dv, **tile)
        else:  # nobody sees anything
            if "block_q" in tile:
                small_tiles.check_blocks(call, posed, **tile)
            for gradient in (dq, dk, dv):
                arrays.fill_with_zeros(gradient, call.stream)
        return call.result(dq), call.result(dk), call.result(dv)


def _launch(call: arrays.Call, posed: problem.Problem, dq: Any, dk: Any, dv: Any, block_q: Any, block_k: Any) -> None:
    """Start the fastest kernels that take these inputs."""
    own_tile = (block_q, block_k) != (None, None)
    if device.SIMULATED or call.dtype != np.float32 or own_tile or not wide_tiles.takes(posed):
        small_tiles.launch(call, posed, dq, dk, dv, block_q, block_k)
    else:
        wide_tiles.launch(call, posed, dq, dk, dv)


RUNGS: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
    "two kernels, 4x4 register tiles": functools.partial(_backward, small_tiles.launch),
    "one kernel, 8x8 register tiles": functools.partial(_backward, wide_tiles.launch),
}
