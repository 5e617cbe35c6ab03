"""Step 1: naive softmax against the float64 reference, and the faults that others met (CASES.md)."""

import numpy as np
import pytest
from conftest import simulator_only
from softmax_cases import DTYPES, HARD_ROWS, INF, allowed_error, between_ordinary_rows

from fa_numba import device, naive_softmax, reference

SHAPES = [(1,), (7,), (1, 1), (3, 1), (5, 33), (2, 3, 4), (2, 1, 3, 5), (257, 3), (300, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(rng, shape, dtype):
    x = (3 * rng.standard_normal(shape)).astype(dtype)
    before = x.copy()
    y = naive_softmax(x)
    truth = reference.softmax(x)
    assert y.shape == shape
    assert y.dtype == dtype
    assert np.abs(y - truth).max() <= allowed_error(x, truth)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", HARD_ROWS, ids=str)
def test_hard_rows(row, dtype):
    x = between_ordinary_rows(row, dtype)
    y = naive_softmax(x)
    np.testing.assert_allclose(y, reference.softmax(x), rtol=1e-6 if dtype == np.float32 else 1e-14)
    assert np.isfinite(y[[0, 2]]).all()


def test_values_of_the_cases():
    np.testing.assert_allclose(
        naive_softmax(np.array([[1000, 1001]], np.float32)), [[0.26894142, 0.73105858]], rtol=1e-6
    )
    np.testing.assert_allclose(
        naive_softmax(np.float32([-1e7, -1e7 + 1, -1e7 + 2])), [0.0900306, 0.2447285, 0.6652410], atol=1e-7
    )
    np.testing.assert_array_equal(naive_softmax(np.float32([-INF, 0, -INF])), [0, 1, 0])


def test_denormal_weights_may_be_flushed():
    """CASES C32: the second weight is 3.72e-44, or 0 where denormals are flushed."""
    y = naive_softmax(np.float32([[0, -100], [0, -104]]))
    assert y[0, 1] == 0 or abs(y[0, 1] - 3.720076e-44) < 2e-45
    assert y[1, 1] in (0, np.float32(1e-45))
    np.testing.assert_array_equal(y[:, 0], 1)


def test_every_row_is_written_whatever_the_block():
    """CASES C11: 64 rows in blocks of 256 threads; then one row more than a block."""
    np.testing.assert_array_equal(naive_softmax(np.zeros((64, 8), np.float32)), np.full((64, 8), 0.125))
    np.testing.assert_array_equal(naive_softmax(np.zeros((257, 2), np.float32)), np.full((257, 2), 0.5))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3), (0, 0)])
def test_empty_inputs_give_empty_results(shape):
    """CASES C22: no launch with a grid of zero blocks."""
    y = naive_softmax(np.zeros(shape, np.float64))
    assert y.shape == shape
    assert y.dtype == np.float64


def test_runs_are_bitwise_equal(rng):
    x = rng.standard_normal((40, 50)).astype(np.float32)
    first = naive_softmax(x)
    for _ in range(3):
        np.testing.assert_array_equal(naive_softmax(x), first)


def test_bad_inputs():
    with pytest.raises(ValueError, match=r"x has shape \(\); softmax needs at least one axis"):
        naive_softmax(np.float32(1))
    with pytest.raises(TypeError, match="dtypes given: x float16; taken: float32 or float64"):
        naive_softmax(np.zeros(3, np.float16))


@simulator_only
def test_a_call_that_would_take_minutes_warns_first(monkeypatch):
    monkeypatch.setattr(device, "launch", lambda *args, **kwargs: None)
    with pytest.warns(device.SlowSimulation, match=r"naive_softmax will take about \d+ minutes on the simulator"):
        naive_softmax(np.zeros((8192, 8192), np.float32))
