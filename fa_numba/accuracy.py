"""How far flash attention is from float64, beside float32 NumPy and the article that the series answers."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fa_numba import device, reference
from fa_numba.step4_flash_forward import flash_forward
from fa_numba.step5_flash_backward import flash_backward

# The article's errors, on a GPU, for one head of N queries and keys, d wide.
ARTICLE_SIZE = (256, 64)
ARTICLE = {"O": 9.69e-08, "dV": 3.58e-07, "dQ": 4.47e-08, "dK": 1.19e-07}
# Allowed is so many times the error of float32 NumPy, and a little.
FACTORS = {"O": 2, "dV": 3, "dQ": 3, "dK": 3}
SLACK = 1e-6
SIZE = (48, 16) if device.SIMULATED else ARTICLE_SIZE  # N and d of `fa-numba check`: seconds on the simulator


class Row(NamedTuple):
    """One result: its largest error, that of float32 NumPy, what is allowed, the article's, and what is wrong."""

    name: str
    error: float
    plain: float
    allowed: float
    article: float
    fault: str | None

    def __str__(self) -> str:
        """Return the row as a line of :func:`table`."""
        verdict = "PASSED" if self.fault is None else f"FAILED: {self.fault}"
        return (
            f"{self.name:<3}{self.error:>10.2e}{self.plain:>15.2e}{self.allowed:>10.2e}{self.article:>10.2e}  {verdict}"
        )


def rows(n: int, d: int) -> list[Row]:
    """Compare flash attention with float64, for float32 inputs uniform in [-1, 1] and do = 1; the same at every call.

    Parameters
    ----------
    n, d : int
        Queries and keys of the one head, and their width.

    Returns
    -------
    list of Row
        For O, dV, dQ and dK.
    """
    q, k, v = np.random.default_rng(0).uniform(-1, 1, (3, n, d)).astype(np.float32)
    do = np.ones_like(v)
    o, m, l = flash_forward(q, k, v)
    dq, dk, dv = flash_backward(do, q, k, v, o, m, l)
    results = {"O": o, "dV": dv, "dQ": dq, "dK": dk}
    truths, plains = (_in_numpy(do, q, k, v, dtype) for dtype in (np.float64, np.float32))
    return [_row(name, results[name], truths[name], plains[name]) for name in ARTICLE]


def table(compared: Iterable[Row]) -> str:
    """Return rows as text, with a heading."""
    return "\n".join(["     fa_numba  float32 NumPy   allowed   article", *map(str, compared)])


def _in_numpy(do: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: DTypeLike) -> dict[str, np.ndarray]:
    dq, dk, dv = reference.attention_backward(do, q, k, v, dtype=dtype)
    return {"O": reference.attention(q, k, v, dtype=dtype).o, "dV": dv, "dQ": dq, "dK": dk}


def _row(name: str, result: np.ndarray, truth: np.ndarray, plain: np.ndarray) -> Row:
    plain_error = float(np.abs(plain - truth).max())
    allowed = FACTORS[name] * plain_error + SLACK
    if result.shape != truth.shape:
        return Row(name, np.nan, plain_error, allowed, ARTICLE[name], f"shape {result.shape}, not {truth.shape}")
    error = float(np.abs(result - truth).max())
    fault = None if error <= allowed else "above what is allowed"
    if not np.isfinite(result).all():
        fault = "NaN or infinite elements"
    return Row(name, error, plain_error, allowed, ARTICLE[name], fault)
