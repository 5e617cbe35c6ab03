"""The simulator: what it computes, what it accepts, and what it refuses."""

import inspect
import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from conftest import simulator_only
from numba import cuda, float32, float64, int32, uint32

from fa_numba import device, selection
from fa_numba.primitives import load4

if device.SIMULATED:
    from fa_numba import simulator
    from fa_numba.simulator import (
        OutOfBoundsError,
        SyncError,
        UninitializedReadError,
        shuffled,
    )

pytestmark = simulator_only
FULL = 0xFFFFFFFF


def run(kernel, threads, *args, blocks=1, shared=0):
    kernel[blocks, threads, 0, shared](*args)


# -- scheduling -------------------------------------------------------------------------------------------------


@cuda.jit
def rotate_kernel(x, y, times):
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    n = cuda.blockDim.x
    value = x[t]
    for _ in range(times):
        tile[t] = value
        cuda.syncthreads()
        value = tile[(t + 1) % n]
        cuda.syncthreads()
    y[t] = value


def test_barriers_order_the_threads_of_a_block():
    x = np.arange(48, dtype=np.float32)
    y = np.empty_like(x)
    run(rotate_kernel, 48, x, y, 5)
    np.testing.assert_array_equal(y, np.roll(x, -5))


os_threads = set()


@cuda.jit
def os_thread_kernel():
    os_threads.add(threading.get_ident())
    cuda.syncthreads()
    os_threads.add(threading.get_ident())


def test_a_block_runs_on_one_os_thread():
    """The stock simulator starts one for each CUDA thread, and a barrier costs it a hundred times as much."""
    os_threads.clear()
    run(os_thread_kernel, 256)
    assert os_threads == {threading.get_ident()}


@cuda.jit
def order_kernel(order, count):
    for _ in range(2):
        order[count[0]] = cuda.threadIdx.x
        count[0] += 1
        cuda.syncthreads()


def order_of_threads():
    order, count = np.zeros(64, np.int32), np.zeros(1, np.int32)
    run(order_kernel, 32, order, count)
    return order


def test_threads_run_in_order_unless_a_seed_shuffles_them():
    in_order = order_of_threads()
    np.testing.assert_array_equal(in_order, np.tile(np.arange(32), 2))
    with shuffled(1):
        first = order_of_threads()
    with shuffled(1):
        again = order_of_threads()
    with shuffled(2):
        other = order_of_threads()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:32], first[32:])  # anew after every barrier
    np.testing.assert_array_equal(np.sort(first[:32]), np.arange(32))
    np.testing.assert_array_equal(order_of_threads(), in_order)


@cuda.jit
def unsynchronized_kernel(x, y):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    y[t] = tile[31 - t]


def test_a_missing_barrier_shows_as_an_uninitialized_read():
    x = np.ones(32, np.float32)
    with pytest.raises(
        UninitializedReadError, match=r"unsynchronized_kernel, test_simulator.py:\d+ \(y\[t\] = tile\[31 - t\]\)"
    ):
        run(unsynchronized_kernel, 32, x, x.copy())


@cuda.jit
def indices_kernel(out):
    t = cuda.threadIdx
    x, y, z = cuda.grid(3)
    out[x, y, z] = t.x + 100 * t.y + 10000 * t.z + 1000000 * cuda.laneid


def test_threads_are_numbered_x_first_in_three_dimensions():
    out = np.full((4, 6, 6), -1, np.int64)
    run(indices_kernel, (4, 3, 2), out, blocks=(1, 2, 3))
    x, y, z = np.indices(out.shape)
    lanes = (x + 4 * (y % 3) + 12 * (z % 2)) % 32
    np.testing.assert_array_equal(out, x + 100 * (y % 3) + 10000 * (z % 2) + 1000000 * lanes)


