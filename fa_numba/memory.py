"""The device memory that attention holds at its peak: counted by the ledger, or computed for longer lengths."""

import bisect
from typing import Any

import numpy as np
from numba import cuda

from fa_numba import device
from fa_numba.device import ledger
from fa_numba.step3_standard_attention import standard_attention, standard_attention_backward
from fa_numba.step4_flash_forward import flash_forward
from fa_numba.step5_flash_backward import flash_backward

METHODS = ("standard", "flash")
PASSES = ("forward", "forward+backward")

# Tiles are not in the device's memory, and small ones spare the simulator a short head's empty rows.
# On a GPU, tiles of one's own keep flash attention from splitting the keys of a short head, which holds parts of o.
_TILES = dict.fromkeys(("block_q", "block_k"), 16 if device.SIMULATED else 64)

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


def longest(method: str, passes: str, nbytes: int, d: int, heads: int = 1) -> int:
    """Return the length up to which the peak, by formula, fits into a number of bytes; else as for computed_bytes."""
    lengths = range(1, nbytes + 1)
    return bisect.bisect_right(lengths, nbytes, key=lambda n: computed_bytes(method, passes, n, d, heads))


def counted_bytes(method: str, passes: str, n: int, d: int, heads: int = 1, dtype: Any = np.float32) -> int:
    """Return the peak that the ledger counts while attention runs; arguments as for :func:`computed_bytes`."""
    return counted_peaks(method, n, d, heads, dtype, backward=passes == "forward+backward")[passes]


def counted_peaks(
    method: str, n: int, d: int, heads: int = 1, dtype: Any = np.float32, backward: bool = True
) -> dict[str, int]:
    """Return the peaks that the ledger counts while attention runs once: after the forward pass, and after both.

    Parameters
    ----------
    method, n, d, heads
        As for :func:`computed_bytes`.
    dtype : dtype
        float32 or float64.
    backward : bool
        Whether to run the backward pass and return its peak too.

    Returns
    -------
    dict of int
        The bytes by pass, as named in ``PASSES``.
    """
    q, k, v, do = (cuda.to_device(np.full((heads, n, d), value, dtype)) for value in (0.1, 0.2, 0.3, 0.4))
    with ledger() as memory:
        if method == "standard":
            o, p = standard_attention(q, k, v)
            peaks = {"forward": memory.peak}
            if backward:
                standard_attention_backward(do, q, k, v, p)
        else:
            o, m, l = flash_forward(q, k, v, **_TILES)
            peaks = {"forward": memory.peak}
            if backward:
                flash_backward(do, q, k, v, o, m, l, **_TILES)
        if backward:
            peaks["forward+backward"] = memory.peak
        del o  # held until here, as in training
    return peaks


def readable(nbytes: float) -> str:
    """Return a number of bytes in three digits, with its unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * size:  # what rounds to 1000 of the next smaller unit is 1 of this one
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
