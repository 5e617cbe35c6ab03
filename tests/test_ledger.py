"""The ledger counts what is held on the device, to the byte, and alike on GPU and simulator."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import naive_softmax
from fa_numba.arrays import Call
from fa_numba.device import launch, ledger

X = np.ones((6, 10), np.float32)
NBYTES = X.nbytes


def test_numpy_in_and_out():
    with ledger() as memory:
        naive_softmax(X)
    assert memory.peak == 2 * NBYTES
    assert memory.at_peak == {"x": NBYTES, "y": NBYTES}
    assert memory.held == 0


def test_device_arrays_cost_the_same_and_the_result_is_held_until_it_is_dropped():
    x = cuda.to_device(X)
    with ledger() as memory:
        y = naive_softmax(x)
        assert memory.held == NBYTES
        z = naive_softmax(y)
        del y
        assert memory.held == NBYTES
        del z
        assert memory.held == 0
    assert memory.peak == 2 * NBYTES
    assert memory.at_peak == {"x": NBYTES, "y": NBYTES}


def test_an_input_that_we_made_counts_once():
    with ledger() as memory:
        y = naive_softmax(cuda.to_device(X))
        before = memory.held
        naive_softmax(y)
    assert before == NBYTES
    assert memory.peak == 2 * NBYTES
    assert sum(memory.at_peak.values()) == memory.peak


def test_a_contiguous_copy_is_counted():
    x = cuda.to_device(X)[:, ::2]
    with ledger() as memory:
        naive_softmax(x)
    assert memory.at_peak == {"x": NBYTES // 2, "contiguous x": NBYTES // 2, "y": NBYTES // 2}


def test_double_precision_is_twice_as_much():
    with ledger() as memory:
        naive_softmax(X.astype(np.float64))
    assert memory.peak == 4 * NBYTES


def test_nothing_is_held_for_empty_arrays_or_after_an_error():
    with ledger() as memory:
        naive_softmax(np.ones((0, 4), np.float32))
        with pytest.raises(TypeError):
            naive_softmax(np.ones(4, np.int32))
    assert memory.peak == 0
    assert memory.at_peak == {}


def test_views_that_start_together_count_once():
    x = cuda.to_device(X)
    with ledger() as memory, Call(first=x[:1], whole=x):
        assert memory.held == NBYTES


def test_ledgers_nest_and_close():
    with ledger() as outer:
        naive_softmax(X)
        with ledger() as inner:
            naive_softmax(X[:3])
    naive_softmax(np.ones((100, 100), np.float32))
    assert outer.peak == 2 * NBYTES
    assert inner.peak == NBYTES


@cuda.jit
def double_kernel(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = factor * x[i]


def test_a_launch_counts_the_numpy_arrays_it_moves():
    x = np.ones(32, np.float32)
    with ledger() as memory:
        launch(double_kernel, 1, 32, x, np.zeros(32, np.float64), np.float32(2))
    assert memory.at_peak == {"x": 128, "y": 256}
    assert memory.held == 0


def test_ledgers_that_hold_the_same_are_still_two():
    with ledger() as outer:
        with ledger() as inner:
            pass
        naive_softmax(X)
    assert (outer.peak, inner.peak) == (2 * NBYTES, 0)


def test_a_ledger_closes_after_an_error():
    with pytest.raises(KeyError), ledger() as memory:
        raise KeyError
    naive_softmax(X)
    assert memory.peak == 0


def test_the_peak_is_of_one_moment_not_a_sum():
    with ledger() as memory:
        for _ in range(5):
            naive_softmax(X)
    assert memory.peak == 2 * NBYTES
