"""The observer of launches: names in order, times on a GPU and never on the simulator."""

import numpy as np
import pytest
from conftest import gpu_only, simulator_only
from numba import cuda

import fa_numba
from fa_numba import device, timing


def heads(n=16, d=8):
    return [np.random.default_rng(0).standard_normal((2, n, d), dtype=np.float32) for _ in range(4)]


def test_standard_attention_launches_its_products_in_the_order_of_the_equations():
    q, k, v, do = heads()
    with timing.observe() as forward:
        _, p = fa_numba.standard_attention(q, k, v)
        assert forward == []  # until the block ends
    with timing.observe() as backward:
        fa_numba.standard_attention_backward(do, q, k, v, p)
    assert [launch.kernel for launch in forward] == ["matmul_kernel", "row_softmax_kernel", "matmul_kernel"]
    matmul, gradient = "matmul_kernel", "row_gradient_kernel"
    assert [launch.kernel for launch in backward] == [matmul, matmul, gradient, matmul, matmul]


def test_observers_see_what_is_launched_while_they_are_open():
    x = np.ones((4, 8), np.float32)
    with timing.observe() as outer:
        fa_numba.naive_softmax(x)
        with timing.observe() as inner:
            fa_numba.block_softmax(x)
    fa_numba.online_softmax(x)
    assert [launch.kernel for launch in outer] == ["naive_softmax_kernel", "register_softmax_kernel"]
    assert [launch.kernel for launch in inner] == ["register_softmax_kernel"]


@cuda.jit
def nothing_kernel(x, factor, y):
    pass


def test_array_arguments_are_counted_and_numbers_are_not():
    x = cuda.to_device(np.ones(4, np.float32))
    with timing.observe() as launches:
        device.launch(nothing_kernel, 1, 32, x, np.float32(2), x)
        device.launch(nothing_kernel, 1, 32, x, 2, 3)
    assert [launch.arrays for launch in launches] == [2, 1]


def test_an_observer_is_gone_after_an_error():
    with pytest.raises(ZeroDivisionError), timing.observe():
        raise ZeroDivisionError
    assert timing._open == []


@simulator_only
def test_the_simulator_is_not_timed():
    with timing.observe() as launches:
        fa_numba.naive_softmax(np.ones((4, 8), np.float32))
    assert launches == [timing.Launch("naive_softmax_kernel", None, 2)]


@gpu_only
def test_a_gpu_is_timed():
    with timing.observe() as launches:
        fa_numba.naive_softmax(np.ones((4096, 512), np.float32))
    assert 0 < launches[0].ms < 1000
