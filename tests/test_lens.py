"""The lens: accesses counted on kernels small enough to count by hand, and races found in every run."""

import numpy as np
import pytest
from conftest import simulator_only
from numba import cuda, float32, float64, int32

from fa_numba import device
from fa_numba.primitives import copy1, load4, part, store4, wait_for_copies
from fa_numba.trace import trace

if device.SIMULATED:
    from fa_numba.simulator import OutOfBoundsError, RaceError, UninitializedReadError, shuffled

pytestmark = simulator_only
FULL = 0xFFFFFFFF
SEEDS = range(20)


def traced(kernel, threads, *args, blocks=1, shared=0):
    with trace() as report:
        kernel[blocks, threads, 0, shared](*args)
    (launch,) = report.launches
    return launch


# -- global memory ----------------------------------------------------------------------------------------------


@cuda.jit
def copy_kernel(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@pytest.mark.parametrize(("dtype", "sectors"), [(np.int8, 1), (np.int16, 2), (np.float32, 4), (np.float64, 8)])
def test_a_copy_fetches_what_it_uses(dtype, sectors):
    x = np.arange(128).astype(dtype)
    launch = traced(copy_kernel, 64, x, np.zeros_like(x), blocks=2)
    load, store = launch.lines
    assert (load.array, load.kind, store.array, store.kind) == ("x", "load", "y", "store")
    for line in (load, store):
        assert line.accesses == 128 and line.requests == 4 and line.sectors == 4 * sectors
        assert line.sectors_per_request == sectors and line.used == 1
        assert line.nbytes == line.footprint == x.nbytes
        assert line.lanes == tuple(range(0, 32 * x.itemsize, x.itemsize))
        assert line.line.endswith("(y[i] = x[i])") and line.line.startswith("test_lens.py:")
    assert launch["x"].reads_per_byte == 1
    assert launch.requested == launch.footprint == 2 * x.nbytes
    assert (launch.grid, launch.block) == ((2, 1, 1), (64, 1, 1))


@cuda.jit
def strided_kernel(x, y, stride):
    i = cuda.grid(1)
    y[i] = x[i * stride]


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (100, 32)])
def test_a_strided_copy_fetches_a_sector_a_lane(stride, sectors):
    (load,) = traced(strided_kernel, 32, np.ones(32 * stride, np.float32), np.zeros(32), stride).select("x", "load")
    assert load.sectors == sectors
    assert load.used == 4 / sectors


@cuda.jit
def broadcast_kernel(x, y, tile_out):
    tile = cuda.shared.array(4, float32)
    i = cuda.grid(1)
    if i < 4:
        tile[i] = x[0]
    cuda.syncthreads()
    y[i] = x[3]
    tile_out[i] = tile[2]


def test_a_broadcast_is_one_sector_and_one_word():
    n = np.zeros(64, np.float32)
    launch = traced(broadcast_kernel, 64, np.ones(4, np.float32), n, n.copy())
    first, second = launch.select("x", "load")
    assert (first.accesses, first.requests, first.sectors) == (4, 1, 1)
    assert (second.accesses, second.requests, second.sectors, second.used) == (64, 2, 2, 1 / 8)
    (word,) = launch.select("tile", "load")
    assert (word.requests, word.ways, word.conflicts, word.footprint) == (2, 1, 0, 4)
    assert launch.barriers == 1
    np.testing.assert_array_equal(launch["x"].reads, [4, 0, 0, 64])
    np.testing.assert_array_equal(launch["tile"].writes, [1, 1, 1, 1])


@cuda.jit
def copy_four_kernel(x, y):
    i = 4 * cuda.grid(1)
    store4(y, i, load4(x, i))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_wide_access_is_one(dtype):
    x = np.arange(128, dtype=dtype)
    for line in traced(copy_four_kernel, 32, x, np.zeros_like(x)).lines:
        assert (line.accesses, line.requests, line.nbytes) == (32, 1, x.nbytes)
        assert line.sectors == x.nbytes // 32 and line.used == 1


@cuda.jit
def views_kernel(x, pair, out):
    row = x[1]
    out[0] = row[2] + x.T[2, 1] + x.flat[6] + pair[1][0]


