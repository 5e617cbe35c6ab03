"""Arrays of one call: taken in from NumPy or from a device, checked, made contiguous, and given back in kind."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numba import cuda, float32

from fa_numba import ledger, pool, selection
from fa_numba.device import SIMULATED, current_device, launch, require_gpu

if SIMULATED:
    from fa_numba import simulator

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_COPY_THREADS = 256
_ALIGNMENT = 16  # bytes
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
        given = {name: _given(name, value) for name, value in inputs.items()}
        self._on_host = _are_on_host(given)
        self.dtype = _common_dtype(given)
        self.shapes = {name: each.shape for name, each in given.items()}
        self._inputs = given
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

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return a new device array, in the inputs' dtype unless told; the simulator fills it, so that gaps show."""
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        array = pool.allocate(shape, dtype, self.stream)
        if SIMULATED:
            array._ary.fill(np.nan if dtype.kind == "f" else np.iinfo(dtype).min)
        if ledger.is_open():
            # Whoever drops the array last, the caller perhaps, strikes it out of the ledger; at exit nobody reads one.
            weakref.finalize(array, ledger.hold(name, array)).atexit = False
        return array

    def result(self, array: Any) -> Any:
        """Return a device array as what the caller gets: NumPy or Numba's device array, as the inputs were."""
        if SIMULATED or self._on_host:
            return array.copy_to_host(stream=self.stream) if self._on_host else array
        result = array.as_numba(self.stream)
        result.made_from = array  # lives as long, for the ledger
        return result

    def _take_in(self) -> dict[str, Any]:
        if self._on_host:
            return {name: self._upload(name, given) for name, given in self._inputs.items()}
        if not SIMULATED:
            _enter_device(self._scope, self._inputs)
            streams = _distinct([_stream_of(given) for given in self._inputs.values()])
            self.stream = _common_stream(streams)
            if len(streams) > 1:  # who drops an input later, drops it after our kernels
                self._scope.callback(_let_wait, streams, self.stream)
        return {name: self._borrow(name, given) for name, given in self._inputs.items()}

    def _upload(self, name: str, given: _Given) -> Any:
        copy = self.empty(name, given.shape)
        if given.size:
            copy.reshape(given.size).copy_to_device(np.ravel(given.source))  # flat: Numba drops axes of stride 0
        return copy

    def _borrow(self, name: str, given: _Given) -> Any:
        if ledger.is_open():
            self._scope.callback(ledger.hold(name, given.source if SIMULATED else given.view()))
        if given.is_contiguous and given.address % _ALIGNMENT == 0:
            return given.source if SIMULATED else given.view()
        copy = self.empty(f"contiguous {name}", given.shape)
        source = given.source if _is_numba_array(given.source) else cuda.as_cuda_array(given.source, sync=False)
        launch(copy_kernel, _blocks_for(copy), _COPY_THREADS, source, copy.reshape(copy.size), stream=self.stream)
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
    """Return m + log(l), elementwise; -inf where l is 0. ValueError unless m and l have the same shape."""
    call = Call(m=m, l=l)
    if call.shapes["m"] != call.shapes["l"]:
        raise ValueError(f"m has shape {call.shapes['m']}, l {call.shapes['l']}; they must have the same")
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


@dataclass(slots=True)
class _Given:
    """An input as it was given: a NumPy array, or what is known of a device array.

    On the simulator, ``address`` counts from the start of the allocation, which a GPU would align.
    """

    source: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None = None
    address: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        if self.strides is None or self.size == 0:
            return True
        expected = self.dtype.itemsize
        for length, stride in zip(reversed(self.shape), reversed(self.strides)):
            if length > 1 and stride != expected:
                return False
            expected *= length
        return True

    def view(self) -> pool.View:
        """Return a contiguous device array as the launches take it."""
        return pool.View(self.address, self.shape, self.dtype, self.source)


