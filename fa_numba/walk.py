"""The recurrences step by step: every intermediate, by the device functions that the kernels call."""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fa_numba import arrays, device
from fa_numba.step2_online_softmax import rescale, weight


class SoftmaxStep(NamedTuple):
    """The elements that arrived together, and after them: the maximum, what repaired the sum, and the sum."""

    values: np.ndarray
    m: np.floating
    alpha: np.floating
    l: np.floating


@cuda.jit(fastmath=True)
def softmax_steps_kernel(x, width, steps):
    """steps[t] = (m, alpha, l) after t groups of elements: the loop of online_softmax_kernel, for one thread."""
    m, l = steps[0, 0], steps[0, 2]
    for t in range(1, steps.shape[0]):
        first, last = (t - 1) * width, min(t * width, x.shape[0])
        m_part = x[first]
        for j in range(first + 1, last):
            m_part = max(m_part, x[j])
        m, alpha = rescale(m, m_part)
        l *= alpha  # what was added up against the old maximum
        for j in range(first, last):
            l += weight(x[j], m)
        steps[t, 0], steps[t, 1], steps[t, 2] = m, alpha, l


def online_softmax(x: Any, width: int = 4) -> list[SoftmaxStep]:
    """Return every step of the online softmax of one row, as one thread takes them.

    Parameters
    ----------
    x : numpy.ndarray of shape (n,)
        float32 or float64; every step is computed in that precision.
    width : int
        How many elements arrive together; at the end of the row there may be fewer.

    Returns
    -------
    list of SoftmaxStep
        One for each group of elements. The softmax of the row is exp(x - m) / l, with m and l of the last.

    Raises
    ------
    TypeError
        For other dtypes.
    ValueError
        For another shape, and a width below 1.
    """
    x = np.asarray(x)
    if x.dtype not in arrays.DTYPES:
        raise TypeError(f"x has dtype {x.dtype}; taken: float32 or float64")
    if x.ndim != 1 or width < 1:
        raise ValueError(f"a walk takes one row and a width of at least 1, not shape {x.shape} and width {width}")
    groups = np.split(x, range(width, x.size, width)) if x.size else []
    steps = np.zeros((1 + len(groups), 3), x.dtype)
    steps[0, 0] = -math.inf  # m of nothing; its l is 0
    if groups:
        device.launch(softmax_steps_kernel, 1, 1, x, width, steps)
    return [SoftmaxStep(group, *step) for group, step in zip(groups, steps[1:])]
