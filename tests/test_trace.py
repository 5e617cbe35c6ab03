"""``fa_numba.trace``: the report, and the traffic of the steps by closed formulas in the lengths and tile sizes."""

import functools
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import simulator_only

import fa_numba
from fa_numba import (
    barriers,
    device,
    step2_online_softmax,
    step3_standard_attention,
    step4_flash_forward,
    step5_flash_backward,
)
from fa_numba.barriers import without_barrier
from fa_numba.step4_flash_forward import few_queries, one_thread_a_row
from fa_numba.step4_flash_forward import small_tiles as small_forward
from fa_numba.step4_flash_forward import wide_tiles as wide_forward
from fa_numba.step5_flash_backward import small_tiles as small_backward
from fa_numba.step5_flash_backward import wide_tiles as wide_backward

if device.SIMULATED:
    from fa_numba.simulator import RaceError, shuffled

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
    assert report.launches[0].operations == within.launches[0].operations
    assert report["naive_softmax_kernel"].kernel == "naive_softmax_kernel"
    with pytest.raises(KeyError):
        report["other_kernel"]
    with pytest.raises(KeyError):
        report.launches[0]["z"]


def test_arguments_without_a_function_are_refused():
    for arguments, more in (((5,), {}), ((), {"x": 5})):
        with pytest.raises(TypeError, match=r"None as the function; call trace\(function, \*args, \*\*kwargs\)"):
            fa_numba.trace(None, *arguments, **more)


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


