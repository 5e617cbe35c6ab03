"""Figures about errors: how far results are from float64."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fa_numba.plots.style import FLASH, GREY, STANDARD, STYLE, WIDTH

OVERFLOW = float(np.log(np.finfo(np.float32).max))  # float32 exp is infinite beyond it
_LOOKS = {  # in the order in which they are drawn: the wide line stays visible below the narrow one
    "standard": {"color": STANDARD, "linewidth": 6, "alpha": 0.55},
    "flash": {"color": FLASH, "marker": "o", "markersize": 5},
    "naive": {"color": "#555555", "linestyle": "--"},
}


def error_growth(logits: np.ndarray, errors: dict[str, np.ndarray]) -> Figure:
    """Plot errors against the size of the logits, and half a step of float32 at that size.

    Parameters
    ----------
    logits : numpy.ndarray of shape (n,)
        The largest, in ascending order.
    errors : dict of numpy.ndarray of shape (n,)
        By method, ``"naive"``, ``"standard"`` and ``"flash"``: the largest error; NaN where the result has a NaN.
    """
    half_step = np.spacing(np.asarray(logits, np.float32)) / 2
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.0))
        axes.loglog(logits, half_step, ":", color="black", linewidth=1.2)
        axes.text(logits[-1], half_step[-1] / 20, "dotted: half a step of\nfloat32 at that size", ha="right", va="top")
        for name, look in _LOOKS.items():
            axes.loglog(logits, errors[name], label=name, **look)
        axes.axvspan(OVERFLOW, 2 * logits[-1], color=GREY, alpha=0.25, linewidth=0)
        last = int(np.flatnonzero(np.isfinite(errors["naive"]))[-1])
        axes.plot(logits[last], errors["naive"][last], "x", color=_LOOKS["naive"]["color"], markersize=12, mew=3)
        low = 1.3 * axes.get_ylim()[0]
        axes.text(1.15 * OVERFLOW, low, f"naive: NaN beyond {OVERFLOW:.1f}", color="#333333", va="bottom")
        for name, above in (("standard", 5), ("flash", 2)):
            axes.text(logits[-3], above * errors[name][-3], name, color=_LOOKS[name]["color"], ha="right", va="bottom")
        axes.set(xlabel="largest logit of a row", ylabel="largest error, against float64")
        axes.set_xlim(logits[0] / 1.3, logits[-1] * 1.3)
        axes.set_title("Flash is as exact as standard attention; the naive formula ends")
    return figure
