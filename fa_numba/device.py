"""The device: its name and limits, launches that are checked first, and the ledger of its memory.

GPU or simulator is decided in :mod:`fa_numba.selection`; arrays are taken in and given back in :mod:`fa_numba.arrays`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import cuda

from fa_numba import launcher, limits, selection, timing
from fa_numba.ledger import Ledger, hold, ledger

__all__ = [
    "SIMULATED",
    "Ledger",
    "SlowSimulation",
    "current_device",
    "describe",
    "device_limits",
    "launch",
    "ledger",
    "require_gpu",
    "warn_if_slow",
]

SIMULATED = selection.select().device == selection.SIMULATOR

# What a simulated kernel needs for one array element read or written, and the arithmetic that goes with it.
_SECONDS_PER_ACCESS = 0.7e-6
_SLOW_SECONDS = 60
# A multiplication in a register tile: its share of reading both factors, and the sum read and written.
ACCESSES_PER_PRODUCT = 5


class SlowSimulation(UserWarning):
    """A call that will take more than a minute on the simulator."""


def describe() -> str:
    """Name the device: the GPU's name, or the simulator."""
    if SIMULATED:
        return "the simulator"
    require_gpu()
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name


def current_device() -> int:
    """Return the number of the GPU that this thread uses."""
    number = ctypes.c_int()
    if selection.load_driver().cuCtxGetDevice(ctypes.byref(number)) != 0:  # no context yet: Numba makes one
        return cuda.get_current_device().id
    return number.value  # so fast only because it does not ask Numba


def device_limits() -> limits.Limits:
    """Return the launch limits of the device; on the simulator those of a chosen compute capability.

    Raises
    ------
    ValueError
        If ``FA_NUMBA_SIMULATED_CC`` names a compute capability that is not known.
    """
    return limits.simulated() if SIMULATED else _gpu_limits(current_device())


@functools.cache
def _gpu_limits(number: int) -> limits.Limits:
    device = cuda.gpus[number]
    return limits.Limits(
        shared_per_block=device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        multiprocessors=device.MULTIPROCESSOR_COUNT,
        asynchronous=device.compute_capability >= (8, 0),
        threads_per_block=device.MAX_THREADS_PER_BLOCK,
        block=(device.MAX_BLOCK_DIM_X, device.MAX_BLOCK_DIM_Y, device.MAX_BLOCK_DIM_Z),
        grid=(device.MAX_GRID_DIM_X, device.MAX_GRID_DIM_Y, device.MAX_GRID_DIM_Z),
    )


def launch(kernel: Any, grid: Any, block: Any, *args: Any, shared: int = 0, stream: Any = 0) -> None:
    """Start a kernel after checking that the hardware would take it.

    Parameters
    ----------
    kernel
        What ``cuda.jit`` returned.
    grid, block : int or tuple of up to three int
        Blocks in the grid, threads in a block.
    *args
        The kernel's arguments. NumPy arrays are copied to the device, and when the kernel has ended, those that it
        changed are copied back.
    shared : int
        Bytes of dynamic shared memory; the driver is asked for more than 48 KiB where needed.
    stream
        A Numba stream; 0 is the default stream.

    Raises
    ------
    ValueError
        If threads, grid or shared memory exceed what the device allows: nothing has run then. Also if the kernel wrote
        to a NumPy array that is read-only.
    TypeError
        If ``kernel`` is not a kernel.
    RuntimeError
        If a GPU was asked for and none can be used.
    """
    if not hasattr(kernel, "py_func") or not hasattr(kernel, "__getitem__"):
        raise TypeError(f"launch takes a kernel, made by @cuda.jit; it was given {type(kernel).__name__} {kernel!r}")
    require_gpu()
    grid, block = _three("grid", grid), _three("block", block)
    known = all(type(number) is int for number in (*grid, *block, shared))  # for True counts as 1 in a cache
    (_check_launch_once if known else limits.check_launch)(kernel, grid, block, shared, device_limits())
    if any(_is_host_array(arg) for arg in args):
        with _moved_to_device(kernel, args, stream) as arguments:
            _start(kernel, grid, block, arguments, shared, stream)
    else:
        _start(kernel, grid, block, args, shared, stream)


_check_launch_once = functools.lru_cache(maxsize=4096)(limits.check_launch)


def _start(kernel: Any, grid: tuple, block: tuple, arguments: Any, shared: int, stream: Any) -> None:
    if SIMULATED:
        with timing.watch(kernel, stream, arguments):
            kernel[grid, block, stream, shared](*arguments)
        return
    kinds = tuple(launcher.kind(argument) for argument in arguments)
    form = kernel, kinds, math.prod(block), shared > 0, current_device()
    ready = _launchers.get(form)
    if ready is None:
        types = tuple(kernel.typeof_pyval(argument) for argument in arguments)
        compiled = _prepare(kernel, types, *form[2:])
        if launcher.can_start(compiled, kinds):
            ready = launcher.Launcher(compiled, kinds)
            if len(_launchers) >= _MOST_LAUNCHERS:
                _launchers.clear()
            _launchers[form] = ready
    with timing.watch(kernel, stream, arguments):
        if ready is None:
            kernel[grid, block, stream, shared](*arguments)
        else:
            ready(grid, block, arguments, shared, stream)


