"""Step 5's wide tiles: one kernel, whose blocks take turns. On a GPU they are the default; here they are asked for."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from attention import assert_gradients, assert_same, inputs
from conftest import gpu_only, simulator_only
from numba import cuda

from fa_numba import device, limits, problem, reference, step5_flash_backward
from fa_numba.step4_flash_forward.wide_tiles import Tile
from fa_numba.step5_flash_backward import small_tiles, wide_tiles

if device.SIMULATED:
    from fa_numba.simulator import shuffled

INF, NAN = math.inf, math.nan


def backward(launch, **options):
    """Return the backward by one of the kernels, with what the forward saved taken from the reference."""
    run = functools.partial(step5_flash_backward._backward, functools.partial(launch, **options))

    def gradients(q, k, v, do, **options):
        truth = reference.attention(q, k, v, **options)
        return run(do, q, k, v, *(x.astype(q.dtype) for x in (truth.o, truth.m, truth.l)), **options)

    return gradients


SMALL = Tile(32, 2, 8)  # 32 keys, 16 queries
TILES = [SMALL, Tile(32, 4, 8)]
WIDE = backward(wide_tiles.launch, tile=SMALL)
LARGE = [(tile, d) for d, tiles in wide_tiles.TILES.items() for tile in tiles]


@pytest.fixture
def limited(monkeypatch):
    """Give the device another limit of shared memory."""

    def give(shared):
        monkeypatch.setattr(device, "device_limits", lambda: limits.Limits(shared, multiprocessors=100))

    return give


# -- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("shapes", "causal"),
    [
        (((1, 2, 3, 6), (1, 1, 7, 6), (1, 1, 7, 5)), False),
        (((1, 2, 3, 4), (1, 1, 7, 4), (1, 1, 7, 8)), True),
        (((7, 3), (4, 3), (4, 10)), True),
    ],
    ids=["not causal", "more keys", "more queries"],
)
def test_against_the_reference(rng, tile, shapes, causal):
    """CASES A3, A8, A13: ragged tiles, odd head dims, groups, rows that see nothing."""
    q, k, v, do = inputs(rng, shapes)
    before = [x.copy() for x in (q, k, v, do)]
    result = backward(wide_tiles.launch, tile=tile)(q, k, v, do, causal=causal)
    assert_gradients(result, q, k, v, do, causal)
    assert_same((q, k, v, do), before)
    if len(q) == 7:
        np.testing.assert_array_equal(result[0][:3], 0)


@pytest.mark.parametrize(("n_q", "n_k"), [(18, 34), (34, 17)])
def test_blocks_of_keys_take_turns(rng, n_q, n_k):
    """Several blocks of keys add to the gradients of several tiles of queries; the mask hides tiles whole."""
    q, k, v, do = inputs(rng, ((n_q, 4), (n_k, 4), (n_k, 4)))
    assert_gradients(WIDE(q, k, v, do, causal=True), q, k, v, do, causal=True)


@gpu_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tile", "d"), LARGE)
@pytest.mark.parametrize("d_v", [8, 16, None])
def test_every_tile(rng, tile, d, d_v, causal):
    """Also with values narrower than keys, and keys narrower than values."""
    for n_k, widths in ((300, (d, d_v or d)), (256, (d_v or d, d))):
        q, k, v, do = inputs(rng, ((4, 200, widths[0]), (2, n_k, widths[0]), (2, n_k, widths[1])))
        posed = problem.check({"q": q.shape, "k": k.shape, "v": v.shape}, causal, None)
        if 4 * wide_tiles._elements(tile, posed) <= device.device_limits().shared_per_block:
            assert_gradients(backward(wide_tiles.launch, tile=tile)(q, k, v, do, causal=causal), q, k, v, do, causal)


# -- NaN, infinities and large scores -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q", "do", "k", "v"])
def test_a_nan_reaches_only_what_sees_it(rng, name):
    """CASES A22, C6: not keys that the bad query does not see, nor queries that do not see the bad key."""
    q, k, v, do = inputs(rng, ((2, 4, 4), (2, 6, 4), (2, 6, 4)))
    clean = WIDE(q, k, v, do, causal=True)
    {"q": q, "do": do, "k": k, "v": v}[name][0, {"q": 1, "do": 1, "k": 4, "v": 4}[name]] = NAN
    result = WIDE(q, k, v, do, causal=True)
    for x, truth, before in zip(result, reference.attention_backward(do, q, k, v, causal=True), clean):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(truth))
        np.testing.assert_array_equal(x[1], before[1])
    unseen, row = (slice(4, None), 1) if name in ("q", "do") else (slice(0), 2)
    assert_same([x[0, unseen] for x in result[1:]], [x[0, unseen] for x in clean[1:]])
    if name in ("k", "v"):
        np.testing.assert_array_equal(result[0][0, :row], clean[0][0, :row])


def test_what_lies_past_the_end_never_reaches_a_row(rng):
    """CASES C7, C34: the memory behind the last query and the last key holds NaN."""
    q, k, v, do = inputs(rng, ((3, 4), (5, 4), (5, 4)))
    truth = reference.attention(q, k, v)
    rows = (do, q, k, v, *(x.astype(np.float32) for x in (truth.o, truth.m, truth.l)))
    behind = [cuda.to_device(np.concatenate([x, np.full((32, *x.shape[1:]), NAN, x.dtype)]))[: len(x)] for x in rows]
    run = functools.partial(wide_tiles.launch, tile=SMALL)
    result = [x.copy_to_host() for x in step5_flash_backward._backward(run, *behind)]
    assert_gradients(result, q, k, v, do)


def test_scores_out_of_the_ordinary(rng):
    """CASES A1, A2, A21: a weight of what fills up a tile would be inf, or NaN; keys of -inf have none."""
    q, k, v, do = inputs(rng, ((4, 2, 4), (4, 5, 4), (4, 5, 4)))
    q[:], k[:] = 0, 0
    q[..., 0], k[0, :, 0], k[1, :, 0], k[2, 1::2, 0], k[3, :, 0] = 100, -100, 100, -INF, -INF
    result = WIDE(q, k, v, do, scale=1)
    for x, truth in zip(result, reference.attention_backward(do, q, k, v, scale=1)):
        np.testing.assert_allclose(x, truth, rtol=1e-5, atol=1e-3)
        assert np.isfinite(x[:2]).all()
    assert not np.isnan(result[1]).any()
    np.testing.assert_array_equal(result[2][2, 1::2], 0)


# -- memory, order --------------------------------------------------------------------------------------------------


def test_the_ledger(rng):
    """Beyond inputs and gradients, delta and counters: of each tile of queries, of each block of keys, and one more."""
    q, k, v, do = inputs(rng, ((2, 17, 4), (1, 3, 4), (1, 3, 4)))
    with device.ledger() as memory:
        WIDE(q, k, v, do)
    vector = 2 * 17 * 4
    held = {"turns": 4 * (2 * 2 + 1 + 1), "delta": vector, "m": vector, "l": vector}
    arrays = {"q": q, "k": k, "v": v, "o": do, "do": do, "dq": q, "dk": k, "dv": v}
    assert memory.at_peak == held | {name: x.nbytes for name, x in arrays.items()}
    assert memory.held == 0


def test_runs_are_bitwise_equal(rng):
    """CASES A14, A16, C35: although blocks of keys may start in any order."""
    n, d = (17, 4) if device.SIMULATED else (1000, 64)
    q, k, v, do = inputs(rng, ((2, n, d), (1, n, d), (1, n, d)))
    run = WIDE if device.SIMULATED else backward(wide_tiles.launch)
    first = run(q, k, v, do, causal=True)
    assert_gradients(first, q, k, v, do, causal=True)
    for _ in range(1 if device.SIMULATED else 30):
        assert_same(run(q, k, v, do, causal=True), first)


@simulator_only
@pytest.mark.parametrize("causal", [False, True])
def test_the_order_of_threads_does_not_matter(rng, causal):
    """CASES A14: a missing barrier shows in some order."""
    q, k, v, do = inputs(rng, ((3, 4), (33, 4), (33, 4)))
    expected = WIDE(q, k, v, do, causal=causal)
    with shuffled(2):
        assert_same(WIDE(q, k, v, do, causal=causal), expected)


# -- which kernels --------------------------------------------------------------------------------------------------


def pose(heads=32, n=1024, d=64, d_v=None):
    return problem.check({"q": (heads, n, d), "k": (heads, n, d), "v": (heads, n, d_v or d)}, False, None)


@pytest.mark.parametrize(
    ("kib", "posed", "tile"),
    [
        (227, pose(d=16), Tile(128, 4, 8)),
        (227, pose(d=64), Tile(128, 4, 8)),
        (227, pose(d=16, d_v=65), Tile(128, 3, 16)),
        (227, pose(d=128), Tile(128, 3, 16)),
        (227, pose(d=129), None),
        (227, pose(d=64, d_v=192), None),
        (163, pose(d=128), Tile(64, 2, 16)),
        (99, pose(d=64), Tile(64, 2, 8)),
        (99, pose(d=128), None),
        (64, pose(d=64), Tile(64, 2, 8)),
        (48, pose(d=32), Tile(64, 2, 8)),
        (48, pose(d=64), Tile(64, 2, 8)),
        (40, pose(d=64), None),
    ],
)
def test_the_tile_for_a_head_dim_and_a_device(limited, kib, posed, tile):
    limited(kib * 1024)
    assert wide_tiles.choose_tile(posed) == tile
    assert tile is None or 4 * wide_tiles._elements(tile, posed) <= kib * 1024


@pytest.mark.parametrize(
    ("posed", "options", "kib", "name"),
    [
        (pose(), {}, 227, "wide"),
        (pose(n=1), {}, 227, "small"),
        (pose(), {"dtype": np.float64}, 227, "small"),
        (pose(), {"block_q": 16}, 227, "small"),
        (pose(), {"block_k": 16}, 227, "small"),
        (pose(d=160), {}, 227, "small"),
        (pose(d=128), {}, 48, "small"),
        (pose(), {"simulated": True}, 227, "small"),
    ],
)
def test_the_kernels_for_a_call(monkeypatch, limited, posed, options, kib, name):
    limited(kib * 1024)
    options = dict(options)
    monkeypatch.setattr(device, "SIMULATED", options.pop("simulated", False))
    started = []
    for each, module in {"wide": wide_tiles, "small": small_tiles}.items():
        monkeypatch.setattr(module, "launch", lambda *arguments, each=each: started.append((each, arguments)))
    call = SimpleNamespace(dtype=np.dtype(options.pop("dtype", np.float32)))
    blocks = {"block_q": None, "block_k": None, **options}
    step5_flash_backward._launch(call, posed, "dq", "dk", "dv", **blocks)
    ((kernels, arguments),) = started
    assert kernels == name
    assert arguments == (call, posed, "dq", "dk", "dv", *(blocks.values() if name == "small" else ()))


@pytest.mark.parametrize(("dtype", "d"), [(np.float64, 64), (np.float32, 192)])
def test_wide_tiles_refuse_float64_and_what_does_not_fit(launches, dtype, d):
    x, row = np.zeros((2, d), dtype), np.zeros(2, dtype)
    message = f"8x8 register tiles take float32 and heads whose tiles fit, not {np.dtype(dtype)}, {d} and {d} wide"
    with pytest.raises(ValueError, match=message):
        step5_flash_backward._backward(wide_tiles.launch, x, x, x, x, x, row, row)
    assert launches == []


def test_rungs(rng, monkeypatch):
    """The rungs are named and in order, and agree."""
    rungs = step5_flash_backward.RUNGS
    assert list(rungs) == ["two kernels, 4x4 register tiles", "one kernel, 8x8 register tiles"]
    if device.SIMULATED:
        monkeypatch.setattr(wide_tiles, "TILES", {128: (SMALL,)})
    q, k, v, do = inputs(rng, ((16, 16),) * 3)
    truth = reference.attention(q, k, v, causal=True)
    saved = [x.astype(np.float32) for x in (truth.o, truth.m, truth.l)]
    for rung in rungs.values():
        assert_gradients(rung(do, q, k, v, *saved, causal=True), q, k, v, do, causal=True)


@pytest.mark.parametrize(("heads", "n", "takes"), [(1, 4096, True), (1, 129, True), (32, 100, False), (66, 100, True)])
def test_a_single_tile_of_keys_is_for_small_tiles(monkeypatch, heads, n, takes):
    """Unless there are heads enough to occupy half the device."""
    monkeypatch.setattr(device, "device_limits", lambda: limits.Limits(227 * 1024, multiprocessors=132))
    assert wide_tiles.takes(pose(heads, n)) == takes


@pytest.mark.parametrize(
    ("heads", "group", "n", "splits"),
    [(1, 1, 4096, 8), (1, 1, 256, 2), (32, 1, 4096, 1), (1, 1, 32768, 1), (1, 2, 256, 4), (1, 16, 256, 8)],
)
def test_few_blocks_of_keys_share_their_queries(monkeypatch, launches, heads, group, n, splits):
    """As many as the device has room for, each with four tiles of queries or more, of different rows."""
    monkeypatch.setattr(device, "device_limits", lambda: limits.Limits(227 * 1024, multiprocessors=132))
    monkeypatch.setattr(device, "warn_if_slow", lambda *_: None)
    monkeypatch.setattr(wide_tiles, "launch_delta", lambda *_: None)
    q, k, row = (np.zeros(shape, np.float32) for shape in ((heads * group, n, 64), (heads, n, 64), (heads * group, n)))
    step5_flash_backward._backward(wide_tiles.launch, q, q, k, k, q, row, row)
    assert launches[-1][0] == heads * (n // 128) * splits


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("widths", [(4, 8), (6, 5)])
def test_shares_of_the_queries_add_up(rng, limited, widths, causal):
    """Also where rows are no whole fours, which are not shared out."""
    limited(48 * 1024)
    d, d_v = widths
    q, k, v, do = inputs(rng, ((2, 130, d), (1, 40, d), (1, 40, d_v)))
    assert_gradients(WIDE(q, k, v, do, causal=causal), q, k, v, do, causal)


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"])
def test_no_chosen_tile_asks_for_more_than_there_is(monkeypatch, capability):
    """The numbers beside the tiles count too: at d = 64, d_v = 128 the tiles alone would fill an A100 to the byte."""
    found = limits.of_capability(capability)
    monkeypatch.setattr(device, "device_limits", lambda: found)
    for d in range(8, 129, 8):
        for d_v in range(8, 129, 8):
            tile = wide_tiles.choose_tile(pose(d=d, d_v=d_v))
            assert tile is None or 4 * wide_tiles._elements(tile, pose(d=d, d_v=d_v)) <= found.shared_per_block


@pytest.mark.parametrize(
    ("tile", "d", "what"),
    [
        (Tile(256, 2, 8), 8, "does not divide the rows of dq, 8 wide, among its 256 threads"),
        (Tile(64, 2, 8), 72, "does not divide the rows of dq, 72 wide, among its 64 threads"),
        (Tile(32, 4, 8), 128, "does not divide the rows of dq, 128 wide, among its 32 threads"),
        (Tile(16, 3, 16), 8, "has 48 queries, more than threads, which copy m, l and delta of one each"),
    ],
)
def test_tiles_whose_threads_cannot_share_the_work(launches, tile, d, what):
    x, row = np.zeros((2, d), np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=what):
        step5_flash_backward._backward(wide_tiles.launch, x, x, x, x, x, row, row, tile=tile)
    assert launches == []


def test_the_threads_of_every_tile_that_is_chosen_share_the_work(launches, monkeypatch):
    monkeypatch.setattr(device, "warn_if_slow", lambda *_: None)
    monkeypatch.setattr(wide_tiles, "launch_delta", lambda *_: None)
    for most, tiles in wide_tiles.TILES.items():
        for tile in tiles:
            for d in range(most // 2 + 1, most + 1):
                x, row = np.zeros((2, d), np.float32), np.zeros(2, np.float32)
                step5_flash_backward._backward(wide_tiles.launch, x, x, x, x, x, row, row, tile=tile)
