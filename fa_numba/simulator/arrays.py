"""Arrays as a kernel sees them: every index checked, and no read of memory that nothing wrote."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.simulator.errors import MisalignedAccessError, OutOfBoundsError, UninitializedReadError
from fa_numba.simulator.integers import loaded, stored

if TYPE_CHECKING:
    from fa_numba.simulator.launch import Launch

# Unwritten memory holds 0xFF bytes: NaN in every floating-point format, -1 in every signed integer.
POISON = 0xFF
# One byte 0x01 stands for each written byte, read back in units as wide as the element.
_SHADOW_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_WRITTEN = {size: int.from_bytes(b"\x01" * size, sys.byteorder) for size in _SHADOW_TYPES}
_BEGUN = 2  # in the shadow of an element that a copy has begun to write
_FLOATS = (np.float16, np.float32, np.float64)
_NUMBERS = (*_FLOATS, float, int)


class KernelArray:
    """A view of an array in global, shared or local memory.

    Parameters
    ----------
    data : numpy.ndarray
        The elements.
    launch : Launch
        The launch it belongs to, which knows kernel and thread for error messages.
    space : str
        ``"global"``, ``"shared"``, ``"local"`` or ``"constant"``.
    origin : numpy.ndarray
        The allocation it lies in.
    shadow : numpy.ndarray, optional
        Which bytes were written, in elements as wide as those of ``data``; None if all were.
    alignment : int
        The alignment in bytes that a GPU promises for the start of the allocation.
    """

    __slots__ = (
        "_data",
        "_launch",
        "_origin",
        "_scalar",
        "_shadow",
        "_start",
        "_written",
        "_written_run",
        "alignment",
        "shape",
        "space",
    )

    def __init__(
        self,
        data: np.ndarray,
        launch: Launch,
        space: str,
        *,
        origin: np.ndarray,
        shadow: np.ndarray | None = None,
        alignment: int = 256,
    ):
        self._data = data
        self._launch = launch
        self._origin = origin
        self._shadow = shadow
        self._start: int | None = None
        self._written = _WRITTEN.get(data.itemsize)
        self._written_run = b"\x01" * (4 * data.itemsize)
        # Unwritten floats are NaN, so others need no shadow, unless the memory is also seen as another type.
        plain = data.dtype.type in _FLOATS and origin.dtype == data.dtype
        self._scalar = data.dtype.type if plain else None
        self.alignment = alignment
        self.shape = data.shape
        self.space = space

    dtype = property(lambda self: self._data.dtype)
    ndim = property(lambda self: self._data.ndim)
    size = property(lambda self: self._data.size)
    strides = property(lambda self: self._data.strides)
    itemsize = property(lambda self: self._data.itemsize)
    nbytes = property(lambda self: self._data.nbytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        self._check(index)
        item = self._data[index]
        if type(item) is self._scalar and item == item:
            return item
        if isinstance(item, np.ndarray):
            return self._view(item, None if self._shadow is None else self._shadow[index])
        if self._shadow is not None and self._shadow[index] != self._written:
            what = f"reads {index_text(index)} of a {self.space} array, {self._lack(index, 'which nothing wrote')}"
            raise self._launch.thread_error(UninitializedReadError, what)
        return loaded(item)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check(index)
        self._data[index] = value if self._scalar is not None else stored(value, self._data.dtype)
        if self._shadow is not None and not (self._scalar is not None and type(value) in _NUMBERS and value == value):
            self._shadow[index] = self._written

    @property
    def flat(self) -> FlatView:
        """The elements in C order, by one index."""
        return FlatView(self)

    @property
    def T(self) -> KernelArray:  # noqa: N802 (NumPy's name)
        """The transposed view."""
        return self._view(self._data.T, None if self._shadow is None else self._shadow.T)

    def reshape(self, *shape: int) -> KernelArray:
        """Return the same elements in another shape; ValueError unless the array is contiguous, as for the compiler."""
        if not self._data.flags.c_contiguous:
            raise ValueError(f"reshape needs a C-contiguous array; this one has strides {self.strides}")
        return self._view(self._data.reshape(*shape), None if self._shadow is None else self._shadow.reshape(*shape))

    def _view(self, data: np.ndarray, shadow: np.ndarray | None) -> KernelArray:
        return KernelArray(data, self._launch, self.space, origin=self._origin, shadow=shadow, alignment=self.alignment)

    def read_run(self, index: Any, length: int) -> np.ndarray:
        """Read ``length`` consecutive elements of the last axis, as a 4-wide load does."""
        where = self._run_index(index, length)
        run = self._data[where]
        if self._shadow is not None and not self._is_written(where, run):
            lack = self._lack(where, "not all of them written")
            what = f"reads {length} elements from {index_text(index)} of a {self.space} array, {lack}"
            raise self._launch.thread_error(UninitializedReadError, what)
        return run

    def _lack(self, where: Any, otherwise: str) -> str:
        """Say why there is nothing to read."""
        return "whose copy has begun and was not waited for" if np.any(self._shadow[where] == _BEGUN) else otherwise

    def _is_written(self, where: tuple, run: np.ndarray) -> bool:
        shadow = self._shadow[where]
        if self._scalar is None:
            return shadow.tobytes() == self._written_run[: run.nbytes]
        return all(item == item or mark == self._written for item, mark in zip(run.tolist(), shadow))

    def write_run(self, index: Any, values: tuple) -> None:
        """Write consecutive elements of the last axis, as a 4-wide store does."""
        where = self._run_index(index, len(values))
        self._data[where] = values
        if self._shadow is not None:
            self._shadow[where] = self._written

    def begin_copy(self, index: Any, values: np.ndarray) -> Callable[[], None]:
        """Begin to write consecutive elements, of which nothing is left from now on; return what ends it."""
        where = self._run_index(index, len(values))
        self._data[where] = np.nan
        if self._shadow is not None:
            self._shadow[where] = _BEGUN
        return functools.partial(KernelArray.write_run, self, index, tuple(values))

    def _run_index(self, index: Any, length: int) -> tuple:
        if type(index) is not tuple:
            index = self._unraveled(index)
        if len(index) != self.ndim:
            raise IndexError(f"a {length}-wide access needs {self.ndim} indices, not {len(index)}")
        first, end = index[-1], index[-1] + length
        self._check(index)
        self._check((*index[:-1], end - 1))
        if self._data.dtype.type not in (np.float32, np.float64):
            raise TypeError(f"a {length}-wide access needs a float32 or float64 array, not {self.dtype}")
        if not self._data.flags.c_contiguous:
            raise ValueError(f"a {length}-wide access needs a C-contiguous array; this one has strides {self.strides}")
        unit = min(16, length * self.itemsize)
        if self.alignment % unit or self._offset(index) % unit:
            what = (
                f"makes a {length}-wide access at {index_text(index)}, which need not lie at a multiple of {unit} bytes"
            )
            raise self._launch.thread_error(MisalignedAccessError, what)
        return (*index[:-1], slice(first, end))

    def _unraveled(self, index: int) -> tuple[int, ...]:
        """Return the index of each axis for one that counts elements in C order."""
        if self.ndim == 1:
            return (index,)
        if not 0 <= index < self.size:
            raise self._outside((index,))
        return tuple(int(i) for i in np.unravel_index(index, self.shape))

    def _offset(self, index: tuple) -> int:
        """Return how many bytes an element lies behind the start of the allocation."""
        if self._start is None:
            self._start = address(self._data) - address(self._origin)
        return self._start + sum(i * stride for i, stride in zip(index, self._data.strides))

    def _check(self, index: Any) -> None:
        shape = self.shape
        if type(index) is int:  # the common cases first: a simulated kernel spends its time here
            if shape and 0 <= index < shape[0]:
                return
            index = (index,)
        elif type(index) is tuple and len(index) == 2 == len(shape):
            i, j = index
            if type(i) is int and type(j) is int and 0 <= i < shape[0] and 0 <= j < shape[1]:
                return
        elif type(index) is not tuple:
            index = (index,)
        for i, length in zip(index, shape):
            if type(i) is slice:
                self._check_slice(i, length)
            elif type(i) in (bool, np.bool_):
                raise TypeError("an index is a bool, which the compiler does not take; write int32(...)")
            elif not 0 <= i < length:
                raise self._outside(index)
        if len(index) > len(shape):
            raise self._outside(index)

    def _check_slice(self, bounds: slice, length: int) -> None:
        for bound in (bounds.start, bounds.stop):
            if bound is not None and not 0 <= bound <= length:
                raise self._outside((bounds,))

    def _outside(self, index: tuple) -> OutOfBoundsError:
        shape = tuple(int(n) for n in self.shape)
        return self._launch.thread_error(
            OutOfBoundsError, f"uses index {index_text(index)} of a {self.space} array of shape {shape}"
        )


class FlatView:
    """The elements of a :class:`KernelArray` in C order."""

    __slots__ = ("_array",)

    def __init__(self, array: KernelArray):
        self._array = array

    def __getitem__(self, index: int) -> Any:
        return self._array[self._array._unraveled(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self._array[self._array._unraveled(index)] = value


def index_text(index: Any) -> str:
    """Write an index as in the source: ``[3]``, ``[2, 5]`` or ``[0:8]``."""
    parts = index if type(index) is tuple else (index,)
    return f"[{', '.join(_part_text(part) for part in parts)}]"


def _part_text(part: Any) -> str:
    if type(part) is slice:
        return ":".join("" if bound is None else str(int(bound)) for bound in (part.start, part.stop))
    return str(int(part))


def unwritten(count: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """Return ``count`` poisoned elements and their shadow."""
    raw = np.full(count * dtype.itemsize, POISON, np.uint8)
    return raw.view(dtype), shadow_view(np.zeros_like(raw), dtype)


def shadow_view(written: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """View a byte-wise shadow in units of ``dtype``'s width; None for widths that are not tracked."""
    unit = _SHADOW_TYPES.get(dtype.itemsize)
    return None if unit is None else written.view(unit)


def address(array: np.ndarray) -> int:
    """Return where an array's first element lies."""
    return array.__array_interface__["data"][0]
