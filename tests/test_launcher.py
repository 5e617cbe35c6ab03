"""Launches by the driver alone: what a kernel compiled by Numba is given, number by number."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import gpu_only
from numba import cuda

from fa_numba import device, launcher, pool

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        (1, "q"),
        (-(2**63), "q"),
        (2**63 - 1, "q"),
        (2**63, None),
        (True, "?"),
        (np.True_, "?"),
        (1.5, "d"),
        (np.float64(1), "d"),
        (np.float32(1), "f"),
        (np.float16(1), None),
        (np.int32(1), None),
        (np.int64(1), None),
        (1j, None),
        (np.zeros(3), None),
        (pool.View(64, (2, 3), FLOAT32, None), ("f", 2)),
        (pool.View(64, (), FLOAT64, None), ("d", 0)),
        (pool.View(64, (4,), np.dtype(np.int32), None), ("i", 1)),
    ],
    ids=repr,
)
def test_kinds(argument, kind):
    assert launcher.kind(argument) == kind


class Driver:
    """Stands in for the driver: reads what it is given while it is there."""

    def __init__(self, status=0):
        self.status, self.calls = status, []

    def cuLaunchKernel(self, handle, *numbers):  # noqa: N802
        *extents, shared, stream, parameters, extra = numbers
        assert parameters is None
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t)).contents.value
        self.calls.append((handle.value, extents, shared, stream.value or 0, ctypes.string_at(extra[1], size)))
        return self.status


def prepared(monkeypatch, arguments, status=0):
    """Return a launcher for arguments like these, and what the driver will be told."""
    driver = Driver(status)
    monkeypatch.setattr(launcher.selection, "load_driver", lambda: driver)
    compiled = SimpleNamespace(_codelibrary=SimpleNamespace(get_cufunc=lambda: SimpleNamespace(handle=77)))
    return launcher.Launcher(compiled, tuple(map(launcher.kind, arguments))), driver


def test_arguments_are_packed_as_numba_s_kernels_take_them(monkeypatch):
    """An array: two null pointers, elements, bytes of one, address, shape, strides. Numbers are aligned."""
    arguments = (pool.View(4096, (3, 5), FLOAT32, None), np.float32(0.5), 7, True, 2.5, np.float32(-1))
    ready, driver = prepared(monkeypatch, arguments)
    ready((1, 2, 3), (32, 4, 5), arguments, 1000, SimpleNamespace(handle=9))
    ((handle, extents, shared, stream, packed),) = driver.calls
    assert (handle, extents, shared, stream) == (77, [1, 2, 3, 32, 4, 5], 1000, 9)
    assert struct.unpack_from("=9q", packed) == (0, 0, 15, 4, 4096, 3, 5, 20, 4)
    offsets = {72: ("f", 0.5), 80: ("q", 7), 88: ("?", True), 96: ("d", 2.5), 104: ("f", -1)}
    assert {at: (kind, *struct.unpack_from(kind, packed, at)) for at, (kind, _) in offsets.items()} == offsets
    assert len(packed) == 108


def test_an_array_after_a_number_is_aligned_and_the_default_stream_is_null(monkeypatch):
    arguments = (np.float32(3), pool.View(2**40, (6,), FLOAT64, None), False)
    ready, driver = prepared(monkeypatch, arguments)
    ready((1, 1, 1), (1, 1, 1), arguments, 0, 0)
    packed = driver.calls[0][-1]
    assert struct.unpack_from("f", packed) == (3,)
    assert struct.unpack_from("=7q?", packed, 8) == (0, 0, 6, 8, 2**40, 6, 8, False)
    assert driver.calls[0][3] == 0


def test_a_launch_that_the_driver_refuses(monkeypatch):
    ready, _ = prepared(monkeypatch, (1,), status=701)
    with pytest.raises(RuntimeError, match=r"the driver could not start the kernel \(CUDA status 701\)"):
        ready((1, 1, 1), (1, 1, 1), (1,), 0, 0)


def test_true_is_no_extent_though_1_was_one():
    """True equals 1, and would be found in a cache of what was checked."""

    @cuda.jit
    def one_kernel(x):
        x[0] = 1

    x = np.zeros(1, np.float32)
    device.launch(one_kernel, 1, 1, x)
    for grid, block in ((True, 1), (1, True)):
        with pytest.raises(ValueError, match="True"):
            device.launch(one_kernel, grid, block, x)


@cuda.jit
def all_kinds_kernel(out, x, whole, single, double, python, yes, no, rows):
    i = cuda.grid(1)
    if i < rows.shape[0]:
        number = whole + single + double + python + x[i]
        out[i] = number + (1000 if yes else 0) + (5000 if no else 0) + rows[i, 1]


@gpu_only
def test_every_kind_of_argument_arrives():
    """As many times by the driver alone as by Numba, and in every type of number."""
    from fa_numba.arrays import Call

    x, rows = np.arange(40, dtype=np.float32), np.arange(80, dtype=np.float64).reshape(40, 2)
    numbers = (2**40, np.float32(0.5), np.float64(0.25), 0.125, True, np.False_)
    expected = 2**40 + 0.875 + x.astype(np.float64) + 1000 + rows[:, 1]
    with Call(x=cuda.to_device(x)) as single, Call(rows=cuda.to_device(rows)) as double:
        out = double.empty("out", (40,))
        arguments = (out, single["x"], *numbers, double["rows"])
        assert None not in map(launcher.kind, arguments)
        device.launch(all_kinds_kernel, 2, 32, *arguments)
        np.testing.assert_array_equal(out.copy_to_host(), expected)
        numba_s = [each.as_numba() if hasattr(each, "as_numba") else each for each in arguments]
        all_kinds_kernel[2, 32](*numba_s)
        np.testing.assert_array_equal(out.copy_to_host(), expected)


@gpu_only
@pytest.mark.parametrize("view", [lambda y: y[1:], lambda y: y.reshape(-1), lambda y: y.reshape(4, 8)[2:]])
def test_a_view_of_a_result_keeps_its_memory(view):
    """Other results of the same size do not take its place."""
    from fa_numba import naive_softmax

    x = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    y = naive_softmax(cuda.to_device(x))
    expected, kept = view(y.copy_to_host()), view(y)
    del y
    others = [naive_softmax(cuda.to_device(np.zeros_like(x))) for _ in range(20)]
    np.testing.assert_array_equal(kept.copy_to_host(), expected)
    assert len(others) == 20