@cuda.jit
def count_kernel(x, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.syncthreads_count(int32(x[t] > 0))
    out[1, t] = cuda.syncthreads_and(int32(x[t] > 0))
    out[2, t] = cuda.syncthreads_or(int32(x[t] > 0))


@pytest.mark.parametrize("positive", [0, 3, 40])
def test_counting_barriers(positive):
    x = (np.arange(40) < positive).astype(np.int32)
    out = np.zeros((3, 40), np.int32)
    run(count_kernel, 40, x, out)
    expected = [positive, positive == 40, positive > 0]
    np.testing.assert_array_equal(out, np.repeat(np.array(expected, np.int32)[:, None], 40, axis=1))


@cuda.jit(device=True)
def sum_of_block(tile, value):
    """A device function that holds barriers."""
    t = cuda.threadIdx.x
    tile[t] = value
    cuda.syncthreads()
    total = float32(0)
    for i in range(cuda.blockDim.x):
        total += tile[i]
    cuda.syncthreads()
    return total


@cuda.jit
def two_sums_kernel(x, y):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    y[0, t] = sum_of_block(tile, x[t])
    y[1, t] = sum_of_block(tile, -x[t])


def test_device_functions_may_hold_barriers():
    x = np.arange(50, dtype=np.float32)
    y = np.zeros((2, 50), np.float32)
    with shuffled(7):
        run(two_sums_kernel, 50, x, y)
    np.testing.assert_array_equal(y, np.repeat([[1225.0], [-1225.0]], 50, axis=1))


@cuda.jit
def histogram_kernel(x, counts):
    cuda.atomic.add(counts, x[cuda.grid(1)], 1)


def test_atomics_count_every_thread():
    x = np.arange(96) % 5
    counts = np.zeros(5, np.int64)
    run(histogram_kernel, 32, x, counts, blocks=3)
    np.testing.assert_array_equal(counts, np.bincount(x))


def test_a_launch_leaves_the_globals_of_its_module_alone():
    """Other threads of the process may be using them at that very moment."""
    seen = []

    @cuda.jit
    def looking_kernel():
        seen.append((cuda, math, globals()["cuda"], launched_globals["cuda"], launched_globals["math"]))

    launched_globals = globals()
    run(looking_kernel, 1)
    ((cuda_inside, math_inside, named, cuda_outside, math_outside),) = seen
    assert cuda_inside is named is not cuda
    assert math_inside is not math
    assert cuda_outside is cuda
    assert math_outside is math


def test_launches_from_several_os_threads_wait_for_one_another():
    x = np.arange(32, dtype=np.float32)
    results = [np.empty_like(x) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(run, rotate_kernel, 32, x, y, times) for times, y in enumerate(results)]
        assert [math.exp(0) for _ in range(100)] == [1] * 100
        for job in jobs:
            job.result()
    for times, y in enumerate(results):
        np.testing.assert_array_equal(y, np.roll(x, -times))


@cuda.jit
def launching_kernel(x):
    store_kernel[1, 1](x)


def test_a_kernel_cannot_launch_another():
    with pytest.raises(RuntimeError, match="store_kernel was launched from inside the kernel launching_kernel"):
        run(launching_kernel, 1, np.zeros(1))


def make_aliased():
    from numba import cuda as cu

    @cu.jit
    def aliased_kernel(x):
        x[cu.grid(1)] = numba.cuda.blockDim.x

    return aliased_kernel


def test_cuda_may_have_other_names():
    x = np.zeros(4)
    run(make_aliased(), 4, x)
    np.testing.assert_array_equal(x, [4, 4, 4, 4])


@cuda.jit
def while_kernel(x, out):
    t = cuda.threadIdx.x
    left = x[t]
    while cuda.syncthreads_count(int32(left > 0)) > 0:
        if left > 1:
            left -= 2
            continue
        left -= 1
    out[t] = left


def test_a_barrier_in_the_test_of_a_loop_is_one_barrier():
    """Python compiles that test twice."""
    out = np.full(64, 7)
    run(while_kernel, 64, np.arange(64) % 5, out)
    assert (out <= 0).all()


# -- warp operations --------------------------------------------------------------------------------------------


@cuda.jit
def shuffle_kernel(x, out, mask, argument):
    t = cuda.threadIdx.x
    if mask >> cuda.laneid & 1:
        out[0, t] = cuda.shfl_sync(mask, x[t], argument)
        out[1, t] = cuda.shfl_up_sync(mask, x[t], argument)
        out[2, t] = cuda.shfl_down_sync(mask, x[t], argument)
        out[3, t] = cuda.shfl_xor_sync(mask, x[t], argument)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("argument", [0, 1, 5, 16, 31])
def test_shuffles_of_full_warps(dtype, argument):
    x = (np.arange(64) + 1).astype(dtype)
    out = np.zeros((4, 64), dtype)
    with shuffled(3):
        run(shuffle_kernel, 64, x, out, FULL, argument)
    lane = np.arange(64) % 32
    base = np.arange(64) - lane
    sources = [
        np.full(64, argument),
        np.where(lane >= argument, lane - argument, lane),
        np.where(lane + argument < 32, lane + argument, lane),
        lane ^ argument,
    ]
    for got, source in zip(out, sources):
        np.testing.assert_array_equal(got, x[base + source])
    assert out.dtype == dtype


@cuda.jit
def half_warps_kernel(x, out):
    t = cuda.threadIdx.x
    mask = 0x0000FFFF if t < 16 else 0xFFFF0000
    value = x[t]
    for delta in (8, 4, 2, 1):
        value += cuda.shfl_xor_sync(mask, value, delta)
    cuda.syncwarp(mask)
    out[t] = value


def test_halves_of_a_warp_reduce_apart():
    x = np.arange(32, dtype=np.float32)
    out = np.zeros(32, np.float32)
    with shuffled(5):
        run(half_warps_kernel, 32, x, out)
    np.testing.assert_array_equal(out, np.repeat([x[:16].sum(), x[16:].sum()], 16))


@cuda.jit
def reduce_down_kernel(x, out, mask):
    value = x[cuda.threadIdx.x]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(mask, value, delta)
    out[cuda.threadIdx.x] = value


def test_the_last_lanes_keep_their_own_value_in_a_full_warp():
    out = np.zeros(32, np.float32)
    run(reduce_down_kernel, 32, np.ones(32, np.float32), out, FULL)
    assert out[0] == 32
    assert np.isfinite(out).all()


def test_a_lane_that_does_not_exist_gives_nan():
    """A GPU would give anything: a block of 16 threads must not read lanes 16 to 31."""
    out = np.zeros(16, np.float32)
    run(reduce_down_kernel, 16, np.ones(16, np.float32), out, FULL)
    assert np.isnan(out[0])


@cuda.jit
def small_block_kernel(x, out):
    t = cuda.threadIdx.x
    value = x[t]
    for delta in (4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(0xFF, value, delta))
    out[t] = value


def test_blocks_smaller_than_a_warp_shuffle():
    out = np.zeros(8, np.float32)
    run(small_block_kernel, 8, np.array([3, 1, 4, 1, 5, 9, 2, 6], np.float32), out)
    np.testing.assert_array_equal(out, np.full(8, 9))


@cuda.jit
def vote_kernel(x, out, mask):
    t = cuda.threadIdx.x
    if mask >> cuda.laneid & 1:
        out[0, t] = cuda.all_sync(mask, x[t])
        out[1, t] = cuda.any_sync(mask, x[t])
        out[2, t] = cuda.eq_sync(mask, x[t])
        out[3, t] = cuda.ballot_sync(mask, x[t])
        out[4, t] = cuda.popc(cuda.ballot_sync(mask, x[t]))
        out[5, t] = cuda.ffs(cuda.ballot_sync(mask, x[t]))


@pytest.mark.parametrize("mask", [FULL, 0x0000FFFF, 0x80000001])
@pytest.mark.parametrize("pattern", [0x00000000, 0xFFFFFFFF, 0x0000FFFF, 0x80000000, 0x00000010])
def test_votes(mask, pattern):
    lanes = np.arange(32)
    x = (pattern >> lanes & 1).astype(np.int32)
    out = np.full((6, 32), -7, np.int64)
    run(vote_kernel, 32, x, out, mask)
    inside = mask & pattern
    ballot = inside - 2**32 if inside >> 31 else inside  # Numba types the ballot as int32
    first = (inside & -inside).bit_length()
    expected = [inside == mask, inside != 0, inside in (0, mask), ballot, bin(inside).count("1"), first]
    named = (mask >> lanes & 1).astype(bool)
    np.testing.assert_array_equal(out[:, named], np.repeat(np.array(expected)[:, None], named.sum(), axis=1))
    assert (out[:, ~named] == -7).all()


@cuda.jit
def active_kernel(out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.activemask()
    if t % 4 == 1:
        mask = cuda.activemask()
        out[1, t] = mask
        out[2, t] = cuda.shfl_sync(mask, t, 5)


def test_activemask_names_the_lanes_that_come_together():
    out = np.zeros((3, 40), np.uint32)
    with shuffled(4):
        run(active_kernel, 40, out)
    np.testing.assert_array_equal(out[0], np.repeat([FULL, 0xFF], [32, 8]))
    np.testing.assert_array_equal(out[1, 1::4], np.repeat([0x22222222, 0x22], [8, 2]))
    np.testing.assert_array_equal(out[2, 1::4], np.repeat([5, 37], [8, 2]))


@cuda.jit
def divergent_shuffles_kernel(x, out):
    """PTX: shfl.sync waits for the lanes of its mask, wherever in the code they call it."""
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(FULL, x[t], 16)
    else:
        out[t] = cuda.shfl_xor_sync(FULL, x[t], 16)


def test_lanes_meet_in_a_shuffle_from_both_branches():
    x = np.arange(32, dtype=np.int32)
    out = np.zeros_like(x)
    run(divergent_shuffles_kernel, 32, x, out)
    np.testing.assert_array_equal(out, x ^ 16)


@cuda.jit
def wrong_mask_kernel(x):
    x[cuda.threadIdx.x] = cuda.shfl_sync(0x0000FFFF, x[cuda.threadIdx.x], 0)


def test_a_lane_must_be_in_its_own_mask():
    with pytest.raises(ValueError, match="called by lane 16, which its own mask 0x0000ffff does not name"):
        run(wrong_mask_kernel, 32, np.zeros(32, np.float32))


def test_shuffles_move_only_what_numba_compiles():
    with pytest.raises(TypeError, match="moves int32, int64, float32 and float64, not float16"):
        run(shuffle_kernel, 32, np.zeros(32, np.float16), np.zeros((4, 32), np.float16), FULL, 1)


@cuda.jit
def ballot_bits_kernel(x, out):
    t = cuda.threadIdx.x
    ballot = cuda.ballot_sync(FULL, x[t])
    out[0, t] = 1 if ballot & (1 << cuda.laneid) else 0
    out[1, t] = ballot & 0xFFFFFFFF


def test_a_ballot_is_as_wide_as_any_integer():
    x = np.arange(32) % 3 % 2
    out = np.zeros((2, 32), np.int64)
    run(ballot_bits_kernel, 32, x, out)
    np.testing.assert_array_equal(out[0], x)
    assert (out[1] == sum(int(bit) << lane for lane, bit in enumerate(x))).all()


@cuda.jit
def wrong_predicate_kernel(x, which):
    if which == 0:
        cuda.syncthreads_or(x[0] > 0)
    else:
        cuda.eq_sync(FULL, x[0])


def test_predicates_are_what_numba_compiles():
    with pytest.raises(TypeError, match=r"syncthreads_or takes an integer, not bool; write int32\(\.\.\.\)"):
        run(wrong_predicate_kernel, 32, np.zeros(1, np.float32), 0)
    with pytest.raises(TypeError, match="eq_sync takes an integer or a bool, not float32"):
        run(wrong_predicate_kernel, 32, np.zeros(1, np.float32), 1)


# -- barriers and shuffles that are never reached ----------------------------------------------------------------


@cuda.jit
def early_return_kernel(x, n):
    t = cuda.threadIdx.x
    if t >= n:
        return
    cuda.syncthreads()
    x[t] = 1


def test_a_barrier_that_returned_threads_never_reach():
    with pytest.raises(SyncError) as caught:
        run(early_return_kernel, 40, np.zeros(40, np.float32), 38)
    error = caught.value
    assert error.kernel == "early_return_kernel"
    assert error.threads == [(38, 0, 0), (39, 0, 0)]
    assert "test_simulator.py:" in error.line and "cuda.syncthreads()" in error.line
    assert str(error).endswith(
        "waits for the block's 40 threads, but 2 never reach it: (38, 0, 0), (39, 0, 0) already returned"
    )


@cuda.jit
def branches_kernel(x):
    if cuda.threadIdx.x < 8:
        x[0] = 1
        cuda.syncthreads()
    else:
        x[1] = 1
        cuda.syncthreads()


def test_two_barriers_are_not_one():
    with pytest.raises(SyncError, match=r"32 threads, but 24 never reach it: .* and 20 more in cuda.syncthreads at"):
        run(branches_kernel, 32, np.zeros(2, np.float32))


@cuda.jit
def barrier_or_shuffle_kernel(x):
    t = cuda.threadIdx.x
    if t == 3:
        cuda.syncthreads()
    x[t] = cuda.shfl_down_sync(FULL, x[t], 1)


def test_a_shuffle_that_a_lane_never_reaches():
    with pytest.raises(
        SyncError,
        match=r"shfl_down_sync .* names in warp 0, but 1 never reach it: \(3, 0, 0\) in cuda.syncthreads",
    ) as caught:
        run(barrier_or_shuffle_kernel, 32, np.zeros(32, np.float32))
    assert caught.value.threads == [(3, 0, 0)]


@cuda.jit
def shuffle_after_return_kernel(x):
    t = cuda.threadIdx.x
    if t < 30:
        x[t] = cuda.shfl_xor_sync(FULL, x[t], 1)


def test_a_full_mask_names_lanes_that_returned():
    with pytest.raises(SyncError, match=r"but 2 never reach it: \(30, 0, 0\), \(31, 0, 0\) already returned"):
        run(shuffle_after_return_kernel, 32, np.zeros(32, np.float32))


@cuda.jit
def different_masks_kernel(x):
    t = cuda.threadIdx.x
    cuda.syncwarp(FULL if t else 0x1)
    cuda.syncwarp(FULL)


def test_lanes_must_agree_on_the_mask():
    run(different_masks_kernel, 1, np.zeros(1))
    with pytest.raises(SyncError):
        run(different_masks_kernel, 32, np.zeros(32))


def test_the_next_launch_works_after_a_fault():
    with pytest.raises(SyncError):
        run(early_return_kernel, 40, np.zeros(40, np.float32), 38)
    x = np.zeros(40, np.float32)
    run(early_return_kernel, 40, x, 40)
    assert (x == 1).all()


@cuda.jit
def raising_kernel(x):
    t = cuda.threadIdx.x
    if t == 5:
        raise ValueError("no")
    cuda.syncthreads()
    x[t] = 1


def test_an_exception_before_a_barrier_ends_the_launch():
    with pytest.raises(
        ValueError, match=r"raising_kernel, test_simulator.py:\d+ .*thread \(5, 0, 0\) of block \(0, 0, 0\): no"
    ):
        run(raising_kernel, 32, np.zeros(32))


class CodedError(Exception):
    """Takes a number, not a text."""

    def __init__(self, code):
        super().__init__(code)
        self.code = int(code)


@cuda.jit
def coded_kernel(x):
    raise CodedError(3)


def test_an_exception_stays_the_one_that_was_raised():
    with pytest.raises(CodedError, match=r"coded_kernel, test_simulator.py:\d+ .*: 3") as caught:
        run(coded_kernel, 1, np.zeros(1))
    assert caught.value.code == 3


def test_too_few_arguments_name_the_kernel():
    with pytest.raises(TypeError, match=r"coded_kernel: .*missing 1 required positional argument"):
        run(coded_kernel, 1)


def test_the_line_is_told_wherever_the_file_lies(tmp_path):
    folder = tmp_path / "numba" / "cuda"
    folder.mkdir(parents=True)
    (folder / "lesson.py").write_text(inspect.getsource(branches_kernel.py_func))
    source = compile((folder / "lesson.py").read_text(), str(folder / "lesson.py"), "exec")
    names = {"cuda": cuda}
    exec(source, names)
    with pytest.raises(SyncError, match=r"branches_kernel, lesson.py:\d+ \(cuda.syncthreads\(\)\)"):
        run(names["branches_kernel"], 32, np.zeros(2, np.float32))


def test_a_notebook_cell_is_named_by_its_function():
    names = {"cuda": cuda}
    exec(compile("@cuda.jit\ndef cell_kernel(x):\n    x[9] = 1\n", "ipykernel_1/2.py", "exec"), names)
    with pytest.raises(OutOfBoundsError, match="cell_kernel, line 3 where cell_kernel is defined: thread"):
        run(names["cell_kernel"], 1, np.zeros(1))


@cuda.jit
def overflow_kernel(x):
    x[0] = math.exp(1000.0)


def test_what_python_raises_names_the_thread():
    """CASES A21: a GPU gives inf and goes on; kernels must not rely on it."""
    with pytest.raises(OverflowError, match=r"overflow_kernel, test_simulator.py:\d+ \(x\[0\] = math.exp\(1000.0\)\)"):
        run(overflow_kernel, 1, np.zeros(1, np.float32))


# -- memory -----------------------------------------------------------------------------------------------------


@cuda.jit
def read_shared_kernel(out):
    tile = cuda.shared.array((4, 4), float32)
    tile[0, 0] = 1
    out[0] = tile[0, 0]
    out[1] = tile[3, 2]


@cuda.jit
def read_local_kernel(out):
    own = cuda.local.array(4, float64)
    own[1] = 1
    out[0] = own[1]
    out[1] = own[2]


@cuda.jit
def read_dynamic_kernel(out):
    memory = cuda.shared.array(0, float32)
    tile = memory[2:6]
    tile[0] = 1
    out[0] = memory[2]
    out[1] = tile[3]


@pytest.mark.parametrize(
    ("kernel", "element", "space"),
    [
        (read_shared_kernel, r"\[3, 2\]", "shared"),
        (read_local_kernel, r"\[2\]", "local"),
        (read_dynamic_kernel, r"\[3\]", "shared"),
    ],
)
def test_reading_what_nothing_wrote(kernel, element, space):
    out = np.zeros(2)
    with pytest.raises(
        UninitializedReadError, match=rf"{kernel.__name__}, .* reads {element} of a {space} array, which nothing wrote"
    ):
        run(kernel, 1, out, shared=64)
    assert out[0] == 1


@cuda.jit
def written_nan_kernel(x, out):
    own = cuda.local.array(4, float32)
    tile = cuda.shared.array(4, float32, alignment=16)
    memory = cuda.shared.array(0, float32)
    for i in range(4):
        own[i] = x[i]
        tile[i] = own[i]
        memory[i] = tile[i]
    four = load4(tile, 0)
    out[0] = own[1]
    out[1] = four[1]
    out[2] = memory[1]
    out[3] = load4(memory, 0)[1]


def test_a_nan_that_was_written_can_be_read():
    out = np.zeros(4, np.float32)
    device.launch(written_nan_kernel, 1, 1, np.array([0, np.nan, 2, 3], np.float32), out, shared=16)
    assert np.isnan(out).all()


@cuda.jit
def half_written_kernel(out):
    halves = cuda.shared.array(0, float32)
    whole = cuda.shared.array(0, float64)
    halves[1] = 1  # the half that makes the other type's value look like a number
    out[0] = whole[0]


def test_memory_of_which_another_type_wrote_only_half():
    with pytest.raises(UninitializedReadError, match=r"reads \[0\] of a shared array, which nothing wrote"):
        device.launch(half_written_kernel, 1, 1, np.zeros(1), shared=8)


@cuda.jit
def previous_block_kernel(out):
    tile = cuda.shared.array(1, float32)
    if cuda.blockIdx.x == 0:
        tile[0] = 1
    out[cuda.blockIdx.x] = tile[0]


def test_a_block_does_not_see_the_shared_memory_of_the_block_before():
    with pytest.raises(UninitializedReadError, match=r"block \(1, 0, 0\)"):
        run(previous_block_kernel, 1, np.zeros(2), blocks=2)


poisoned = []


@cuda.jit
def poison_kernel(out):
    tile = cuda.shared.array(4, float32)
    own = cuda.local.array(4, int32)
    memory = cuda.shared.array(0, float64)
    poisoned.extend([tile._data.copy(), own._data.copy(), memory._data.copy()])
    tile[0] = own[0] = memory[0] = 0


def test_memory_starts_poisoned_in_every_block():
    poisoned.clear()
    run(poison_kernel, 1, np.zeros(1), blocks=2, shared=16)
    assert len(poisoned) == 6
    for tile, own, memory in (poisoned[:3], poisoned[3:]):
        assert np.isnan(tile).all() and np.isnan(memory).all()
        assert (own == -1).all()


@cuda.jit
def previous_dynamic_kernel(out):
    memory = cuda.shared.array(0, float32)
    if cuda.blockIdx.x == 0:
        memory[0] = 1
    out[cuda.blockIdx.x] = memory[0]


def test_dynamic_memory_is_new_in_every_block():
    with pytest.raises(UninitializedReadError, match=r"block \(1, 0, 0\)"):
        run(previous_dynamic_kernel, 1, np.zeros(2), blocks=2, shared=4)


@cuda.jit
def transposed_tile_kernel(out):
    tile = cuda.shared.array((2, 3), float32)
    tile[0, 1] = 5
    out[0] = tile.T[1, 0]
    out[1] = tile.reshape(6)[1]
    out[2] = tile.T[0, 1]


def test_views_know_what_was_written():
    out = np.zeros(3)
    with pytest.raises(UninitializedReadError, match=r"reads \[0, 1\]"):
        run(transposed_tile_kernel, 1, out)
    np.testing.assert_array_equal(out, [5, 5, 0])


@cuda.jit
def alias_kernel(out):
    words = cuda.shared.array(0, int32)
    floats = cuda.shared.array(0, float32)
    doubles = cuda.shared.array(0, float64)
    floats[2] = 1.0
    out[0] = words[2]
    words[3] = 0
    out[1] = doubles[1]
    words[0] = 7
    out[2] = doubles[0]


def test_dynamic_shared_arrays_alias_and_know_which_bytes_were_written():
    out = np.zeros(3)
    with pytest.raises(UninitializedReadError, match=r"reads \[0\]"):
        run(alias_kernel, 1, out, shared=16)
    assert out[0] == np.float32(1).view(np.int32)
    assert out[1] == np.array([1, 0], np.float32).view(np.float64)[0]


@cuda.jit
def two_on_a_line_kernel(out):
    a = cuda.shared.array(2, float32); b = cuda.shared.array(2, float32)  # fmt: skip  # noqa: E702
    a[0] = 1
    b[0] = 2
    out[0] = a[0]


def test_two_shared_arrays_on_one_line_are_two():
    out = np.zeros(1)
    run(two_on_a_line_kernel, 1, out)
    assert out[0] == 1


def make_tile_reader(initial):
    @cuda.jit(device=True)
    def tile_reader(write):
        tile = cuda.shared.array(1, float32)
        if write:
            tile[0] = initial
        return tile[0]

    return tile_reader


read_one = make_tile_reader(1)
read_two = make_tile_reader(2)


@cuda.jit
def two_device_functions_kernel(out):
    read_one(True)
    read_two(True)
    out[0] = read_one(False)
    out[1] = read_two(False)


def test_device_functions_from_one_factory_have_their_own_shared_arrays():
    out = np.zeros(2)
    run(two_device_functions_kernel, 1, out)
    np.testing.assert_array_equal(out, [1, 2])


@cuda.jit
def index_kernel(x, i, j):
    x[i, j] = 1


@cuda.jit
def read_index_kernel(x, out, i, j):
    out[0] = x[i, j]


@pytest.mark.parametrize(("i", "j"), [(-1, 0), (0, -1), (3, 0), (0, 4), (0, 2**31)])
def test_indices_outside_the_array(i, j):
    x = np.zeros((3, 4))
    with pytest.raises(
        OutOfBoundsError, match=rf"index_kernel, .* uses index \[{i}, {j}\] of a global array of shape \(3, 4\)"
    ) as caught:
        run(index_kernel, 1, x, i, j)
    assert caught.value.threads == [(0, 0, 0)]
    assert isinstance(caught.value, IndexError)
    with pytest.raises(OutOfBoundsError):
        run(read_index_kernel, 1, x, np.zeros(1), i, j)
    assert (x == 0).all()


@cuda.jit
def odd_index_kernel(x, which):
    if which == 0:
        x[0, 0, 0] = 1
    elif which == 1:
        x.flat[12] = 1
    elif which == 2:
        x.flat[-1] = 1
    else:
        x.flat[5] = 7


def test_other_ways_to_miss_an_array():
    x = np.zeros((3, 4))
    for which in (0, 1, 2):
        with pytest.raises(OutOfBoundsError):
            run(odd_index_kernel, 1, x, which)
    run(odd_index_kernel, 1, x, 3)
    assert x[1, 1] == 7 and x.sum() == 7


@cuda.jit
def tuple_kernel(arrays, out):
    out[0] = arrays[1][0]
    out[1] = arrays[0][-1]


def test_arrays_in_a_tuple_are_checked():
    out = np.zeros(2)
    with pytest.raises(OutOfBoundsError, match=r"index \[-1\] of a global array"):
        run(tuple_kernel, 1, (np.ones(3), np.full(2, 5.0)), out)
    assert out[0] == 5


@cuda.jit
def slice_kernel(x, start, stop):
    part = x[start:stop]
    part[0] = 1


@pytest.mark.parametrize(("start", "stop"), [(-2, 4), (0, 5), (5, 6)])
def test_slices_outside_the_array(start, stop):
    with pytest.raises(OutOfBoundsError):
        run(slice_kernel, 1, np.zeros(4), start, stop)


def test_slices_inside_the_array_are_views():
    x = np.zeros(4)
    run(slice_kernel, 1, x, 2, 4)
    np.testing.assert_array_equal(x, [0, 0, 1, 0])


@cuda.jit
def views_kernel(x, out):
    out[0] = x.T[2, 1]
    out[1] = x.reshape(x.size)[6]
    out[2] = x[1][2]
    out[3] = x.flat[6]
    out[4] = len(x) + x.ndim + x.shape[1]


def test_views_of_arrays():
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    out = np.zeros(5)
    run(views_kernel, 1, x, out)
    np.testing.assert_array_equal(out, [6, 6, 6, 6, 9])
    with pytest.raises(ValueError, match=r"views_kernel, .*reshape needs a C-contiguous array"):
        run(views_kernel, 1, x[::-1, ::-1], out)


table = np.arange(4.0)


@cuda.jit
def constant_kernel(out, i):
    out[0] = cuda.const.array_like(table)[i]


def test_constant_arrays():
    out = np.zeros(1)
    run(constant_kernel, 1, out, 3)
    assert out[0] == 3
    with pytest.raises(OutOfBoundsError, match="constant array"):
        run(constant_kernel, 1, out, 4)


@cuda.jit
def store_kernel(x):
    x[0] = 1


def test_read_only_arguments_are_not_written():
    x = np.zeros(1)
    x.flags.writeable = False
    with pytest.raises(ValueError, match=r"store_kernel, .*read-only"):
        run(store_kernel, 1, x)


@cuda.jit
def quiet_kernel(x, out):
    out[0] = x[0] * x[0]
    out[1] = x[1] / x[1]
    out[2] = x[2] - x[2]


@cuda.jit
def precision_kernel(x, out):
    total = float32(0)
    for i in range(x.size):
        total += math.exp(x[i])
    out[0] = total
    out[1] = math.pow(x[0], 2.0) if x[0] > 0 else 0
    out[2] = math.sqrt(2) * float32(1)


def test_math_keeps_the_precision_of_its_argument():
    """As compiled: a float64 kernel goes on in float64 from a float32 zero; exp of a float32 is a float32."""
    x = np.linspace(-1, 1, 50)
    out = np.zeros(3)
    run(precision_kernel, 1, x, out)
    assert abs(out[0] - np.exp(x).sum()) < 1e-12
    assert out[2] == math.sqrt(2)
    run(precision_kernel, 1, x.astype(np.float32), out)
    assert out[0] == np.float32(out[0])
    run(precision_kernel, 1, np.full(1, 0.1, np.float32), out)
    assert out[1] != np.float32(out[1])  # the literal 2.0 is a float64
    assert math.exp(np.float32(0)) == 1 and type(math.exp(np.float32(0))) is float  # outside nothing has changed


@cuda.jit
def integers_kernel(x, out):
    out[0] = x[0] * x[0]
    out[1] = x[1] + 3000000000
    out[2] = uint32(-1)
    out[3] = int32(1 << 31)
    out[4] = -7 // 2
    x[2] = 1 << 31
    x[3] = -1


def test_integers_are_as_wide_as_compiled():
    """Numba computes with 64 bits, whatever the array's width; a store into fewer wraps around."""
    out = np.zeros(5, np.int64)
    x = np.array([46341, 1, 0, 0], np.int32)
    run(integers_kernel, 1, x, out)
    np.testing.assert_array_equal(out, [46341 * 46341, 3000000001, 2**32 - 1, -(2**31), -4])
    np.testing.assert_array_equal(x[2:], [-(2**31), -1])
    unsigned = np.array([3, 1, 0, 0], np.uint8)
    run(integers_kernel, 1, unsigned, out)
    np.testing.assert_array_equal(unsigned[2:], [0, 255])


def test_numpy_does_not_warn_where_a_gpu_is_silent():
    out = np.zeros(3, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(quiet_kernel, 1, np.array([1e30, 0, np.inf], np.float32), out)
    assert out[0] == np.inf
    assert np.isnan(out[1:]).all()


# -- what @cuda.jit accepts ---------------------------------------------------------------------------------------


def test_compiler_options_are_accepted():
    options = dict(launch_bounds=(64, 2), max_registers=64, lineinfo=True, fastmath=True, opt=True, debug=False)
    kernel = cuda.jit(**options)(store_kernel.py_func)
    x = np.zeros(1)
    run(kernel, 1, x)
    assert x[0] == 1
    for each in (
        cuda.jit("void(float64[:])")(store_kernel.py_func),
        cuda.jit(["void(float64[:])"], lineinfo=True)(store_kernel.py_func),
        cuda.jit(store_kernel.py_func, forceinline=True, inline="always"),
    ):
        run(each, 1, np.zeros(1))


def test_odd_configurations_are_not():
    with pytest.raises(ValueError, match=r"write kernel\[grid, block, stream, shared\]; 5 values were given"):
        store_kernel[1, 1, 0, 0, 0](np.zeros(1))
    with pytest.raises(NotImplementedError, match="cannot link"):
        cuda.jit(link=["x.cu"])(store_kernel.py_func)


def test_misspelt_options_are_not():
    with pytest.raises(TypeError, match="knows no option fast_math"):
        cuda.jit(fast_math=True)(store_kernel.py_func)


@cuda.jit
def aligned_kernel(out):
    tile = cuda.shared.array(4, dtype=float32, alignment=16)
    own = cuda.local.array(shape=(2, 2), dtype=int32, alignment=8)
    tile[0] = 1
    own[1, 1] = 2
    out[0] = tile[0] + own[1, 1]


def test_alignment_is_accepted():
    out = np.zeros(1)
    run(aligned_kernel, 1, out)
    assert out[0] == 3


def test_a_device_function_is_not_launched_and_a_kernel_not_called():
    with pytest.raises(TypeError, match="sum_of_block is a device function"):
        sum_of_block[1, 1](None, None)
    with pytest.raises(
        RuntimeError, match=r"store_kernel was called without a launch; write store_kernel\[grid, block\]"
    ):
        store_kernel(np.zeros(1))


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "shared", "message"),
    [
        (store_kernel, 1, 1025, 0, "store_kernel asks for 1025 threads in a block; the limit is 1024"),
        (store_kernel, 1, (64, 32), 0, "64×32 = 2048 threads in a block; the limit is 1024"),
        (store_kernel, (1, 65536), 1, 0, "a grid of 65536 blocks along y; the limit is 65535"),
        (store_kernel, 1, 1, 166913, "166913 bytes of shared memory in a block; the limit of this device is 166912"),
    ],
)
def test_a_direct_launch_is_refused_as_by_a_gpu(kernel, grid, block, shared, message):
    x = np.zeros(1)
    with pytest.raises(ValueError, match=message):
        kernel[grid, block, 0, shared](x)
    assert x[0] == 0


def make_static(count):
    """A kernel whose array's size the source does not tell."""

    def shape():
        return count

    @cuda.jit
    def static_kernel(x):
        cuda.shared.array(shape(), float32)
        x[0] = 1

    return static_kernel


def test_static_shared_memory_is_counted_when_the_source_does_not_tell():
    run(make_static(12288), 1, np.zeros(1))
    with pytest.raises(ValueError, match="declares 49156 bytes of static shared memory"):
        run(make_static(12289), 1, np.zeros(1))


def test_install_is_what_numba_s_decorator_means():
    assert cuda.jit is simulator.jit
    assert isinstance(store_kernel, simulator.SimulatedKernel)
    assert selection.select().device == selection.SIMULATOR
