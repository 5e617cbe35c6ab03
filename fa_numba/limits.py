"""What a launch may ask for, and the check that refuses it beforehand.

The limits are those of the CUDA C++ Programming Guide, section "Compute Capabilities".
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import textwrap
import weakref
from dataclasses import dataclass
from types import CellType, CodeType
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

STATIC_SHARED = 48 * 1024
SIMULATED_CAPABILITY = "8.0"
_KIB = 1024

# The most shared memory a block can opt in to, by compute capability.
_OPT_IN_SHARED = {
    "7.5": 64 * _KIB,
    "8.0": 163 * _KIB,
    "8.6": 99 * _KIB,
    "8.7": 163 * _KIB,
    "8.9": 99 * _KIB,
    "9.0": 227 * _KIB,
    "10.0": 227 * _KIB,
    "12.0": 99 * _KIB,
}
_FIRST_ASYNCHRONOUS = 8.0


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has room for: warps and blocks at a time, shared memory in bytes, 32-bit registers."""

    warps: int
    blocks: int
    shared: int
    registers: int = 65536


_MULTIPROCESSORS = {
    "7.5": Multiprocessor(warps=32, blocks=16, shared=64 * _KIB),
    "8.0": Multiprocessor(warps=64, blocks=32, shared=164 * _KIB),
    "8.6": Multiprocessor(warps=48, blocks=16, shared=100 * _KIB),
    "8.7": Multiprocessor(warps=48, blocks=16, shared=164 * _KIB),
    "8.9": Multiprocessor(warps=48, blocks=24, shared=100 * _KIB),
    "9.0": Multiprocessor(warps=64, blocks=32, shared=228 * _KIB),
    "10.0": Multiprocessor(warps=64, blocks=32, shared=228 * _KIB),
    "12.0": Multiprocessor(warps=48, blocks=24, shared=100 * _KIB),
}

_REMEDIES = {
    "grid": "Put the long axis on x, or loop in the kernel.",
    "block": "Use smaller blocks and more of them.",
}


_static_shared: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by function: reading source takes a while
_NUMBER_FUNCTIONS = {"abs": abs, "int": int, "len": len, "max": max, "min": min}
_UNKNOWN = object()


@dataclass(frozen=True)
class Limits:
    """What a device has: shared memory in bytes, multiprocessors (the simulator is like one), and launch limits.

    Its threads can copy to shared memory while they compute (``cp.async``) if it is ``asynchronous``.
    """

    shared_per_block: int
    multiprocessors: int = 1
    asynchronous: bool = True
    threads_per_block: int = 1024
    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)


def of_capability(capability: str) -> Limits:
    """Return the limits of a compute capability such as ``"8.0"``; ValueError if it is not known."""
    _check_capability(capability)
    return Limits(shared_per_block=_OPT_IN_SHARED[capability], asynchronous=float(capability) >= _FIRST_ASYNCHRONOUS)


def multiprocessor(capability: str) -> Multiprocessor:
    """Return what a multiprocessor of a compute capability has room for; ValueError if it is not known."""
    _check_capability(capability)
    return _MULTIPROCESSORS[capability]


def _check_capability(capability: str) -> None:
    if capability not in _OPT_IN_SHARED:
        raise ValueError(f"compute capability {capability!r} is not known; known are {', '.join(_OPT_IN_SHARED)}")


def simulated() -> Limits:
    """Return the limits the simulator keeps: of the capability in ``FA_NUMBA_SIMULATED_CC``, else 8.0.

    ValueError if it is not known.
    """
    return of_capability(os.environ.get("FA_NUMBA_SIMULATED_CC") or SIMULATED_CAPABILITY)


def check_launch(
    kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], dynamic_shared: int, limits: Limits
) -> None:
    """Raise ValueError, with the limit, the number asked and what to change, if the hardware would refuse the launch.

    Parameters
    ----------
    kernel
        What ``cuda.jit`` returned.
    grid, block
        Blocks and threads along x, y and z.
    dynamic_shared
        Bytes of dynamic shared memory.
    limits
        Those of the device.
    """
    name = kernel.py_func.__name__
    _check_whole(name, "grid", grid)
    _check_whole(name, "block", block)
    threads = math.prod(block)
    if threads > limits.threads_per_block:
        shape = "×".join(map(str, block)).removesuffix("×1").removesuffix("×1")
        asked = f"{shape} = {threads}" if "×" in shape else shape
        raise ValueError(
            f"{name} asks for {asked} threads in a block; the limit is {limits.threads_per_block}. "
            f"Use smaller blocks and more of them."
        )
    bound = _launch_bound(kernel)
    if bound is not None and threads > bound:
        raise ValueError(
            f"{name} asks for {threads} threads in a block; it was compiled for {bound} at most (launch_bounds). "
            f"Use smaller blocks."
        )
    _check_extents(name, "grid", "blocks", grid, limits.grid)
    _check_extents(name, "block", "threads", block, limits.block)
    _check_shared(name, static_shared_bytes(kernel.py_func), dynamic_shared, limits)


def check_static_shared(name: str, nbytes: int) -> None:
    """Raise ValueError if a kernel's static shared arrays take more than any GPU allows."""
    if nbytes > STATIC_SHARED:
        raise ValueError(
            f"{name} declares {nbytes} bytes of static shared memory in a block; the limit is {STATIC_SHARED} "
            f"(48 KiB). Use a smaller tile, or dynamic shared memory: cuda.shared.array(0, dtype) and "
            f"launch(..., shared=nbytes)."
        )


