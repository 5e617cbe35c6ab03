"""Step 4's kernels beside the small tiles, each asked for by name: the choice on a GPU depends on shapes and device."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from attention import assert_accurate, assert_forward, assert_same, inputs
from conftest import gpu_only, simulator_only
from numba import cuda

from fa_numba import device, flash_forward, limits, problem, reference, step4_flash_forward
from fa_numba.step4_flash_forward import few_queries, one_thread_a_row, small_tiles, split_keys, wide_tiles
from fa_numba.step4_flash_forward.wide_tiles import FEW, Tile

if device.SIMULATED:
    from fa_numba.simulator import shuffled

INF, NAN = math.inf, math.nan
SMALL = Tile(32, 2, 8)


def forward(launch, **options):
    """Return the forward by one of the kernels."""
    return functools.partial(step4_flash_forward._forward, functools.partial(launch, **options))


KERNELS = {
    "one thread a row": forward(one_thread_a_row.launch),
    "few queries": forward(few_queries.launch),
    "32 x 16": forward(wide_tiles.launch, tile=SMALL),
    "32 x 32": forward(wide_tiles.launch, tile=Tile(32, 4, 8)),
    "16 x 32": forward(wide_tiles.launch, tile=Tile(16, 2, 16)),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
LARGE = [(FEW, 64), *((tile, d) for d, tiles in wide_tiles.TILES.items() for tile in tiles)]


@pytest.fixture
def multiprocessors(monkeypatch):
    """Give the device another number of multiprocessors, and another limit of shared memory."""

    def give(count, shared=163 * 1024):
        monkeypatch.setattr(device, "device_limits", lambda: limits.Limits(shared, multiprocessors=count))

    return give


def assert_near(result, truth):
    """Hold o and lse to the reference, NaN and infinities among them; m of a row that sees a NaN is nobody's."""
    for name in ("o", "lse"):
        np.testing.assert_allclose(getattr(result, name), getattr(truth, name), rtol=1e-5, atol=1e-5, err_msg=name)


# -- values ---------------------------------------------------------------------------------------------------------


@every_kernel
@pytest.mark.parametrize(
    ("shapes", "causal"),
    [
        (((1, 2, 3, 8), (1, 1, 19, 8), (1, 1, 19, 4)), False),
        (((1, 2, 3, 8), (1, 1, 19, 8), (1, 1, 19, 4)), True),
        (((7, 4), (4, 4), (4, 12)), True),  # the first three see nothing
    ],
    ids=["not causal", "more keys", "more queries"],
)
def test_against_the_reference(rng, kernel, shapes, causal):
    q, k, v, _ = inputs(rng, shapes)
    before = [x.copy() for x in (q, k, v)]
    result = kernel(q, k, v, causal=causal)
    assert_forward(result, q, k, v, causal)
    truth, plain = (reference.attention(q, k, v, causal=causal, dtype=dtype).o for dtype in (np.float64, np.float32))
    assert_accurate(result.o, truth, plain, 2)
    assert_same((q, k, v), before)
    if causal and q.shape[-2] > k.shape[-2]:
        assert_same([x[:3] for x in result], [np.zeros((3, 12)), np.full(3, -INF), np.zeros(3)])


@pytest.mark.parametrize("kernel", [each for name, each in KERNELS.items() if name != "few queries"])
@pytest.mark.parametrize(("d", "d_v"), [(5, 3), (3, 10)])
def test_head_dims_that_are_no_multiples_of_four(rng, kernel, d, d_v):
    """CASES A8."""
    q, k, v, _ = inputs(rng, ((2, 2, d), (2, 5, d), (2, 5, d_v)))
    assert_forward(kernel(q, k, v), q, k, v)


