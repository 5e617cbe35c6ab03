"""What Numba's integer types mean inside a simulated kernel.

A kernel computes with Python's integers, as wide as they need to be: the compiler computes with 64 bits, whatever the
width of the arrays that integers come from, where NumPy would stay at 32 bits and overflow.
"""

from typing import Any

import numpy as np
from numba import types


class KernelInteger:
    """A Numba integer type: called, it wraps a number around as the compiler does; else it stands for its dtype."""

    def __init__(self, numba_type: types.Integer):
        self.numba_type = numba_type

    def __call__(self, value: Any) -> int:
        return wrapped(int(value), self.numba_type.bitwidth, self.numba_type.signed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.numba_type, name)


def wrapped(value: int, bits: int, signed: bool) -> int:
    """Return an integer modulo 2**bits, in the range of the type."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def stored(value: Any, dtype: np.dtype) -> Any:
    """Return what an array of a dtype keeps of a value: an integer that is too large wraps around, as on a GPU."""
    if dtype.kind in "iu" and isinstance(value, (int, np.integer)):
        return wrapped(int(value), 8 * dtype.itemsize, dtype.kind == "i")
    return value


def loaded(item: Any) -> Any:
    """Return an array element as the kernel computes with it."""
    return item.item() if isinstance(item, (np.integer, np.bool_)) else item
