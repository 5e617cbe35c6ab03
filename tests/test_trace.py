"""``fa_numba.trace``: the report, and the traffic of the steps by closed formulas in the lengths and tile sizes."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import simulator_only

import fa_numba
from fa_numba import device, step2_online_softmax, step3_standard_attention, step4_flash_forward, step5_flash_backward
from fa_numba.step4_flash_forward import few_queries

if device.SIMULATED:
    from fa_numba.simulator import RaceError, shuffled
    from fa_numba.simulator.lens import TracedCuda

pytestmark = simulator_only


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def trace_one(function, *args, **kwargs):
    (launch,) = fa_numba.trace(function, *args, **kwargs).launches
    return launch


def test_a_function_and_a_with_block_say_the_same(rng):
    x = normal(rng, 3, 8)
    report = fa_numba.trace(fa_numba.naive_softmax, x)
    with fa_numba.trace() as within:
        y = fa_numba.naive_softmax(x)
    np.testing.assert_array_equal(report.result, y)
    assert str(report) == str(within)
    assert report["naive_softmax_kernel"].kernel == "naive_softmax_kernel"
    with pytest.raises(KeyError):
        report["other_kernel"]
    with pytest.raises(KeyError):
        report.launches[0]["z"]


def test_one_entry_a_launch_and_none_when_none_was_made(rng):
    x = normal(rng, 2, 8)
    with fa_numba.trace() as report:
        assert str(report) == "no kernel was launched"
        fa_numba.naive_softmax(x)
        fa_numba.online_softmax(x)
    fa_numba.naive_softmax(x)
    assert [launch.kernel for launch in report.launches] == ["naive_softmax_kernel", "register_softmax_kernel"]


def test_the_table(rng):
    printed = str(fa_numba.trace(fa_numba.block_softmax, normal(rng, 8, 128)))
    assert "register_softmax_kernel: 2 blocks of 32×4 threads, 0 barriers, 80 shuffles" in printed
    assert "a different one" in printed
    assert "8192 bytes of global memory requested, 8192 different ones" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith("x ") and " load " in line]
    assert row.split()[:7] == ["x", "global", "load", "256", "8", "16.0", "100%"]
    assert "(load(e[g], x, (i, first + g * width * threads))) → primitives.py:" in row


# -- the traffic of the steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "n"), [(32, 8), (64, 16), (70, 24), (5, 64)])
def test_naive_softmax_fetches_a_sector_an_element(rng, rows, n):
    launch = trace_one(fa_numba.naive_softmax, normal(rng, rows, n))
    x, y = launch["x"], launch["y"]
    assert (x.loads, x.stores, y.loads, y.stores) == (3 * rows * n, 0, 0, rows * n)
    assert x.reads_per_byte == 3 and x.footprint == y.footprint == 4 * rows * n
    assert launch.requested == 16 * rows * n and launch.footprint == 8 * rows * n
    assert len(launch.lines) == 4
    for line in launch.lines:
        assert line.requests == -(-rows // 32) * n
        assert line.sectors == rows * n and line.used == 1 / 8
    assert launch.flops == 4 * rows * n  # exp(x - m) twice, a sum and a quotient
    assert (x.reads == 3).all() and (y.writes == 1).all()


@pytest.mark.parametrize(("rung", "passes"), [("three passes", 3), ("two passes", 2), ("row in registers", 1)])
@pytest.mark.parametrize(("rows", "n"), [(1, 32), (3, 128), (4, 1024)])
def test_the_block_softmaxes_use_all_that_they_fetch(rng, rung, passes, rows, n):
    launch = trace_one(step2_online_softmax.RUNGS[rung], normal(rng, rows, n))
    x, y = launch["x"], launch["y"]
    assert x.loads == passes * rows * n // 4 and x.loaded == passes * 4 * rows * n
    assert y.stores == rows * n // 4 and y.stored == 4 * rows * n
    for line in launch.lines:
        if line.space == "global":
            assert line.sectors == rows * n // 8 and line.used == 1
        assert line.ways <= 1 and line.conflicts == 0


def test_block_softmax_reads_each_element_once(rng):
    launch = trace_one(fa_numba.block_softmax, normal(rng, 6, 128))
    assert (launch["x"].reads == 1).all() and (launch["y"].writes == 1).all()
    assert launch.requested == launch.footprint


def flash_flops(n_q, n_k, d, block_k):
    """The products, and the online softmax around them."""
    columns, tiles = block_k // 4, n_k // block_k
    products = 4 * n_q * n_k * d
    weights = 2 * n_q * n_k  # s - m, and the sum
    rescaled = n_q * tiles * (columns * (1 + 1) + d)  # by every thread m - m_new and l alpha; acc alpha
    ends = n_q * (columns * (columns.bit_length() - 1) + columns + d)  # l over the threads of a row; 1 / l; o
    return products + weights + rescaled + ends


@pytest.mark.parametrize(("block_q", "block_k"), [(8, 8), (16, 16), (16, 8), (8, 16)])
@pytest.mark.parametrize(("n_q", "n_k", "d"), [(32, 48, 16), (16, 32, 32)])
def test_flash_forward_by_lengths_and_tiles(rng, n_q, n_k, d, block_q, block_k):
    q, k, v = normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)
    launch = trace_one(fa_numba.flash_forward, q, k, v, block_q=block_q, block_k=block_k)
    blocks = n_q // block_q
    loaded = {array.name: array.loaded // 4 for array in launch.arrays}
    assert loaded["q"] == n_q * d
    assert loaded["k"] == loaded["v"] == blocks * n_k * d
    assert loaded["q_tile"] == loaded["k_tile"] == loaded["v_tile"] == n_q * n_k * d // 4
    assert loaded["p_tile"] == n_q * n_k * block_k // 4
    stored = {array.name: array.stored // 4 for array in launch.arrays}
    assert (stored["o"], stored["m_out"], stored["l_out"]) == (n_q * d, n_q, n_q)
    assert stored["q_tile"] == n_q * d and stored["k_tile"] == stored["v_tile"] == blocks * n_k * d
    assert stored["p_tile"] == n_q * n_k
    assert launch.barriers == blocks * 3 * n_k // block_k
    assert launch.requested == 4 * (2 * n_q * d + 2 * blocks * n_k * d + 2 * n_q)
    assert launch.footprint == 4 * (2 * n_q * d + 2 * n_k * d + 2 * n_q)
    assert launch["k"].reads_per_byte == blocks
    scaled = n_q * d + 2 * blocks * n_k * d  # the tiles, by a factor, as they are loaded
    assert launch.flops == flash_flops(n_q, n_k, d, block_k) + scaled


@pytest.mark.parametrize(("n_q", "n_k", "d"), [(16, 32, 16), (32, 16, 32)])
def test_the_matrix_products_by_lengths_and_tiles(rng, n_q, n_k, d):
    """C = A B with A of rows by depth and B of depth by columns, by tiles of 16 by 16 elements of C."""
    q, k, v = normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)
    scores, softmax, output = fa_numba.trace(fa_numba.standard_attention, q, k, v).launches
    for launch, rows, columns, depth in ((scores, n_q, n_k, d), (output, n_q, d, n_k)):
        assert launch["a"].loads == rows * depth * columns // 16
        assert launch["b"].loads == columns * depth * rows // 16
        assert launch["c"].stores == rows * columns
        assert launch["a_tile"].loaded == launch["b_tile"].loaded == rows * columns * depth
        assert launch.flops == 2 * rows * columns * depth + rows * columns  # and the factor
        assert launch.barriers == 2 * (rows // 16) * (columns // 16) * (depth // 16)
        assert launch.footprint == 4 * (rows * depth + depth * columns + rows * columns)
    assert softmax["s"].loaded == 3 * 4 * n_q * n_k and softmax["p"].stored == 4 * n_q * n_k


# -- no alarm ---------------------------------------------------------------------------------------------------


def attention_inputs(rng, n_q=19, n_k=24, d=8):
    return normal(rng, 2, n_q, d), normal(rng, 2, n_k, d), normal(rng, 2, n_k, d)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rung", step4_flash_forward.RUNGS)
def test_no_race_in_flash_forward(rng, rung, causal):
    q, k, v = attention_inputs(rng)
    function = step4_flash_forward.RUNGS[rung]
    expected = function(q, k, v, causal=causal)
    with shuffled(3):
        report = fa_numba.trace(function, q, k, v, causal=causal)
    for traced, plain in zip(report.result, expected):
        np.testing.assert_array_equal(traced, plain)


@pytest.mark.parametrize("seed", range(3))
def test_no_race_in_small_tiles(rng, seed):
    q, k, v = attention_inputs(rng)
    with shuffled(seed):
        fa_numba.trace(fa_numba.flash_forward, q, k, v, causal=True, block_q=8, block_k=8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rung", step3_standard_attention.RUNGS)
def test_no_race_in_standard_attention(rng, rung, causal):
    with shuffled(4):
        fa_numba.trace(step3_standard_attention.RUNGS[rung], *attention_inputs(rng), causal=causal)


@pytest.mark.parametrize("rung", step2_online_softmax.RUNGS)
def test_no_race_in_the_softmaxes(rng, rung):
    with shuffled(5):
        fa_numba.trace(step2_online_softmax.RUNGS[rung], normal(rng, 3, 516))


@pytest.mark.parametrize("rung", step5_flash_backward.RUNGS)
def test_no_race_in_the_backward(rng, rung):
    q, k, v = attention_inputs(rng)
    o, m, l = fa_numba.flash_forward(q, k, v, causal=True)
    with shuffled(6):
        fa_numba.trace(step5_flash_backward.RUNGS[rung], o, q, k, v, o, m, l, causal=True)


def test_blocks_that_take_turns_at_dq_do_not_race(rng):
    """Keys of three blocks add to the same dq."""
    q, k, v = normal(rng, 8, 8), normal(rng, 300, 8), normal(rng, 300, 8)
    o, m, l = fa_numba.flash_forward(q, k, v)
    fa_numba.trace(step5_flash_backward.RUNGS["one kernel, 8x8 register tiles"], o, q, k, v, o, m, l)


# -- every barrier of every kernel, removed in turn -------------------------------------------------------------


def _softmax(rung, n):
    return lambda rng: (step2_online_softmax.RUNGS[rung], (normal(rng, 2, n),))


def _attention(function, n_q, n_k, d):
    return lambda rng: (function, (normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)))


def _backward(rung, n_q, n_k, d):
    def prepare(rng):
        q, k, v = normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)
        o, m, l = fa_numba.flash_forward(q, k, v)
        return step5_flash_backward.RUNGS[rung], (o, q, k, v, o, m, l)

    return prepare


def _few_queries(q, k, v):
    return step4_flash_forward._forward(few_queries.launch, q, k, v)


STANDARD, FORWARD = step3_standard_attention.RUNGS, step4_flash_forward.RUNGS
CALLS = {  # by module, calls that come to its barriers
    "step2_online_softmax.py": [
        _softmax("three passes", 516),
        _softmax("two passes", 516),
        _softmax("row in registers", 1100),
    ],
    "step3_standard_attention.py": [
        _attention(STANDARD["4x4 register tiles"], 16, 16, 24),
        _attention(STANDARD["8x8 register tiles"], 19, 24, 24),
    ],
    "step4_flash_forward/one_thread_a_row.py": [_attention(FORWARD["one thread a row"], 19, 70, 8)],
    "step4_flash_forward/small_tiles.py": [_attention(FORWARD["4x4 register tiles"], 16, 24, 8)],
    "step4_flash_forward/few_queries.py": [_attention(_few_queries, 4, 100, 8)],
    "step5_flash_backward/small_tiles.py": [_backward("two kernels, 4x4 register tiles", 19, 24, 8)],
}
# The barrier behind block_sum's reads protects scratch from its caller, and no kernel uses scratch again.
NOT_NEEDED_YET = "    cuda.syncthreads()\n    return l\n"
STEP_MODULES = ["step1_naive_softmax.py", "step2_online_softmax.py", "step3_standard_attention.py"]
SLOW = "wide_tiles.py"  # these take minutes: they are traced above, with all their barriers


def barriers():
    """Yield module and line of each barrier that a race would follow without."""
    package = Path(fa_numba.__file__).parent
    for module in sorted(str(path.relative_to(package)) for path in package.glob("step*/*.py")) + STEP_MODULES:
        if module.endswith(SLOW):
            continue
        text = (package / module).read_text()
        skipped = text[: text.index(NOT_NEEDED_YET)].count("\n") + 1 if NOT_NEEDED_YET in text else None
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"\s*cuda\.sync(threads|warp)\(\)", line) and number != skipped:
                yield module, number


@pytest.fixture
def without(monkeypatch):
    """Take one barrier out of the source; returns how often threads have passed the gap."""

    def remove(module, number):
        passed = []

        def is_removed(frame):
            if frame.f_lineno == number and Path(frame.f_code.co_filename).match(module):
                passed.append(True)
                return True
            return False

        for name in ("syncthreads", "syncwarp"):
            original = getattr(TracedCuda, name)
            monkeypatch.setattr(
                TracedCuda,
                name,
                lambda self, *mask, original=original: None if is_removed(sys._getframe(1)) else original(self, *mask),
            )
        return passed

    return remove


@pytest.mark.parametrize(("module", "number"), list(barriers()))
def test_a_race_is_named_wherever_a_barrier_is_removed(rng, without, module, number):
    passed = without(module, number)
    found = False
    for prepare in CALLS[module]:
        function, arguments = prepare(rng)
        passed.clear()
        with shuffled(0):
            try:
                fa_numba.trace(function, *arguments)
            except RaceError:
                found = True
                break
        assert not passed
    assert found
    with shuffled(1), pytest.raises(RaceError):
        fa_numba.trace(function, *arguments)
