"""4-wide loads and stores on the simulator; :mod:`fa_numba.primitives` has the instructions a GPU executes."""

from typing import Any

from fa_numba.simulator.arrays import KernelArray


def load4(array: KernelArray, index: Any) -> tuple:
    """Return the four elements from ``index`` on."""
    return tuple(array.read_run(index, 4))


def store4(array: KernelArray, index: Any, values: tuple) -> None:
    """Write four elements from ``index`` on."""
    if len(values) != 4:
        raise TypeError(f"store4 writes a tuple of 4 values; {len(values)} were given")
    array.write_run(index, values)