def static_shared_bytes(function: Any) -> int:
    """Add up the static shared arrays that a kernel and its device functions declare, as far as the source tells.

    Shapes are compile-time constants, so their source can be evaluated before anything is compiled or run, and so can
    the conditions that a factory decides. The sum is the least there can be: what cannot be evaluated is left out, and
    the compiler, or the simulator, counts it when it comes to it.
    """
    if function not in _static_shared:
        _static_shared[function] = _declared_bytes(function, set())
    return _static_shared[function]


def _check_whole(name: str, what: str, extents: tuple[int, ...]) -> None:
    for axis, extent in zip("xyz", extents):
        if not isinstance(extent, (int, np.integer)) or isinstance(extent, bool) or extent < 1:
            raise ValueError(f"{name} asks for a {what} of {extent!r} along {axis}; it must be a whole number above 0.")


def _check_extents(name: str, what: str, unit: str, extents: tuple[int, ...], most: tuple[int, ...]) -> None:
    for axis, extent, limit in zip("xyz", extents, most):
        if extent > limit:
            raise ValueError(
                f"{name} asks for a {what} of {extent} {unit} along {axis}; the limit is {limit}. {_REMEDIES[what]}"
            )


def _check_shared(name: str, static: int, dynamic: int, limits: Limits) -> None:
    check_static_shared(name, static)
    if not isinstance(dynamic, (int, np.integer)) or dynamic < 0:
        raise ValueError(f"{name} asks for {dynamic!r} bytes of dynamic shared memory; it must be a whole number.")
    if static + dynamic > limits.shared_per_block:
        parts = f"{static} static + {dynamic} dynamic" if static else f"{dynamic}"
        raise ValueError(
            f"{name} asks for {parts} bytes of shared memory in a block; "
            f"the limit of this device is {limits.shared_per_block}. Use smaller tiles."
        )


def _launch_bound(kernel: Any) -> int | None:
    bounds = getattr(kernel, "launch_bounds", None)  # the simulator's kernel
    if bounds is None:
        bounds = getattr(kernel, "targetoptions", {}).get("launch_bounds")  # numba-cuda's dispatcher
    return bounds[0] if isinstance(bounds, tuple) else bounds


def _visible_names(function: Any) -> dict[str, Any]:
    """Return what the names in a function mean, as far as that is known before it runs."""
    code = function.__code__
    cells = {name: _contents(cell) for name, cell in zip(code.co_freevars, function.__closure__ or ())}
    names = {**function.__globals__, **cells}
    return {name: value for name, value in names.items() if name not in code.co_varnames}


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # never assigned
        return _UNKNOWN


def _declared_bytes(function: Any, seen: set[Any]) -> int:
    """Return the least that a function and the device functions it calls declare, each of them once."""
    if function in seen:
        return 0
    seen.add(function)
    return _bytes_in(_syntax_tree(function.__code__), _visible_names(function), seen)


def _bytes_in(node: ast.AST, names: dict[str, Any], seen: set[Any]) -> int:
    """Add up what a part of a syntax tree declares; of branches that are not decided yet, only the larger one."""
    if isinstance(node, (ast.If, ast.IfExp)):
        branches = [branch if isinstance(branch, list) else [branch] for branch in (node.body, node.orelse)]
        condition = _evaluate(node.test, names)
        if condition is _UNKNOWN:
            return max(sum(_bytes_in(each, dict(names), set(seen)) for each in branch) for branch in branches)
        return sum(_bytes_in(each, names, seen) for each in branches[0 if condition else 1])
    total = sum(_bytes_in(child, names, seen) for child in ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        _assign(node.targets[0], _evaluate(node.value, names), names)
    if isinstance(node, ast.Call):
        called = _evaluate(node.func, names)
        if hasattr(called, "py_func"):
            total += _declared_bytes(called.py_func, seen)
        elif ast.unparse(node.func).endswith("shared.array"):
            total += _array_bytes(node, names)
    return total


def _assign(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    if isinstance(target, ast.Tuple):
        known = isinstance(value, tuple) and len(value) == len(target.elts)
        for each, part in zip(target.elts, value if known else [_UNKNOWN] * len(target.elts)):
            _assign(each, part, names)


@functools.lru_cache(maxsize=1024)
def _syntax_tree(code: CodeType) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # made by exec, or cut out of its context
        return ast.Module([], [])


def _array_bytes(call: ast.Call, names: dict[str, Any]) -> int:
    arguments = dict(zip(("shape", "dtype"), call.args)) | {keyword.arg: keyword.value for keyword in call.keywords}
    shape, dtype = (_evaluate(arguments.get(name), names) for name in ("shape", "dtype"))
    if shape is _UNKNOWN or dtype is _UNKNOWN:
        return 0
    try:
        itemsize = (as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)).itemsize
        return math.prod(np.atleast_1d(shape).tolist()) * itemsize
    except (TypeError, NotImplementedError):  # an error that the compiler will explain
        return 0


def _evaluate(node: ast.expr | None, names: dict[str, Any]) -> Any:
    """Evaluate a constant expression; _UNKNOWN if it needs more than the names and a few functions of numbers."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)] if node else []
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else set()
    if node is None or any(not isinstance(each, ast.Name) or each.id not in _NUMBER_FUNCTIONS for each in calls):
        return _UNKNOWN
    if any(names.get(name) is _UNKNOWN for name in used):
        return _UNKNOWN
    try:
        return eval(compile(ast.Expression(node), "<shape>", "eval"), {"__builtins__": _NUMBER_FUNCTIONS}, names)
    except Exception:
        return _UNKNOWN
