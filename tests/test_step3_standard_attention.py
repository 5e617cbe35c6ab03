"""Step 3: standard attention and its backward against float64: masks, groups of heads, and what a mask must hide."""

import numpy as np
import pytest
from attention import DTYPES, EMPTY, assert_same, equal_scores, inputs
from conftest import gpu_only, simulator_only

from fa_numba import device, reference, standard_attention, standard_attention_backward
from fa_numba.device import ledger
from fa_numba.step3_standard_attention import EVERYTHING, RUNGS, make_wide_matmul

if device.SIMULATED:
    from fa_numba.simulator import shuffled

# Shapes of q and of k, and the width of v: odd lengths, n_q != n_k both ways, a tile and one more, groups, 2 to 4 axes.
PROBLEMS = [
    ((13, 5), (13, 5), 5),
    ((9, 4), (17, 4), 7),
    ((17, 4), (9, 4), 3),
    ((65, 3), (66, 3), 2),
    ((1, 6), (11, 6), 6),
    ((4, 7, 3), (2, 5, 3), 4),
    ((2, 2, 6, 3), (2, 1, 6, 3), 3),
]
NAN = np.nan


def random_problem(rng, shape_q, shape_k, d_v, dtype):
    q, k = rng.standard_normal(shape_q), rng.standard_normal(shape_k)
    v, do = rng.standard_normal((*shape_k[:-1], d_v)), rng.standard_normal((*shape_q[:-1], d_v))
    return [array.astype(dtype) for array in (do, q, k, v)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", PROBLEMS, ids=str)
def test_forward_and_backward_against_the_reference(rng, shapes, causal, dtype):
    do, q, k, v = random_problem(rng, *shapes, dtype)
    within = 1e-6 if dtype == np.float32 else 1e-14
    o, p = standard_attention(q, k, v, causal=causal)
    truth = reference.attention(q, k, v, causal=causal)
    np.testing.assert_allclose(o, truth.o, atol=within)
    np.testing.assert_allclose(p, truth.p, atol=within)
    gradients = standard_attention_backward(do, q, k, v, p, causal=causal)
    for gradient, expected in zip(gradients, reference.attention_backward(do, q, k, v, causal=causal)):
        assert (gradient.shape, gradient.dtype) == (expected.shape, dtype)
        np.testing.assert_allclose(gradient, expected, atol=5 * within)


def test_rows_that_see_nothing():
    """CASES A3: rows 0 and 1 see no key, row 2 one, row 3 two equal ones."""
    q, do = np.ones((4, 1)), np.ones((4, 1))
    k, v = np.zeros((2, 1)), np.array([[10.0], [20.0]])
    o, p = standard_attention(q, k, v, causal=True, scale=1)
    np.testing.assert_array_equal(o[:, 0], [0, 0, 10, 15])
    dq, dk, dv = standard_attention_backward(do, q, k, v, p, causal=True, scale=1)
    np.testing.assert_allclose(dk[:, 0], [-2.5, 2.5])
    np.testing.assert_allclose(dv[:, 0], [1.5, 0.5])
    assert (dq == 0).all()


def test_the_scale_is_applied_once():
    """CASES A10."""
    q, k = np.array([[1.0], [2.0]]), np.array([[0.0], [1.0]])
    _, p = standard_attention(q, k, k, scale=0.5)
    dq, dk, dv = standard_attention_backward(np.ones((2, 1)), q, k, k, p, scale=0.5)
    np.testing.assert_allclose(dq[:, 0], [0.117502, 0.098306], atol=1e-6)
    np.testing.assert_allclose(dk[:, 0], [-0.314114, 0.314114], atol=1e-6)
    np.testing.assert_allclose(dv[:, 0], [0.646482, 1.353518], atol=1e-6)


def test_what_the_mask_hides_may_be_nan(rng):
    """A key, a value or a query that a row does not see never reaches it."""
    do, q, k, v = random_problem(rng, (6, 4), (6, 4), 3, np.float64)
    clean = standard_attention(q, k, v, causal=True)
    gradients = standard_attention_backward(do, q, k, v, clean.p, causal=True)
    k_bad, v_bad = k.copy(), v.copy()
    k_bad[5], v_bad[5] = NAN, NAN  # only the last query sees the last key
    o, p = standard_attention(q, k_bad, v_bad, causal=True)
    np.testing.assert_array_equal(o[:5], clean.o[:5])
    assert np.isnan(o[5]).all()
    dq, _, _ = standard_attention_backward(do, q, k_bad, v_bad, p, causal=True)
    np.testing.assert_array_equal(dq[:5], gradients[0][:5])
    q_bad = q.copy()
    q_bad[0] = NAN  # the first query sees only the first key
    _, p = standard_attention(q_bad, k, v, causal=True)
    _, dk, dv = standard_attention_backward(do, q_bad, k, v, p, causal=True)
    np.testing.assert_array_equal(dk[1:], gradients[1][1:])
    np.testing.assert_array_equal(dv[1:], gradients[2][1:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_empty_arrays(shapes, causal):
    """CASES A7, C8, C22."""
    q, k, v = (np.ones(shape) for shape in shapes)
    do = np.ones((*q.shape[:-1], 2))
    o, p = standard_attention(q, k, v, causal=causal)
    assert_same((o, p), (np.zeros_like(do), np.zeros((*q.shape[:-1], k.shape[-2]))))
    result = standard_attention_backward(do, q, k, v, p, causal=causal)
    assert_same(result, [np.zeros_like(x) for x in (q, k, v)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_q", "n_k", "causal", "o"),
    [(3, 7, True, [2, 2.5, 3]), (2, 2, True, [0, 0.5]), (2, 2, False, [0.5, 0.5]), (1, 8, True, [3.5])],
)
def test_which_keys_are_seen(n_q, n_k, causal, o, dtype):
    """CASES A4, C13, C15: with equal scores the output is the mean of the visible v_j = j."""
    result = standard_attention(*equal_scores(n_q, range(n_k), dtype), causal=causal)
    np.testing.assert_allclose(result.o[:, 0], o, rtol=1e-6)


def test_one_key():
    """CASES A6: weight 1 whatever the score, so the score has no gradient."""
    q, v = np.full((1, 16), 3, np.float32), np.arange(16, dtype=np.float32)[None].copy()
    o, p = standard_attention(q, q, v)
    assert_same((o, p), (v, [[1]]))
    result = standard_attention_backward(np.ones_like(v), q, q, v, p)
    assert_same(result, (np.zeros_like(q), np.zeros_like(q), np.ones_like(v)))


def test_gradients_are_summed_over_the_group():
    """CASES A13: query head h reads key head h // 2."""
    q, k, v = np.zeros((4, 3, 1), np.float32), *np.zeros((2, 2, 3, 1), np.float32)
    do = np.broadcast_to(np.arange(1, 5, dtype=np.float32)[:, None, None], q.shape)
    dq, dk, dv = standard_attention_backward(do, q, k, v, standard_attention(q, k, v).p)
    np.testing.assert_allclose(dv[:, :, 0], [[3] * 3, [7] * 3], rtol=1e-6)
    np.testing.assert_array_equal([np.abs(dq).max(), np.abs(dk).max()], 0)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_visible_nan_makes_its_own_row_nan(place):
    """CASES A22."""
    q = np.zeros((3, 1), np.float32)
    q[place] = NAN
    o, p = standard_attention(q, np.ones((2, 1), np.float32), np.float32([[1], [3]]))
    own = np.arange(3) == place
    np.testing.assert_array_equal(o[:, 0], np.where(own, NAN, 2))
    np.testing.assert_array_equal(p, np.where(own[:, None], NAN, [[0.5, 0.5]]))


def test_equal_scores_that_do_not_fit_their_dtype():
    """CASES C10."""
    q, k, v = equal_scores(4, range(4))
    np.testing.assert_array_equal(standard_attention(q + np.float32(3e9), k + 1, v, scale=0.3).o, np.full((4, 1), 1.5))


def forward_and_backward(do, q, k, v):
    o, p = standard_attention(q, k, v, causal=True)
    return [o, p, *standard_attention_backward(do, q, k, v, p, causal=True)]


def test_runs_are_bitwise_equal(rng):
    """CASES A14, A16, C35."""
    n, d = (9, 4) if device.SIMULATED else (300, 32)
    q, k, v, do = inputs(rng, ((2, n, d), (1, n, d), (1, n, d)))
    first = forward_and_backward(do, q, k, v)
    for _ in range(1 if device.SIMULATED else 50):
        assert_same(forward_and_backward(do, q, k, v), first)


@simulator_only
def test_the_order_of_threads_does_not_matter(rng):
    """CASES A14: a missing barrier shows in some order."""
    q, k, v, do = inputs(rng, ((3, 18), (17, 18), (17, 2)))
    expected = forward_and_backward(do, q, k, v)
    for seed in range(2):
        with shuffled(seed):
            assert_same(forward_and_backward(do, q, k, v), expected)


@pytest.mark.filterwarnings("ignore::fa_numba.device.SlowSimulation")  # nothing is run
def test_many_heads_go_on_the_first_axis_of_the_grid(launches):
    """CASES A19: the others end at 65,535."""
    x = np.zeros((4, 2**14, 1, 1), np.float32)
    standard_attention(x, x, x)
    standard_attention_backward(x, x, x, x, x)
    assert [grid for grid, _ in launches] == [2**16] * 8


@gpu_only
def test_many_heads():
    """CASES A19."""
    zeros, v = np.zeros((65536, 1, 1), np.float32), np.arange(65536, dtype=np.float32).reshape(-1, 1, 1)
    o, p = standard_attention(zeros, zeros, v)
    np.testing.assert_array_equal(o, v)
    assert_same(standard_attention_backward(v, zeros, zeros, zeros, p), (zeros, zeros, v))


def test_it_holds_the_matrices_of_scores(rng):
    """That is its lesson: s and p in the forward, p, dp and ds in the backward."""
    do, q, k, v = random_problem(rng, (20, 4), (30, 4), 3, np.float32)
    matrix = 20 * 30 * 4
    with ledger() as memory:
        _, p = standard_attention(q, k, v)
    assert memory.at_peak["s"] == memory.at_peak["p"] == matrix
    with ledger() as memory:
        standard_attention_backward(do, q, k, v, p)
    assert memory.at_peak["p"] == memory.at_peak["dp"] == memory.at_peak["ds"] == matrix


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_against_the_reference(rng, rung, causal):
    q, k, v, _ = inputs(rng, ((2, 9, 8), (1, 18, 8), (1, 18, 4)))
    o, p = RUNGS[rung](q, k, v, causal=causal)
    truth = reference.attention(q, k, v, causal=causal)
    np.testing.assert_allclose(o, truth.o, atol=1e-6)
    np.testing.assert_allclose(p, truth.p, atol=1e-6)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("form", [(False, True, 1), (False, False, 1), (True, False, -1)], ids=str)
@pytest.mark.parametrize("offset", [EVERYTHING, 5, -7])
def test_products_of_large_matrices(rng, form, offset, aligned):
    """Ragged tiles, transposes, summed and shared heads; what the mask hides is NaN in b and never reaches c."""
    transpose_a, transpose_b, triangle = form
    rows, columns, depth = (36, 40, 44) if aligned else (35, 41, 43)
    terms = 2 if transpose_a else 1
    a, b = (
        rng.standard_normal((2, rows, depth)),
        rng.standard_normal((2 // terms if transpose_a else 1, depth, columns)),
    )
    i, k = np.ogrid[:rows, :depth]
    seen = k <= i + offset if triangle == 1 else k >= i - offset
    expected = 0.5 * np.where(seen, a, 0) @ b
    b[:, ~seen.any(axis=0)] = NAN
    if transpose_a:
        a, expected = a.swapaxes(1, 2), expected.sum(axis=0, keepdims=True)
    if transpose_b:
        b = b.swapaxes(1, 2)
    a, b = (np.ascontiguousarray(x, np.float32) for x in (a, b))
    c = np.full((2 // terms, rows, columns), NAN, np.float32)
    kernel = make_wide_matmul(*form, 32, 32, aligned)
    blocks = len(c) * 2 * 2
    device.launch(kernel, blocks, 16, a, b, c, np.float32(0.5), terms, 1, 2, offset, EVERYTHING)
    np.testing.assert_allclose(c, expected, atol=1e-5)
