"""``fa-numba trace``: the report of one step on random inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import fa_numba
from fa_numba import device
from fa_numba.folder import CannotRun


def _softmax(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda n, d, causal: fa_numba.trace(function, _normal(n, d)[0])


def _attention(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda n, d, causal: fa_numba.trace(function, *_normal(n, d), causal=causal)


def _standard_backward(n: int, d: int, causal: bool) -> Any:
    q, k, v = _normal(n, d)
    o, p = fa_numba.standard_attention(q, k, v, causal=causal)
    return fa_numba.trace(fa_numba.standard_attention_backward, np.ones_like(o), q, k, v, p, causal=causal)


def _flash_backward(n: int, d: int, causal: bool) -> Any:
    q, k, v = _normal(n, d)
    o, m, l = fa_numba.flash_forward(q, k, v, causal=causal)
    return fa_numba.trace(fa_numba.flash_backward, np.ones_like(o), q, k, v, o, m, l, causal=causal)


# By name; each takes n, d and causal.
STEPS: dict[str, Callable[..., Any]] = {
    "naive_softmax": _softmax(fa_numba.naive_softmax),
    "block_softmax": _softmax(fa_numba.block_softmax),
    "online_softmax": _softmax(fa_numba.online_softmax),
    "standard_attention": _attention(fa_numba.standard_attention),
    "standard_attention_backward": _standard_backward,
    "flash_forward": _attention(fa_numba.flash_forward),
    "flash_backward": _flash_backward,
}


def report(step: str, n: int, d: int, *, causal: bool) -> int:
    """Print what a step's kernels do to memory; return the exit status.

    Softmax is of n rows of d numbers, attention of n queries and keys of head dim d. On a machine with a GPU, a process
    of its own runs the simulator.
    """
    if n < 1 or d < 1:
        raise CannotRun(f"n and d must be at least 1; {n} and {d} were given")
    if not device.SIMULATED:
        return _on_the_simulator(step, n, d, causal)
    try:
        print(STEPS[step](n, d, causal))
    except (TypeError, ValueError) as problem:
        raise CannotRun(str(problem)) from None
    return 0


def _on_the_simulator(step: str, n: int, d: int, causal: bool) -> int:
    sizes = ["--n", str(n), "--d", str(d), *(["--causal"] if causal else [])]
    command = [sys.executable, "-m", "fa_numba", "trace", step, *sizes]
    return subprocess.run(command, env={**os.environ, "FA_NUMBA_DEVICE": "simulator"}).returncode


def _normal(n: int, d: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, d)).astype(np.float32) for _ in range(3)]
