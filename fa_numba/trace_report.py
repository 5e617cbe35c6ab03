"""``fa-numba trace``: the report of one step on random inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import fa_numba
from fa_numba import child, device, limits
from fa_numba.folder import CannotRun
from fa_numba.trace import KernelReport, Report


def _softmax(function: Callable[[Any], Any], n: int, d: int, causal: bool) -> Report:
    return fa_numba.trace(function, _normal(n, d)[0])


def _attention(function: Callable[..., Any], n: int, d: int, causal: bool) -> Report:
    return fa_numba.trace(function, *_normal(n, d), causal=causal)


def _standard_backward(n: int, d: int, causal: bool) -> Report:
    q, k, v = _normal(n, d)
    o, p = fa_numba.standard_attention(q, k, v, causal=causal)
    return fa_numba.trace(fa_numba.standard_attention_backward, np.ones_like(o), q, k, v, p, causal=causal)


def _flash_backward(n: int, d: int, causal: bool) -> Report:
    q, k, v = _normal(n, d)
    o, m, l = fa_numba.flash_forward(q, k, v, causal=causal)
    return fa_numba.trace(fa_numba.flash_backward, np.ones_like(o), q, k, v, o, m, l, causal=causal)


# By name; each takes n, d and causal.
STEPS: dict[str, Callable[[int, int, bool], Report]] = {
    "naive_softmax": functools.partial(_softmax, fa_numba.naive_softmax),
    "block_softmax": functools.partial(_softmax, fa_numba.block_softmax),
    "online_softmax": functools.partial(_softmax, fa_numba.online_softmax),
    "standard_attention": functools.partial(_attention, fa_numba.standard_attention),
    "standard_attention_backward": _standard_backward,
    "flash_forward": functools.partial(_attention, fa_numba.flash_forward),
    "flash_backward": _flash_backward,
}


LEGEND = """\
requests: instructions of a warp; sectors: of 32 bytes, that a request takes; used: of the bytes in these;
ways: in how many turns the banks of shared memory serve a request; line: the kernel's, and by arrows where it led"""


def report(step: str, n: int, d: int, *, causal: bool, capability: str) -> int:
    """Print what a step's kernels do to memory and how many fit on a GPU at a time; return the exit status.

    Softmax is of n rows of d numbers, attention of n queries and keys of head dim d. On a machine with a GPU, a process
    of its own runs the simulator.
    """
    if n < 1 or d < 1:
        raise CannotRun(f"n and d must be at least 1; {n} and {d} were given")
    if causal and "softmax" in step:
        raise CannotRun(f"{step} has no causal mask; leave --causal out")
    make_report = STEPS[step] if device.SIMULATED else functools.partial(child.call, STEPS[step])
    try:
        limits.of_capability(capability)
        launches = make_report(n, d, causal).launches
        print(*launches, LEGEND, sep="\n\n\n")
        print(f"\nOccupancy on compute capability {capability}:")
        print(*dict.fromkeys(_occupancy(launch, capability) for launch in launches), sep="\n")
        print("\nNo race: where two threads meet in an element and one of them writes, something orders them.")
    except (TypeError, ValueError) as problem:
        raise CannotRun(str(problem)) from None
    return 0


def _occupancy(launch: KernelReport, capability: str) -> str:
    registers = launch.registers(capability)
    told = "" if registers is None else f"{registers} registers a thread, "
    return f"{launch.kernel}: {told}{launch.occupancy(capability, registers)}"


def _normal(n: int, d: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, d)).astype(np.float32) for _ in range(3)]