def test_more_queries_than_a_tile(rng):
    q, k, v, _ = inputs(rng, ((35, 4), (18, 4), (18, 4)))
    assert_forward(KERNELS["32 x 16"](q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("d", [8, 16])
def test_more_threads_than_a_narrow_tile_has_fours(rng, d):
    """64 threads for 16 keys of 8 numbers: whole tiles are loaded, though not by all threads."""
    q, k, v, _ = inputs(rng, ((1, d), (16, d), (16, d)))
    result = forward(wide_tiles.launch, tile=Tile(64, 2, 8))(q, k, v)
    assert_forward(result, q, k, v)


@gpu_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tile", "d"), LARGE)
@pytest.mark.parametrize("d_v", [8, 16, None])
def test_every_tile(rng, tile, d, d_v, causal):
    """Also with values narrower than keys, and keys narrower than values."""
    for n_k, widths in ((257, (d, d_v or d)), (256, (d_v or d, d))):
        q, k, v, _ = inputs(rng, ((2, 130, widths[0]), (1, n_k, widths[0]), (1, n_k, widths[1])))
        posed = problem.check({"q": q.shape, "k": k.shape, "v": v.shape}, causal, None)
        if 4 * wide_tiles._elements(tile, posed) <= device.device_limits().shared_per_block:
            assert_forward(forward(wide_tiles.launch, tile=tile)(q, k, v, causal=causal), q, k, v, causal)


@gpu_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [4, 64, 68, 128])
@pytest.mark.parametrize("n_q", [1, 4])
def test_few_queries_in_many_splits(rng, n_q, d, causal):
    q, k, v, _ = inputs(rng, ((4, n_q, d), (2, 5001, d), (2, 5001, d)))
    assert_forward(forward(few_queries.launch)(q, k, v, causal=causal), q, k, v, causal)


@every_kernel
def test_no_keys(kernel):
    result = kernel(*(np.ones((n, 4), np.float32) for n in (2, 0, 0)))
    assert_same(result, [np.zeros((2, 4)), np.full(2, -INF), np.zeros(2)])


# -- NaN, infinities and large scores -------------------------------------------------------------------------------


@every_kernel
def test_what_the_mask_hides_never_reaches_a_row(rng, kernel):
    """CASES A22, C6: of a NaN in k and of +inf in v; a query sees its own tile's NaN only from that key on."""
    q, k, v, _ = inputs(rng, ((2, 3, 4), (2, 5, 4), (2, 5, 4)))
    clean = kernel(q, k, v, causal=True)
    k[0, 3], v[1, 4] = NAN, INF
    result = kernel(q, k, v, causal=True)
    assert_near(result, reference.attention(q, k, v, causal=True))
    assert_same([x[0, :1] for x in result], [x[0, :1] for x in clean])
    assert_same([x[1, :2] for x in result], [x[1, :2] for x in clean])
    assert np.isnan(result.o[0, 1:]).all()
    assert not np.isfinite(result.o[1, 2]).any()


@every_kernel
def test_what_lies_past_the_end_never_reaches_a_row(rng, kernel):
    """CASES C7, C34: the memory behind the last key holds NaN."""
    q, k, v, _ = inputs(rng, ((2, 4), (5, 4), (5, 4)))
    behind = [cuda.to_device(np.concatenate([x, np.full((32, 4), NAN, x.dtype)]))[: len(x)] for x in (q, k, v)]
    result = kernel(*behind)
    truth = reference.attention(q, k, v)
    for name in ("o", "m", "l"):
        x = getattr(result, name).copy_to_host()
        np.testing.assert_allclose(x, getattr(truth, name), rtol=1e-5, atol=1e-5, err_msg=name)


# By head: its query, and its keys, in the first number of four.
SCORES = {
    "far below": (100, [-100] * 5),
    "far above": (100, [100] * 5),
    "-inf and 0": (1, [-INF, 0, -INF, 0, 0]),
    "-inf": (1, [-INF] * 5),
    "inf, NaN": (1, [INF, NAN, 0, 0, -INF]),
}


@every_kernel
def test_scores_out_of_the_ordinary(rng, kernel):
    """CASES A1, A2, A21, C1, C2: weights of keys that are there, and none for those that fill up a tile."""
    q, k, v = (np.zeros((len(SCORES), n, 4), np.float32) for n in (1, 5, 5))
    for head, (query, keys) in enumerate(SCORES.values()):
        q[head, 0, 0], k[head, :, 0] = query, keys
    v[:] = rng.standard_normal(v.shape)
    result = kernel(q, k, v, scale=1)
    assert_near(result, reference.attention(q, k, v, scale=1))
    assert_same((result.o[3], result.m[3], result.l[3]), (np.zeros((1, 4)), [-INF], [0]))


# -- split keys -----------------------------------------------------------------------------------------------------


def parts(memory):
    """Return the bytes of the parts that a ledger saw."""
    return {name: size for name, size in memory.at_peak.items() if name.startswith("parts")}


@pytest.fixture
def splitting(monkeypatch, multiprocessors):
    """Let kernels split few keys as on a device of four multiprocessors."""
    multiprocessors(4)
    monkeypatch.setattr(wide_tiles, "LEAST_TILES", 1)
    monkeypatch.setattr(few_queries, "LEAST_KEYS", 2)


@pytest.mark.parametrize(("name", "n_q", "n_k"), [("few queries", 5, 4), ("few queries", 2, 7), ("32 x 16", 20, 17)])
def test_split_keys(rng, splitting, name, n_q, n_k):
    """Of causal rows, the first see nothing of the last split; where there are more queries, they see nothing at all.

    The parts that are merged are held, and no longer than the call takes.
    """
    q, k, v, _ = inputs(rng, ((n_q, 4), (n_k, 4), (n_k, 4)))
    with device.ledger() as memory:
        result = KERNELS[name](q, k, v, causal=True)
    assert_forward(result, q, k, v, causal=True)
    splits = {("few queries", 5): 2, ("few queries", 2): 3, ("32 x 16", 20): 2}[name, n_q]
    assert parts(memory) == {f"parts of {each}": splits * x.nbytes for each, x in zip("oml", result)}
    assert memory.held == 0


def test_a_nan_reaches_the_rows_that_see_it_through_any_split(rng, splitting):
    q, k, v, _ = inputs(rng, ((3, 4), (7, 4), (7, 4)))
    k[5] = NAN
    result = KERNELS["few queries"](q, k, v, causal=True)
    assert_near(result, reference.attention(q, k, v, causal=True))
    np.testing.assert_array_equal(np.isnan(result.lse), [False, True, True])


def test_a_merge_of_splits():
    """CASES C3: by hand. A split that saw nothing is neutral, also beside another, and NaN stays NaN."""
    m = np.float32([[0, -INF, -INF, NAN], [math.log(3), 2, -INF, 0]])
    l = np.float32([[1, 0, 0, 1], [1, 4, 0, 1]])
    o = np.float32([[1, 0, 0, 1], [5, 7, 0, 1]])[..., None]
    results = [np.full((1, 4, *rest), 9, np.float32) for rest in ((1,), (), ())]
    arrays = [cuda.to_device(x) for x in (o, m, l, *results)]
    device.launch(split_keys.merge_splits_kernel, 1, split_keys.ROWS * 32, *arrays)
    merged_o, merged_m, merged_l = (x.copy_to_host()[0] for x in arrays[3:])
    np.testing.assert_allclose(merged_o[:, 0], [4, 7, 0, NAN], rtol=1e-6)
    np.testing.assert_allclose(merged_m[:3], [math.log(3), 2, -INF], rtol=1e-6)
    np.testing.assert_allclose(merged_l, [4 / 3, 4, 0, NAN], rtol=1e-6)


@pytest.mark.parametrize("launch", [wide_tiles.launch, few_queries.launch])
@pytest.mark.parametrize(
    ("heads", "n_q", "n_k"), [(1, 1, 9000), (2, 3, 700), (8, 1, 5000), (3, 200, 2000), (40, 3, 999)]
)
@pytest.mark.filterwarnings("ignore::fa_numba.device.SlowSimulation")  # nothing is run
def test_splits_are_bounded(monkeypatch, multiprocessors, launch, heads, n_q, n_k):
    """All keys are in a split; the parts are of at most two blocks of queries for each multiprocessor."""
    multiprocessors(10)
    made = []
    monkeypatch.setattr(device, "launch", lambda kernel, grid, block, *arguments, **_: made.append((grid, arguments)))
    q, k = np.zeros((heads, n_q, 64), np.float32), np.zeros((heads, n_k, 64), np.float32)
    with device.ledger() as memory:
        forward(launch)(q, k, k)
    (blocks, splits), arguments = made[0]
    assert splits * arguments[-1] >= n_k
    assert len(made) == 1 + (splits > 1)
    rows = 10 * wide_tiles.BLOCKS * 128 if launch is wide_tiles.launch else 10 * few_queries.BLOCKS
    assert sum(parts(memory).values()) <= rows * (64 + 2) * 4
    assert splits == 1 or blocks * splits <= 10 * (2 if launch is wide_tiles.launch else few_queries.BLOCKS)
    if (heads, n_q) in ((1, 1), (8, 1)):
        assert splits > 1


# -- order ----------------------------------------------------------------------------------------------------------


def test_runs_are_bitwise_equal(rng):
    """CASES A14, A16."""
    for name, kernel in KERNELS.items() if not device.SIMULATED else [("32 x 16", KERNELS["32 x 16"])]:
        n = 9 if device.SIMULATED else 3 if name == "few queries" else 300
        q, k, v, _ = inputs(rng, ((2, n, 4), (1, 2 * n, 4), (1, 2 * n, 4)))
        first = kernel(q, k, v, causal=True)
        for _ in range(1 if device.SIMULATED else 50):
            assert_same(kernel(q, k, v, causal=True), first)


@simulator_only
@every_kernel
def test_the_order_of_threads_does_not_matter(rng, splitting, kernel):
    """CASES A14: a missing barrier shows in some order."""
    n = 9 if kernel is KERNELS["few queries"] else 33
    q, k, v, _ = inputs(rng, ((1, 4), (n, 4), (n, 4)))
    expected = kernel(q, k, v, causal=True)
    assert_forward(expected, q, k, v, causal=True)
    with shuffled(1):
        assert_same(kernel(q, k, v, causal=True), expected)


# -- which kernel ---------------------------------------------------------------------------------------------------


def pose(heads=32, n_q=1024, n_k=1024, d=64, d_v=None):
    shapes = {"q": (heads, n_q, d), "k": (heads, n_k, d), "v": (heads, n_k, d_v or d)}
    return problem.check(shapes, False, None)


H200, T4, RTX = (132, 227 * 1024), (40, 64 * 1024), (128, 99 * 1024)


@pytest.mark.parametrize(
    ("model", "posed", "tile"),
    [
        (H200, pose(d=16), Tile(128, 8, 8)),
        (H200, pose(d=64), Tile(128, 8, 8)),
        (H200, pose(d=64, heads=2), FEW),
        (H200, pose(d=40, d_v=96), Tile(128, 4, 8)),
        (H200, pose(d=128), Tile(128, 6, 16)),
        (H200, pose(d=128, heads=2), Tile(128, 6, 16)),
        (H200, pose(d=192), Tile(128, 2, 16)),
        (H200, pose(d=256), Tile(128, 2, 16)),
        (RTX, pose(d=64), Tile(128, 4, 8)),
        (RTX, pose(d=128), Tile(64, 2, 16)),
        (RTX, pose(d=256), None),
        (T4, pose(d=64), Tile(64, 4, 8)),
        (T4, pose(d=128), None),
        ((40, 48 * 1024), pose(d=64), Tile(64, 4, 8)),
        ((40, 48 * 1024), pose(d=96), None),
        ((40, 32 * 1024), pose(d=64), None),
    ],
)
def test_the_tile_for_a_head_dim_and_a_device(multiprocessors, model, posed, tile):
    multiprocessors(*model)
    assert wide_tiles.choose_tile(posed) == tile


@pytest.mark.parametrize("d", range(1, 257))
def test_a_chosen_tile_fits_the_device(multiprocessors, d):
    for model in (H200, RTX, T4):
        multiprocessors(*model)
        for posed in (pose(d=d), pose(d=1, d_v=d), pose(d=d, d_v=1), pose(heads=1, d=d)):
            tile = wide_tiles.choose_tile(posed)
            assert tile is None or 4 * wide_tiles._elements(tile, posed) <= model[1]


@pytest.mark.parametrize(
    ("posed", "takes"),
    [
        (pose(n_q=1), True),
        (pose(n_q=4, d=128), True),
        (pose(n_q=4, d=4, d_v=128), True),
        (pose(n_q=5), False),
        (pose(n_q=1, n_k=255), False),
        (pose(n_q=1, n_k=256), True),
        (pose(n_q=1, d=132), False),
        (pose(n_q=1, d=64, d_v=132), False),
        (pose(n_q=1, d=62), False),
        (pose(n_q=1, d=64, d_v=63), False),
    ],
)
def test_few_queries_are_four_at_most_of_whole_fours(posed, takes):
    assert few_queries.takes(posed) == takes


@pytest.mark.parametrize(
    ("posed", "options", "model", "name"),
    [
        (pose(), {}, H200, "wide"),
        (pose(n_q=1), {}, H200, "few"),
        (pose(n_q=1, d=160), {}, H200, "wide"),
        (pose(n_q=1, d=6), {}, H200, "wide"),
        (pose(), {"dtype": np.float64}, H200, "small"),
        (pose(n_q=1), {"dtype": np.float64}, H200, "small"),
        (pose(), {"block_q": 16}, H200, "small"),
        (pose(), {"block_k": 64}, H200, "small"),
        (pose(n_q=1), {"block_q": 8}, H200, "small"),
        (pose(n_k=0), {}, H200, "small"),
        (pose(d=256), {}, RTX, "small"),
        (pose(d=128), {}, (40, 48 * 1024), "small"),
        (pose(), {"simulated": True}, H200, "small"),
    ],
)
def test_the_kernel_for_a_call(monkeypatch, multiprocessors, posed, options, model, name):
    multiprocessors(*model)
    options = dict(options)
    monkeypatch.setattr(device, "SIMULATED", options.pop("simulated", False))
    started = []
    for each, module in {"few": few_queries, "wide": wide_tiles, "small": small_tiles}.items():
        monkeypatch.setattr(module, "launch", lambda *arguments, each=each: started.append((each, arguments)))
    call = SimpleNamespace(dtype=np.dtype(options.pop("dtype", np.float32)))
    blocks = {"block_q": None, "block_k": None, **options}
    step4_flash_forward._launch(call, posed, "o", "m", "l", **blocks)
    ((kernel, arguments),) = started
    assert kernel == name
    assert arguments[:5] == (call, posed, "o", "m", "l")
    if options:
        assert arguments[5:] == tuple(blocks.values())


@pytest.mark.parametrize(("d", "d_v"), [(65, 4), (4, 65)])
def test_one_thread_a_row_refuses_wide_heads(launches, d, d_v):
    x, v = np.zeros((2, d), np.float32), np.zeros((2, d_v), np.float32)
    with pytest.raises(ValueError, match=f"one thread a row takes head dims up to 64 in float32, not {d} and {d_v}"):
        KERNELS["one thread a row"](x, x, v)
    assert launches == []


def test_wide_tiles_refuse_float64_and_what_does_not_fit(launches, multiprocessors):
    for dtype, d in ((np.float64, 64), (np.float32, 256)):
        multiprocessors(*(RTX if d == 256 else H200))
        x = np.zeros((2, d), dtype)
        message = f"8x8 register tiles take float32 and heads whose tiles fit, not {np.dtype(dtype)}, {d} and {d} wide"
        with pytest.raises(ValueError, match=message):
            forward(wide_tiles.launch)(x, x, x)
    assert launches == []


def test_rungs(rng, monkeypatch):
    """The rungs are named and in order, and agree; the last is what a GPU takes by default."""
    rungs = step4_flash_forward.RUNGS
    assert list(rungs) == ["one thread a row", "4x4 register tiles", "8x8 register tiles"]
    if device.SIMULATED:
        monkeypatch.setattr(wide_tiles, "TILES", {256: (SMALL,)})
    q, k, v, _ = inputs(rng, ((2, 16, 16), (1, 16, 16), (1, 16, 16)))
    results = {name: rung(q, k, v, causal=True) for name, rung in rungs.items()}
    for result in results.values():
        assert_forward(result, q, k, v, causal=True)
    assert_same(flash_forward(q, k, v, causal=True), results[list(rungs)[1 if device.SIMULATED else 2]])


def test_one_thread_a_row_takes_float64(rng):
    q, k, v, _ = inputs(rng, ((3, 4), (5, 4), (5, 4)), np.float64)
    assert_forward(KERNELS["one thread a row"](q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("tile", [Tile(32, 1, 8), Tile(32, 3, 16), Tile(32, 2, 4), Tile(48, 2, 8), Tile(0, 2, 8)])
def test_tiles_that_cannot_be(launches, tile):
    x = np.zeros((4, 16), np.float32)
    with pytest.raises(ValueError, match=r"is no tile: across must be 8 or 16, columns one of \(2, 4, 6, 8\)"):
        step4_flash_forward._forward(wide_tiles.launch, x, x, x, tile=tile)
    assert launches == []
