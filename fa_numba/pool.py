"""Device memory for results and working arrays, from a pool of the driver's, in the order of a stream.

Numba's allocator asks the driver for new memory each time, and waits for the device when it gives memory back: for
large arrays that takes longer than many a kernel. A pool keeps freed memory at hand (CUDA driver API, "Stream Ordered
Memory Allocator"). As with PyTorch's, an array that a kernel on another stream still reads must not be dropped before
that kernel has ended.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, from_dtype, types

from fa_numba.device import SIMULATED, current_device

KEPT = 1 / 8  # of the device's memory: what the pool keeps at hand

_counted: dict[int, Any] = {}  # Numba's arrays hold weak references to what counts them
_numbers = itertools.count()


class View:
    """A contiguous device array, as far as a launch must know it: Numba's own objects take longer to make.

    It answers what Numba asks of an argument (``_numba_type_`` and the attributes from ``__cuda_memory__`` on).

    Attributes
    ----------
    ptr : int
        The address.
    shape : tuple of int
    dtype : numpy.dtype
    size : int
        The number of elements.
    memory
        What keeps the memory alive.
    """

    __slots__ = ("__weakref__", "dtype", "memory", "ptr", "shape", "size")
    __cuda_memory__ = True
    _layout = SimpleNamespace(strides_in_bytes=None, is_contiguous_c=True, is_contiguous_f=False)

    def __init__(self, ptr: int, shape: tuple[int, ...], dtype: np.dtype, memory: Any):
        self.ptr = ptr
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.memory = memory

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize

    @property
    def _numba_type_(self) -> types.Array:
        return _array_type(self.dtype, len(self.shape))

    @property
    def _strided_memory_view_shim(self) -> View:
        return self

    @property
    def parameters(self) -> tuple[int, ...]:
        """What a kernel compiled by Numba is given for it."""
        itemsize = self.dtype.itemsize
        return (0, 0, self.size, itemsize, self.ptr, *self.shape, *_strides(self.shape, itemsize))

    def reshape(self, *shape: Any) -> View:
        """Return the same memory in another shape of as many elements; ValueError for another number of them."""
        shape = tuple(shape[0]) if isinstance(shape[0], tuple) else shape
        if math.prod(shape) != self.size:
            raise ValueError(f"an array of shape {self.shape} has no view of shape {shape}")
        return View(self.ptr, shape, self.dtype, self.memory)

    def copy_to_device(self, array: np.ndarray) -> None:
        """Copy a contiguous NumPy array of this shape to the device."""
        self.as_numba(0).copy_to_device(array)

    def copy_to_host(self, stream: Any = 0) -> np.ndarray:
        """Return a copy as a NumPy array."""
        return self.as_numba(stream).copy_to_host(stream=stream)

    def as_numba(self, stream: Any = 0) -> Any:
        """Return it as Numba's device array."""
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        memory = self.memory.as_numba() if isinstance(self.memory, Memory) else self.memory
        strides = _strides(self.shape, self.dtype.itemsize)
        return DeviceNDArray(self.shape, strides, self.dtype, stream=stream, gpu_data=memory)


@functools.lru_cache(maxsize=1024)
def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape)))


class Memory:
    """Memory of the pool, which goes back there with the last reference to this."""

    __slots__ = ("_context", "_driver", "_numba_context", "_stream", "nbytes", "pointer")

    def __init__(self, pointer: Any, nbytes: int, stream: Any, driver: Any, contexts: tuple[Any, Any]):
        self.pointer = pointer
        self.nbytes = nbytes
        self._stream = stream  # lives as long as its memory
        self._driver = driver
        self._numba_context, self._context = contexts

    def as_numba(self) -> Any:
        """Return it as Numba's arrays refer to memory: by counting, which lets go of it after the last view."""
        from numba.cuda.cudadrv.driver import AutoFreePointer

        number = next(_numbers)
        counted = AutoFreePointer(
            self._numba_context, self.pointer, self.nbytes, finalizer=lambda: _counted.pop(number, None)
        )
        _counted[number] = counted, self
        return counted.own()

    def __del__(self) -> None:
        driver = self._driver
        (status,) = driver.cuCtxPushCurrent(self._context)  # whoever drops an array may use another device, or none
        if status != driver.CUresult.CUDA_SUCCESS:  # the context is gone, and all its memory
            return
        (status,) = driver.cuMemFreeAsync(self.pointer, 0 if self._stream == 0 else int(self._stream.handle))
        if status != driver.CUresult.CUDA_SUCCESS:  # a stream that is gone
            driver.cuMemFree(self.pointer)
        driver.cuCtxPopCurrent()


@functools.cache
def _array_type(dtype: np.dtype, axes: int) -> types.Array:
    return types.Array(from_dtype(dtype), axes, "C")


def allocate(shape: tuple[int, ...], dtype: np.dtype, stream: Any) -> Any:
    """Return a new device array, for use on a stream: a :class:`View` on a GPU, the simulator's array there.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    stream
        A Numba stream; 0 is the default stream.
    """
    if SIMULATED:
        return cuda.device_array(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = _from_pool(nbytes, stream) if nbytes else None
    if memory is not None:
        return View(int(memory.pointer), shape, dtype, memory)
    memory = cuda.device_array(shape, dtype, stream=stream).gpu_data
    return View(memory.device_pointer_value or 0, shape, dtype, memory)


def _from_pool(nbytes: int, stream: Any) -> Memory | None:
    """Return memory of the pool, or None if there is no pool or no room."""
    from cuda.bindings import driver

    pool, *contexts = _pool(current_device())
    if pool is None:
        return None
    status, pointer = driver.cuMemAllocFromPoolAsync(nbytes, pool, 0 if stream == 0 else int(stream.handle))
    if status != driver.CUresult.CUDA_SUCCESS:
        return None  # Numba's allocator frees what it can first, and has the error otherwise
    return Memory(pointer, nbytes, stream, driver, tuple(contexts))


@functools.cache
def _pool(device: int) -> tuple[Any, Any, Any]:
    """Return our pool on a device, None if the device has none; Numba's context there, and the driver's."""
    from cuda.bindings import driver

    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    status, pool = driver.cuMemPoolCreate(properties)
    if status != driver.CUresult.CUDA_SUCCESS:
        return None, None, None
    kept = driver.cuuint64_t(int(cuda.current_context().get_memory_info().total * KEPT))
    driver.cuMemPoolSetAttribute(pool, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kept)
    (_, handle), context = driver.cuCtxGetCurrent(), cuda.current_context()
    return pool, weakref.proxy(context), handle