def _three(what: str, extents: Any) -> tuple[int, int, int]:
    extents = tuple(extents) if isinstance(extents, (tuple, list)) else (extents,)
    extents = tuple(int(extent) if isinstance(extent, np.integer) else extent for extent in extents)
    if not 1 <= len(extents) <= 3:
        raise ValueError(f"a {what} has one, two or three extents; {extents} was given")
    return (*extents, 1, 1)[:3]


@contextlib.contextmanager
def _moved_to_device(kernel: Any, args: tuple, stream: Any) -> Iterator[list[Any]]:
    """Yield the arguments with NumPy arrays moved to the device; afterwards copy back those that the kernel changed."""
    moved: dict[int, Any] = {}  # by identity: an array given twice stays one
    names = kernel.py_func.__code__.co_varnames or ("argument",)
    with contextlib.ExitStack() as held:
        for number, arg in enumerate(args):
            if _is_host_array(arg) and id(arg) not in moved:
                moved[id(arg)] = cuda.to_device(np.array(arg, order="C"))  # a copy: Numba takes a stride of 0 amiss
                held.callback(hold(names[min(number, len(names) - 1)], moved[id(arg)]))
        yield [moved.get(id(arg), arg) for arg in args]
        if moved and stream:
            stream.synchronize()  # what copies back knows the default stream only
        results = [(arg, moved[id(arg)].copy_to_host()) for arg in args if id(arg) in moved]
        changes = [(arg, result, _changed(arg, result)) for arg, result in results]
        for arg, result, changed in changes:  # arrays may overlap in host memory: only what changed goes back
            if changed.any() and not arg.flags.writeable:
                raise ValueError(f"{kernel.py_func.__name__} wrote to a read-only array; give it a writable one")
            if changed.any():
                arg[changed] = result[changed]


def _changed(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Say which elements differ in any bit."""
    as_bytes = [np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, -1) for array in (before, after)]
    return (as_bytes[0] != as_bytes[1]).any(axis=-1) if before.size else np.zeros(before.shape, bool)


def _is_host_array(arg: Any) -> bool:
    return isinstance(arg, np.ndarray) and arg.ndim > 0  # with no axis, Numba takes it for a number


_launchers: dict[tuple, launcher.Launcher] = {}
_MOST_LAUNCHERS = 1024  # kernels that nobody uses any more do not stay for ever


@functools.lru_cache(maxsize=1024)  # asking the driver takes longer than a launch
def _prepare(kernel: Any, types: tuple, threads: int, dynamic_shared: bool, device: int) -> Any:
    """Return the kernel compiled for these arguments, held to its own limits, its limit of shared memory raised.

    None for a kernel of given signatures of which none is exactly this: Numba finds the one that fits.
    """
    if types in kernel.overloads:
        compiled = kernel.overloads[types]
    elif kernel.specialized or kernel._can_compile:
        compiled = kernel.compile(types)  # of a kernel with one signature, that one
        gc.collect()  # the compiler's caught exceptions hold on to the frames that called it, and those to our arrays
    else:
        return None
    if threads > compiled.max_threads_per_block:
        raise ValueError(
            f"{kernel.py_func.__name__} asks for {threads} threads in a block; the limit is "
            f"{compiled.max_threads_per_block}, since each thread needs {compiled.regs_per_thread} registers. "
            f"Use smaller blocks or smaller tiles."
        )
    if dynamic_shared:
        _allow_shared(compiled, device)
    return compiled


def _allow_shared(compiled: Any, device: int) -> None:
    """Let a kernel ask for as much dynamic shared memory as the device has for a block; Numba leaves it at 48 KiB."""
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle = compiled._codelibrary.get_cufunc().handle
    most = _gpu_limits(device).shared_per_block - compiled.shared_mem_per_block
    (status,) = driver.cuKernelSetAttribute(attribute, most, handle, driver.CUdevice(device))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"the driver refuses {most} bytes of dynamic shared memory in a block: {status.name}")


def require_gpu() -> None:
    """Raise RuntimeError if a GPU was asked for and none can be used."""
    if not SIMULATED and (fault := _gpu_fault()):
        raise RuntimeError(
            f"{selection.select().reason}, but no GPU can be used here: {fault}. "
            f"Unset the variable, or set FA_NUMBA_DEVICE=simulator."
        )


_gpu_fault = functools.cache(selection.gpu_fault)


def warn_if_slow(name: str, accesses: int) -> None:
    """Warn, before a call starts, that the simulator will need minutes for it.

    Parameters
    ----------
    name : str
        The function the reader called.
    accesses : int
        How often its kernels read or write an array element.
    """
    seconds = accesses * _SECONDS_PER_ACCESS
    if SIMULATED and seconds > _SLOW_SECONDS:
        duration = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
        message = f"{name} will take about {duration} on the simulator. Use a smaller input, or a GPU."
        warnings.warn(message, SlowSimulation, stacklevel=_frames_of_ours())


def _frames_of_ours() -> int:
    """Return the stack level at which the caller of the package stands, seen from :func:`warn_if_slow`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    return level
