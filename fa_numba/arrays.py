"""Arrays of one call: taken in from NumPy or from a device, checked, made contiguous, and given back in kind."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import numpy as np
from numba import cuda, float32

from fa_numba import selection
from fa_numba.device import SIMULATED, launch, require_gpu
from fa_numba.ledger import hold

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_COPY_THREADS = 256
_DEVICE_ORDINAL = 9  # cuda.h: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class Call:
    """The arrays of one call: takes them in, makes room on the device, gives results back where the inputs came from.

    NumPy in, NumPy out. Device arrays (Numba's, or anything with ``__cuda_array_interface__``) in, Numba device arrays
    out, read and computed on the producer's stream. Used as a context manager, so that the inputs' device is current.

    Parameters
    ----------
    **inputs
        The arrays by name: all on the host or all on one device, in one dtype, float32 or float64. Any strides.

    Attributes
    ----------
    dtype : numpy.dtype
        That of the inputs.
    shapes : dict
        The inputs' shapes, by name.
    stream
        The stream to launch on.

    Raises
    ------
    TypeError
        For other kinds of inputs, a mixture of host and device, and other or mixed dtypes.
    ValueError
        On entering, for inputs on different devices.
    RuntimeError
        On entering, if a GPU was asked for and none can be used.
    """

    def __init__(self, **inputs: Any):
        inputs = {name: _as_array(name, value) for name, value in inputs.items()}
        self._on_host = _are_on_host(inputs)
        self.dtype = _common_dtype(inputs)
        self.shapes = {name: _shape_of(array) for name, array in inputs.items()}
        self._inputs = inputs
        self._scope = contextlib.ExitStack()
        self.stream: Any = 0

    def __enter__(self) -> Call:
        require_gpu()
        try:
            self._arrays = self._take_in()
        except BaseException:
            self._scope.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._arrays.clear()
        self._scope.close()

    def __getitem__(self, name: str) -> Any:
        """Return an input as a C-contiguous device array."""
        return self._arrays[name]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the inputs by name, as contiguous device arrays."""
        return self._arrays.items()

    def empty(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return a new device array in the inputs' dtype; the simulator fills it with NaN, so that gaps show."""
        array = cuda.device_array(shape, self.dtype, stream=self.stream)
        if SIMULATED:
            array._ary.fill(np.nan)
        # Whoever drops the array last, the caller perhaps, strikes it out of the ledger; at exit nobody reads one.
        weakref.finalize(array, hold(name, array)).atexit = False
        return array

    def result(self, array: Any) -> Any:
        """Return a device array as what the caller gets: NumPy or device array, as the inputs were."""
        return array.copy_to_host(stream=self.stream) if self._on_host else array

    def _take_in(self) -> dict[str, Any]:
        if self._on_host:
            return {name: self._upload(name, array) for name, array in self._inputs.items()}
        if not SIMULATED:
            self._scope.enter_context(cuda.gpus[_common_device(self._inputs)])
        arrays = {
            name: array if _is_numba_array(array) else cuda.as_cuda_array(array, sync=False)
            for name, array in self._inputs.items()
        }
        self.stream = _common_stream([_stream_of(self._inputs[name], array) for name, array in arrays.items()])
        return {name: self._borrow(name, array) for name, array in arrays.items()}

    def _upload(self, name: str, array: np.ndarray) -> Any:
        copy = self.empty(name, array.shape)
        if array.size:
            copy.reshape(array.size).copy_to_device(np.ravel(array))  # flat: Numba drops axes of stride 0
        return copy

    def _borrow(self, name: str, array: Any) -> Any:
        self._scope.callback(hold(name, array))
        return array if _is_contiguous(array) else self._contiguous_copy(f"contiguous {name}", array)

    def _contiguous_copy(self, name: str, array: Any) -> Any:
        copy = self.empty(name, array.shape)
        launch(copy_kernel, _blocks_for(array), _COPY_THREADS, array, copy.reshape(array.size), stream=self.stream)
        return copy


def over_rows(x: Any, start: Callable[[Any, Any, Any], None]) -> Any:
    """Compute something of each row of ``x``, along its last axis.

    Parameters
    ----------
    x : array of shape (..., n)
        As :class:`Call` takes it.
    start : callable
        Given ``x`` and the result as device arrays of shape (rows, n), and a stream, it starts the kernels. It is not
        called if there is nothing to compute.

    Returns
    -------
    array
        Like ``x``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Those of :class:`Call`; ValueError for a 0-dimensional ``x``.
    """
    call = Call(x=x)
    shape = call.shapes["x"]
    if not shape:
        raise ValueError("x has shape (); softmax needs at least one axis to run over")
    with call:
        y = call.empty("y", shape)
        if y.size > 0:
            rows = (y.size // shape[-1], shape[-1])
            start(call["x"].reshape(rows), y.reshape(rows), call.stream)
        return call.result(y)


def log_sum_exp(m: Any, l: Any) -> Any:
    """Return m + log(l), elementwise; -inf where l is 0."""
    call = Call(m=m, l=l)
    with call:
        lse = call.empty("lse", call.shapes["m"])
        if lse.size > 0:
            flat = [array.reshape(lse.size) for array in (call["m"], call["l"], lse)]
            launch(log_sum_exp_kernel, _blocks_for(lse), _COPY_THREADS, *flat, stream=call.stream)
        return call.result(lse)


def fill_with_zeros(array: Any, stream: Any) -> None:
    """Set a contiguous device array to zero."""
    if array.size > 0:
        launch(zero_kernel, _blocks_for(array), _COPY_THREADS, array.reshape(array.size), stream=stream)


def _blocks_for(array: Any) -> int:
    return -(-array.size // _COPY_THREADS)


@cuda.jit
def log_sum_exp_kernel(m, l, lse):
    """lse[i] = m[i] + log(l[i]); one thread an element."""
    i = cuda.grid(1)
    if i < lse.size:
        lse[i] = m[i] if l[i] == float32(0) else m[i] + math.log(l[i])


@cuda.jit
def zero_kernel(x):
    """x[i] = 0; one thread an element."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 0


@cuda.jit
def copy_kernel(x, y):
    """y[i] = the i-th element of x in C order, whatever the strides of x; one thread an element."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x.flat[i]


def _as_array(name: str, value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; give a plain NumPy array")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if _is_numba_array(value) or (not SIMULATED and _has_interface(name, value)):
        return value
    device_array = "a Numba device array" if SIMULATED else "one with __cuda_array_interface__ (Numba, PyTorch, CuPy)"
    raise TypeError(f"{name} is a {_type_name(value)}; it must be a NumPy array or {device_array}")


def _type_name(value: Any) -> str:
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _has_interface(name: str, value: Any) -> bool:
    try:
        return hasattr(value, "__cuda_array_interface__")
    except RuntimeError as error:  # PyTorch, for a tensor that requires grad
        raise TypeError(f"{name} cannot be read as a device array: {error}") from None


def _is_numba_array(value: Any) -> bool:
    return bool(getattr(value, "__cuda_ndarray__", False))


def _are_on_host(inputs: dict[str, Any]) -> bool:
    host = [name for name, array in inputs.items() if isinstance(array, np.ndarray)]
    device = [name for name in inputs if name not in host]
    if host and device:
        places = f"{', '.join(host)} on the host, {', '.join(device)} on the device"
        raise TypeError(f"host and device arrays are mixed: {places}. Put all in one place.")
    return bool(host)


def _common_dtype(inputs: dict[str, Any]) -> np.dtype:
    dtypes = {name: _dtype_of(array) for name, array in inputs.items()}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(DTYPES):
        given = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        together = " for all" if len(dtypes) > 1 else ""
        raise TypeError(f"dtypes given: {given}; taken: float32 or float64{together}")
    return next(iter(dtypes.values()))


def _shape_of(array: Any) -> tuple[int, ...]:
    if isinstance(array, np.ndarray) or _is_numba_array(array):
        return tuple(array.shape)
    return tuple(array.__cuda_array_interface__["shape"])


def _dtype_of(array: Any) -> np.dtype:
    if isinstance(array, np.ndarray) or _is_numba_array(array):
        return array.dtype
    return np.dtype(array.__cuda_array_interface__["typestr"])


def _is_contiguous(array: Any) -> bool:
    if array.size == 0:
        return True
    expected = array.dtype.itemsize
    for length, stride in zip(reversed(array.shape), reversed(array.strides)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


# -- streams and devices (GPU only) -----------------------------------------------------------------------------


def _stream_of(source: Any, array: Any) -> Any:
    """Return the stream a device array is produced on. PyTorch does not state it: there it is the current one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        pointer = torch.cuda.current_stream(source.device).cuda_stream
        return cuda.external_stream(pointer) if pointer else 0
    return array.stream


def _common_stream(streams: list[Any]) -> Any:
    """Return one of the streams, made to wait for the others."""
    if SIMULATED:
        return 0
    distinct = {_handle(stream): stream for stream in streams}
    chosen = next((stream for handle, stream in distinct.items() if handle), 0)
    for handle, stream in distinct.items():
        if handle != _handle(chosen):
            event = cuda.event(timing=False)
            event.record(stream)
            event.wait(chosen)
    return chosen


def _handle(stream: Any) -> int:
    return 0 if stream == 0 else int(stream.handle)


def _common_device(inputs: dict[str, Any]) -> int:
    """Return the number of the device that holds the inputs."""
    devices = {name: _device_of(array) for name, array in inputs.items() if _address(array)}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on device {number}" for name, number in devices.items())
        raise ValueError(f"the inputs are on different devices: {where}. Put all on one.")
    return next(iter(devices.values()), cuda.get_current_device().id)


def _address(array: Any) -> int:
    return array.__cuda_array_interface__["data"][0] or 0


def _device_of(array: Any) -> int:
    number = ctypes.c_int()
    address = ctypes.c_void_p(_address(array))
    status = selection.load_driver().cuPointerGetAttribute(ctypes.byref(number), _DEVICE_ORDINAL, address)
    if status != 0:
        raise ValueError(f"a device array's memory is unknown to the driver (CUDA status {status})")
    return number.value
