"""What attention is asked to compute: shapes, causal and scale, and what is wrong with them, by message."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from fa_numba.problem import Problem, check, check_like


def posed(q=(3, 4), k=(5, 4), v=(5, 2), causal=False, scale=None):
    return check({"q": q, "k": k, "v": v}, causal, scale)


def test_a_problem():
    problem = posed((2, 6, 3, 4), (2, 3, 5, 4), (2, 3, 5, 7), causal=np.True_)
    assert problem == Problem((2, 6), (2, 3), n_q=3, n_k=5, d=4, d_v=7, causal=True, scale=0.5)
    assert type(problem.causal) is bool
    assert (problem.heads, problem.heads_kv, problem.group) == (12, 6, 2)
    assert problem.shape_o == (2, 6, 3, 7)
    assert problem.shape_rows == (2, 6, 3)


@pytest.mark.parametrize(("leading", "heads"), [((), 1), ((3,), 3), ((2, 3), 6), ((0,), 0), ((0, 3), 0), ((2, 0), 0)])
def test_batch_and_heads_are_counted_together(leading, heads):
    problem = posed(*((*leading, 5, 4) for _ in range(3)))
    assert (problem.heads, problem.heads_kv, problem.group) == (heads, heads, 1)


def test_arrays_by_head():
    problem = posed((2, 6, 3, 4), (2, 3, 5, 4), (2, 3, 5, 7))
    shapes = {"q": (12, 3, 4), "do": (12, 3, 7), "dk": (6, 5, 4), "v": (6, 5, 7), "m": (12, 3), "delta": (12, 3)}
    for name, shape in shapes.items():
        leading = (2, 3) if shape[0] == 6 else (2, 6)
        x = np.arange(math.prod(shape)).reshape(*leading, *shape[1:])
        np.testing.assert_array_equal(problem.by_head(name, x), x.reshape(shape))


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((4,), (4,), (4,), "q, k and v must be (length, dim), (heads, length, dim) or"),
        ((), (), (), "q, k and v must be (length, dim)"),
        ((1,) * 5, (1,) * 5, (1,) * 5, "q, k and v must be (length, dim)"),
        ((1, 3, 4), (5, 4), (5, 2), "(batch, heads, length, dim), all alike"),
        ((3, 4), (5, 4), (1, 5, 2), "all alike"),
        ((3, 4), (5, 4), (6, 2), "k and v must agree in all but their last axis"),
        ((4, 3, 4), (2, 5, 4), (4, 5, 2), "k and v must agree in all but their last axis"),
        ((3, 4), (5, 3), (5, 4), "q and k must have the same head dim"),
        ((3, 0), (5, 0), (5, 4), "the head dim of q and k must be from 1 to 256, not 0"),
        ((3, 257), (5, 257), (5, 4), "the head dim of q and k must be from 1 to 256, not 257"),
        ((3, 4), (5, 4), (5, 0), "the head dim of v must be from 1 to 256, not 0"),
        ((3, 4), (5, 4), (5, 257), "the head dim of v must be from 1 to 256, not 257"),
        ((2, 4, 3, 4), (1, 4, 5, 4), (1, 4, 5, 2), "q, k and v must have the same batch"),
        ((4, 3, 4), (3, 5, 4), (3, 5, 2), "the heads of k and v must divide those of q"),
        ((2, 3, 4), (4, 5, 4), (4, 5, 2), "the heads of k and v must divide those of q"),
        ((1, 4, 3, 4), (1, 0, 5, 4), (1, 0, 5, 2), "the heads of k and v must divide those of q"),
    ],
    ids=str,
)
def test_wrong_shapes(q, k, v, message):
    """The message ends with all three."""
    with pytest.raises(ValueError) as raised:
        posed(q, k, v)
    assert message in str(raised.value)
    assert str(raised.value).endswith(f"; q has shape {q}, k {k}, v {v}")


def test_the_widest_head():
    problem = posed((3, 256), (5, 256), (5, 256))
    assert (problem.d, problem.d_v, problem.scale) == (256, 256, 1 / 16)


@pytest.mark.parametrize("causal", [0, 1, None, "yes", np.int64(1), np.array([True])], ids=repr)
def test_causal_is_true_or_false(causal):
    with pytest.raises(TypeError, match=r"causal is .*; it must be True or False"):
        posed(causal=causal)


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        (None, 0.5),
        (0, 0.0),
        (-2, -2.0),
        (np.float32(0.25), 0.25),
        (np.float16(0.25), 0.25),
        (np.int64(3), 3.0),
        (np.array(0.75), 0.75),
        (Fraction(1, 4), 0.25),
        (1e300, 1e300),
    ],
    ids=repr,
)
def test_scales(scale, value):
    problem = posed(scale=scale)
    assert type(problem.scale) is float
    assert problem.scale == value


def test_the_scale_of_a_head_dim():
    """CASES A9."""
    assert posed((1, 3), (2, 3), (2, 1)).scale == 1 / math.sqrt(3)


@pytest.mark.parametrize(
    "scale", [True, np.True_, np.array(False), 1j, np.complex64(1), "1", [1.0], np.ones(1), Decimal(1)], ids=repr
)
def test_a_scale_is_a_real_number(scale):
    with pytest.raises(TypeError, match=r"scale is .*; it must be a real number or None"):
        posed(scale=scale)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, np.float32(math.nan), np.array(math.inf)], ids=repr)
def test_a_scale_is_finite(scale):
    with pytest.raises(ValueError, match=r"scale is -?(nan|inf); it must be finite"):
        posed(scale=scale)


def test_a_whole_scale_that_no_float_can_hold():
    with pytest.raises(ValueError, match="scale"):
        posed(scale=10**400)


def test_shapes_that_go_with_the_others():
    check_like("do", (3, 2), posed().shape_o)
    with pytest.raises(ValueError, match=r"m has shape \(3, 1\); with these q, k and v it must be \(3,\)"):
        check_like("m", (3, 1), posed().shape_rows)
