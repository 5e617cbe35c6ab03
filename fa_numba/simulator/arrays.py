"""Arrays as a kernel sees them: every index checked, and no read of memory that nothing wrote."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.simulator import source
from fa_numba.simulator.errors import MisalignedAccessError, OutOfBoundsError, UninitializedReadError

if TYPE_CHECKING:
    from fa_numba.simulator.launch import Launch

# Unwritten memory holds 0xFF bytes: NaN in every floating-point format, -1 in every signed integer.
POISON = 0xFF
# One byte 0x01 stands for each written byte, read back in units as wide as the element.
_SHADOW_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_WRITTEN = {size: int.from_bytes(b"\x01" * size, sys.byteorder) for size in _SHADOW_TYPES}


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
    shadow : numpy.ndarray, optional
        Which bytes were written, in elements as wide as those of ``data``; None if all were.
    alignment : int
        The alignment in bytes that a GPU promises for the start of this memory.
    """

    __slots__ = ("_data", "_launch", "_shadow", "_written", "alignment", "shape", "space")

    def __init__(
        self, data: np.ndarray, launch: Launch, space: str, shadow: np.ndarray | None = None, alignment: int = 256
    ):
        self._data = data
        self._launch = launch
        self._shadow = shadow
        self._written = _WRITTEN.get(data.itemsize)
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
        if isinstance(item, np.ndarray):
            shadow = None if self._shadow is None else self._shadow[index]
            return KernelArray(item, self._launch, self.space, shadow, self.alignment)
        if self._shadow is not None and self._shadow[index] != self._written:
            raise self._error(
                UninitializedReadError, f"reads {index_text(index)} of a {self.space} array, which nothing wrote"
            )
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check(index)
        self._data[index] = value
        if self._shadow is not None:
            self._shadow[index] = self._written

    @property
    def flat(self) -> FlatView:
        """The elements in C order, by one index."""
        return FlatView(self)

    @property
    def T(self) -> KernelArray:  # noqa: N802 (NumPy's name)
        """The transposed view."""
        return self._reshaped(lambda array: array.T)

    def reshape(self, *shape: int) -> KernelArray:
        """Return the same elements in another shape."""
        return self._reshaped(lambda array: array.reshape(*shape))

    def read_run(self, index: Any, length: int) -> np.ndarray:
        """Read ``length`` consecutive elements of the last axis, as a 4-wide load does."""
        where = self._run_index(index, length)
        if self._shadow is not None and np.any(self._shadow[where] != self._written):
            what = f"reads {length} elements from {index_text(index)} of a {self.space} array, not all of them written"
            raise self._error(UninitializedReadError, what)
        return self._data[where]

    def write_run(self, index: Any, values: tuple) -> None:
        """Write consecutive elements of the last axis, as a 4-wide store does."""
        where = self._run_index(index, len(values))
        self._data[where] = values
        if self._shadow is not None:
            self._shadow[where] = self._written

    def _run_index(self, index: Any, length: int) -> tuple:
        index = index if type(index) is tuple else (index,)
        if len(index) != self.ndim:
            raise IndexError(f"a {length}-wide access needs {self.ndim} indices, not {len(index)}")
        self._check(index)
        self._check((*index[:-1], index[-1] + length - 1))
        if not self._data.flags.c_contiguous:
            raise ValueError(f"a {length}-wide access needs a C-contiguous array; this one has strides {self.strides}")
        start = self._data[(*index[:-1], slice(index[-1], index[-1] + length))]
        if self.alignment % 16 or start.__array_interface__["data"][0] % 16:
            what = f"makes a {length}-wide access at {index_text(index)}, which need not lie at a multiple of 16 bytes"
            raise self._error(MisalignedAccessError, what)
        return (*index[:-1], slice(index[-1], index[-1] + length))

    def _reshaped(self, view: Any) -> KernelArray:
        shadow = None if self._shadow is None else view(self._shadow)
        return KernelArray(view(self._data), self._launch, self.space, shadow, self.alignment)

    def _check(self, index: Any) -> None:
        if type(index) is not tuple:
            index = (index,)
        for i, length in zip(index, self.shape):
            if type(i) is slice:
                self._check_slice(i, length)
            elif not 0 <= i < length:
                raise self._outside(index)
        if len(index) > len(self.shape):
            raise self._outside(index)

    def _check_slice(self, bounds: slice, length: int) -> None:
        for bound in (bounds.start, bounds.stop):
            if bound is not None and not 0 <= bound <= length:
                raise self._outside((bounds,))

    def _outside(self, index: tuple) -> OutOfBoundsError:
        shape = tuple(int(n) for n in self.shape)
        return self._error(OutOfBoundsError, f"uses index {index_text(index)} of a {self.space} array of shape {shape}")

    def _error(self, kind: type, what: str) -> Exception:
        return self._launch.thread_error(kind, what, source.current_line())


class FlatView:
    """Read-only access to the elements of a :class:`KernelArray` in C order."""

    __slots__ = ("_array",)

    def __init__(self, array: KernelArray):
        self._array = array

    def __getitem__(self, index: int) -> Any:
        array = self._array
        if not 0 <= index < array.size:
            raise array._outside((index,))
        return array[tuple(int(i) for i in np.unravel_index(index, array.shape))]


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