def test_operations_by_source_line(rng):
    n, d, block = 32, 16, 16
    launch = trace_one(fa_numba.flash_forward, *(normal(rng, n, d) for _ in range(3)), block_q=block, block_k=block)
    assert launch.dynamic_shared == 4 * (3 * block * (d + 4) + block * (block + 4)) and launch.static_shared == 0
    by_text = {}
    for each in launch.operations:
        outermost = (each.line, *each.calls)[-1]
        by_text.setdefault(re.search(r"\((\w+\.?\w*)", outermost).group(1), []).append(each)
    (dots,), (products,) = by_text["add_dots"], by_text["add_products"]
    assert dots.flops == products.flops == 2 * n * n * d
    assert dots.line.startswith("tiles.py:") and dots.line.endswith("(s[r, j] += x[r, e] * y[e])")
    waits = by_text["cuda.syncthreads"]
    assert [each.barriers for each in waits] == [(n // block) ** 2] * 3 and all(each.calls == () for each in waits)
    assert sum(each.shuffles for each in by_text["online_softmax_tile"]) == (n // block) ** 2 * 4 * 2
    assert sum(each.flops for each in launch.operations) == launch.flops
    assert sum(each.shuffles for each in launch.operations) == launch.shuffles
    table = str(launch).rpartition("\n\n")[2]
    assert table.startswith("flops  barriers  shuffles  syncwarps  line\n")
    assert re.search(r"^ +4 +small_tiles.py:\d+ \(cuda.syncthreads\(\)\)$", table, re.MULTILINE)


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
    scaled = n_q * n_k  # the scores
    assert launch.flops == flash_flops(n_q, n_k, d, block_k) + scaled


def test_flash_forward_s_traffic_times_its_shared_memory(rng):
    """Dao et al. 2022, theorem 2: with M elements of shared memory the traffic R is Θ(N²d²/M).

    With tiles of b by b, R is 2N²d/b + 2Nd + 2N and M is b(3d + b + 16). So R M is at least 6 N²d²; and with b <= d,
    d >= 16 and 2b <= N at most 16 of it, as R is at most 1.55 times its first term and M at most 5bd.
    """
    memory, traffic = [], []
    for n, d, block in ((64, 32, 8), (64, 32, 16), (64, 32, 32), (64, 16, 16), (32, 16, 16)):
        q, k, v = (normal(rng, n, d) for _ in range(3))
        launch = trace_one(fa_numba.flash_forward, q, k, v, block_q=block, block_k=block)
        memory.append(launch.dynamic_shared // 4)
        traffic.append(launch.requested // 4)
        assert 6 <= traffic[-1] * memory[-1] / (n * d) ** 2 <= 16
    assert memory[2] > 4 * memory[0] and traffic[0] > 2.9 * traffic[2]


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


def _softmax(rung, n, rows=2):
    return lambda rng: (step2_online_softmax.RUNGS[rung], (normal(rng, rows, n),))


def _attention(function, n_q, n_k, d):
    return lambda rng: (function, (normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)))


def _backward(function, n_q, n_k, d):
    def prepare(rng):
        q, k, v = normal(rng, n_q, d), normal(rng, n_k, d), normal(rng, n_k, d)
        o, m, l = fa_numba.flash_forward(q, k, v)
        return function, (o, q, k, v, o, m, l)

    return prepare


STANDARD, FORWARD = step3_standard_attention.RUNGS, step4_flash_forward.RUNGS
FEW = functools.partial(step4_flash_forward._forward, few_queries.launch)
TWO_WARPS = wide_forward.Tile(64, 2, 8)  # a small tile: with one warp, its shuffles would order what barriers should
WIDE = functools.partial(FORWARD["8x8 register tiles"], tile=TWO_WARPS)
WIDE_BACKWARD = functools.partial(step5_flash_backward.RUNGS["one kernel, 8x8 register tiles"], tile=TWO_WARPS)
TWO_KERNELS = step5_flash_backward.RUNGS["two kernels, 4x4 register tiles"]
CALLS = {  # by module, calls that come to its barriers
    step2_online_softmax: [
        _softmax("three passes", 516),
        _softmax("two passes", 516),
        _softmax("row in registers", 1100),
    ],
    step3_standard_attention: [
        _attention(STANDARD["4x4 register tiles"], 16, 16, 24),
        _attention(STANDARD["8x8 register tiles"], 19, 24, 24),
    ],
    one_thread_a_row: [_attention(FORWARD["one thread a row"], 19, 70, 8)],
    small_forward: [_attention(FORWARD["4x4 register tiles"], 16, 24, 8)],
    wide_forward: [_attention(WIDE, 16, 40, 8)],
    few_queries: [_attention(FEW, 4, 100, 8)],
    small_backward: [_backward(TWO_KERNELS, 19, 24, 8)],
    wide_backward: [_backward(WIDE_BACKWARD, 8, 65, 8)],
}
NOT_NEEDED_YET = (
    # Behind block_sum's reads: it protects scratch from its caller, and no kernel uses scratch again.
    "    cuda.syncthreads()\n    return l\n",
)


def all_barriers():
    """Return each barrier that a race would follow without, by the module's name without the package's."""
    package = Path(fa_numba.__file__).parent
    files = [*package.glob("step*.py"), *package.glob("step*/*.py")]
    names = {".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__") for path in files}
    modules = {name: importlib.import_module(f"fa_numba.{name}") for name in sorted(names)}
    return [
        (name, number)
        for name, module in modules.items()
        for number, line in enumerate(barriers.lines_of(module), 1)
        if not inspect.getsource(module).split("\n", line - 1)[-1].startswith(NOT_NEEDED_YET)
    ]


def passes(report, module, number):
    """Say whether a kernel has come to a barrier."""
    place = f"{Path(module.__file__).name}:{barriers.lines_of(module)[number - 1]} "
    operations = [each for launch in report.launches for each in launch.operations]
    return any(each.line.startswith(place) and each.barriers + each.syncwarps for each in operations)


@functools.cache
def intact(module):
    """Return, for each call of a module, its function and arguments, and its report with all barriers there."""
    prepared = [prepare(np.random.default_rng(20)) for prepare in CALLS[module]]
    return [(each, fa_numba.trace(each[0], *each[1])) for each in prepared]


def race_without(module, number, prepared, seed):
    """Return the race that a call has without a barrier; None if there is none."""
    function, arguments = prepared
    with shuffled(seed):
        try:
            fa_numba.trace(without_barrier(function, module, number), *arguments)
        except RaceError as race:
            return race
    return None


@pytest.mark.parametrize(("name", "number"), all_barriers())
def test_a_race_is_named_wherever_a_barrier_is_removed(name, number):
    module = importlib.import_module(f"fa_numba.{name}")
    prepared = next(prepared for prepared, report in intact(module) if passes(report, module, number))
    race = race_without(module, number, prepared, seed=0)
    assert race is not None and all(line.endswith(")") for line in race.kernel_lines)
    assert race_without(module, number, prepared, seed=1) is not None


# Quick calls, and barriers that they come to: before reads of what is written, and before writes over what is read.
QUICK = [
    (step2_online_softmax, _softmax("three passes", 516, rows=1), (1, 2, 3)),
    (step2_online_softmax, _softmax("two passes", 516, rows=1), (5,)),
    (step3_standard_attention, _attention(STANDARD["4x4 register tiles"], 1, 16, 20), (1, 2)),
    (small_forward, _attention(FORWARD["4x4 register tiles"], 8, 24, 8), (1, 3)),
    (few_queries, _attention(FEW, 1, 8, 8), (1,)),
    (small_backward, _backward(TWO_KERNELS, 8, 8, 8), (4,)),
]
SEEDS = range(20)


@pytest.mark.parametrize(("module", "prepare", "numbers"), QUICK)
def test_the_order_of_the_threads_makes_no_difference(rng, module, prepare, numbers):
    prepared = prepare(rng)
    for seed in SEEDS:
        with shuffled(seed):
            fa_numba.trace(prepared[0], *prepared[1])
        for number in numbers:
            assert race_without(module, number, prepared, seed) is not None, number
