"""The walks return what the kernels compute on the way."""

import numpy as np
import pytest
from softmax_cases import DTYPES, HARD_ROWS

from fa_numba import online_softmax, reference, walk


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "width"), [(1, 4), (4, 4), (10, 4), (7, 1), (5, 8)])
def test_each_step_of_a_softmax_is_the_pair_of_what_was_seen(rng, n, width, dtype):
    x = (3 * rng.standard_normal(n)).astype(dtype)
    rounding = 2e-6 if dtype == np.float32 else 1e-14
    steps = walk.online_softmax(x, width)
    np.testing.assert_array_equal(np.concatenate([step.values for step in steps]), x)
    seen, before = 0, -np.inf
    for step in steps:
        assert 1 <= len(step.values) <= width
        seen += len(step.values)
        part = x[:seen].astype(np.float64)
        assert step.m == part.max()
        np.testing.assert_allclose(step.alpha, np.exp(before - part.max()), rtol=rounding)
        np.testing.assert_allclose(step.l, np.exp(part - part.max()).sum(), rtol=rounding)
        assert step.l.dtype == dtype
        before = part.max()


@pytest.mark.parametrize("row", HARD_ROWS, ids=str)
def test_the_last_step_gives_the_softmax_of_hard_rows(row):
    x = np.array(row, np.float64)
    last = walk.online_softmax(x, width=1)[-1]
    if np.isfinite(x).any() and not (np.isnan(x) | (x == np.inf)).any():
        np.testing.assert_allclose(np.exp(x - last.m) / last.l, reference.softmax(x), rtol=1e-14)
    elif (x == -np.inf).all():
        assert (last.m, last.l) == (-np.inf, 0)
    else:
        assert np.isnan(last.l)


def test_the_steps_end_at_what_the_kernel_writes(rng):
    x = rng.standard_normal(30).astype(np.float32)
    last = walk.online_softmax(x)[-1]
    np.testing.assert_allclose(np.exp(x - last.m) / last.l, online_softmax(x), rtol=2e-6)


def test_a_row_without_elements_has_no_steps():
    assert walk.online_softmax(np.zeros(0, np.float32)) == []


def test_views_are_taken_and_not_changed(rng):
    x = rng.standard_normal(20).astype(np.float32)
    before = x.copy()
    steps = walk.online_softmax(x[::-2])
    assert steps[-1].m == x[::-2].max()
    np.testing.assert_array_equal(x, before)


def test_bad_inputs():
    with pytest.raises(TypeError, match="x has dtype int64; taken: float32 or float64"):
        walk.online_softmax(np.arange(4))
    with pytest.raises(ValueError, match=r"not shape \(2, 2\) and width 4"):
        walk.online_softmax(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="width 0"):
        walk.online_softmax(np.zeros(4), width=0)
