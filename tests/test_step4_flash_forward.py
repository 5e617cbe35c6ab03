"""Step 4: flash attention's forward pass against the float64 reference, and the faults that others met (CASES.md)."""

import math

import numpy as np
import pytest
from attention import (
    DTYPES,
    EMPTY,
    FORMS,
    TILE,
    TILES,
    assert_accurate,
    assert_forward,
    assert_same,
    equal_scores,
    hard_scores,
    inputs,
)
from conftest import gpu_only, simulator_only
from numba import cuda

from fa_numba import device, flash_attention, flash_forward, reference

if device.SIMULATED:
    from fa_numba.simulator import shuffled

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", FORMS.values(), ids=FORMS)
def test_against_the_reference(rng, shapes, causal, dtype):
    """CASES A5, A15, C34 and their kind: ragged tiles, cross attention, grouped heads."""
    q, k, v, _ = inputs(rng, shapes, dtype)
    before = [x.copy() for x in (q, k, v)]
    result = flash_forward(q, k, v, causal=causal, **TILE)
    assert_forward(result, q, k, v, causal)
    truth = reference.attention(q, k, v, causal=causal).o
    plain = reference.attention(q, k, v, causal=causal, dtype=dtype).o
    assert_accurate(result.o, truth, plain, 2)
    assert_same((q, k, v), before)


@pytest.mark.parametrize(("block_q", "block_k"), TILES)
def test_every_tile(rng, block_q, block_k):
    q, k, v, _ = inputs(rng, ((17, 5), (33, 5), (33, 17)))
    assert_forward(flash_forward(q, k, v, causal=True, block_q=block_q, block_k=block_k), q, k, v, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_accuracy(rng, causal):
    q, k, v, _ = inputs(rng, ((64, 32),) * 3)
    truth = reference.attention(q, k, v, causal=causal).o
    plain = reference.attention(q, k, v, causal=causal, dtype=np.float32).o
    assert_accurate(flash_forward(q, k, v, causal=causal).o, truth, plain, 2)


@pytest.mark.parametrize("n_k", [37, 41, 67])
def test_one_query(rng, n_k):
    """CASES C34."""
    q, k, v, _ = inputs(rng, ((1, 4), (n_k, 4), (n_k, 4)))
    assert_forward(flash_forward(q, k, v), q, k, v)


# -- values of the cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_q", "n_k", "causal", "o"),
    [
        (3, 7, True, [2, 2.5, 3]),  # A4: the last query sees the last key
        (2, 2, True, [0, 0.5]),  # C13: the flag is heard
        (2, 2, False, [0.5, 0.5]),
        (1, 8, True, [3.5]),  # C15
        (4, 2, True, [0, 0, 0, 0.5]),  # A3: the first two see nothing
    ],
)
def test_which_keys_are_seen(n_q, n_k, causal, o, dtype):
    """CASES A3, A4, C13, C15: with equal scores the output is the mean of the visible v_j = j."""
    result = flash_forward(*equal_scores(n_q, range(n_k), dtype), causal=causal)
    np.testing.assert_allclose(result.o[:, 0], o, rtol=1e-6)


