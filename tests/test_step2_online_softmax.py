"""Step 2: block and online softmax, and the recurrence they rest on: merging the (m, l) of two parts of a row."""

import math

import numpy as np
import pytest
from conftest import gpu_only, simulator_only
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, from_dtype
from softmax_cases import DTYPES, HARD_ROWS, INF, allowed_error, between_ordinary_rows

from fa_numba import block_softmax, device, naive_softmax, online_softmax, reference, step2_online_softmax
from fa_numba.step2_online_softmax import RUNGS, make_register_softmax, merge, warp_merge

PUBLIC = {"block_softmax": block_softmax, "online_softmax": online_softmax}
SHAPES = [(1,), (2, 31), (1, 32), (3, 33), (2, 257), (2, 700), (2, 2, 3), (5, 1)]


@pytest.fixture(params=RUNGS | PUBLIC)
def softmax(request):
    return (RUNGS | PUBLIC)[request.param]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(rng, softmax, shape, dtype):
    x = (3 * rng.standard_normal(shape)).astype(dtype)
    before = x.copy()
    y = softmax(x)
    truth = reference.softmax(x)
    assert (y.shape, y.dtype) == (shape, dtype)
    assert np.abs(y - truth).max() <= allowed_error(x, truth)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", HARD_ROWS, ids=str)
def test_hard_rows(softmax, row, dtype):
    x = between_ordinary_rows(row, dtype)
    y = softmax(x)
    np.testing.assert_allclose(y, reference.softmax(x), rtol=1e-6 if dtype == np.float32 else 1e-14)
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_element_spoils_its_whole_row_and_no_other(rng, softmax, value, place):
    """CASES A22: whichever thread, warp and pass meets it."""
    x = rng.standard_normal((3, 100)).astype(np.float32)
    x[1, place] = value
    y = softmax(x)
    assert np.isnan(y[1]).all()
    np.testing.assert_array_equal(y[[0, 2]], softmax(x[[0, 2]]))


def test_a_row_of_minus_infinity_across_warps_gives_zeros(softmax):
    x = np.full((2, 100), -INF, np.float32)
    x[1, 70] = 5
    y = softmax(x)
    assert (y[0] == 0).all()
    np.testing.assert_array_equal(y[1], np.arange(100) == 70)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_empty_inputs_give_empty_results(softmax, shape):
    assert softmax(np.zeros(shape, np.float32)).shape == shape


def test_runs_are_bitwise_equal(rng, softmax):
    x = rng.standard_normal((3, 300)).astype(np.float32)
    first = softmax(x)
    np.testing.assert_array_equal(softmax(x), first)


@simulator_only
def test_the_order_of_threads_does_not_matter(rng, softmax):
    from fa_numba.simulator import shuffled

    x = rng.standard_normal((2, 130)).astype(np.float32)
    first = softmax(x)
    for seed in range(3):
        with shuffled(seed):
            np.testing.assert_array_equal(softmax(x), first)


def test_strided_and_device_inputs(rng, softmax):
    x = rng.standard_normal((6, 40)).astype(np.float32)
    np.testing.assert_array_equal(softmax(x[::2, ::-1]), softmax(np.ascontiguousarray(x[::2, ::-1])))
    np.testing.assert_array_equal(softmax(cuda.to_device(x)).copy_to_host(), softmax(x))


def test_all_steps_agree(rng):
    x = rng.standard_normal((4, 90)).astype(np.float64)
    for softmax in (RUNGS | PUBLIC).values():
        np.testing.assert_allclose(softmax(x), naive_softmax(x), rtol=1e-14)


def test_bad_inputs(softmax, launches):
    with pytest.raises(ValueError, match=r"x has shape \(\); softmax needs at least one axis to run over"):
        softmax(np.float32(1))
    for dtype in (np.float16, np.int64, bool, np.complex64):
        with pytest.raises(TypeError, match=f"^dtypes given: x {np.dtype(dtype)}; taken: float32 or float64$"):
            softmax(np.zeros(3, dtype))
    with pytest.raises(TypeError, match="x is a list; it must be a NumPy array"):
        softmax([1.0, 2.0])
    assert launches == []


@simulator_only
@pytest.mark.parametrize("name", PUBLIC)
def test_a_call_that_would_take_minutes_warns_first(name, launches):
    with pytest.warns(device.SlowSimulation, match=rf"^{name} will take about \d+ minutes on the simulator"):
        PUBLIC[name](np.broadcast_to(np.float32(0), (16384, 8192)))


