"""Step 5: flash attention's gradients against the float64 reference, and the faults that others met (CASES.md)."""

import math

import numpy as np
import pytest
from attention import (
    DTYPES,
    EMPTY,
    FORMS,
    TILE,
    TILES,
    assert_gradients,
    assert_same,
    equal_scores,
    hard_scores,
    inputs,
)
from conftest import gpu_only, run_python, simulator_only
from numba import cuda

from fa_numba import device, flash_backward, flash_forward, reference

if device.SIMULATED:
    from fa_numba.simulator import shuffled

INF, NAN = math.inf, math.nan


def gradients(q, k, v, do, **options):
    """Return dq, dk and dv by way of the forward."""
    return flash_backward(do, q, k, v, *flash_forward(q, k, v, **options), **options)


@pytest.mark.parametrize(("causal", "dtype"), [(False, np.float32), (True, np.float32), (True, np.float64)])
@pytest.mark.parametrize("shapes", FORMS.values(), ids=FORMS)
def test_against_the_reference(rng, shapes, causal, dtype):
    """CASES A13, A15, C7 and their kind: ragged tiles, cross attention, gradients summed over a group."""
    q, k, v, do = inputs(rng, shapes, dtype)
    saved = flash_forward(q, k, v, causal=causal, **TILE)
    before = [x.copy() for x in (do, q, k, v, *saved)]
    result = flash_backward(do, q, k, v, *saved, causal=causal, **TILE)
    assert_gradients(result, q, k, v, do, causal)
    assert_same((do, q, k, v, *saved), before)


@pytest.mark.parametrize(("block_q", "block_k"), TILES)
def test_every_tile(rng, block_q, block_k):
    """The forward's tile may be another one."""
    q, k, v, do = inputs(rng, ((17, 5), (33, 5), (33, 17)))
    saved = flash_forward(q, k, v, causal=True, **TILE)
    result = flash_backward(do, q, k, v, *saved, causal=True, block_q=block_q, block_k=block_k)
    assert_gradients(result, q, k, v, do, causal=True)


def test_accuracy(rng):
    q, k, v, do = inputs(rng, ((48, 32),) * 3)
    assert_gradients(gradients(q, k, v, do), q, k, v, do)


@pytest.mark.parametrize(
    ("shapes", "causal", "scale"),
    [
        (((5, 3), (7, 3), (7, 2)), True, None),
        (((7, 3), (5, 3), (5, 2)), True, 1.3),
        (((4, 3, 2), (2, 5, 2), (2, 5, 2)), False, -0.8),
    ],
    ids=["more keys", "rows that see nothing", "grouped heads"],
)
def test_finite_differences(rng, shapes, causal, scale):
    """In float64: (L(x + e h) - L(x - e h)) / 2 e is the gradient's part along h, for L = sum(do o)."""
    *x, do = inputs(rng, shapes, np.float64)
    for number, gradient in enumerate(gradients(*x, do, causal=causal, scale=scale)):
        for _ in range(2):
            along = rng.standard_normal(gradient.shape)
            ends = [[*x[:number], x[number] + e * along, *x[number + 1 :]] for e in (1e-5, -1e-5)]
            plus, minus = ((do * flash_forward(*end, causal=causal, scale=scale).o).sum() for end in ends)
            np.testing.assert_allclose((gradient * along).sum(), (plus - minus) / 2e-5, rtol=1e-7, atol=1e-8)