@pytest.mark.parametrize("n", [31, 33])
def test_padding_is_not_a_key(n):
    """CASES A5."""
    result = flash_forward(*equal_scores(n, np.ones(n)), block_q=32, block_k=32)
    np.testing.assert_allclose(result.o, 1, rtol=1e-6)
    np.testing.assert_array_equal(result.l, n)
    np.testing.assert_allclose(result.lse, math.log(n), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_see_nothing(dtype):
    """CASES A3, C3, C6: exactly 0 and -inf, the neutral element when parts are merged."""
    q, k, v = np.ones((4, 1), dtype), np.zeros((2, 1), dtype), np.array([[10], [20]], dtype)
    result = flash_forward(q, k, v, causal=True, scale=1)
    np.testing.assert_array_equal(result.o[:, 0], [0, 0, 10, 15])
    np.testing.assert_array_equal(result.m, [-INF, -INF, 0, 0])
    np.testing.assert_array_equal(result.l, [0, 0, 1, 2])
    np.testing.assert_allclose(result.lse, [-INF, -INF, 0, math.log(2)], rtol=1e-6)


def test_one_key():
    """CASES A6: weight 1 whatever the score."""
    q = np.full((1, 16), 3, np.float32)
    result = flash_forward(q, q, np.arange(16, dtype=np.float32)[None])
    np.testing.assert_array_equal(result.o, [np.arange(16)])
    np.testing.assert_array_equal(result.lse, [36])


def test_a_head_dim_of_13():
    """CASES A8: the last column counts."""
    q, k, v = (np.zeros((n, 13), np.float32) for n in (1, 2, 2))
    q[0, 12], k[0, 12], v[0, 12] = 2, 1, 1
    result = flash_forward(q, k, v, scale=1)
    np.testing.assert_allclose(result.o, [[0] * 12 + [0.880797]], rtol=1e-6)
    np.testing.assert_allclose(result.lse, [2.126928], rtol=1e-6)


def test_the_scale_is_of_the_head_dim_before_padding():
    """CASES A9."""
    q, k = np.float32([[math.sqrt(3), 0, 0]]), np.float32([[1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(flash_forward(q, k, np.float32([[1], [0]])).o, [[0.731059]], rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [4, 20])
def test_equal_scores_that_do_not_fit_their_dtype(n, causal):
    """CASES C10: p comes from the very score that gave the maximum."""
    q, k, v = equal_scores(n, range(n))
    result = flash_forward(q + np.float32(3e9), k + 1, v, scale=0.3, causal=causal)
    mean = np.arange(n) / 2 if causal else np.full(n, (n - 1) / 2)
    np.testing.assert_allclose(result.o[:, 0], mean, rtol=1e-6)
    np.testing.assert_array_equal(result.l, np.arange(1, n + 1) if causal else np.full(n, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_10_to_the_4(rng, causal, dtype):
    """CASES A1, A21: exp sees differences to the maximum only."""
    q, k, v, _ = hard_scores(rng, dtype)
    assert np.abs(q @ k.swapaxes(-1, -2)).max() > 5000
    assert_forward(flash_forward(q, k, v, causal=causal, scale=1), q, k, v, causal, scale=1)
    result = flash_forward(*np.array([[[100]], [[100]], [[7]]], dtype), scale=1)
    np.testing.assert_array_equal([result.o[0, 0], result.lse[0]], [7, 1e4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_below_zero(dtype):
    """CASES C2: exact in float32, where the sum of m and log(l) is not."""
    k = np.array([[-1e7], [-1e7 + 1], [-1e7 + 2]], dtype)
    result = flash_forward(np.ones((1, 1), dtype), k, np.eye(3, dtype=dtype), scale=1)
    np.testing.assert_allclose(result.o, [[0.0900306, 0.2447285, 0.6652410]], atol=3e-7)
    np.testing.assert_array_equal(result.m, [-1e7 + 2])
    np.testing.assert_allclose(result.l, [1.5032147], rtol=5e-7)
    np.testing.assert_allclose(result.lse, [-1e7 + 2.407606], rtol=1e-7)


def test_the_lowest_finite_score_is_not_a_mask():
    """CASES C9: three ties."""
    k = np.full((3, 1), np.finfo(np.float32).min)
    result = flash_forward(np.ones((1, 1), np.float32), k, np.float32([[1], [2], [6]]), scale=1)
    np.testing.assert_allclose(result.o, [[3]], rtol=1e-6)
    np.testing.assert_array_equal([result.m[0], result.l[0]], [k[0, 0], 3])


# -- NaN and infinities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nan", [0, 1, 2])
def test_a_visible_nan_makes_its_own_row_nan(nan, dtype):
    """CASES A22."""
    q = np.zeros((3, 1), dtype)
    q[nan] = NAN
    result = flash_forward(q, np.ones((2, 1), dtype), np.array([[1], [3]], dtype))
    own = np.arange(3) == nan
    np.testing.assert_array_equal(result.o[:, 0], np.where(own, NAN, 2))
    np.testing.assert_allclose(result.lse, np.where(own, NAN, math.log(2)), rtol=1e-6)


@pytest.mark.parametrize("keys", [[NAN, -INF], [-INF, NAN], [NAN], [INF, 0], [0, INF], [INF, -INF]], ids=str)
def test_scores_that_make_a_row_nan(keys):
    """CASES A22, C1: NaN beside -inf, alone, and +inf."""
    k = np.float32(keys).reshape(-1, 1)
    result = flash_forward(np.ones((1, 1), np.float32), k, np.ones_like(k))
    assert np.isnan(result.o).all()
    assert np.isnan(result.lse).all()


@pytest.mark.parametrize(("keys", "o", "lse"), [([-INF, 0, -INF], 2, 0), ([-INF] * 3, 0, -INF)], ids=str)
def test_scores_of_minus_infinity(keys, o, lse):
    """CASES A2: weight 0; a row of nothing else is as one that sees no key."""
    k, v = np.float32(keys).reshape(3, 1), np.float32([[1], [2], [3]])
    result = flash_forward(np.ones((1, 1), np.float32), k, v)
    np.testing.assert_array_equal([result.o[0, 0], result.lse[0]], [o, lse])


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("row", [0, 16])
def test_a_bad_query_spoils_its_own_row(rng, row, value):
    """CASES A22: no other query, tile or head."""
    q, k, v, _ = inputs(rng, ((4, 18, 4), (2, 18, 4), (2, 18, 4)))
    clean = flash_forward(q, k, v, **TILE)
    q[1, row] = value
    result = flash_forward(q, k, v, **TILE)
    assert np.isnan(result.o[1, row]).all()
    assert np.isnan(result.lse[1, row])
    others = np.ones(q.shape[:2], bool)
    others[1, row] = False
    assert_same([x[others] for x in result], [x[others] for x in clean])


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("key", [1, 16, 20])
def test_what_the_mask_hides_never_reaches_a_row(rng, key, name, value):
    """A3, C6: rows before the key are those of a clean run, in whichever tile; rows that see it are not finite."""
    q, k, v, _ = inputs(rng, ((2, 19, 4), (2, 21, 4), (2, 21, 4)))
    k[:], q[:] = np.abs(k), np.abs(q)  # so that +inf in k is a score of +inf
    clean = flash_forward(q, k, v, causal=True, **TILE)
    {"k": k, "v": v}[name][0, key] = value
    result = flash_forward(q, k, v, causal=True, **TILE)
    first = max(0, key - 2)  # the first query that sees the key
    assert_same([x[0, :first] for x in result], [x[0, :first] for x in clean])
    assert_same([x[1] for x in result], [x[1] for x in clean])
    assert not np.isfinite(result.o[0, first:]).any()
    assert (np.isnan(result.lse[0, first:]) if name == "k" else np.isfinite(result.lse)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_k", [15, 17])
def test_what_lies_past_the_end_never_reaches_a_row(rng, n_k, causal):
    """CASES C7, C34: the memory behind the last key holds NaN."""
    q, k, v, _ = inputs(rng, ((17, 4), (n_k, 4), (n_k, 4)))
    behind = [cuda.to_device(np.concatenate([x, np.full((32, 4), NAN, x.dtype)]))[: len(x)] for x in (q, k, v)]
    result = flash_forward(*behind, causal=causal, **TILE)
    assert_same([x.copy_to_host() for x in result], flash_forward(q, k, v, causal=causal, **TILE))
    assert np.isfinite(result.o.copy_to_host()).all()


# -- scale ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0, -0.7, 2, 1e-3])
@pytest.mark.parametrize("causal", [False, True])
def test_scales(rng, causal, scale):
    q, k, v, _ = inputs(rng, ((5, 4), (7, 4), (7, 2)))
    assert_forward(flash_forward(q, k, v, causal=causal, scale=scale), q, k, v, causal, scale)


def test_kinds_of_scale(rng):
    """None means 1 / sqrt(d); NumPy scalars and 0-dimensional arrays are numbers."""
    q, k, v, _ = inputs(rng, ((5, 4),) * 3)
    expected = flash_forward(q, k, v, scale=0.5)
    for scale in (None, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5)):
        assert_same(flash_forward(q, k, v, scale=scale), expected)
    assert_same(flash_forward(q, k, v, scale=np.int64(2)), flash_forward(q, k, v, scale=2.0))


# -- arrays ---------------------------------------------------------------------------------------------------------


def test_new_axes(rng):
    """An axis of length 1 made by indexing has stride 0, and NumPy calls it contiguous."""
    q, k, v, _ = inputs(rng, ((5, 1), (6, 1), (6, 1)))
    views = [x[:, 0][:, None] for x in (q, k, v)]
    assert all(x.strides[1] == 0 for x in views)
    assert_same(flash_forward(*views), flash_forward(q, k, v))


def test_broadcast_views(rng):
    """CASES A12: one head's keys for all, one value for everything."""
    q, k, v, _ = inputs(rng, ((3, 5, 4), (1, 6, 4), (1, 1, 1)))
    views = q, np.broadcast_to(k, (3, 6, 4)), np.broadcast_to(v, (3, 6, 2))
    assert_same(flash_forward(*views), flash_forward(*(x.copy() for x in views)))


def test_lse_is_where_the_output_is(rng):
    """CASES C28."""
    q, k, v, _ = inputs(rng, ((2, 3, 4),) * 3)
    lse = flash_forward(*(cuda.to_device(x) for x in (q, k, v))).lse
    assert lse.__cuda_ndarray__
    expected = flash_forward(q, k, v).lse
    assert type(expected) is np.ndarray
    np.testing.assert_array_equal(lse.copy_to_host(), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_empty_arrays(shapes, causal):
    """CASES A7, C22: zeros where there are no keys, empty where there are no queries."""
    q, k, v = (np.ones(shape, np.float32) for shape in shapes)
    result = flash_forward(q, k, v, causal=causal)
    np.testing.assert_array_equal(result.o, np.zeros((*q.shape[:-1], 2)))
    for x, value in ((result.m, -INF), (result.l, 0), (result.lse, -INF)):
        np.testing.assert_array_equal(x, np.full(q.shape[:-1], value))


def test_runs_are_bitwise_equal(rng):
    """CASES A14, A16."""
    n, d = (18, 4) if device.SIMULATED else (300, 32)
    q, k, v, _ = inputs(rng, ((2, n, d), (1, n, d), (1, n, d)))
    first = flash_forward(q, k, v, causal=True, **TILE)
    assert_forward(first, q, k, v, causal=True)
    for _ in range(2 if device.SIMULATED else 50):
        assert_same(flash_forward(q, k, v, causal=True, **TILE), first)


@simulator_only
@pytest.mark.parametrize("causal", [False, True])
def test_the_order_of_threads_does_not_matter(rng, causal):
    """CASES A14: a missing barrier shows in some order."""
    q, k, v, _ = inputs(rng, ((18, 4), (35, 4), (35, 4)))
    expected = flash_forward(q, k, v, causal=causal, **TILE)
    for seed in range(4):
        with shuffled(seed):
            assert_same(flash_forward(q, k, v, causal=causal, **TILE), expected)


def test_the_ledger_of_the_forward(rng):
    """Beyond inputs and output, two numbers a row."""
    q, k, v, _ = inputs(rng, ((2, 33, 4), (1, 34, 4), (1, 34, 3)))
    with device.ledger() as memory:
        flash_forward(q, k, v)
    vector = 2 * 33 * 4
    sizes = {"q": q.nbytes, "k": k.nbytes, "v": v.nbytes, "o": 3 * vector, "m": vector, "l": vector}
    assert memory.at_peak == sizes
    assert memory.held == 0


# -- launches and errors --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::fa_numba.device.SlowSimulation")  # nothing is run
def test_many_heads_go_on_the_first_axis_of_the_grid(launches):
    """CASES A19: the others end at 65,535."""
    x = np.zeros((4, 2**14, 1, 1), np.float32)
    flash_forward(x, x, x)
    assert [np.ravel(grid)[0] for grid, _ in launches] == [2**16]


@gpu_only
def test_many_heads():
    """CASES A19."""
    zeros, v = np.zeros((65536, 1, 1), np.float32), np.arange(65536, dtype=np.float32).reshape(-1, 1, 1)
    np.testing.assert_array_equal(flash_forward(zeros, zeros, v).o, v)


@gpu_only
def test_more_than_2_to_the_31_elements():
    """CASES A20: the last of them is read and written."""
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of device memory")
    zeros, v = (torch.zeros(2**17 + 1, 128, 128, device="cuda") for _ in range(2))
    v[-1] = 7
    o = torch.as_tensor(flash_forward(zeros, zeros, v).o, device="cuda")
    assert torch.allclose(o[-1].cpu(), torch.tensor(7.0))
    assert not o[:-1].any()


@pytest.mark.parametrize(("dtype", "d"), [(np.float32, 256), (np.float64, 128)])
def test_the_widest_heads(rng, dtype, d):
    """CASES C46: d up to 256, in float64 up to 128."""
    tile = {"block_q": 8, "block_k": 8} if device.SIMULATED else {}  # the fastest there
    q, k, v, _ = inputs(rng, ((2, d), (3, d), (3, d)), dtype)
    assert_forward(flash_forward(q, k, v, causal=True, **tile), q, k, v, causal=True)


@simulator_only
@pytest.mark.parametrize(("dtype", "d"), [(np.float32, 256), (np.float64, 128)])
def test_the_widest_heads_fit_the_smallest_device(launches, monkeypatch, dtype, d):
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "7.5")
    x = np.zeros((1, d), dtype)
    flash_forward(x, x, x)
    assert launches[0][1] <= 64 * 1024


def test_flash_attention_is_the_forward_with_or_without_lse(rng):
    q, k, v = (rng.standard_normal((2, 9, 4)) for _ in range(3))
    expected = flash_forward(q, k, v, causal=True, scale=0.3)
    np.testing.assert_array_equal(flash_attention(q, k, v, causal=True, scale=0.3), expected.o)
    o, lse = flash_attention(q, k, v, causal=True, scale=0.3, return_lse=True)
    np.testing.assert_array_equal(o, expected.o)
    np.testing.assert_array_equal(lse, expected.lse)
