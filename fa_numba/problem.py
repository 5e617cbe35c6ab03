"""What an attention call is asked to compute: its shapes, mask and scale, checked."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_WIDTH = 256  # of a head: d and d_v

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """An attention problem, with batch and heads counted together.

    Attributes
    ----------
    leading : tuple of int
        (), (heads,) or (batch, heads), of q.
    leading_kv : tuple of int
        The same of k and v.
    n_q, n_k : int
        Queries and keys of a head.
    d, d_v : int
        Width of q and k, width of v and o.
    causal : bool
        Whether query i sees only the keys j <= i + n_k - n_q.
    scale : float
        What the scores q·k are multiplied by.
    """

    leading: Shape
    leading_kv: Shape
    n_q: int
    n_k: int
    d: int
    d_v: int
    causal: bool
    scale: float

    @property
    def heads(self) -> int:
        """Query heads, of all the batch."""
        return math.prod(self.leading)

    @property
    def heads_kv(self) -> int:
        """Key heads, of all the batch."""
        return math.prod(self.leading_kv)

    @property
    def group(self) -> int:
        """How many query heads share a key head: query head h reads key head h // group."""
        return self.heads // self.heads_kv if self.heads_kv else 1

    @property
    def shape_o(self) -> Shape:
        """The shape of the output."""
        return (*self.leading, self.n_q, self.d_v)

    @property
    def shape_p(self) -> Shape:
        """The shape of the scores and probabilities."""
        return (*self.leading, self.n_q, self.n_k)

    @property
    def shape_rows(self) -> Shape:
        """The shape of one number a query: m, l, lse, delta."""
        return (*self.leading, self.n_q)

    def products(self, block_q: int, block_k: int) -> int:
        """Multiplications in Q K^T and P V together, in whole tiles: the ragged ones cost as much as the others."""
        pairs = math.prod(-(-n // block) * block for n, block in ((self.n_q, block_q), (self.n_k, block_k)))
        return self.heads * pairs * (self.d + self.d_v)

    def by_head(self, name: str, array: Any) -> Any:
        """Return a contiguous array with batch and heads as one axis: what the kernels take."""
        per_head = {"k": self.heads_kv, "v": self.heads_kv, "dk": self.heads_kv, "dv": self.heads_kv}
        axes = 1 if name in ("m", "l", "delta") else 2
        shape = (per_head.get(name, self.heads), *array.shape[len(array.shape) - axes :])
        return array if array.shape == shape else array.reshape(shape)


def check(shapes: dict[str, Shape], causal: Any, scale: Any, dtype: Any = np.float64) -> Problem:
    """Return the problem that q, k and v of these shapes, in a dtype, pose.

    Raises
    ------
    ValueError
        For shapes that do not fit together, and a scale that is not finite.
    TypeError
        For a ``causal`` that is not a bool and a ``scale`` that is not a real number.
    """
    q, k, v = shapes["q"], shapes["k"], shapes["v"]
    fault = _shape_fault(q, k, v)
    if fault:
        raise ValueError(f"{fault}; q has shape {q}, k {k}, v {v}")
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal is {causal!r}; it must be True or False")
    return Problem(
        leading=q[:-2],
        leading_kv=k[:-2],
        n_q=q[-2],
        n_k=k[-2],
        d=q[-1],
        d_v=v[-1],
        causal=bool(causal),
        scale=1 / math.sqrt(q[-1]) if scale is None else _real(scale, dtype),
    )


def check_like(name: str, shape: Shape, expected: Shape) -> None:
    """Raise ValueError unless an array has the shape that goes with the others."""
    if shape != expected:
        raise ValueError(f"{name} has shape {shape}; with these q, k and v it must be {expected}")


def _shape_fault(q: Shape, k: Shape, v: Shape) -> str | None:
    if not 2 <= len(q) <= 4 or not len(q) == len(k) == len(v):
        return "q, k and v must be (length, dim), (heads, length, dim) or (batch, heads, length, dim), all alike"
    if k[:-1] != v[:-1]:
        return "k and v must agree in all but their last axis"
    if q[-1] != k[-1]:
        return "q and k must have the same head dim"
    for name, width in (("q and k", q[-1]), ("v", v[-1])):
        if not 1 <= width <= MOST_WIDTH:
            return f"the head dim of {name} must be from 1 to {MOST_WIDTH}, not {width}"
    if len(q) == 4 and q[0] != k[0]:
        return "q, k and v must have the same batch"
    if len(q) > 2 and q[-3] != k[-3] and (k[-3] == 0 or q[-3] % k[-3]):
        return "the heads of k and v must divide those of q"
    return None


def _real(scale: Any, dtype: Any) -> float:
    if isinstance(scale, np.ndarray) and scale.ndim == 0:
        scale = scale[()]
    if isinstance(scale, (bool, np.bool_)) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale is {scale!r}, a {type(scale).__name__}; it must be a real number or None")
    if scale != scale or abs(scale) == math.inf:
        raise ValueError(f"scale is {scale}; it must be finite")
    if not isinstance(scale, int):  # a whole number may be larger than any float
        scale = float(scale)
    if abs(scale) > float(np.finfo(dtype).max):
        raise ValueError(f"scale is larger than a {np.dtype(dtype)} can be")
    return float(scale)
