"""4-wide loads and stores, on GPU and simulator."""

import numpy as np
import pytest
from conftest import simulator_only
from numba import cuda, float32

from fa_numba import device
from fa_numba.primitives import copy1, copy4, load2, load4, part, store4, wait_for_copies

if device.SIMULATED:
    from fa_numba.simulator import MisalignedAccessError, OutOfBoundsError, UninitializedReadError


@cuda.jit
def reverse_fours_kernel(x, y):
    """Reverse the groups of four in a row, through shared memory."""
    tile = cuda.shared.array(128, float32, alignment=16)
    i = cuda.blockIdx.x
    t = 4 * cuda.threadIdx.x
    store4(tile, t, load4(x, (i, t)))
    cuda.syncthreads()
    a = load4(tile, x.shape[1] - 4 - t)
    store4(y, (i, t), (a[0], a[1], a[2], a[3]))


@cuda.jit
def double_kernel(x, y):
    i = 4 * cuda.grid(1)
    a = load4(x, i)
    store4(y, i, (a[0] + a[0], a[1] + a[1], a[2] + a[2], a[3] + a[3]))


@cuda.jit
def swap_parts_kernel(x, y):
    """Through shared memory: the second half of x, then the first; each by the elements' numbers in the whole array."""
    memory = cuda.shared.array(0, float32)
    first, second = part(memory, 0, 16), part(memory, 16, 16)
    t = 4 * cuda.threadIdx.x
    store4(first, t, load4(x, t))
    store4(second, t, load4(x, 16 + t))
    store4(y, t, load4(second, t))
    store4(y, 16 + t, load4(first, t))


def test_parts_and_elements_counted_through_several_axes(rng):
    x = rng.standard_normal((2, 2, 8)).astype(np.float32)
    y = np.zeros_like(x)
    device.launch(swap_parts_kernel, 1, 4, x, y, shared=128)
    np.testing.assert_array_equal(y, x[::-1])


@cuda.jit
def part_kernel(x, y, start, length):
    y[0] = part(x, start, length)[0]


@simulator_only
@pytest.mark.parametrize(("start", "length"), [(0, 17), (-1, 4), (15, 2)])
def test_a_part_outside_is_an_error(start, length):
    with pytest.raises(OutOfBoundsError, match="part_kernel"):
        device.launch(part_kernel, 1, 1, np.zeros(16, np.float32), np.zeros(1, np.float32), start, length)


@simulator_only
def test_a_part_of_a_matrix_is_an_error():
    with pytest.raises(TypeError, match="one-dimensional"):
        device.launch(part_kernel, 1, 1, np.zeros((4, 4), np.float32), np.zeros(1, np.float32), 0, 4)


