"""Launches by the driver alone: what Numba finds out at every launch, found out once for every kind of arguments.

An array of ours (:class:`fa_numba.pool.View`) goes to a kernel compiled by Numba as a row of numbers, its parameters:
two null pointers, the number of elements, the bytes of one, the address, the shape and the strides. All parameters are
packed one after another and handed to ``cuLaunchKernel`` (CUDA driver API, "Execution Control").
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from fa_numba import selection

_END, _BUFFER, _SIZE = 0, 1, 2  # cuda.h: CU_LAUNCH_PARAM_END, _BUFFER_POINTER, _BUFFER_SIZE
_NUMBERS = {int: "q", bool: "?", np.bool_: "?", np.float32: "f", np.float64: "d", float: "d"}


def kind(argument: Any) -> Any:
    """Return what a launch must know of an argument's type beforehand; None for what only Numba can launch."""
    if hasattr(argument, "parameters"):
        return argument.dtype.char, len(argument.shape)
    if type(argument) is int and not -(2**63) <= argument < 2**63:
        return None
    return _NUMBERS.get(type(argument))


def can_start(compiled: Any, kinds: tuple) -> bool:
    """Say whether a compiled kernel (None if Numba has not said which) needs nothing that only Numba's launch does."""
    return not (compiled is None or None in kinds or compiled.debug or compiled.cooperative)


class Launcher:
    """A compiled kernel, ready for arguments of certain kinds.

    Parameters
    ----------
    compiled
        What Numba compiled for them.
    kinds : tuple
        The kinds, as :func:`kind` gives them.
    """

    def __init__(self, compiled: Any, kinds: tuple):
        self._compiled = compiled  # which owns the kernel
        self._handle = ctypes.c_void_p(int(compiled._codelibrary.get_cufunc().handle))
        self._layout = struct.Struct("@" + "".join(_layout(each) for each in kinds))
        self._launch = selection.load_driver().cuLaunchKernel

    def __call__(self, grid: tuple, block: tuple, arguments: Any, shared: int, stream: Any) -> None:
        """Start the kernel; RuntimeError if the driver refuses."""
        values: list[Any] = []
        for argument in arguments:
            if hasattr(argument, "parameters"):
                values += argument.parameters
            else:
                values.append(argument)
        packed = ctypes.create_string_buffer(self._layout.pack(*values), self._layout.size)
        size = ctypes.c_size_t(self._layout.size)
        extra = (ctypes.c_void_p * 5)(_BUFFER, ctypes.addressof(packed), _SIZE, ctypes.addressof(size), _END)
        handle = ctypes.c_void_p(0 if stream == 0 else int(stream.handle))
        status = self._launch(self._handle, *grid, *block, shared, handle, None, extra)
        if status != 0:
            raise RuntimeError(f"the driver could not start the kernel (CUDA status {status})")


def _layout(each: Any) -> str:
    return each if isinstance(each, str) else "PPqqP" + "q" * (2 * each[1])
