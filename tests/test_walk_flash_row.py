"""A flash row, tile by tile: the recurrence ends where attention does, and every step follows from the one before."""

import math

import numpy as np
import pytest
from attention import DTYPES
from numba import cuda

from fa_numba import flash_forward, reference
from fa_numba.walk import flash_row

INF = math.inf


def head(rng, n_q=5, n_k=23, d=6, d_v=3, dtype=np.float32):
    return [rng.standard_normal(shape).astype(dtype) for shape in ((n_q, d), (n_k, d), (n_k, d_v))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_q", "n_k"), [(5, 23), (9, 9), (23, 5), (1, 16)])
def test_the_last_step_is_attention(rng, n_q, n_k, causal, dtype):
    q, k, v = head(rng, n_q, n_k, dtype=dtype)
    truth = reference.attention(q, k, v, causal=causal)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for row in {0, n_q // 2, n_q - 1}:
        last = flash_row(q, k, v, row=row, block_k=8, causal=causal)[-1]
        assert last.acc.dtype == last.m.dtype == last.l.dtype == dtype
        np.testing.assert_allclose(last.m, truth.m[row], **close)
        np.testing.assert_allclose(last.l, truth.l[row], **close)
        if last.l > 0:
            np.testing.assert_allclose(last.acc / last.l, truth.o[row], **close)
        else:  # the row sees nothing
            assert causal and row + n_k - n_q < 0
            assert (truth.o[row] == last.acc).all()


def test_every_step_is_the_softmax_of_the_keys_so_far(rng):
    q, k, v = head(rng, dtype=np.float64)
    steps = flash_row(q, k, v, row=2, block_k=8, scale=0.5)
    assert [step.s.size for step in steps] == [step.p.size for step in steps] == [8, 8, 7]
    before = -INF
    for t, step in enumerate(steps):
        so_far = slice(8 * (t + 1))
        truth = reference.attention(q[2:3], k[so_far], v[so_far], scale=0.5)
        np.testing.assert_allclose(step.s, 0.5 * k[8 * t : 8 * t + 8] @ q[2], rtol=1e-12)
        np.testing.assert_allclose(step.p, np.exp(step.s - step.m), rtol=1e-12)
        np.testing.assert_allclose(step.alpha, np.exp(before - step.m), rtol=1e-12)
        np.testing.assert_allclose((step.m, step.l), (truth.m[0], truth.l[0]), rtol=1e-12)
        np.testing.assert_allclose(step.acc / step.l, truth.o[0], rtol=1e-12)
        before = step.m


def test_it_is_what_the_kernel_computes(rng):
    q, k, v = head(rng, n_q=16, n_k=32, d=16, d_v=16)
    o, m, l = flash_forward(q, k, v, block_q=16, block_k=16)
    last = flash_row(q, k, v, row=7)[-1]
    np.testing.assert_allclose(last.m, m[7], rtol=1e-6)
    np.testing.assert_allclose(last.l, l[7], rtol=1e-5)
    np.testing.assert_allclose(last.acc / last.l, o[7], atol=1e-6)


def test_tiles_that_a_causal_row_does_not_see_change_nothing(rng):
    q, k, v = head(rng, n_q=24, n_k=24)
    k[12:], v[12:] = np.nan, np.nan
    steps = flash_row(q, k, v, row=11, block_k=8, causal=True)
    assert np.isfinite(steps[1].acc).all()
    np.testing.assert_array_equal(steps[1].s[4:], -INF)
    np.testing.assert_array_equal(steps[2].s, -INF)
    np.testing.assert_array_equal(steps[2].p, 0)
    assert (steps[2].m, steps[2].alpha, steps[2].l) == (steps[1].m, 1, steps[1].l)
    np.testing.assert_array_equal(steps[2].acc, steps[1].acc)


def test_a_row_that_sees_nothing_keeps_its_empty_state(rng):
    q, k, v = head(rng, n_q=9, n_k=4)
    steps = flash_row(q, k, v, row=0, block_k=2, causal=True)
    assert [(step.m, step.alpha, step.l) for step in steps] == [(-INF, 0, 0)] * 2
    assert not any(step.acc.any() for step in steps)


def test_the_kernel_s_inputs_may_lie_anywhere(rng):
    q, k, v = head(rng)
    expected = flash_row(q, k, v, row=1)[-1]
    on_device = flash_row(*(cuda.to_device(x) for x in (q, k, v)), row=1)[-1]
    strided = flash_row(np.asfortranarray(q), k[::-1].copy()[::-1], v, row=1)[-1]
    for result in (on_device, strided):
        np.testing.assert_array_equal(result.acc, expected.acc)
    assert flash_row(q, k[:0], v[:0]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": 5}, r"row=5 must be from 0 to 4"),
        ({"row": -1}, r"row=-1 must be"),
        ({"block_k": 0}, "block_k=0 at least 1"),
    ],
)
def test_bad_arguments(rng, change, message):
    q, k, v = head(rng)
    with pytest.raises(ValueError, match=message):
        flash_row(q, k, v, **change)
    with pytest.raises(ValueError, match=r"one head, \(length, dim\); q has shape \(1, 5, 6\)"):
        flash_row(q[None], k[None], v[None])
