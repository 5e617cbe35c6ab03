"""4-wide accesses and parts of arrays on the simulator; :mod:`fa_numba.primitives` has what a GPU executes."""

from typing import Any

from greenlet import getcurrent

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
    getcurrent().copies.append(to.begin_copy(to_index, array.read_run(index, 1)))


def copy4(to: KernelArray, to_index: Any, array: KernelArray, index: Any) -> None:
    """Begin to copy four elements: until the thread has waited for them, nothing is there."""
    getcurrent().copies.append(to.begin_copy(to_index, array.read_run(index, 4)))


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
