"""The formulas of what the fastest rungs ask for are what a trace counts."""

import numpy as np
import pytest

import fa_numba
from fa_numba import device, step3_standard_attention, work
from fa_numba.step3_standard_attention import RUNGS as STANDARD
from fa_numba.step4_flash_forward import RUNGS as FORWARD
from fa_numba.step4_flash_forward import one_thread_a_row
from fa_numba.step4_flash_forward.wide_tiles import Tile
from fa_numba.step5_flash_backward import RUNGS as BACKWARD

TILE = Tile(block_q=32, columns=2, across=8)


def normal(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def requested(report):
    return sum(launch.requested for launch in report.launches)


def test_standard_forward_over_two_tiles_across(rng):
    n, d = 80, 8
    report = fa_numba.trace(STANDARD["8x8 register tiles"], *normal(rng, *[(n, d)] * 3))
    formula = work.standard_forward(n, d)
    assert requested(report) == formula.requested
    scores, softmax, output = report.launches
    assert formula.footprint == 4 * 4 * n * d + softmax.footprint  # q, k, v and o; s and p
    products = formula.flops + n * n + n * d  # each element of a result is multiplied by a factor
    assert products == scores.flops - _beyond(n, n, d) + output.flops - _beyond(n, d, n)


def _beyond(rows, columns, depth):
    """Count what a product of 128 by 64 elements and steps of 8 terms multiplies and adds beyond its matrix."""
    down, across, steps = -(-rows // 128), -(-columns // 64), -(-depth // 8)
    return 2 * 8 * steps * 128 * down * 64 * across - 2 * rows * columns * depth


def test_standard_backward(rng, monkeypatch):
    if not device.SIMULATED:
        pytest.skip("a trace beside a GPU runs in a process of its own, with the package as it is")
    n, d = 24, 8
    monkeypatch.setattr(step3_standard_attention, "_is_wide", lambda *of: True)
    report = fa_numba.trace(fa_numba.standard_attention_backward, *normal(rng, *[(n, d)] * 4, (n, n)))
    assert requested(report) == work.standard_backward(n, d).requested
    assert work.standard_backward(n, d).footprint == 4 * (7 * n * d + 3 * n * n)


@pytest.mark.parametrize("n", [32, 80])
def test_flash_forward(rng, n):
    d = 8
    (launch,) = fa_numba.trace(FORWARD["8x8 register tiles"], *normal(rng, *[(n, d)] * 3), tile=TILE).launches
    formula = work.flash_forward(n, d, TILE.block_q)
    assert (launch.requested, launch.footprint) == (formula.requested, formula.footprint)


def test_flash_forward_with_one_thread_a_row(rng):
    n, d = 96, 4
    (launch,) = fa_numba.trace(FORWARD["one thread a row"], *normal(rng, *[(n, d)] * 3)).launches
    formula = work.flash_forward(n, d, one_thread_a_row.THREADS)
    assert (launch.requested, launch.footprint) == (formula.requested, formula.footprint)
    assert one_thread_a_row.THREADS == 64  # as notebook 05 says


def test_flash_backward(rng):
    n, d = 64, 8
    do, q, k, v = normal(rng, *[(n, d)] * 4)
    saved = fa_numba.flash_forward(q, k, v)
    report = fa_numba.trace(BACKWARD["one kernel, 8x8 register tiles"], do, q, k, v, *saved, tile=TILE)
    formula = work.flash_backward(n, d, TILE.block_q)
    counters = sum(array.loaded + array.stored for launch in report.launches for array in launch.arrays
                   if array.name in ("turns", "x"))  # fmt: skip
    assert requested(report) - counters == formula.requested


def test_attention_computes_its_products():
    assert work.flash_forward(64, 16, 16).flops == work.standard_forward(64, 16).flops == 2 * 2 * 64 * 64 * 16
    assert work.standard_backward(64, 16).flops == 4 * 2 * 64 * 64 * 16
    assert work.flash_backward(64, 16, 32).flops == 5 * 2 * 64 * 64 * 16


def test_the_work_of_many_heads():
    assert work.Work(1, 2, 3).times(32) == work.Work(32, 64, 96)
