"""Registers of a traced kernel: the compiler asked, in a process whose simulator is off."""

import os
import pickle

import numba
import numpy as np
import pytest
from conftest import is_bundled, simulator_only
from numba import cuda

import fa_numba
from fa_numba import barriers, child, compiler
from fa_numba.step1_naive_softmax import naive_softmax_kernel
from fa_numba.step4_flash_forward import RUNGS, small_tiles

MATRIX = numba.types.Array(numba.float32, 2, "C")


@cuda.jit
def doubling_kernel(x):
    x[cuda.grid(1)] *= 2


def form_of(kernel, *arguments):
    return compiler.form_of(kernel.py_func, arguments)


def test_a_form_finds_its_kernel_again():
    x = np.zeros((2, 3), np.float32)
    form = form_of(naive_softmax_kernel, x, x)
    assert form == compiler.Form("fa_numba.step1_naive_softmax", "naive_softmax_kernel", None, (MATRIX, MATRIX))
    assert form.kernel() is naive_softmax_kernel
    arguments = (16, 16, 16, 32, True, numba.float32)
    made = small_tiles.make_flash_forward(*arguments)
    form = form_of(made, x, np.float32(1), 2, True)
    assert (form.name, form.made_with) == ("make_flash_forward", arguments)
    assert form.arguments == (MATRIX, numba.float32, numba.int64, numba.boolean)
    assert form.kernel() is made
    assert pickle.loads(pickle.dumps(form)) == form
    pair = form_of(naive_softmax_kernel, (x, x)).arguments
    assert pair == (numba.types.UniTuple(MATRIX, 2),)


def test_a_kernel_that_no_other_process_finds_has_no_form():
    @cuda.jit
    def local_kernel(x):
        x[0] = 1

    assert form_of(local_kernel, np.zeros(1)) is None
    assert form_of(doubling_kernel, np.zeros(1)).kernel() is doubling_kernel
    doubling_kernel.py_func.__module__, before = "__main__", doubling_kernel.py_func.__module__
    try:
        assert form_of(doubling_kernel, np.zeros(1)) is None
    finally:
        doubling_kernel.py_func.__module__ = before


@simulator_only
def test_a_kernel_without_a_barrier_is_not_the_kernel_with_it():
    q = np.zeros((4, 4), np.float32)  # a single tile, and no race without the first barrier
    with_it, without = (
        fa_numba.trace(function, q, q, q, block_q=8, block_k=8).launches[0]
        for function in (
            RUNGS["4x4 register tiles"],
            barriers.without_barrier(RUNGS["4x4 register tiles"], small_tiles, 1),
        )
    )
    assert with_it.kernel == without.kernel
    assert with_it.form is not None and without.form is None
    assert without.registers() is None


@simulator_only
@pytest.mark.skipif(is_bundled() or not compiler.ptxas_path(), reason="needs NVIDIA's compiler")
def test_the_compiler_says_how_many_registers_a_thread_has():
    x = np.zeros((2, 8), np.float32)
    (launch,) = fa_numba.trace(fa_numba.naive_softmax, x).launches
    few, many = launch.registers(), launch.registers("7.5")
    assert 8 <= few <= 64 and 8 <= many <= 64
    assert launch.occupancy(registers=few).blocks_by["registers"] >= 4
    with pytest.raises(ValueError, match=r"compute capability '1\.0' is not known"):
        launch.registers("1.0")


def test_without_a_compiler_the_registers_are_not_known(monkeypatch):
    monkeypatch.setattr(compiler, "ptxas_path", lambda: None)
    monkeypatch.setattr(child, "call_compiler", lambda *arguments: pytest.fail("was started"))
    x = np.zeros((3, 5), np.float64)
    form = form_of(naive_softmax_kernel, x, x)
    assert compiler.registers.__wrapped__(form, "8.6") is None


@pytest.mark.skipif(is_bundled(), reason="the other process finds numba-cuda")
def test_the_other_process_has_its_simulator_off(monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert child.call_compiler(os.getenv, "FA_NUMBA_DEVICE") == "gpu"
    assert child.call_compiler(os.getenv, "NUMBA_ENABLE_CUDASIM") in (None, "0")
