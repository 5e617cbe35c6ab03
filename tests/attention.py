"""What the tests of the attention steps share: problems, layouts, and how near the truth is near enough."""

import numpy as np
from numba import cuda

from fa_numba import reference

DTYPES = [np.float32, np.float64]
TILE = {"block_q": 16, "block_k": 16}
TILES = [(8, 8), (8, 32), (16, 32), (32, 16), (16, 64), (64, 16), (64, 64)]
BAD_BLOCKS = [4, 24, 128, 0, -16, True, "16", 16.5]

# Shapes of q, k and v.
FORMS = {
    "n = 1": ((1, 4), (1, 4), (1, 4)),
    "n_q = 1": ((1, 8), (37, 8), (37, 8)),
    "n_k = 1": ((18, 4), (1, 4), (1, 4)),
    "one tile": ((16, 16), (16, 16), (16, 16)),
    "tile + 1, d < d_v": ((17, 5), (17, 5), (17, 18)),
    "more keys, d > d_v": ((9, 20), (35, 20), (35, 3)),
    "more queries": ((35, 4), (9, 4), (9, 4)),
    "heads": ((3, 6, 4), (3, 5, 4), (3, 5, 4)),
    "batch and heads": ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 1)),
    "two query heads a key head": ((2, 17, 4), (1, 18, 4), (1, 18, 4)),
    "all query heads one key head": ((2, 3, 5, 1), (2, 1, 6, 1), (2, 1, 6, 2)),
}

GROUPED = ((4, 2, 4), (2, 3, 4), (2, 3, 5))

EMPTY = [
    ((3, 4), (0, 4), (0, 2)),
    ((0, 4), (3, 4), (3, 2)),
    ((0, 4), (0, 4), (0, 2)),
    ((0, 3, 4), (0, 3, 4), (0, 3, 2)),
    ((0, 2, 3, 4), (0, 1, 3, 4), (0, 1, 3, 2)),
    ((2, 2, 3, 4), (2, 1, 0, 4), (2, 1, 0, 2)),
]

# The same values in another layout.
LAYOUTS = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "Fortran order": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
    "every second column": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed rows": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "reversed heads and columns": lambda x: np.flip(np.flip(x, (0, -1)).copy(), (0, -1)),
}

DEVICE_VIEWS = {
    "Fortran order": lambda x: cuda.to_device(np.asfortranarray(x)),
    "sliced": lambda x: cuda.to_device(np.repeat(x, 2, axis=1))[:, ::2],
    "reversed": lambda x: cuda.to_device(x[::-1].copy())[::-1],
    "contiguous": cuda.to_device,
}


def inputs(rng, shapes, dtype=np.float32):
    """Return q, k, v and do, normally distributed."""
    q, k, v = shapes
    return [rng.standard_normal(shape).astype(dtype) for shape in (q, k, v, (*q[:-1], v[-1]))]


def equal_scores(n_q, v, dtype=np.float32):
    """Return q and k of zeros, so that all visible scores tie, and v as a column."""
    v = np.array(v, dtype).reshape(-1, 1)
    return np.zeros((n_q, 1), dtype), np.zeros_like(v), v


def hard_scores(rng, dtype=np.float32):
    """Return q, k, v and do of whole numbers with scores of up to 1e4, all exact in float32, at scale 1."""
    q, k = rng.integers(-50, 51, (2, 2, 18, 4)).astype(dtype)
    k[:, 1::2] = k[:, ::2]  # equal in pairs: half the weight for each, and gradients that are not 0
    return q, k, *rng.standard_normal((2, 2, 18, 3)).astype(dtype)


def assert_accurate(result, truth, plain, factor):
    """Hold the largest error to a multiple of that of the plain computation (DESIGN, section 4)."""
    assert result.shape == truth.shape == plain.shape
    slack = 1e-6 if result.dtype == np.float32 else 1e-13
    error, plain_error = (np.abs(x - truth).max(initial=0) for x in (result, plain))
    assert error <= factor * plain_error + slack


def assert_forward(result, q, k, v, causal=False, scale=None):
    """Hold o, m, l and lse of flash attention to the reference."""
    truth = reference.attention(q, k, v, causal=causal, scale=scale)
    rtol = 1e-5 if q.dtype == np.float32 else 1e-12
    for name in ("o", "m", "l", "lse"):
        x = getattr(result, name)
        assert x.dtype == q.dtype
        np.testing.assert_allclose(x, getattr(truth, name), rtol=rtol, atol=rtol, err_msg=name)


def assert_gradients(result, q, k, v, do, causal=False, scale=None):
    """Hold dq, dk and dv to the reference, as closely as the accuracy that DESIGN asks for."""
    truth = reference.attention_backward(do, q, k, v, causal=causal, scale=scale)
    plain = reference.attention_backward(do, q, k, v, causal=causal, scale=scale, dtype=q.dtype)
    for x, like, true, simple in zip(result, (q, k, v), truth, plain):
        assert x.dtype == like.dtype
        assert x.shape == like.shape
        assert_accurate(x, true, simple, 3)


def assert_same(result, expected):
    """Hold arrays to equality, bit for bit but for the kind of NaN."""
    assert len(result) == len(expected)
    for x, y in zip(result, expected):
        np.testing.assert_array_equal(x, y)