# -- values of the cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_see_nothing(dtype):
    """CASES A3, C6."""
    q, k, v, do = (np.array(x, dtype).reshape(-1, 1) for x in ([1] * 4, [0, 0], [10, 20], [1] * 4))
    dq, dk, dv = gradients(q, k, v, do, causal=True, scale=1)
    np.testing.assert_array_equal(dq, np.zeros((4, 1)))
    np.testing.assert_allclose(dk[:, 0], [-2.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(dv[:, 0], [1.5, 0.5], rtol=1e-6)


def test_one_key():
    """CASES A6: weight 1 whatever the score, so the score has no gradient."""
    q, v = np.full((1, 16), 3, np.float32), np.arange(16, dtype=np.float32)[None].copy()
    dq, dk, dv = gradients(q, q, v, np.ones_like(v))
    assert_same((dq, dk, dv), (np.zeros_like(q), np.zeros_like(q), np.ones_like(v)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scale_is_applied_once(dtype):
    """CASES A10."""
    q, k, do = (np.array(x, dtype).reshape(2, 1) for x in ([1, 2], [0, 1], [1, 1]))
    dq, dk, dv = gradients(q, k, k, do, scale=0.5)
    np.testing.assert_allclose(dq[:, 0], [0.117502, 0.098306], atol=1e-6)
    np.testing.assert_allclose(dk[:, 0], [-0.314114, 0.314114], atol=1e-6)
    np.testing.assert_allclose(dv[:, 0], [0.646482, 1.353518], atol=1e-6)


def test_do_as_a_broadcast_view():
    """CASES A12."""
    q, k, v = (np.full((n, 2), value, np.float32) for n, value in ((3, 0), (2, 0), (2, 1)))
    do = np.broadcast_to(np.float32(1), (3, 2))
    dq, dk, dv = gradients(q, k, v, do)
    assert_same((dq, dk, dv), (np.zeros((3, 2)), np.zeros((2, 2)), np.full((2, 2), 1.5)))
    assert_same((dq, dk, dv), gradients(q, k, v, do.copy()))


def test_gradients_are_summed_over_the_group():
    """CASES A13: query head h reads key head h // 2."""
    q, k, v = np.zeros((4, 3, 1), np.float32), *np.zeros((2, 2, 3, 1), np.float32)
    do = np.broadcast_to(np.arange(1, 5, dtype=np.float32)[:, None, None], q.shape)
    dq, dk, dv = gradients(q, k, v, do)
    np.testing.assert_allclose(dv[:, :, 0], [[3] * 3, [7] * 3], rtol=1e-6)
    np.testing.assert_array_equal([np.abs(dq).max(), np.abs(dk).max()], 0)


@pytest.mark.parametrize("blocks", [(16, 16), (16, 32)])
def test_equal_scores_that_do_not_fit_their_dtype(blocks):
    """CASES C10: the recomputed score is the very one that gave the maximum, in whichever tile."""
    q, k, v = equal_scores(4, range(4))
    q, k = q + np.float32(3e9), k + 1
    saved = flash_forward(q, k, v, scale=0.3, **TILE)
    dq, dk, dv = flash_backward(np.ones_like(v), q, k, v, *saved, scale=0.3, block_q=blocks[0], block_k=blocks[1])
    assert_same((dq, dv), (np.zeros((4, 1)), np.ones((4, 1))))
    np.testing.assert_allclose(dk[:, 0], 9e8 * (np.arange(4) - 1.5), rtol=1e-6)


# By head dim and length a GPU takes different kernels in the two passes: 8x8 tiles and 4x4, few queries and 8x8, ...
SEVERAL_KERNELS = [
    (20, 20, 16),
    pytest.param(20, 20, 160, marks=gpu_only),
    pytest.param(100, 100, 64, marks=gpu_only),
    pytest.param(200, 200, 64, marks=gpu_only),
    pytest.param(200, 200, 160, marks=gpu_only),
]


@pytest.mark.parametrize(
    ("n_q", "n_k", "d"), [*SEVERAL_KERNELS, pytest.param(2, 400, 64, marks=gpu_only)], ids=lambda n: str(n)
)
def test_equal_scores_that_each_order_of_factors_rounds_its_own_way(n_q, n_k, d):
    """CASES C10: 3e9 * 3 * 0.3 and 3e9 * 0.3 * 3 are 256 apart, and 46 from what they round."""
    q, k, v = (np.zeros((n, d), np.float32) for n in (n_q, n_k, n_k))
    q[:, 0], k[:, 0], v[:, 0] = 3e9, 3, np.arange(n_k)
    dq, _, dv = gradients(q, k, v, np.ones_like(q), scale=0.3)
    np.testing.assert_allclose(dv, np.full((n_k, d), n_q / n_k), rtol=1e-5)
    assert np.abs(dq).max() < 1e-3


@pytest.mark.parametrize(("n_q", "n_k", "d"), SEVERAL_KERNELS, ids=lambda n: str(n))
def test_scores_of_several_hundred_that_are_rounded(rng, n_q, n_k, d):
    """Both passes round a score alike: two equal keys that all prefer have half of the weight each, and exactly so."""
    q, k, v, do = inputs(rng, ((n_q, d), (n_k, d), (n_k, d)))
    q[:, 0], k[:2] = 30, k[0]
    k[:2, 0] = 30
    scores = q.astype(float) @ k.T
    scale = 740 / scores.max()
    assert scale * (scores[:, 0] - scores[:, 2:].max(axis=1)).min() > 100
    _, _, dv = gradients(q, k, v, do, scale=scale)
    half = do.astype(float).sum(axis=0) / 2
    np.testing.assert_allclose(dv[:2], [half, half], rtol=0, atol=2e-6 * n_q)
    np.testing.assert_array_equal(dv[2:], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_10_to_the_4(rng, dtype):
    """CASES A1, A21."""
    q, k, v, do = hard_scores(rng, dtype)
    result = gradients(q, k, v, do, causal=True, scale=1)
    truth = reference.attention_backward(do, q, k, v, causal=True, scale=1)
    assert np.abs(truth[1]).max() > 10
    for x, true in zip(result, truth):
        np.testing.assert_allclose(x, true, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_below_zero(dtype):
    """CASES C2: p from m and l is right, where p from a float32 lse is off by a factor of 1.5."""
    k, do = np.array([[-1e7], [-1e7 + 1], [-1e7 + 2]], dtype), np.ones((1, 1), dtype)
    _, _, dv = gradients(do, k, np.zeros_like(k), do, scale=1)
    np.testing.assert_allclose(dv[:, 0], [0.0900306, 0.2447285, 0.6652410], atol=3e-7)


@pytest.mark.parametrize("n_k", [37, 41, 67])
def test_one_query(rng, n_k):
    """CASES C34."""
    q, k, v, do = inputs(rng, ((1, 4), (n_k, 4), (n_k, 4)))
    assert_gradients(gradients(q, k, v, do), q, k, v, do)


@pytest.mark.parametrize("scale", [0, -0.7, np.float32(2)])
def test_scales(rng, scale):
    q, k, v, do = inputs(rng, ((5, 4), (7, 4), (7, 2)))
    assert_gradients(gradients(q, k, v, do, scale=scale), q, k, v, do, scale=scale)


def test_large_do_stays_finite_beside_the_mask(rng):
    """CASES C6: what is masked is selected away before it is used."""
    q, k, v, do = inputs(rng, ((18, 4), (3, 4), (3, 4)))
    dq, dk, dv = gradients(q, k, v, do * np.float32(1e30), causal=True)
    assert all(np.isfinite(x).all() for x in (dq, dk, dv))
    np.testing.assert_array_equal(dq[:15], 0)


# -- NaN and infinities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "name"), [(1, "q"), (16, "q"), (16, "do")])
def test_a_nan_of_a_query_reaches_only_what_it_sees(rng, row, name):
    """CASES A22: its own dq, and dk and dv of the keys up to it, of its own key head."""
    q, k, v, do = inputs(rng, ((2, 18, 4), (2, 19, 4), (2, 19, 4)))
    clean = gradients(q, k, v, do, causal=True, **TILE)
    {"q": q, "do": do}[name][0, row] = NAN
    dq, dk, dv = gradients(q, k, v, do, causal=True, **TILE)
    seen = np.arange(19) <= row + 1
    assert np.isnan(dq[0, row]).all()
    assert np.isnan(dk[0, seen]).all()
    assert np.isnan(dv[0, seen]).all()
    others = np.arange(18) != row
    assert_same((dq[0, others], dk[0, ~seen], dv[0, ~seen]), (clean[0][0, others], *(x[0, ~seen] for x in clean[1:])))
    assert_same((dq[1], dk[1], dv[1]), [x[1] for x in clean])


@pytest.mark.parametrize(("key", "name"), [(1, "k"), (16, "k"), (16, "v")])
def test_what_the_mask_hides_never_reaches_a_row(rng, key, name):
    """CASES A3, C6: dq of the rows before a NaN is that of a clean run, in whichever tile."""
    q, k, v, do = inputs(rng, ((2, 18, 4), (2, 19, 4), (2, 19, 4)))
    clean = gradients(q, k, v, do, causal=True, **TILE)
    {"k": k, "v": v}[name][0, key] = NAN
    result = gradients(q, k, v, do, causal=True, **TILE)
    first = key - 1  # the first query that sees the key
    np.testing.assert_array_equal(result[0][0, :first], clean[0][0, :first])
    assert np.isnan(result[0][0, first:]).all()
    assert_same([x[1] for x in result], [x[1] for x in clean])
    for x, truth in zip(result, reference.attention_backward(do, q, k, v, causal=True)):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(truth))


def test_a_nan_reaches_no_other_row_without_a_mask(rng):
    """CASES A22: rows of dq are independent; every key is seen by the bad row."""
    q, k, v, do = inputs(rng, ((18, 4), (18, 4), (18, 4)))
    clean = gradients(q, k, v, do, **TILE)
    q[3] = NAN
    dq, dk, dv = gradients(q, k, v, do, **TILE)
    others = np.arange(18) != 3
    np.testing.assert_array_equal(dq[others], clean[0][others])
    assert all(np.isnan(x).all() for x in (dq[3], dk, dv))


@pytest.mark.parametrize("causal", [False, True])
def test_what_lies_past_the_end_never_reaches_a_row(rng, causal):
    """CASES C7, C34: the memory behind the last query and the last key holds NaN."""
    q, k, v, do = inputs(rng, ((17, 4), (18, 4), (18, 4)))
    saved = flash_forward(q, k, v, causal=causal, **TILE)
    rows = (do, q, k, v, *saved)
    behind = [cuda.to_device(np.concatenate([x, np.full((32, *x.shape[1:]), NAN, x.dtype)]))[: len(x)] for x in rows]
    result = [x.copy_to_host() for x in flash_backward(*behind, causal=causal, **TILE)]
    assert_same(result, flash_backward(*rows, causal=causal, **TILE))
    assert_gradients(result, q, k, v, do, causal)


# -- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_empty_arrays(shapes, causal):
    """CASES A7, C8, C22: gradients are written, as zeros, though nothing is launched over tiles."""
    q, k, v = (np.ones(shape, np.float32) for shape in shapes)
    result = gradients(q, k, v, np.ones((*q.shape[:-1], 2), np.float32), causal=causal)
    assert_same(result, [np.zeros_like(x) for x in (q, k, v)])


def test_runs_are_bitwise_equal(rng):
    """CASES A14, A16, C35."""
    n, d = (18, 4) if device.SIMULATED else (300, 32)
    q, k, v, do = inputs(rng, ((2, n, d), (1, n, d), (1, n, d)))
    saved = flash_forward(q, k, v, causal=True, **TILE)
    first = flash_backward(do, q, k, v, *saved, causal=True, **TILE)
    assert_gradients(first, q, k, v, do, causal=True)
    for _ in range(1 if device.SIMULATED else 50):
        assert_same(flash_backward(do, q, k, v, *saved, causal=True, **TILE), first)


@simulator_only
@pytest.mark.parametrize("causal", [False, True])
def test_the_order_of_threads_does_not_matter(rng, causal):
    """CASES A14: a missing barrier shows in some order."""
    q, k, v, do = inputs(rng, ((18, 4), (19, 4), (19, 4)))
    saved = flash_forward(q, k, v, causal=causal, **TILE)
    expected = flash_backward(do, q, k, v, *saved, causal=causal, **TILE)
    for seed in range(2):
        with shuffled(seed):
            assert_same(flash_backward(do, q, k, v, *saved, causal=causal, **TILE), expected)


def test_temporaries_may_be_dropped_at_once():
    """CASES C47: and nothing is said at exit."""
    source = f"""
import numpy as np
import fa_numba
from numba import cuda

def gradients(x):
    return fa_numba.flash_backward(x, x, x, x, *fa_numba.flash_forward(x, x, x))

x = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
expected = gradients(x[:, ::2])
every = [gradients(cuda.to_device(x)[:, ::2]) for _ in range({5 if device.SIMULATED else 200})]
print(all((dx.copy_to_host() == right).all() for one in every for dx, right in zip(one, expected)))
"""
    finished = run_python(source)
    assert (finished.stdout, finished.stderr) == ("True\n", "")


def test_the_ledger_of_forward_and_backward(rng):
    """Beyond inputs and outputs at most four numbers a row, and nothing of n_q times n_k."""
    q, k, v, do = (cuda.to_device(x) for x in inputs(rng, ((2, 17, 2), (1, 19, 2), (1, 19, 2))))
    with device.ledger() as memory:
        saved = flash_forward(q, k, v)
        result = flash_backward(do, q, k, v, *saved)
    given_and_asked = sum(x.nbytes for x in (q, k, v, do, saved.o, *result))
    vector = 2 * 17 * 4
    assert memory.peak - given_and_asked <= 4 * vector
    assert max(memory.at_peak.values()) <= 2 * vector < 17 * 19 * 4
    assert set(memory.at_peak) == {"q", "k", "v", "do", "o", "m", "l", "delta", "dq", "dk", "dv"}


# -- launches and errors --------------------------------------------------------------------------------------------


def zeros(shape, dtype=np.float32):
    """Return do, q, k, v, o, m and l."""
    x, row = np.zeros(shape, dtype), np.zeros(shape[:-1], dtype)
    return x, x, x, x, x, row, row


@pytest.mark.filterwarnings("ignore::fa_numba.device.SlowSimulation")  # nothing is run
def test_many_heads_go_on_the_first_axis_of_the_grid(launches):
    """CASES A19: the others end at 65,535."""
    flash_backward(*zeros((4, 2**14, 1, 1)), block_q=16)
    assert [grid for grid, _ in launches] == [2**14, 2**16, 2**16]  # four warps in a block of the first
    launches.clear()
    flash_backward(*zeros((4, 2**14, 1, 1)))
    assert launches[-1][0] == 2**16


@gpu_only
def test_many_heads():
    """CASES A19."""
    x, row = np.zeros((65536, 1, 1), np.float32), np.zeros((65536, 1), np.float32)
    do = np.arange(65536, dtype=np.float32).reshape(-1, 1, 1)
    assert_same(flash_backward(do, x, x, x, x, row, row + 1), [x, x, do])


@gpu_only
def test_more_than_2_to_the_31_elements():
    """CASES A20: the last of them is read and written."""
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 70e9:
        pytest.skip("needs 70 GB of device memory")
    zeros, do = (torch.zeros(2**17 + 1, 128, 128, device="cuda") for _ in range(2))
    do[-1] = 7
    m = zeros[:, :, 0].contiguous()
    result = flash_backward(do, zeros, zeros, zeros, zeros, m, m + 128)
    dq, dk, dv = (torch.as_tensor(x, device="cuda") for x in result)
    assert torch.allclose(dv[-1].cpu(), torch.tensor(7.0))
    assert not (dv[:-1].any() or dq.any() or dk.any())


@pytest.mark.parametrize(("dtype", "d"), [(np.float32, 256), (np.float64, 128)])
def test_the_widest_heads(rng, dtype, d):
    """CASES C46: d up to 256, in float64 up to 128."""
    tile = {"block_q": 8, "block_k": 8} if device.SIMULATED else {}  # the fastest there
    q, k, v, do = inputs(rng, ((2, d), (3, d), (3, d)), dtype)
    assert_gradients(gradients(q, k, v, do, causal=True, **tile), q, k, v, do, causal=True)


@simulator_only
@pytest.mark.parametrize(("dtype", "d"), [(np.float32, 256), (np.float64, 128)])
@pytest.mark.parametrize("capability", ["7.5", "8.6"])
def test_the_widest_heads_fit_every_device(launches, monkeypatch, capability, dtype, d):
    """DESIGN, section 4: d up to 256, in float64 up to 128."""
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", capability)
    flash_backward(*zeros((1, d), dtype))
    assert max(shared for _, shared in launches) <= device.device_limits().shared_per_block
