"""Run every kernel once on a small problem and check its result: something for ``compute-sanitizer`` to watch.

``compute-sanitizer --tool racecheck python docs/every_kernel.py`` takes a few minutes, where the tests would take
hours. Without a GPU it runs on the simulator, which looks for the same faults by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import fa_numba
from fa_numba import device, reference, step2_online_softmax, step3_standard_attention, walk
from fa_numba import step4_flash_forward as step4
from fa_numba import step5_flash_backward as step5
from fa_numba.step4_flash_forward import one_thread_a_row

WITHIN = {np.float32: 3e-5, np.float64: 1e-12}
WIDEST_BACKWARD = 128  # that 8x8 register tiles take


class Problem(NamedTuple):
    """An attention problem: heads of q and of k, queries, keys, head dims, causal or not, and dtype."""

    heads: int
    heads_kv: int
    n_q: int
    n_k: int
    d: int
    d_v: int
    causal: bool
    dtype: type = np.float32


SMALL = (
    Problem(2, 1, 20, 24, 8, 8, True),
    Problem(1, 1, 17, 9, 5, 6, False, np.float64),
    Problem(2, 1, 1, 70, 8, 8, True),
)
# Ragged, aligned, wide heads; few queries and split keys; shares of the queries; more blocks than fit side by side.
LARGE = (
    Problem(2, 1, 130, 200, 64, 64, False),
    Problem(2, 1, 130, 200, 64, 64, True),
    Problem(1, 1, 512, 512, 64, 64, True),
    Problem(2, 2, 140, 140, 128, 128, True),
    Problem(1, 1, 70, 90, 40, 24, True),
    Problem(1, 1, 90, 70, 33, 17, False),
    Problem(1, 1, 100, 100, 96, 96, True),
    Problem(1, 1, 80, 80, 160, 160, True),
    Problem(1, 1, 70, 70, 256, 256, False),
    Problem(2, 1, 50, 60, 16, 32, True, np.float64),
    Problem(4, 2, 1, 3000, 64, 64, False),
    Problem(4, 2, 2, 700, 128, 96, True),
    Problem(2, 2, 200, 900, 64, 64, False),
    Problem(1, 1, 300, 4, 64, 64, True),
    Problem(40, 40, 256, 256, 64, 64, True),
)
ROWS = {True: ((5, 33), (3, 256)), False: ((5, 33), (7, 256), (3, 1024), (2, 9000), (1, 40000), (9, 100))}


def check(name: str, result: Any, right: np.ndarray) -> None:
    """Raise AssertionError for a result that is wrong."""
    error = np.abs(np.asarray(result, np.float64) - right).max(initial=0)
    assert error <= WITHIN[result.dtype.type], f"{name} is off by {error:.1e}"


def softmaxes(x: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Yield the softmaxes that take rows of so many elements."""
    yield from ((f.__name__, f) for f in (fa_numba.naive_softmax, fa_numba.block_softmax, fa_numba.online_softmax))
    for name, rung in step2_online_softmax.RUNGS.items():
        if name != "row in registers" or x.shape[1] <= step2_online_softmax._widest(step2_online_softmax._width(x)):
            yield name, rung


def takes(rung: str, problem: Problem) -> bool:
    """Say whether a rung of attention takes a problem."""
    width = max(problem.d, problem.d_v)
    if rung.startswith("one thread a row"):
        return width <= one_thread_a_row.WIDEST * 4 // np.dtype(problem.dtype).itemsize
    if rung.startswith("one kernel"):
        return problem.dtype == np.float32 and width <= WIDEST_BACKWARD
    return problem.dtype == np.float32 or not rung.startswith("8x8")


def attend(problem: Problem, rng: np.random.Generator) -> None:
    """Run all kernels of steps 3 to 5 that take a problem."""
    heads, heads_kv, n_q, n_k, d, d_v, causal, dtype = problem
    shapes = ((heads, n_q, d_v), (heads, n_q, d), (heads_kv, n_k, d), (heads_kv, n_k, d_v))
    do, q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    right = reference.attention(q, k, v, causal=causal)
    gradients = reference.attention_backward(do, q, k, v, causal=causal)

    def check_gradients(name: str, results: Any) -> None:
        for letter, result, truth in zip("qkv", results, gradients):
            check(f"d{letter}, {name}", result, truth)

    for name, rung in {"standard": fa_numba.standard_attention, **step3_standard_attention.RUNGS}.items():
        if takes(name, problem):
            output = rung(q, k, v, causal=causal)
            check(name, output.o, right.o)
    check_gradients("standard", fa_numba.standard_attention_backward(do, q, k, v, output.p, causal=causal))
    for name, rung in {**step4.RUNGS, "flash": fa_numba.flash_forward}.items():
        if takes(name, problem):
            saved = rung(q, k, v, causal=causal)
            check(name, saved.o, right.o)
    for name, rung in {"flash": fa_numba.flash_backward, **step5.RUNGS}.items():
        if takes(name, problem):
            check_gradients(name, rung(do, q, k, v, *saved, causal=causal))


def main() -> None:
    """Run them, and say what was run."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for shape in ROWS[device.SIMULATED]:
            x = rng.standard_normal(shape).astype(dtype)
            for name, softmax in softmaxes(x):
                check(name, softmax(x), reference.softmax(x))
        print(f"softmaxes, {np.dtype(dtype)}", flush=True)
    x = rng.standard_normal((8, 32)).astype(np.float32)
    walk.online_softmax(x[0])
    walk.flash_row(x, x, x, row=1)
    for problem in SMALL if device.SIMULATED else LARGE:
        attend(problem, rng)
        print(problem, flush=True)
    print("every result is right")


if __name__ == "__main__":
    main()