@pytest.mark.parametrize(("rung", "rows_a_block"), [("three passes", 1), ("two passes", 1), ("row in registers", 4)])
def test_many_rows_go_on_the_first_axis_of_the_grid(rung, rows_a_block, launches):
    """CASES A19: the others end at 65,535."""
    RUNGS[rung](np.zeros((2**18, 1), np.float32))
    assert [grid for grid, _ in launches] == [2**18 // rows_a_block]


@gpu_only
def test_more_than_2_to_the_31_elements(softmax):
    """CASES A19, A20: the last of many rows is read and written."""
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs 20 GB of device memory")
    x = torch.zeros(2**26 + 1, 32, device="cuda")
    x[-1, 0] = math.log(33)
    y = torch.as_tensor(softmax(x), device="cuda")
    assert torch.allclose(y[-1, :2].cpu(), torch.tensor([33 / 64, 1 / 64]))
    assert (y[:-1] == 1 / 32).all()


# -- rows in registers --------------------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch):
    """The kernels that are asked for: the name of the factory and its arguments without the dtype; nothing runs."""
    made = []
    for name in ("make_block_softmax", "make_online_softmax", "make_register_softmax"):
        monkeypatch.setattr(step2_online_softmax, name, lambda *args, name=name: made.append((name, *args[:-1])))
    monkeypatch.setattr(device, "launch", lambda *args, **options: None)
    return made


# (n, threads a row, rows a block, groups a thread, elements a group)
TILES = [
    (1, 32, 4, 1, 1),
    (4, 32, 4, 1, 4),
    (32, 32, 4, 1, 4),
    (33, 32, 4, 2, 1),
    (128, 32, 4, 1, 4),
    (132, 32, 4, 2, 4),
    (511, 32, 4, 16, 1),
    (513, 128, 1, 8, 1),
    (1024, 32, 4, 8, 4),
    (1025, 256, 1, 8, 1),
    (1028, 256, 1, 2, 4),
    (2048, 256, 1, 2, 4),
    (4096, 512, 1, 2, 4),
    (16383, 1024, 1, 16, 1),
    (16384, 1024, 1, 4, 4),
    (16388, 1024, 1, 8, 4),
    (32768, 1024, 1, 8, 4),
]


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: str(tile[0]))
@pytest.mark.parametrize("name", PUBLIC)
def test_rows_that_fit_are_kept_in_registers(name, tile, chosen):
    n, *form = tile
    PUBLIC[name](np.zeros((2, n), np.float32))
    assert chosen == [("make_register_softmax", *form)]


@pytest.mark.parametrize(("n", "dtype", "width"), [(16385, "f4", 1), (32772, "f4", 4), (16388, "f8", 1)])
def test_longer_rows_are_read_again_and_the_rung_refuses_them(n, dtype, width, chosen):
    x = np.zeros((1, n), dtype)
    block_softmax(x)
    online_softmax(x)
    assert chosen == [("make_block_softmax", 256, width), ("make_online_softmax", 256, width)]
    message = (
        rf"^a row of {n} {x.dtype} elements does not fit in the registers of a block; up to 16384 do, "
        r"and up to 32768 of float32 if their number is a multiple of 4$"
    )
    with pytest.raises(ValueError, match=message):
        RUNGS["row in registers"](x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [(32, 4, 2, 1), (32, 4, 2, 4), (64, 1, 2, 1), (64, 1, 2, 4), (128, 1, 1, 4)], ids=str)
def test_every_place_where_a_row_in_registers_may_end(rng, tile, dtype):
    """In the first group of a thread, in its last, in the middle of a warp; in the last block, fewer rows."""
    threads, rows, groups, width = tile
    kernel = make_register_softmax(*tile, from_dtype(np.dtype(dtype)))
    round_of_groups, whole = threads * width, threads * groups * width
    for n in {width, round_of_groups, min(round_of_groups + width, whole), whole - width, whole}:
        x = (3 * rng.standard_normal((5, n))).astype(dtype)
        x[1, -1], x[2], x[3, : n // 2] = np.nan, -INF, -INF
        y = np.full_like(x, 7)
        device.launch(kernel, -(-5 // rows), (threads, rows), x, y)
        truth = reference.softmax(x)
        ordinary = [0, 3, 4]
        assert np.abs(y - truth)[ordinary].max() <= allowed_error(x[ordinary], truth[ordinary])
        assert np.isnan(y[1]).all()
        assert (y[2] == 0).all()


@gpu_only
@pytest.mark.parametrize("n", [tile[0] for tile in TILES] + [16385, 32772])
def test_every_width_at_which_the_kernel_changes(rng, n):
    x = (3 * rng.standard_normal((9, n))).astype(np.float32)
    truth = reference.softmax(x)
    for softmax in PUBLIC.values():
        y = softmax(x)
        assert np.abs(y - truth).max() <= allowed_error(x, truth)
        np.testing.assert_array_equal(softmax(x), y)


# -- the recurrence -----------------------------------------------------------------------------------------------


@cuda.jit
def merge_kernel(a, b, out):
    out[0], out[1] = merge(a[0], a[1], b[0], b[1])


@cuda.jit
def warp_merge_kernel(m, l, out):
    out[cuda.threadIdx.x, 0], out[cuda.threadIdx.x, 1] = warp_merge(m[cuda.threadIdx.x], l[cuda.threadIdx.x])


def merged(a, b):
    out = np.empty(2)
    device.launch(merge_kernel, 1, 1, np.array(a), np.array(b), out)
    return tuple(out)


def part(scores):
    """The (m, l) of a part of a row, by definition."""
    m = max(scores, default=-INF)
    return m, 0.0 if m == -INF else sum(math.exp(score - m) for score in scores)


scores = st.lists(st.floats(-50, 50) | st.just(-INF), max_size=6)


@settings(max_examples=40, deadline=None)
@given(scores, scores, scores)
def test_merging_is_associative_and_commutative_and_has_a_neutral_element(a, b, c):
    a_, b_, c_ = part(a), part(b), part(c)
    whole = part(a + b + c)
    for result in (merged(merged(a_, b_), c_), merged(a_, merged(b_, c_)), merged(merged(c_, a_), b_)):
        np.testing.assert_allclose(result, whole, rtol=1e-12)
    assert merged(a_, (-INF, 0.0)) == a_
    assert merged((-INF, 0.0), a_) == a_


def test_a_warp_merges_to_the_same_pair_in_every_lane(rng):
    m = np.where(rng.random(32) < 0.2, -INF, 10 * rng.standard_normal(32))
    l = np.where(m == -INF, 0, rng.random(32) + 1)
    out = np.empty((32, 2))
    device.launch(warp_merge_kernel, 1, 32, m, l, out)
    np.testing.assert_allclose(out[:, 0], m.max())
    np.testing.assert_allclose(out[:, 1], (l * np.exp(m - m.max())).sum(), rtol=1e-14)
