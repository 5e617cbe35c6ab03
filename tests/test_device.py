"""Launches: checked first, the same on GPU and simulator; the device's description."""

import warnings

import numba
import numpy as np
import pytest
from conftest import gpu_only, run_python, simulator_only
from numba import cuda, float32

from fa_numba import device
from fa_numba.device import launch

UNTOUCHED = -1.0


@cuda.jit
def count_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = i


@cuda.jit
def scale_kernel(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = factor * x[i]


@pytest.mark.parametrize(
    ("block", "asked"),
    [((64, 32), "64×32 = 2048"), (1025, "1025"), ((1, 1025), "1×1025 = 1025"), ((32, 8, 8), "32×8×8 = 2048")],
)
def test_a_block_too_large_is_refused_and_nothing_runs(block, asked):
    """CASES A17: what gave the source article its output of zeros."""
    out = np.full(4, UNTOUCHED, np.float32)
    with pytest.raises(ValueError, match=rf"count_kernel asks for ({asked}) threads in a block; the limit is 1024"):
        launch(count_kernel, 1, block, out)
    assert (out == UNTOUCHED).all()


def test_the_largest_block_runs():
    out = np.full(1024, UNTOUCHED, np.float32)
    launch(count_kernel, 1, 1024, out)
    np.testing.assert_array_equal(out, np.arange(1024))


@pytest.mark.parametrize("grid", [0, (1, 65536), (1, 1, 65536), 2**31, -1, 1.5, (1, 2, 3, 4), ()])
def test_grids_that_cannot_be_launched(grid):
    """CASES A19: the y and z axes of a grid end at 65535."""
    out = np.full(4, UNTOUCHED, np.float32)
    with pytest.raises(ValueError, match="grid"):
        launch(count_kernel, grid, 4, out)
    assert (out == UNTOUCHED).all()


def make_shared(count):
    @cuda.jit
    def static_kernel(out):
        tile = cuda.shared.array(count, float32)
        t = cuda.threadIdx.x
        for i in range(t, count, cuda.blockDim.x):
            tile[i] = i
        cuda.syncthreads()
        out[t] = tile[count - 1 - t]

    return static_kernel


def test_static_shared_memory_up_to_48_kib():
    """CASES A18."""
    out = np.full(32, UNTOUCHED, np.float32)
    launch(make_shared(12288), 1, 32, out)
    np.testing.assert_array_equal(out, 12287 - np.arange(32))
    out = np.full(32, UNTOUCHED, np.float32)
    with pytest.raises(
        ValueError, match=r"static_kernel declares 49156 bytes of static shared memory .* limit is 49152"
    ):
        launch(make_shared(12289), 1, 32, out)
    assert (out == UNTOUCHED).all()


@cuda.jit
def dynamic_kernel(out, count):
    memory = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    for i in range(t, count, cuda.blockDim.x):
        memory[i] = i
    cuda.syncthreads()
    out[t] = memory[count - 1 - t]


@pytest.mark.parametrize("nbytes", [128, 48 * 1024, 48 * 1024 + 4, 64 * 1024])
def test_dynamic_shared_memory_past_48_kib_is_asked_for(nbytes):
    out = np.full(32, UNTOUCHED, np.float32)
    launch(dynamic_kernel, 1, 32, out, nbytes // 4, shared=nbytes)
    np.testing.assert_array_equal(out, nbytes // 4 - 1 - np.arange(32))


def test_dynamic_shared_memory_ends_at_the_limit_of_the_device():
    most = device.device_limits().shared_per_block
    out = np.full(32, UNTOUCHED, np.float32)
    launch(dynamic_kernel, 1, 32, out, most // 4, shared=most)
    np.testing.assert_array_equal(out, most // 4 - 1 - np.arange(32))
    out = np.full(32, UNTOUCHED, np.float32)
    with pytest.raises(ValueError, match=f"{most + 1} bytes of shared memory in a block; .* is {most}"):
        launch(dynamic_kernel, 1, 32, out, most // 4, shared=most + 1)
    assert (out == UNTOUCHED).all()


def test_launch_bounds():
    out = np.full(64, UNTOUCHED, np.float32)
    bounded = cuda.jit(launch_bounds=32)(count_kernel.py_func)
    with pytest.raises(ValueError, match="asks for 64 threads in a block; it was compiled for 32 at most"):
        launch(bounded, 1, 64, out)
    assert (out == UNTOUCHED).all()


def test_what_is_not_a_kernel():
    with pytest.raises(TypeError, match=r"launch takes a kernel, made by @cuda.jit; it was given CPUDispatcher"):
        launch(numba.njit(lambda x: x), 1, 1, 1)
    with pytest.raises(TypeError, match=r"launch takes a kernel, made by @cuda.jit; it was given function"):
        launch(count_kernel.py_func, 1, 1)


def test_numpy_arguments_go_there_and_back():
    """CASES C19, C20: strided and read-only host arrays, on GPU and simulator alike."""
    x = np.arange(16, dtype=np.float32)[::2]
    x.flags.writeable = False
    whole = np.zeros(16, np.float32)
    y = whole[::-2]
    launch(scale_kernel, 1, 8, x, y, np.float32(3))
    np.testing.assert_array_equal(y, 3 * x)
    np.testing.assert_array_equal(whole[::2], 0)


def test_one_array_given_twice_stays_one():
    """CASES C21: in place."""
    x = np.arange(8, dtype=np.float32)
    launch(scale_kernel, 1, 8, x, x, np.float32(2))
    np.testing.assert_array_equal(x, 2 * np.arange(8))


def test_overlapping_arrays_keep_the_result():
    """CASES C21: only what the kernel changed goes back."""
    base = np.arange(8, dtype=np.float32)
    launch(scale_all_kernel, 1, 4, base[:4], base, np.float32(3))
    np.testing.assert_array_equal(base, [0, 3, 6, 9, 4, 5, 6, 7])


@cuda.jit
def two_outputs_kernel(a, b):
    a[5] = 7
    b[0] = 9


def test_overlapping_outputs_keep_both_results():
    base = np.zeros(8, np.float32)
    launch(two_outputs_kernel, 1, 1, base[:6], base[2:])
    np.testing.assert_array_equal(base, [0, 0, 9, 0, 0, 7, 0, 0])


@cuda.jit
def scale_all_kernel(y, x, factor):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = factor * x[i]


def test_a_read_only_array_is_not_an_output():
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="count_kernel wrote to a read-only array"):
        launch(count_kernel, 1, 4, x[::-1])


def test_device_arguments_stay_on_the_device():
    x = cuda.to_device(np.arange(8, dtype=np.float64))
    y = cuda.device_array(8, np.float64)
    launch(scale_kernel, 1, 8, x, y, 2.0)
    np.testing.assert_array_equal(y.copy_to_host(), 2 * np.arange(8))


def test_the_description():
    assert (device.describe() == "the simulator") == device.SIMULATED


@simulator_only
def test_the_simulated_capability_can_be_chosen():
    source = "from fa_numba import device; print(device.device_limits().shared_per_block)"
    assert run_python(source, FA_NUMBA_SIMULATED_CC="7.5").stdout == "65536\n"
    assert run_python(source, FA_NUMBA_SIMULATED_CC=None).stdout == "166912\n"
    assert "compute capability '5' is not known" in run_python(source, FA_NUMBA_SIMULATED_CC="5").stderr


def test_no_numba_warning_reaches_the_reader():
    """CASES A24: a small grid on host arrays; Numba would warn of both, on a GPU."""
    source = """
import numpy as np
import fa_numba
from numba import cuda

@cuda.jit
def one_kernel(x):
    x[0] = 1

x = np.zeros(1, np.float32)
one_kernel[1, 1](x)
fa_numba.device.launch(one_kernel, 1, 1, x)
print(x[0])
"""
    finished = run_python(source)
    assert (finished.stdout, finished.stderr) == ("1.0\n", "")


def test_warn_if_slow():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device.warn_if_slow("softmax", 10**6)
        if not device.SIMULATED:
            device.warn_if_slow("softmax", 10**12)


@gpu_only
def test_a_block_too_large_for_the_registers_of_a_kernel():
    """CASES C46: the driver would answer CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES."""

    @cuda.jit
    def hungry_kernel(x):
        products = cuda.local.array((12, 12), float32)
        for i in range(12):
            for j in range(12):
                products[i, j] = float32(0)
        for k in range(x.shape[0]):
            for i in range(12):
                for j in range(12):
                    products[i, j] += x[k, i] * x[k, 12 + j]
        for i in range(12):
            for j in range(12):
                x[i, j] = products[i, j]

    x = np.zeros((24, 24), np.float32)
    with pytest.raises(ValueError, match=r"hungry_kernel asks for 1024 threads .* limit is \d+, since each"):
        launch(hungry_kernel, 1, 1024, x)


@gpu_only
def test_launches_on_a_stream():
    stream = cuda.stream()
    x = cuda.to_device(np.arange(8, dtype=np.float32), stream=stream)
    y = cuda.device_array(8, np.float32, stream=stream)
    launch(scale_kernel, 1, 8, x, y, np.float32(2), stream=stream)
    np.testing.assert_array_equal(y.copy_to_host(stream=stream), 2 * np.arange(8))


@gpu_only
def test_dynamic_shared_memory_may_grow_and_shrink_between_launches():
    out = np.zeros(1, np.float32)
    for nbytes in (60_000, 50_000, 60_000, 4):
        launch(last_of_dynamic_kernel, 1, 1, nbytes // 4 - 1, out, shared=nbytes)
        assert out[0] == nbytes // 4 - 1
        out[0] = 0


@cuda.jit
def last_of_dynamic_kernel(last, out):
    memory = cuda.shared.array(0, float32)
    memory[last] = last
    out[0] = memory[last]


@pytest.mark.parametrize("signatures", ["void(float32[:])", ["void(float32[:])", "void(float64[:])"]], ids=["1", "2"])
def test_a_kernel_of_given_signatures(signatures):
    @cuda.jit(signatures)
    def one_kernel(x):
        x[0] = 1

    x = np.zeros(3, np.float32)
    launch(one_kernel, 1, 1, x)
    assert x[0] == 1