def test_views_count_for_the_argument():
    x, out = np.arange(12.0).reshape(3, 4), np.zeros(1)
    launch = traced(views_kernel, 1, x, (x, np.ones(3)), out)
    assert out[0] == 19
    assert launch["x"].reads[1, 2] == launch["x"].reads.sum() == 3
    assert launch["pair[1]"].loads == 1


@cuda.jit
def histogram_kernel(x, counts):
    cuda.atomic.add(counts, x[cuda.grid(1)], 1)


def test_an_atomic_operation_is_one_access_and_no_race():
    counts = np.zeros(5, np.int64)
    launch = traced(histogram_kernel, 32, np.arange(96) % 5, counts, blocks=3)
    assert counts.sum() == launch["counts"].loads == launch["counts"].stores == 96
    (line,) = launch.select("counts", "atomic")
    assert line.accesses == 96 and line.requests == 3


# -- shared memory ----------------------------------------------------------------------------------------------


def make_transpose(pad):
    @cuda.jit
    def transpose_kernel(x, y):
        tile = cuda.shared.array((32, 32 + pad), float32)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        tile[i, j] = x[i, j]
        cuda.syncthreads()
        y[i, j] = tile[j, i]

    return transpose_kernel


@pytest.mark.parametrize(("pad", "ways"), [(0, 32), (1, 1), (2, 2), (16, 16)])
def test_padding_takes_the_conflicts_out_of_a_transpose(pad, ways):
    x = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)
    y = np.zeros_like(x)
    launch = traced(make_transpose(pad), (32, 32), x, y)
    np.testing.assert_array_equal(y, x.T)
    (store,), (load,) = launch.select("tile", "store"), launch.select("tile", "load")
    assert (store.ways, store.conflicts, load.ways, load.conflicts) == (1, 0, ways, 32 * (ways - 1))
    assert store.requests == load.requests == 32
    assert all(line.sectors_per_request == 4 for line in launch.lines if line.space == "global")
    assert launch.barriers == 1 and launch["tile"].footprint == 4096


@cuda.jit
def double_kernel(y, stride):
    tile = cuda.shared.array(256, float64)
    t = cuda.threadIdx.x
    tile[t * stride] = 1
    y[t] = tile[t * stride]


@pytest.mark.parametrize(("stride", "ways"), [(1, 1), (2, 2), (8, 8)])
def test_eight_bytes_go_by_half_warps(stride, ways):
    (line,) = traced(double_kernel, 32, np.zeros(32), stride).select("tile", "load")
    assert (line.ways, line.conflicts) == (ways, 2 * (ways - 1))


@cuda.jit
def four_kernel(y, stride):
    tile = cuda.shared.array(1024, float32, alignment=16)
    t = cuda.threadIdx.x
    store4(tile, t * stride, (1.0, 2.0, 3.0, 4.0))
    y[t] = load4(tile, t * stride)[0]


@pytest.mark.parametrize(("stride", "ways"), [(4, 1), (8, 2), (20, 1), (32, 8)])
def test_sixteen_bytes_go_by_quarter_warps(stride, ways):
    (line,) = traced(four_kernel, 32, np.zeros(32), stride).select("tile", "load")
    assert (line.ways, line.conflicts) == (ways, 4 * (ways - 1))


