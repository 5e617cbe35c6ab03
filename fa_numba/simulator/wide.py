"""4-wide accesses and parts of arrays on the simulator; :mod:`fa_numba.primitives` has what a GPU executes."""

from typing import Any

import numpy as np
from greenlet import getcurrent

from fa_numba import limits
from fa_numba.simulator.arrays import KernelArray


def load2(array: KernelArray, index: Any) -> tuple:
    """Return the two elements from ``index`` on."""
    return tuple(array.read_run(index, 2))


def load4(array: KernelArray, index: Any) -> tuple:
    """Return the four elements from ``index`` on."""
    return tuple(array.read_run(index, 4))


def store4(array: KernelArray, index: Any, values: tuple) -> None:
    """Write four elements from ``index`` on."""
    if len(values) != 4:
        raise TypeError(f"store4 writes a tuple of 4 values; {len(values)} were given")
    array.write_run(index, values)


def copy1(to: KernelArray, to_index: Any, array: KernelArray, index: Any) -> None:
    """Begin to copy one element: until the thread has waited for it, it is not there."""
    _begin_copy(to, to_index, array, index, 1)


def copy4(to: KernelArray, to_index: Any, array: KernelArray, index: Any) -> None:
    """Begin to copy four elements: until the thread has waited for them, nothing is there."""
    _begin_copy(to, to_index, array, index, 4)


def _begin_copy(to: KernelArray, to_index: Any, array: KernelArray, index: Any, length: int) -> None:
    if not limits.simulated().asynchronous:
        raise ValueError("asynchronous copies need compute capability 8.0 or later")
    if (array.space, to.space) != ("global", "shared"):
        raise TypeError(f"an asynchronous copy goes from global to shared memory, not from {array.space} to {to.space}")
    if not array.dtype == to.dtype == np.float32:
        raise TypeError(f"only float32 is copied to float32, not {array.dtype} to {to.dtype}")
    getcurrent().copies.append(to.begin_copy(to_index, array.read_run(index, length)))


def wait_for_copies() -> None:
    """End the copies that the thread has begun."""
    copies = getcurrent().copies
    for end in copies:
        end()
    copies.clear()


def part(array: KernelArray, start: int, length: int) -> KernelArray:
    """Return ``length`` elements of a one-dimensional array from ``start`` on."""
    if array.ndim != 1:
        raise TypeError(f"part takes a one-dimensional array; this one has shape {array.shape}")
    return array[start : start + length]