def _given(name: str, value: Any) -> _Given:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; give a plain NumPy array")
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        return _Given(value, value.shape, value.dtype)
    if _is_numba_array(value):
        address = simulator.offset_of(value) if SIMULATED else value.device_ctypes_pointer.value or 0
        return _Given(value, tuple(value.shape), value.dtype, tuple(value.strides), address)
    interface = None if SIMULATED else _interface(name, value)
    if interface is not None:
        strides = interface.get("strides")
        return _Given(
            value,
            tuple(interface["shape"]),
            np.dtype(interface["typestr"]),
            None if strides is None else tuple(strides),
            interface["data"][0] or 0,
        )
    device_array = "a Numba device array" if SIMULATED else "one with __cuda_array_interface__ (Numba, PyTorch, CuPy)"
    raise TypeError(f"{name} is a {_type_name(value)}; it must be a NumPy array or {device_array}")


def _type_name(value: Any) -> str:
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _interface(name: str, value: Any) -> dict | None:
    try:
        return getattr(value, "__cuda_array_interface__", None)
    except RuntimeError as error:  # PyTorch, for a tensor that requires grad
        raise TypeError(f"{name} cannot be read as a device array: {error}") from None


def _is_numba_array(value: Any) -> bool:
    return bool(getattr(value, "__cuda_ndarray__", False))


def _are_on_host(inputs: dict[str, _Given]) -> bool:
    host = [name for name, given in inputs.items() if isinstance(given.source, np.ndarray)]
    device = [name for name in inputs if name not in host]
    if host and device:
        places = f"{', '.join(host)} on the host, {', '.join(device)} on the device"
        raise TypeError(f"host and device arrays are mixed: {places}. Put all in one place.")
    return bool(host)


def _common_dtype(inputs: dict[str, _Given]) -> np.dtype:
    dtypes = {name: given.dtype for name, given in inputs.items()}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(DTYPES):
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        together = " for all" if len(dtypes) > 1 else ""
        raise TypeError(f"dtypes given: {listed}; taken: float32 or float64{together}")
    return next(iter(dtypes.values()))


# -- streams and devices (GPU only) -----------------------------------------------------------------------------


def _stream_of(given: _Given) -> Any:
    """Return the stream a device array is produced on. PyTorch does not state it: there it is the current one."""
    if _is_numba_array(given.source):
        return given.source.stream
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given.source, torch.Tensor):
        pointer = torch.cuda.current_stream(given.source.device).cuda_stream
    else:
        pointer = given.source.__cuda_array_interface__.get("stream") or 0
    return cuda.external_stream(pointer) if pointer else 0


def _distinct(streams: list[Any]) -> list[Any]:
    return [] if SIMULATED else list({_handle(stream): stream for stream in streams}.values())


def _common_stream(streams: list[Any]) -> Any:
    """Return one of the streams, made to wait for the others."""
    chosen = next((stream for stream in streams if _handle(stream)), 0)
    for stream in streams:
        _let_wait([chosen], stream)
    return chosen


def _let_wait(streams: list[Any], for_stream: Any) -> None:
    """Let streams wait for what another one has been given so far."""
    for stream in streams:
        if _handle(stream) != _handle(for_stream):
            event = cuda.event(timing=False)
            event.record(for_stream)
            event.wait(stream)


def _handle(stream: Any) -> int:
    return 0 if stream == 0 else int(stream.handle)


def _enter_device(scope: contextlib.ExitStack, inputs: dict[str, _Given]) -> None:
    """Make the device that holds the inputs the current one, until the scope ends."""
    devices = {name: _device_of(given.address) for name, given in inputs.items() if given.address}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on device {number}" for name, number in devices.items())
        raise ValueError(f"the inputs are on different devices: {where}. Put all on one.")
    for number in list(devices.values())[:1]:
        if number != current_device():  # Numba takes longer to see that nothing changes
            scope.enter_context(cuda.gpus[number])


def _device_of(address: int) -> int:
    number = ctypes.c_int()
    status = selection.load_driver().cuPointerGetAttribute(
        ctypes.byref(number), _DEVICE_ORDINAL, ctypes.c_void_p(address)
    )
    if status != 0:
        raise ValueError(f"a device array's memory is unknown to the driver (CUDA status {status})")
    return number.value
