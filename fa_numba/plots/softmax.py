"""Figures about softmax: overflow, who reads which address, shuffles, and the online recurrence."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba.plots.style import BLUE, GREY, LANES, ORANGE, STYLE, WIDTH

SECTOR = 32  # the bytes that memory hands out at once
WORD = 4  # the bytes of a float32


def exp_overflow() -> Figure:
    """Plot float32 exp(x), and where it becomes infinite."""
    x = np.linspace(60, 100, 4001, dtype=np.float32)
    with np.errstate(over="ignore"):
        y = np.exp(x)
    last = int(np.flatnonzero(np.isfinite(y))[-1])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        axes.semilogy(x[: last + 1], y[: last + 1], color=BLUE)
        axes.plot(x[last], y[last], "o", color=BLUE)
        axes.axvspan(x[last], x[-1], color=GREY, alpha=0.4, linewidth=0)
        axes.text(87, y[last], f"x = {x[last]:.1f}, exp(x) = {y[last]:.2g}", ha="right", va="center")
        axes.text((x[last] + x[-1]) / 2, 1e32, "exp(x) = inf", ha="center", va="center")
        axes.set(title=f"float32 exp ends at {x[last]:.1f}", xlabel="x", ylabel="exp(x)", xlim=(x[0], x[-1]))
    return figure


def lane_sectors(patterns: dict[str, np.ndarray], title: str) -> Figure:
    """Draw the memory sectors that a warp fetches at one instant, and in colour the bytes that its lanes use.

    Parameters
    ----------
    patterns : dict of numpy.ndarray of int
        By name: the byte at which each of the 32 lanes reads a float32. One panel each.
    title : str
        The message.
    """
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(patterns), figsize=(WIDTH, 4.2), sharey=True, squeeze=False)
        for axes, (name, addresses) in zip(panels[0], patterns.items()):
            lanes = _draw_sectors(axes, name, addresses)
        panels[0][0].set_ylabel("sector fetched")
        label = "lane that uses the bytes (grey: none)"
        figure.colorbar(lanes, ax=panels[0].tolist(), label=label, ticks=[0, 8, 16, 24, 31])
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_sectors(axes: Axes, name: str, addresses: np.ndarray) -> QuadMesh:
    """Draw each sector as a row of eight words, coloured by the lane that uses a word."""
    sectors, row = np.unique(addresses // SECTOR, return_inverse=True)
    users = np.ma.masked_all((len(sectors), SECTOR // WORD))
    users[row, addresses % SECTOR // WORD] = np.arange(len(addresses))
    mesh = axes.pcolormesh(users, cmap=LANES, vmin=0, vmax=31, edgecolors="white", linewidth=0.5)
    axes.add_patch(Rectangle((0, 0), SECTOR // WORD, len(sectors), color=GREY, zorder=0))
    axes.set_title(f"{name}:\n{len(sectors)} sectors, {SECTOR * len(sectors):,} bytes", fontsize=11)
    axes.set(xlabel="byte of the sector", xticks=[0, 4, 8], xticklabels=["0", "16", "32"], ylim=(32, 0))
    return mesh


def butterfly(values: np.ndarray) -> Figure:
    """Draw how the largest of a warp's values spreads over the lanes, in five rounds of exchanges.

    Parameters
    ----------
    values : numpy.ndarray of shape (32,)
        What each lane brings; the largest occurs once.
    """
    lanes = np.arange(len(values))
    shifts = [16, 8, 4, 2, 1]
    known = [np.asarray(values)]
    for shift in shifts:
        known.append(np.maximum(known[-1], known[-1][lanes ^ shift]))
    holds = np.array(known) == np.max(values)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.2))
        for round_, shift in enumerate(shifts):
            for lane in lanes:
                travels = holds[round_, lane]
                look = {"color": BLUE, "linewidth": 1.8} if travels else {"color": "#DDDDDD", "linewidth": 0.8}
                for to in (lane, lane ^ shift):
                    axes.plot([lane, to], [round_, round_ + 1], zorder=2 if travels else 1, **look)
        for held, look in ((False, {"color": GREY, "s": 16}), (True, {"color": BLUE, "s": 32})):
            rounds, which = np.nonzero(holds == held)
            axes.scatter(which, rounds, zorder=3, **look)
        labels = ["start", *(f"after {shift}" for shift in shifts)]
        axes.set(xlabel="lane", xticks=[0, 8, 16, 24, 31], yticks=range(6), yticklabels=labels, ylim=(5.3, -0.3))
        axes.set_title("Five exchanges bring the maximum (blue) to all 32 lanes")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def running_softmax(row: np.ndarray) -> Figure:
    """Plot the running maximum m and sum l along a row, and where a larger element repairs l.

    Parameters
    ----------
    row : numpy.ndarray of shape (n,)
        Finite scores.
    """
    row = np.asarray(row, np.float64)
    m = np.maximum.accumulate(row)
    l = np.array([np.exp(row[: j + 1] - m[j]).sum() for j in range(len(row))])
    repairs = np.flatnonzero(m[1:] > m[:-1]) + 1
    with plt.rc_context(STYLE):
        figure, (above, below) = plt.subplots(2, 1, figsize=(WIDTH, 4.6), sharex=True)
        above.plot(row, "o", color=GREY, markersize=4)
        above.step(np.arange(len(row)), m, where="post", color=BLUE)
        above.text(len(row), m[-1], "$m$", color=BLUE, va="center", fontsize=13)
        above.text(len(row), row[-1], "$x$", color="#777777", va="center", fontsize=13)
        above.set(title=f"{len(row)} elements, {len(repairs)} repairs of the sum", ylabel="score")
        below.plot(l, color=BLUE)
        below.text(len(row), l[-1], "$l$", color=BLUE, va="center", fontsize=13)
        for axes, y in ((above, m), (below, l)):
            for j in repairs:
                axes.axvline(j, color=ORANGE, linewidth=1, linestyle=":", zorder=0)
            axes.plot(repairs, y[repairs], "D", color=ORANGE, markersize=6)
        below.annotate(
            "repair: $l$ shrinks,\nthen 1 is added",
            (repairs[-1], l[repairs[-1]]) if len(repairs) else (0, l[0]),
            xytext=(-24, -38),
            textcoords="offset points",
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": ORANGE},
        )
        below.set(xlabel="elements seen before (j)", ylabel="sum of $\\exp(x - m)$", xlim=(-1, len(row) + 2))
        below.set_ylim(0)
    return figure
