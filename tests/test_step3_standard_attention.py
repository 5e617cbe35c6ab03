"""Step 3: standard attention and its backward against float64: masks, groups of heads, and what a mask must hide."""

import numpy as np
import pytest

from fa_numba import reference, standard_attention, standard_attention_backward
from fa_numba.device import ledger

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


@pytest.mark.parametrize(("n_q", "n_k"), [(3, 0), (0, 3), (0, 0)])
def test_empty_lengths(n_q, n_k):
    """CASES A7, C8."""
    q, k, v, do = np.ones((n_q, 4)), np.ones((n_k, 4)), np.ones((n_k, 2)), np.ones((n_q, 2))
    o, p = standard_attention(q, k, v)
    assert (o == 0).all() and o.shape == (n_q, 2) and p.shape == (n_q, n_k)
    for gradient, like in zip(standard_attention_backward(do, q, k, v, p), (q, k, v)):
        np.testing.assert_array_equal(gradient, np.zeros_like(like))


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


def test_bad_inputs():
    x = np.ones((3, 4))
    with pytest.raises(ValueError, match=r"p has shape \(3, 4\); with these q, k and v it must be \(3, 3\)"):
        standard_attention_backward(x, x, x, x, x)
    with pytest.raises(ValueError, match="q and k must have the same head dim"):
        standard_attention(x, x[:, :3], x)
    with pytest.raises(TypeError, match="scale is True"):
        standard_attention(x, x, x, scale=True)
