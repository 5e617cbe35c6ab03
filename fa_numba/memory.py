"""The device memory that attention holds at its peak: counted by the ledger, or computed for longer lengths."""

from typing import Any

import numpy as np
from numba import cuda

from fa_numba.device import ledger
from fa_numba.step3_standard_attention import standard_attention, standard_attention_backward
from fa_numba.step4_flash_forward import flash_forward
from fa_numba.step5_flash_backward import flash_backward

METHODS = ("standard", "flash")
PASSES = ("forward", "forward+backward")

# Elements at the peak, for one head of n queries and n keys, d wide. With the inputs and outputs, standard attention
# holds s and p, then p, dp and ds; flash attention holds m and l, then m, l and delta.
_ELEMENTS = {
    ("standard", "forward"): lambda n, d: 4 * n * d + 2 * n * n,
    ("standard", "forward+backward"): lambda n, d: 8 * n * d + 3 * n * n,
    ("flash", "forward"): lambda n, d: 4 * n * d + 2 * n,
    ("flash", "forward+backward"): lambda n, d: 8 * n * d + 3 * n,
}


def computed_bytes(method: str, passes: str, n: int, d: int, heads: int = 1, itemsize: int = 4) -> int:
    """Return the peak by formula.

    Parameters
    ----------
    method : str
        ``"standard"`` or ``"flash"``.
    passes : str
        ``"forward"`` or ``"forward+backward"``.
    n, d, heads : int
        Queries and keys of a head, their width, and the number of heads.
    itemsize : int
        Bytes of an element.
    """
    return heads * _ELEMENTS[method, passes](n, d) * itemsize


def counted_bytes(method: str, passes: str, n: int, d: int, heads: int = 1, dtype: Any = np.float32) -> int:
    """Return the peak that the ledger counts while attention runs; arguments as for :func:`computed_bytes`."""
    q, k, v, do = (cuda.to_device(np.full((heads, n, d), value, dtype)) for value in (0.1, 0.2, 0.3, 0.4))
    with ledger() as memory:
        if method == "standard":
            o, p = standard_attention(q, k, v)
            if passes == "forward+backward":
                standard_attention_backward(do, q, k, v, p)
        else:
            o, m, l = flash_forward(q, k, v)
            if passes == "forward+backward":
                flash_backward(do, q, k, v, o, m, l)
        del o  # held until here, as in training
    return memory.peak
