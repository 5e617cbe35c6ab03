"""``@cuda.jit`` on the simulator: what it accepts, and the kernel it returns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.sigutils import is_signature
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernel import FakeCUDAKernel

from fa_numba import limits
from fa_numba.simulator import lens
from fa_numba.simulator.arrays import address
from fa_numba.simulator.integers import loaded
from fa_numba.simulator.launch import Launch

# Options that change how a GPU compiles a kernel, not what it computes.
_COMPILER_OPTIONS = {
    "boundscheck", "cache", "debug", "extensions", "fastmath", "forceinline", "inline", "lineinfo", "link", "lto",
    "max_registers", "opt", "shared_memory_carveout",
}  # fmt: skip

_one_at_a_time = threading.Lock()
_this_thread = threading.local()  # .launch: what this OS thread is running


def jit(func_or_sig: Any = None, *, device: bool = False, launch_bounds: Any = None, **options: Any) -> Any:
    """Stand in for ``numba.cuda.jit``: same arguments, a :class:`SimulatedKernel` instead of a compiled one."""
    unknown = options.keys() - _COMPILER_OPTIONS
    if unknown:
        raise TypeError(f"cuda.jit knows no option {', '.join(sorted(unknown))}")
    if options.get("link"):
        raise NotImplementedError("the simulator cannot link PTX or CUDA C++")
    if func_or_sig is None or isinstance(func_or_sig, list) or is_signature(func_or_sig):
        return functools.partial(SimulatedKernel, device=device, launch_bounds=launch_bounds)
    return SimulatedKernel(func_or_sig, device=device, launch_bounds=launch_bounds)


class SimulatedKernel(FakeCUDAKernel):
    """A kernel or device function that runs in Python."""

    def __init__(self, fn: Callable, device: bool = False, launch_bounds: Any = None):
        super().__init__(fn, device=device)
        self.launch_bounds = launch_bounds

    def __getitem__(self, configuration: tuple) -> Callable:
        if not 2 <= len(configuration) <= 4:
            raise ValueError(f"write kernel[grid, block, stream, shared]; {len(configuration)} values were given")
        grid, block = normalize_kernel_dimensions(*configuration[:2])
        shared = configuration[3] if len(configuration) == 4 else 0
        return functools.partial(self._launch, grid, block, shared)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run as a device function, called by the thread of a kernel."""
        launch = getattr(_this_thread, "launch", None)
        if launch is None:
            name = self.fn.__name__
            raise RuntimeError(f"{name} was called without a launch; write {name}[grid, block](...)")
        functions = launch.thread.functions
        functions.append(self)
        try:
            return launch.bound(self.fn)(*arguments, **named)
        finally:
            functions.pop()

    def _launch(self, grid: tuple, block: tuple, shared: int, *arguments: Any) -> None:
        name = self.fn.__name__
        if self._device:
            raise TypeError(f"{name} is a device function: a kernel calls it, it cannot be launched")
        outer = getattr(_this_thread, "launch", None)
        if outer is not None:
            raise RuntimeError(f"{name} was launched from inside the kernel {outer.name}")
        limits.check_launch(self, grid, block, shared, limits.simulated())
        check_shared = functools.partial(limits.check_static_shared, name)
        launch = lens.launch_class()(name, self.fn, grid, block, shared, check_shared)
        names = (*self.fn.__code__.co_varnames[: self.fn.__code__.co_argcount], *("argument" for _ in arguments))
        with _one_at_a_time:
            _this_thread.launch = launch
            try:
                launch.run(
                    [_kernel_argument(*each, launch) for each in zip(names, arguments)], lens.cuda_module(launch)
                )
            finally:
                del _this_thread.launch


def _kernel_argument(name: str, argument: Any, launch: Launch) -> Any:
    if isinstance(argument, tuple):
        parts = [_kernel_argument(f"{name}[{i}]", each, launch) for i, each in enumerate(argument)]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if isinstance(argument, FakeCUDAArray):
        return launch.array(name, argument._ary, "global", origin=_owner(argument._ary))
    if isinstance(argument, np.ndarray):  # Numba copies it to the device, where it starts at an aligned address
        return launch.array(name, argument, "global", origin=argument)
    return loaded(argument)


def offset_of(array: Any) -> int:
    """Return how many bytes a simulated device array starts behind the start of its allocation."""
    return address(array._ary) - address(_owner(array._ary))


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the allocation behind a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