def test_four_elements_move_together(rng):
    x = rng.standard_normal((3, 64)).astype(np.float32)
    y = np.zeros_like(x)
    device.launch(reverse_fours_kernel, 3, 16, x, y)
    np.testing.assert_array_equal(y, x.reshape(3, 16, 4)[:, ::-1].reshape(3, 64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_precisions(rng, dtype):
    x = rng.standard_normal(64).astype(dtype)
    y = np.zeros_like(x)
    device.launch(double_kernel, 2, 8, x, y)
    np.testing.assert_array_equal(y, 2 * x)


@cuda.jit
def load_at_kernel(x, y, start):
    a = load4(x, start)
    y[0] = a[0]


@simulator_only
@pytest.mark.parametrize("start", [1, 2, 3, 5])
def test_misaligned_accesses_are_errors(start):
    with pytest.raises(
        MisalignedAccessError, match=rf"load_at_kernel, test_primitives.py:\d+ .* 4-wide access at \[{start}\]"
    ):
        device.launch(load_at_kernel, 1, 1, np.zeros(16, np.float32), np.zeros(1, np.float32), start)


@simulator_only
@pytest.mark.parametrize("start", [-4, 16, 14])
def test_accesses_outside_are_errors(start):
    with pytest.raises(OutOfBoundsError, match="load_at_kernel"):
        device.launch(load_at_kernel, 1, 1, np.zeros(16, np.float32), np.zeros(1, np.float32), start)


@cuda.jit
def store_three_kernel(x):
    store4(x, 0, (x[0], x[1], x[2]))


@cuda.jit
def load_row_kernel(x, y):
    y[0] = load4(x, (1, 0))[0]


@simulator_only
def test_what_a_gpu_does_not_compile_is_an_error():
    with pytest.raises(TypeError, match="store4 writes a tuple of 4 values; 3 were given"):
        device.launch(store_three_kernel, 1, 1, np.zeros(16, np.float32))
    with pytest.raises(TypeError, match="4-wide access needs a float32 or float64 array, not int32"):
        device.launch(load_at_kernel, 1, 1, np.zeros(16, np.int32), np.zeros(1, np.int32), 0)
    with pytest.raises(IndexError, match="a 4-wide access needs 3 indices, not 2"):
        device.launch(load_row_kernel, 1, 1, np.zeros((2, 4, 4), np.float32), np.zeros(1, np.float32))
    strided = cuda.to_device(np.zeros((4, 8), np.float32))[:, :4]
    with pytest.raises(ValueError, match="4-wide access needs a C-contiguous array"):
        device.launch(load_row_kernel, 1, 1, strided, np.zeros(1, np.float32))


@simulator_only
def test_host_arrays_start_aligned_and_views_of_device_arrays_where_they_start():
    base = np.arange(17, dtype=np.float32)
    y = np.zeros(1, np.float32)
    load_at_kernel[1, 1](base[1:], y, 0)
    assert y[0] == 1
    with pytest.raises(MisalignedAccessError):
        load_at_kernel[1, 1](cuda.to_device(base)[1:], y, 0)
    load_at_kernel[1, 1](cuda.to_device(base)[4:], y, 0)
    assert y[0] == 4


@cuda.jit
def unaligned_tile_kernel(y):
    tile = cuda.shared.array(8, float32)
    store4(tile, 4, (y[0], y[0], y[0], y[0]))


@cuda.jit
def half_written_kernel(y):
    tile = cuda.shared.array(8, float32, alignment=16)
    for i in range(3):
        tile[i] = y[0]
    y[0] = load4(tile, 0)[0]


@simulator_only
def test_shared_tiles_must_be_aligned_and_written():
    with pytest.raises(MisalignedAccessError, match="unaligned_tile_kernel"):
        device.launch(unaligned_tile_kernel, 1, 1, np.zeros(1, np.float32))
    with pytest.raises(UninitializedReadError, match=r"half_written_kernel.*not all of them written"):
        device.launch(half_written_kernel, 1, 1, np.zeros(1, np.float32))


# -- asynchronous copies --------------------------------------------------------------------------------------------

has_copies = pytest.mark.skipif(not device.device_limits().asynchronous, reason="needs compute capability 8.0")


@cuda.jit
def copy_fours_kernel(x, y):
    """Reverse the groups of four in a row."""
    tile = cuda.shared.array(128, float32, alignment=16)
    i, t = cuda.blockIdx.x, 4 * cuda.threadIdx.x
    copy4(tile, t, x, (i, t))
    wait_for_copies()
    cuda.syncthreads()
    a = load4(tile, x.shape[1] - 4 - t)
    store4(y, (i, t), (a[0], a[1], a[2], a[3]))


@cuda.jit
def copy_single_kernel(x, y):
    """Swap neighbours."""
    tile = cuda.shared.array(64, float32, alignment=16)
    t = cuda.threadIdx.x
    copy1(tile, t ^ 1, x, t)
    wait_for_copies()
    cuda.syncthreads()
    two = load2(tile, t // 2 * 2)
    y[t] = two[t % 2]


@has_copies
def test_copies_are_there_after_the_wait(rng):
    x = rng.standard_normal((3, 64)).astype(np.float32)
    y = np.zeros_like(x)
    device.launch(copy_fours_kernel, 3, 16, x, y)
    np.testing.assert_array_equal(y, x.reshape(3, 16, 4)[:, ::-1].reshape(3, 64))
    swapped = np.zeros(64, np.float32)
    device.launch(copy_single_kernel, 1, 64, x[0], swapped)
    np.testing.assert_array_equal(swapped, x[0].reshape(32, 2)[:, ::-1].ravel())


@cuda.jit
def no_wait_kernel(x, y):
    tile = cuda.shared.array(4, float32, alignment=16)
    for i in range(4):
        tile[i] = float32(0)
    copy4(tile, 0, x, 0)
    y[0] = tile[0]


@cuda.jit
def wait_of_another_kernel(x, y):
    """Thread 1 waits, but the copy is thread 0's."""
    tile = cuda.shared.array(4, float32, alignment=16)
    if cuda.threadIdx.x == 0:
        copy4(tile, 0, x, 0)
    else:
        wait_for_copies()
    cuda.syncthreads()
    y[0] = tile[0]


@simulator_only
@pytest.mark.parametrize(("kernel", "threads"), [(no_wait_kernel, 1), (wait_of_another_kernel, 2)])
def test_without_the_wait_nothing_is_there(kernel, threads):
    """Not even what was there before."""
    with pytest.raises(UninitializedReadError, match=f"{kernel.__name__}.* copy has begun and was not waited for"):
        device.launch(kernel, 1, threads, np.ones(4, np.float32), np.zeros(1, np.float32))


@cuda.jit
def copy_between_kernel(x, y, same):
    """From x to shared memory or, if it is not the same, from there to y."""
    tile = cuda.shared.array(4, float32, alignment=16)
    if same:
        copy1(tile, 0, x, 0)
    else:
        tile[0] = float32(1)
        copy1(y, 0, tile, 0)
    wait_for_copies()


@simulator_only
def test_copies_that_a_gpu_cannot_do(monkeypatch):
    floats, doubles = np.ones(4, np.float32), np.ones(4)
    with pytest.raises(TypeError, match="goes from global to shared memory, not from shared to global"):
        device.launch(copy_between_kernel, 1, 1, floats, floats, 0)
    with pytest.raises(TypeError, match="only float32 is copied to float32, not float64 to float32"):
        device.launch(copy_between_kernel, 1, 1, doubles, floats, 1)
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "7.5")
    with pytest.raises(ValueError, match=r"need compute capability 8\.0 or later"):
        device.launch(copy_between_kernel, 1, 1, floats, floats, 1)


@cuda.jit
def copy_at_kernel(x, y, start):
    tile = cuda.shared.array(8, float32, alignment=16)
    copy4(tile, 4 - start, x, start)
    wait_for_copies()
    y[0] = load2(tile, start)[0]


@simulator_only
def test_copies_and_pairs_must_be_aligned():
    with pytest.raises(MisalignedAccessError, match=r"4-wide access at \[2\]"):
        device.launch(copy_at_kernel, 1, 1, np.zeros(16, np.float32), np.zeros(1, np.float32), 2)


@cuda.jit
def pair_kernel(x, y, start):
    y[0] = load2(x, start)[1]


def test_a_pair_lies_at_a_multiple_of_eight_bytes():
    x, y = np.arange(16, dtype=np.float32), np.zeros(1, np.float32)
    device.launch(pair_kernel, 1, 1, x, y, 2)
    assert y[0] == 3
    if device.SIMULATED:
        with pytest.raises(MisalignedAccessError, match=r"2-wide access at \[3\], .* multiple of 8 bytes"):
            device.launch(pair_kernel, 1, 1, x, y, 3)
