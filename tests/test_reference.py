"""The reference against values computed by hand and by other means."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fa_numba import reference

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([1000.0, 1001.0], [1 / (1 + math.e), math.e / (1 + math.e)]),
        ([0.0, math.log(3.0)], [0.25, 0.75]),
        ([-INF, 0.0, -INF], [0.0, 1.0, 0.0]),
        ([-INF, -INF], [0.0, 0.0]),
        ([INF, 0.0], [NAN, NAN]),
        ([NAN, 0.0], [NAN, NAN]),
        ([NAN, -INF], [NAN, NAN]),
        ([-1e7, -1e7 + 1, -1e7 + 2], [0.09003057317038046, 0.24472847105479767, 0.6652409557748219]),
    ],
)
def test_softmax_of_a_row(x, expected):
    np.testing.assert_allclose(reference.softmax(np.array(x)), expected, rtol=1e-15, atol=0)


def test_softmax_against_exact_arithmetic():
    """Weights of whole powers of two are exact fractions."""
    exponents = [0, 1, 5, 3, 2]
    total = sum(2**e for e in exponents)
    expected = [float(Fraction(2**e, total)) for e in exponents]
    np.testing.assert_allclose(reference.softmax(np.array(exponents) * math.log(2.0)), expected, rtol=1e-15)


def test_softmax_runs_over_the_last_axis_in_float64(rng):
    x = rng.standard_normal((2, 3, 5)).astype(np.float32)
    y = reference.softmax(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=1e-15)
    np.testing.assert_array_equal(y[1, 2], reference.softmax(x[1, 2]))
    assert reference.softmax(np.ones((3, 0))).shape == (3, 0)


# -- attention ------------------------------------------------------------------------------------------------------


def column(*values):
    return np.array(values, float)[:, None]


def row_by_row(q, k, v, causal, scale):
    """Return o and lse by the definition, one score at a time, for single heads."""
    n_q, n_k = len(q), len(k)
    o, lse = np.zeros((n_q, v.shape[1])), np.full(n_q, -INF)
    for i in range(n_q):
        seen = [j for j in range(n_k) if not causal or j <= i + n_k - n_q]
        weights = [math.exp(scale * math.fsum(q[i] * k[j])) for j in seen]
        if seen:
            o[i] = sum(w * v[j] for w, j in zip(weights, seen)) / math.fsum(weights)
            lse[i] = math.log(math.fsum(weights))
    return o, lse


@pytest.mark.parametrize("scale", [None, -0.6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_q", "n_k"), [(5, 5), (3, 6), (6, 3)])
def test_attention_against_its_definition(rng, n_q, n_k, causal, scale):
    """Batch, and two query heads a key head: head h reads key head h // 2."""
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 4, n_q, 4), (2, 2, n_k, 4), (2, 2, n_k, 3)))
    result = reference.attention(q, k, v, causal=causal, scale=scale)
    assert result.p.shape == (2, 4, n_q, n_k)
    for b, h in np.ndindex(2, 4):
        o, lse = row_by_row(q[b, h], k[b, h // 2], v[b, h // 2], causal, 0.5 if scale is None else scale)
        np.testing.assert_allclose(result.o[b, h], o, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(result.lse[b, h], lse, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(result.p[b, h] @ v[b, h // 2], o, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("n_q", "n_k", "causal", "o"),
    [
        (3, 7, True, [2, 2.5, 3]),  # A4
        (2, 2, True, [0, 0.5]),  # C13
        (2, 2, False, [0.5, 0.5]),
        (1, 8, True, [3.5]),  # C15
        (4, 2, True, [0, 0, 0, 0.5]),  # A3
        (3, 0, True, [0, 0, 0]),  # A7
        (3, 0, False, [0, 0, 0]),
    ],
)
def test_which_keys_are_seen(n_q, n_k, causal, o):
    """With equal scores the output is the mean of the visible v_j = j."""
    result = reference.attention(np.zeros((n_q, 1)), np.zeros((n_k, 1)), column(*range(n_k)), causal=causal)
    np.testing.assert_allclose(result.o[:, 0], o, rtol=1e-15)
    assert result.o.dtype == np.float64


def test_attention_of_the_cases():
    """CASES A3, A6, A8, A9, C10."""
    result = reference.attention(np.ones((4, 1)), np.zeros((2, 1)), column(10, 20), causal=True, scale=1)
    np.testing.assert_array_equal(result.o[:, 0], [0, 0, 10, 15])
    np.testing.assert_array_equal(result.m, [-INF, -INF, 0, 0])
    np.testing.assert_array_equal(result.l, [0, 0, 1, 2])
    np.testing.assert_array_equal(result.lse, [-INF, -INF, 0, math.log(2)])
    assert reference.attention(np.full((1, 16), 3), np.full((1, 16), 3), np.ones((1, 1))).lse == 36
    two = reference.attention(column(2), column(1, 0), column(1, 0), scale=1)
    np.testing.assert_allclose([two.o[0, 0], two.lse[0]], [0.880797, 2.126928], rtol=1e-6)
    three = reference.attention([[math.sqrt(3), 0, 0]], [[1, 0, 0], [0, 0, 0]], column(1, 0))
    np.testing.assert_allclose(three.o, [[0.731059]], rtol=1e-6)
    ties = reference.attention(np.full((4, 1), 3e9), np.ones((4, 1)), column(0, 1, 2, 3), scale=0.3)
    np.testing.assert_array_equal(ties.o, np.full((4, 1), 1.5))


def test_nan_stays_in_the_rows_that_see_it():
    """CASES A22, C1; hidden by the mask it reaches no row."""
    result = reference.attention(column(0, NAN), np.ones((2, 1)), column(1, 3))
    np.testing.assert_array_equal(result.o[:, 0], [2, NAN])
    np.testing.assert_allclose(result.lse, [math.log(2), NAN], rtol=1e-15)
    assert np.isnan(reference.attention(column(1), column(INF, 0), column(1, 1)).lse).all()
    q, k = np.zeros((3, 1)), column(0, 0, NAN)
    for v in (column(1, 3, NAN), column(1, 3, INF)):
        np.testing.assert_array_equal(reference.attention(q, k, v, causal=True).o[:, 0], [1, 2, NAN])


def test_backward_of_the_cases():
    """CASES A3, A6, A10, A13."""
    ones = np.ones((4, 1))
    dq, dk, dv = reference.attention_backward(ones, ones, np.zeros((2, 1)), column(10, 20), causal=True, scale=1)
    np.testing.assert_array_equal(dq, np.zeros((4, 1)))
    np.testing.assert_array_equal(dk[:, 0], [-2.5, 2.5])
    np.testing.assert_array_equal(dv[:, 0], [1.5, 0.5])
    dq, dk, dv = reference.attention_backward(column(1), column(3), column(3), column(5))
    np.testing.assert_array_equal([dq, dk, dv], np.reshape([0, 0, 1], (3, 1, 1)))
    dq, dk, dv = reference.attention_backward(column(1, 1), column(1, 2), column(0, 1), column(0, 1), scale=0.5)
    np.testing.assert_allclose(dq[:, 0], [0.117502, 0.098306], atol=1e-6)
    np.testing.assert_allclose(dk[:, 0], [-0.314114, 0.314114], atol=1e-6)
    np.testing.assert_allclose(dv[:, 0], [0.646482, 1.353518], atol=1e-6)
    do = np.broadcast_to(np.arange(1.0, 5)[:, None, None], (4, 3, 1))
    _, _, dv = reference.attention_backward(do, np.zeros((4, 3, 1)), np.zeros((2, 3, 1)), np.zeros((2, 3, 1)))
    np.testing.assert_allclose(dv[:, :, 0], [[3] * 3, [7] * 3], rtol=1e-15)


@pytest.mark.parametrize(
    ("shapes", "causal", "scale"),
    [
        (((4, 3), (4, 3), (4, 2)), False, None),
        (((3, 2), (5, 2), (5, 3)), True, -0.7),
        (((5, 2), (3, 2), (3, 1)), True, 1.5),
        (((2, 4, 3, 2), (2, 2, 4, 2), (2, 2, 4, 2)), True, None),
    ],
    ids=str,
)
def test_backward_against_finite_differences(rng, shapes, causal, scale):
    """Every element of q, k and v is moved, for the loss sum(do o)."""
    x = [rng.standard_normal(shape) for shape in shapes]
    do = rng.standard_normal((*shapes[0][:-1], shapes[2][-1]))
    for array, gradient in zip(x, reference.attention_backward(do, *x, causal=causal, scale=scale)):
        assert gradient.shape == array.shape
        for index in np.ndindex(array.shape):
            value, losses = array[index], []
            for array[index] in (value + 1e-5, value - 1e-5):
                losses.append((do * reference.attention(*x, causal=causal, scale=scale).o).sum())
            array[index] = value
            np.testing.assert_allclose(gradient[index], (losses[0] - losses[1]) / 2e-5, rtol=1e-6, atol=1e-8)


def test_backward_keeps_nan_to_what_sees_it(rng):
    """A NaN in the last key and value: dq of the last row only, and every key that this row sees."""
    q, k, v, do = (rng.standard_normal((4, 2)) for _ in range(4))
    clean = reference.attention_backward(do[:3], q[:3], k[:3], v[:3], causal=True)
    k[3] = v[3] = NAN
    dq, dk, dv = reference.attention_backward(do, q, k, v, causal=True)
    np.testing.assert_allclose(dq[:3], clean[0], rtol=1e-14)
    assert all(np.isnan(x).all() for x in (dq[3], dk, dv))
    k[3] = v[3] = 1
    q[0] = do[0] = NAN
    dq, dk, dv = reference.attention_backward(do, q, k, v, causal=True)
    assert np.isnan(dq[0]).all()
    assert np.isfinite([dq[1:], dk[1:], dv[1:]]).all()
    assert np.isnan([dk[0], dv[0]]).all()


def test_attention_in_float32_is_float32_in_every_step(rng):
    """Its error is of float32's size: not 0, as if it were float64 rounded at the end."""
    do, q, k, v = rng.standard_normal((4, 2, 9, 4)).astype(np.float32)
    options = {"causal": True, "scale": np.float64(0.3)}
    forward, truth = (reference.attention(q, k, v, **options, dtype=dtype) for dtype in (np.float32, np.float64))
    plain, gradients = (
        reference.attention_backward(do, q, k, v, **options, dtype=dtype) for dtype in (np.float32, np.float64)
    )
    for x, true in zip((*forward, *plain), (*truth, *gradients)):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, true, rtol=1e-5, atol=1e-5)
    assert (forward.o != truth.o.astype(np.float32)).any()
    assert all((x != true.astype(np.float32)).any() for x, true in zip(plain, gradients))


@pytest.mark.parametrize(("n_q", "n_k", "heads"), [(3, 0, 4), (0, 0, 4), (3, 2, 0)])
def test_gradients_of_nothing_with_shared_key_heads(n_q, n_k, heads):
    q, k = np.ones((heads, n_q, 5)), np.ones((heads // 2, n_k, 5))
    dq, dk, dv = reference.attention_backward(np.ones_like(q), q, k, k)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, k.shape)
    assert not dq[:, :, :].any() or n_k


# -- against PyTorch in float64 -------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def by_pytorch(torch, q, k, v, do, *, causal, scale):
    """Return o, dq, dk and dv of PyTorch, whose own causal mask is ours if n_q = n_k, but NaN for scales up to 0."""
    q, k, v = (torch.tensor(x, requires_grad=True) for x in (q, k, v))
    n_q, n_k = q.shape[-2], k.shape[-2]
    if n_q == n_k and scale is None:
        mask = {"is_causal": causal}
    else:
        mask = {"attn_mask": torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q) if causal else None}
    grouped = {"enable_gqa": True} if q.ndim > 2 and q.shape[-3] != k.shape[-3] else {}
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, **mask, **grouped)
    gradients = torch.autograd.grad(o, (q, k, v), torch.tensor(do))
    return [x.detach().numpy() for x in (o, *gradients)]


@pytest.mark.parametrize("shape", [(1,), (9,), (3, 7), (2, 3, 5)], ids=str)
def test_softmax_is_pytorch_s(torch, rng, shape):
    x = 3 * rng.standard_normal(shape)
    np.testing.assert_allclose(reference.softmax(x), torch.softmax(torch.tensor(x), -1).numpy(), rtol=1e-13)


@pytest.mark.parametrize("scale", [None, 0.0, -0.7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shapes",
    [
        ((9, 4), (9, 4), (9, 4)),
        ((5, 4), (9, 4), (9, 3)),
        ((2, 6, 3), (2, 6, 3), (2, 6, 5)),
        ((2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
        ((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 2)),
        ((2, 4, 3, 5), (2, 1, 8, 5), (2, 1, 8, 4)),
    ],
    ids=str,
)
def test_attention_and_its_gradients_are_pytorch_s(torch, rng, shapes, causal, scale):
    q, k, v, do = (rng.standard_normal(shape) for shape in (*shapes, (*shapes[0][:-1], shapes[2][-1])))
    ours = reference.attention(q, k, v, causal=causal, scale=scale).o
    gradients = reference.attention_backward(do, q, k, v, causal=causal, scale=scale)
    theirs = by_pytorch(torch, q, k, v, do, causal=causal, scale=scale)
    for mine, right in zip((ours, *gradients), theirs):
        np.testing.assert_allclose(mine, right, rtol=1e-12, atol=1e-13)


def test_lse_is_pytorch_s(torch, rng):
    q, k, v = (rng.standard_normal((6, 4)) for _ in range(3))
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    s = (torch.tensor(q @ k.T) / 2).masked_fill(hidden, -INF)
    lse = reference.attention(q, k, v, causal=True).lse
    np.testing.assert_allclose(lse, torch.logsumexp(s, -1).numpy(), rtol=1e-13)


def test_rows_that_see_nothing_change_no_gradient_of_pytorch(torch, rng):
    """Where there are more queries than keys, PyTorch gets those that see a key."""
    q, k, v, do = (rng.standard_normal(shape) for shape in ((7, 3), (4, 3), (4, 2), (7, 2)))
    o, dq, dk, dv = by_pytorch(torch, q[3:], k, v, do[3:], causal=True, scale=None)
    ours = reference.attention(q, k, v, causal=True).o
    gradients = reference.attention_backward(do, q, k, v, causal=True)
    unseen = np.zeros((3, 3))
    for mine, right in zip((ours, *gradients), (np.vstack([unseen[:, :2], o]), np.vstack([unseen, dq]), dk, dv)):
        np.testing.assert_allclose(mine, right, rtol=1e-12, atol=1e-13)