@cuda.jit
def places_kernel(places, y):
    tile = cuda.shared.array(128, float32, alignment=16)
    t = cuda.threadIdx.x
    store4(tile, 4 * t, (1.0, 2.0, 3.0, 4.0))
    cuda.syncwarp()
    y[t] = load4(tile, 4 * places[t])[0]


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("places", "wavefronts"),
    [
        (LANES, 4),
        (LANES // 2, 2),  # lanes 0 and 1 share one, 2 and 3, ...
        (LANES % 2 + LANES // 4 * 2, 2),  # lanes 0 and 2, 1 and 3, ...
        (LANES // 4, 2),
        (LANES * 0, 2),
        (LANES % 4 + LANES // 8 * 4, 4),  # lanes 0 and 4, ...
        (np.where(LANES < 31, LANES // 2, 16), 4),  # all pairs but the last
    ],
)
def test_a_load_of_sixteen_bytes_takes_half_as_long_where_neighbours_share_addresses(places, wavefronts):
    launch = traced(places_kernel, 32, places, np.zeros(32))
    (store,), (load,) = launch.select("tile", "store"), launch.select("tile", "load")
    assert (load.wavefronts, load.conflicts, load.ways) == (wavefronts, 0, 1)
    assert (store.wavefronts, store.conflicts, store.ways) == (4, 0, 1)


@cuda.jit
def parts_kernel(y):
    memory = cuda.shared.array(0, float32)
    left, right = part(memory, 0, 32), memory[32:64]
    t = cuda.threadIdx.x
    left[t] = 1
    right[t] = 2
    y[t] = left[t] + right[t]


def test_parts_of_dynamic_memory_have_their_own_names():
    launch = traced(parts_kernel, 32, np.zeros(32), shared=256)
    assert [array.name for array in launch.arrays] == ["left", "right", "y"]
    assert launch["right"].writes.tolist() == [1] * 32


@cuda.jit(device=True)
def twice(tile, t):
    tile[t] = 1
    return tile[t] + tile[t]


@cuda.jit
def calling_kernel(y):
    own = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    y[t] = twice(own, t)
    y[t] = twice(own, t)


def test_a_line_is_told_apart_by_the_calls_that_lead_there():
    launch = traced(calling_kernel, 32, np.zeros(32))
    lines = launch.select("own", "load")
    assert [line.accesses for line in lines] == [64, 64]
    assert [line.requests for line in lines] == [2, 2]
    assert len({line.line for line in lines}) == 1 and len({line.calls for line in lines}) == 2


@cuda.jit
def loop_kernel(x, y):
    i = cuda.grid(1)
    for j in range(x.shape[1]):
        y[i, j] = x[i, j]


def test_a_line_stays_one_instruction_when_the_interpreter_specializes_it():
    x = np.zeros((32, 100), np.float32)
    for line in traced(loop_kernel, 32, x, x.copy()).lines:
        assert (line.requests, line.sectors) == (100, 3200)


@cuda.jit
def shuffle_kernel(y):
    value = float32(cuda.laneid)
    for shift in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, shift)
    cuda.syncwarp()
    y[cuda.grid(1)] = value


def test_shuffles_count_by_warps():
    launch = traced(shuffle_kernel, 64, np.zeros(192), blocks=3)
    assert (launch.shuffles, launch.syncwarps, launch.barriers) == (30, 6, 0)
    shuffle, wait = launch.operations
    assert (shuffle.shuffles, shuffle.syncwarps, shuffle.flops) == (30, 0, 5 * 192)
    assert (wait.shuffles, wait.syncwarps, wait.flops) == (0, 6, 0)
    assert wait.line.endswith("(cuda.syncwarp())") and wait.calls == ()


# -- arithmetic -------------------------------------------------------------------------------------------------


def make_arithmetic(factor):
    @cuda.jit(device=True)
    def scaled(value):
        return factor * value

    @cuda.jit
    def arithmetic_kernel(x, y, out):
        i = cuda.grid(1) % (2 * 32)  # no floating-point operations, nor are signs and comparisons
        own = cuda.local.array(2, float32)
        own[0] = own[1] = -max(x[i], float32(0))
        own[i % 2] += x[i] * y[i]  # two
        own[0] -= 1  # one, of an integer too
        total = float32(0)
        for _ in range(3):
            total += own[0]  # three
        total /= 2  # one
        out[i] = scaled(total) + cuda.fma(x[i], y[i], total)  # four

    return arithmetic_kernel


def test_a_multiply_add_is_two_operations():
    x = np.arange(64, dtype=np.float32)
    kernel, out, plain = make_arithmetic(float32(3)), np.zeros(64), np.zeros(64)
    launch = traced(kernel, 64, x, x + 1, out)
    kernel[1, 64](x, x + 1, plain)
    assert launch.flops == 64 * 11
    assert launch.requested == 64 * (6 * 4 + 8) - 64 * 4
    assert launch.intensity == launch.flops / launch.requested
    flops = {each.line.partition(" ")[2]: each.flops // 64 for each in launch.operations}
    assert flops == {
        "(own[i % 2] += x[i] * y[i]  # two)": 2,
        "(own[0] -= 1  # one, of an integer too)": 1,
        "(total += own[0]  # three)": 3,
        "(total /= 2  # one)": 1,
        "(return factor * value)": 1,
        "(out[i] = scaled(total) + cuda.fma(x[i], y[i], total)  # four)": 3,
    }
    (called,) = [each for each in launch.operations if each.calls]
    assert called.line.endswith("(return factor * value)") and called.calls[0].endswith("# four)")
    np.testing.assert_array_equal(out, plain)


def test_without_its_source_a_kernel_s_operations_are_not_counted():
    names = {"cuda": cuda}
    exec("@cuda.jit\ndef typed_kernel(x):\n    x[cuda.grid(1)] *= 2\n", names)
    launch = traced(names["typed_kernel"], 4, np.ones(4))
    assert launch.flops is None and launch.intensity is None
    assert launch["x"].loads == 4
    assert "floating-point operations not counted" in str(launch)


# -- races ------------------------------------------------------------------------------------------------------


def make_reverse(has_barrier, sync_warp):
    @cuda.jit
    def reverse_kernel(x, y):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        if has_barrier:
            cuda.syncthreads()
        if sync_warp:
            cuda.syncwarp()
        y[t] = tile[cuda.blockDim.x - 1 - t]

    return reverse_kernel


# Each with its fault, or (is_right) without it.


def make_overwriting(is_right):
    @cuda.jit
    def overwriting_kernel(x, y):
        """Lacks the barrier after the reads."""
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        for k in range(2):
            tile[t] = x[t] + k
            cuda.syncthreads()
            y[t] += tile[63 - t]
            if is_right:
                cuda.syncthreads()

    return overwriting_kernel


def make_neighbour(is_right):
    @cuda.jit
    def neighbour_kernel(x, y):
        """Writes into its own row and into the next one's first element."""
        i = cuda.grid(1)
        for j in range(2 if is_right else 3):
            if 2 * i + j < y.shape[0]:
                y[2 * i + j] = x[i]

    return neighbour_kernel


def make_half_mask(is_right):
    @cuda.jit
    def half_mask_kernel(x, y):
        """The mask names half of the lanes, and the other half is read."""
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        half = 0xFFFF if t < 16 else 0xFFFF0000
        cuda.syncwarp(FULL if is_right else half)
        y[t] = tile[31 - t]

    return half_mask_kernel


def make_two_readers(is_right):
    @cuda.jit
    def two_readers_kernel(x, y):
        """B reads, A reads, A writes: the last reader alone would hide B's conflict."""
        tile = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            tile[0] = x[0]
        cuda.syncthreads()
        y[t] = tile[0]
        if is_right:
            cuda.syncthreads()
        if t == 1:
            tile[0] = 2

    return two_readers_kernel


def make_same_value(is_right):
    @cuda.jit
    def same_value_kernel(x, y):
        i = cuda.grid(1)
        if i == 0 or not is_right:
            y[0] = x[0]

    return same_value_kernel


def make_wide_neighbour(is_right):
    @cuda.jit
    def wide_neighbour_kernel(x, y):
        """Thread 40 reads what the last of the others writes four elements of."""
        i = cuda.grid(1)
        if i < 8:
            store4(y, 4 * i, load4(x, 4 * i))
        if i == 40:
            y[33] = y[32 if is_right else 31]

    return wide_neighbour_kernel


def make_atomic_reader(is_right):
    @cuda.jit
    def atomic_reader_kernel(x, y):
        cuda.atomic.add(y, 0, x[0])
        if cuda.grid(1) == 5:
            y[1] = cuda.atomic.add(y, 0, 0) if is_right else y[0]

    return atomic_reader_kernel


def make_index(is_right):
    @cuda.jit
    def index_kernel(x, y):
        """What a thread finds before the write is no index."""
        number = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            number[0] = 3
        if is_right:
            cuda.syncthreads()
        y[t] = x[number[0]]

    return index_kernel


def make_small_tile(is_right):
    size = 64 if is_right else 32

    @cuda.jit
    def small_tile_kernel(x, y):
        """The tile has half as many elements as there are threads, and two of them share each."""
        tile = cuda.shared.array(size, float32)
        t = cuda.threadIdx.x
        tile[t % size] = x[t]
        cuda.syncthreads()
        y[t] = tile[t % size]

    return small_tile_kernel


def make_row_stride(is_right):
    @cuda.jit
    def row_stride_kernel(x, y):
        """Rows of eight elements, seven apart: the last of one is the first of the next."""
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        row, column = t // 8, t % 8
        tile[row * (8 if is_right else 7) + column] = x[t]

    return row_stride_kernel


def make_butterfly(is_right):
    @cuda.jit
    def butterfly_kernel(x, y):
        """A sum over the lanes of a warp through shared memory instead of by shuffles."""
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        for shift in (16, 8, 4, 2, 1):
            if is_right:
                cuda.syncwarp()
            value = tile[t] + tile[t ^ shift]
            if is_right:
                cuda.syncwarp()
            tile[t] = value
        y[t] = value

    return butterfly_kernel


def make_waiting(is_right):
    @cuda.jit
    def waiting_kernel(x, y):
        """One warp's barrier is no barrier for the other."""
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        if is_right:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        y[t] = tile[t ^ 32]

    return waiting_kernel


def make_late_wait(is_right):
    @cuda.jit
    def late_wait_kernel(x, y):
        """The lower half of the threads copies, the upper half reads: a barrier before the wait is none."""
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t < 32:
            copy1(tile, t, x, t)
            if is_right:
                wait_for_copies()
        cuda.syncthreads()
        if t >= 32:
            y[t] = tile[t - 32]
        elif not is_right:
            wait_for_copies()

    return late_wait_kernel


RACES = {  # how to make it, threads, blocks, and the array of the race
    "an index": (make_index, 32, 1, "number"),
    "missing barrier": (lambda is_right: make_reverse(is_right, False), 64, 1, "tile"),
    "a syncwarp where two warps meet": (make_waiting, 64, 1, "tile"),
    "missing syncwarp": (lambda is_right: make_reverse(False, is_right), 32, 1, "tile"),
    "missing second barrier": (make_overwriting, 64, 1, "tile"),
    "a neighbour's row": (make_neighbour, 32, 1, "y"),
    "a neighbour's row in another block": (make_neighbour, 1, 32, "y"),
    "half a mask": (make_half_mask, 32, 1, "tile"),
    "two readers": (make_two_readers, 2, 1, "tile"),
    "one result, two writers": (make_same_value, 2, 1, "y"),
    "one result, two blocks": (make_same_value, 1, 2, "y"),
    "a part of a vector": (make_wide_neighbour, 64, 1, "y"),
    "atomic against plain": (make_atomic_reader, 32, 1, "y"),
    "a tile too small": (make_small_tile, 64, 1, "tile"),
    "rows that overlap": (make_row_stride, 64, 1, "tile"),
    "a butterfly without barriers": (make_butterfly, 32, 1, "tile"),
    "a wait behind the barrier": (make_late_wait, 64, 1, "tile"),
}


@pytest.mark.parametrize("case", RACES)
def test_races_are_found_in_every_run(case):
    make, threads, blocks, array = RACES[case]
    kernel = make(False)
    for seed in SEEDS:
        with shuffled(seed), pytest.raises(RaceError) as caught:
            traced(kernel, threads, np.ones(64, np.float32), np.zeros(64, np.float32), blocks=blocks)
        assert caught.value.array == array
        assert all(line.startswith("test_lens.py:") for line in caught.value.lines)
        assert caught.value.kernel_lines == caught.value.lines
        assert len(caught.value.threads) == 2


@pytest.mark.parametrize("case", RACES)
def test_no_alarm_without_the_fault(case):
    make, threads, blocks, _ = RACES[case]
    kernel = make(True)
    for seed in SEEDS:
        with shuffled(seed):
            traced(kernel, threads, np.ones(64, np.float32), np.zeros(64, np.float32), blocks=blocks)


def test_the_error_names_both_lines_both_threads_array_and_index():
    with pytest.raises(
        RaceError,
        match=r"^reverse_kernel: two threads of one block touch tile\[0\] of shared memory with no barrier between "
        r"them: thread \(0, 0, 0\) of block \(0, 0, 0\) writes it at test_lens.py:\d+ \(tile\[t\] = x\[t\]\); "
        r"thread \(31, 0, 0\) of block \(0, 0, 0\) reads it at test_lens.py:\d+ \(y\[t\] = tile\[cuda.*\)$",
    ) as caught:
        traced(make_reverse(False, False), 32, np.ones(32, np.float32), np.zeros(32, np.float32))
    error = caught.value
    assert error.index == (0,) and error.threads == [(0, 0, 0), (31, 0, 0)] and error.kernel == "reverse_kernel"
    assert error.line == error.lines[0]
    with pytest.raises(RaceError, match=r"two blocks, which no barrier joins touch y\[0\] of global memory"):
        traced(make_same_value(False), 1, np.ones(1), np.zeros(1), blocks=2)


@pytest.mark.parametrize(("has_barrier", "sync_warp", "threads"), [(True, False, 64), (False, True, 32)])
def test_no_alarm_where_a_barrier_orders(has_barrier, sync_warp, threads):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    for seed in SEEDS:
        with shuffled(seed):
            traced(make_reverse(has_barrier, sync_warp), threads, x, y)
        np.testing.assert_array_equal(y[:threads], x[:threads][::-1])


@cuda.jit
def pairwise_kernel(y):
    """Lane 0 to lane 1, and from there to lane 2: masks of two lanes order three."""
    tile = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        tile[0] = 7
    if t < 2:
        cuda.syncwarp(0b011)
    if 0 < t < 3:
        cuda.syncwarp(0b110)
    if t == 2:
        y[0] = tile[0]


def test_an_order_may_go_through_a_third_lane():
    for seed in SEEDS:
        y = np.zeros(1)
        with shuffled(seed):
            traced(pairwise_kernel, 32, y)
        assert y[0] == 7


def make_turns(has_fence, has_barrier):
    @cuda.jit
    def turns_kernel(total, turn):
        """Blocks add to one sum, in turns."""
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            while cuda.atomic.add(turn, 0, 0) < b:
                pass
            if has_fence:
                cuda.threadfence()
        cuda.syncthreads()
        total[t] += b + 1
        if has_barrier:
            cuda.syncthreads()
        if t == 0:
            if has_fence:
                cuda.threadfence()
            cuda.atomic.add(turn, 0, 1)

    return turns_kernel


def test_blocks_may_take_turns_by_fences_and_atomic_operations():
    total = np.zeros(32)
    traced(make_turns(True, True), 32, total, np.zeros(1, np.int32), blocks=4)
    np.testing.assert_array_equal(total, 10.0)
    for has_fence, has_barrier in ((False, True), (True, False)):
        with pytest.raises(RaceError, match="two blocks, which no barrier joins"):
            traced(make_turns(has_fence, has_barrier), 32, np.zeros(32), np.zeros(1, np.int32), blocks=2)


@cuda.jit
def unwritten_kernel(y):
    tile = cuda.shared.array(2, float32)
    tile[0] = 1
    y[0] = tile[1]


def test_other_faults_are_reported_as_without_the_lens():
    with pytest.raises(UninitializedReadError, match=r"reads \[1\] of a shared array, which nothing wrote"):
        traced(unwritten_kernel, 1, np.zeros(1))
    with pytest.raises(
        OutOfBoundsError, match=r"copy_kernel, test_lens.py:\d+ \(y\[i\] = x\[i\]\): thread \(3, 0, 0\)"
    ):
        traced(copy_kernel, 4, np.zeros(3), np.zeros(4))


# -- open and closed ----------------------------------------------------------------------------------------------


kinds = []


@cuda.jit
def kind_kernel(x):
    kinds.append(type(x).__name__)
    kinds.append(type(cuda.shared.array(1, float32)).__name__)
    kinds.append(type(cuda).__name__)


def test_a_closed_lens_leaves_no_trace_in_a_launch():
    kinds.clear()
    kind_kernel[1, 1](np.zeros(1))
    traced(kind_kernel, 1, np.zeros(1))
    kind_kernel[1, 1](np.zeros(1))
    plain = ["KernelArray", "KernelArray", "KernelCuda"]
    assert kinds == [*plain, "TracedArray", "TracedArray", "TracedCuda", *plain]
