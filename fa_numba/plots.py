"""The figures: one style for the whole series, and one function for each kind of picture."""

import io

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

WIDTH = 6.4  # inches
DOTS_PER_INCH = 144
STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "lines.linewidth": 2,
}
# Okabe & Ito's palette, told apart with any colour vision. Each step keeps its colour in every figure.
BLUE, GREY = "#0072B2", "#BBBBBB"
LANES = "viridis"  # perceptually uniform: the lanes of a warp
SECTOR = 32  # the bytes that memory hands out at once
WORD = 4  # the bytes of a float32


def show(figure: Figure, alt: str) -> None:
    """Put a finished figure into the notebook, with a text for those who do not see it, and close it."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
    plt.close(figure)
    display(Image(picture.getvalue(), width=int(WIDTH * 100), alt=alt))


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
