"""Attention on whatever shapes hypothesis finds: against the reference, and what must hold of any softmax average."""

from dataclasses import dataclass

import numpy as np
from attention import (
    DTYPES,
    assert_accurate,
    assert_forward,
    assert_gradients,
    inputs,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fa_numba import flash_backward, flash_forward, reference, standard_attention, standard_attention_backward

TILE = {"block_q": 8, "block_k": 8}  # the fastest on the simulator; most shapes have ragged ones
few = settings(max_examples=6, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """A problem by its shapes, so that hypothesis prints something short."""

    leading: tuple
    leading_kv: tuple
    n_q: int
    n_k: int
    d: int
    d_v: int
    dtype: type
    options: dict
    seed: int

    def arrays(self):
        """Return q, k, v and do."""
        q, k = (*self.leading, self.n_q, self.d), (*self.leading_kv, self.n_k, self.d)
        return inputs(np.random.default_rng(self.seed), (q, k, (*k[:-1], self.d_v)), self.dtype)


@st.composite
def cases(draw, dtypes=DTYPES, causal=(False, True), rows=40, tiles=5):
    """Draw a problem: lengths up to 40, head dims up to 20, but together no more than takes a second."""
    axes = draw(st.integers(0, 2))
    batch = draw(st.integers(1, 2)) if axes == 2 else 1
    heads_kv, group = (draw(st.integers(1, 2)) if axes else 1 for _ in range(2))
    heads = batch * heads_kv * group
    n_q = draw(st.integers(1, max(1, rows // heads)))
    pairs = heads * -(-n_q // 8)
    n_k = draw(st.integers(1, 8 * max(1, tiles // pairs)))
    widest = draw(st.sampled_from([8, 20])) if pairs * n_k <= 16 else 8
    return Case(
        ((), (heads_kv * group,), (batch, heads_kv * group))[axes],
        ((), (heads_kv,), (batch, heads_kv))[axes],
        n_q,
        n_k,
        *(draw(st.integers(1, widest)) for _ in range(2)),
        draw(st.sampled_from(dtypes)),
        {"causal": draw(st.sampled_from(causal)), "scale": draw(st.sampled_from([None, 0, -0.4, 0.7]))},
        draw(st.integers(0, 2**32 - 1)),
    )


three_tiles = example(Case((2,), (1,), 4, 20, 6, 10, np.float64, {"causal": False, "scale": None}, seed=0))
more_keys = cases(dtypes=[np.float64], rows=8)
seen_by_all = cases(dtypes=[np.float64], causal=[False], rows=8)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cases())
@three_tiles
def test_flash_attention_of_any_shape(case):
    q, k, v, do = case.arrays()
    result = flash_forward(q, k, v, **case.options, **TILE)
    assert_forward(result, q, k, v, **case.options)
    truth = reference.attention(q, k, v, **case.options)
    assert_accurate(result.o, truth.o, reference.attention(q, k, v, **case.options, dtype=q.dtype).o, 2)
    gradients = flash_backward(do, q, k, v, *result, **case.options, **TILE)
    assert_gradients(gradients, q, k, v, do, **case.options)


@few
@given(cases(rows=4))
@three_tiles
def test_standard_attention_of_any_shape(case):
    q, k, v, do = case.arrays()
    result = standard_attention(q, k, v, **case.options)
    truth = reference.attention(q, k, v, **case.options)
    for x, true, plain in zip(result, truth[:2], reference.attention(q, k, v, **case.options, dtype=q.dtype)[:2]):
        assert_accurate(x, true, plain, 2)
    gradients = standard_attention_backward(do, q, k, v, result.p, **case.options)
    assert_gradients(gradients, q, k, v, do, **case.options)


@few
@given(more_keys)
@three_tiles
def test_the_same_added_to_all_keys_changes_m_only(case):
    """Each row's scores move by a constant, which softmax does not see; nor does dq, as the rows of ds sum to 0."""
    q, k, v, do = case.arrays()
    results = [flash_forward(q, keys, v, **case.options, **TILE) for keys in (k, k + 1.5)]
    for x, moved in zip((results[0].o, results[0].l), (results[1].o, results[1].l)):
        np.testing.assert_allclose(moved, x, rtol=1e-12, atol=1e-13)
    scale = case.d**-0.5 if case.options["scale"] is None else case.options["scale"]
    np.testing.assert_allclose(results[1].m, results[0].m + 1.5 * scale * q.sum(axis=-1), rtol=1e-12, atol=1e-13)
    gradients = [
        flash_backward(do, q, *kv, *r, **case.options, **TILE) for kv, r in zip(((k, v), (k + 1.5, v)), results)
    ]
    for x, moved in zip(*gradients):
        np.testing.assert_allclose(moved, x, rtol=1e-11, atol=1e-12)


@few
@given(seen_by_all)
@three_tiles
def test_the_order_of_the_keys_does_not_matter(case):
    q, k, v, do = case.arrays()
    order = np.random.default_rng(case.seed).permutation(case.n_k)
    results, gradients = [], []
    for keys, values in ((k, v), (k[..., order, :], v[..., order, :])):
        results.append(flash_forward(q, keys, values, **case.options, **TILE))
        gradients.append(flash_backward(do, q, keys, values, *results[-1], **case.options, **TILE))
    for x, permuted in zip(*results):
        np.testing.assert_allclose(permuted, x, rtol=1e-12, atol=1e-13)
    (dq, dk, dv), permuted = gradients
    for x, y in zip((dq, dk[..., order, :], dv[..., order, :]), permuted):
        np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-13)


@few
@given(more_keys)
@three_tiles
def test_rows_of_the_output_are_averages_of_values(case):
    """No linear function of them is outside its range over the values, and that of ones is one."""
    q, k, v, _ = case.arrays()
    v[..., 0] = 1
    o = flash_forward(q, k, v, **case.options, **TILE).o
    o = o[..., max(0, case.n_q - case.n_k) if case.options["causal"] else 0 :, :]  # rows that see a key
    np.testing.assert_allclose(o[..., 0], 1, rtol=1e-14)
    directions = np.random.default_rng(case.seed).standard_normal((case.d_v, 30))
    along_o, along_v = o @ directions, v @ directions
    if case.leading:
        along_v = np.repeat(along_v, case.leading[-1] // case.leading_kv[-1], axis=-3)
    assert (along_o <= along_v.max(axis=-2, keepdims=True) + 1e-13).all()
    assert (along_o >= along_v.min(axis=-2, keepdims=True) - 1e-13).all()


@few
@given(seen_by_all)
@three_tiles
def test_two_parts_of_the_keys_merge_to_the_whole(case):
    """l = sum of l_x exp(m_x - m) and o = sum of o_x l_x exp(m_x - m) / l, over the parts x; one may be empty."""
    q, k, v, _ = case.arrays()
    first = np.random.default_rng(case.seed).random(case.n_k) < 0.5
    parts = [flash_forward(q, k[..., x, :], v[..., x, :], **case.options, **TILE) for x in (first, ~first)]
    m = np.maximum(parts[0].m, parts[1].m)
    shares = [part.l * np.exp(part.m - m) for part in parts]
    l = sum(shares)
    o = sum(part.o * (share / l)[..., None] for part, share in zip(parts, shares))
    for x, whole in zip((o, m, l), flash_forward(q, k, v, **case.options, **TILE)):
        np.testing.assert_allclose(x, whole, rtol=1e-12, atol=1e-13)
