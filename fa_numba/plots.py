"""The figures: one style for the whole series, and one function for each kind of picture."""

import io
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from matplotlib.figure import Figure

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
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
NAIVE = RED
LANES = "viridis"  # perceptually uniform: the lanes of a warp


def show(figure: Figure, alt: str) -> None:
    """Put a finished figure into the notebook, with a text for those who do not see it, and close it."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
    plt.close(figure)
    display(Image(picture.getvalue(), width=int(WIDTH * 100), alt=alt))


def exp_overflow(exp: Callable[[np.ndarray], np.ndarray]) -> Figure:
    """Plot float32 exp(x), and where it becomes infinite.

    Parameters
    ----------
    exp : callable
        Takes and returns a float32 array.
    """
    x = np.linspace(60, 100, 4001, dtype=np.float32)
    y = exp(x)
    last = int(np.flatnonzero(np.isfinite(y))[-1])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        axes.semilogy(x[: last + 1], y[: last + 1], color=BLUE)
        axes.axvspan(x[last], x[-1], color=RED, alpha=0.15, linewidth=0)
        axes.plot(x[last], y[last], "o", color=RED)
        axes.text(87, y[last], f"x = {x[last]:.1f}, exp(x) = {y[last]:.2g}", ha="right", va="center")
        axes.text((x[last] + x[-1]) / 2, 1e32, "exp(x) = inf", color=RED, ha="center", va="center")
        axes.set(title="float32 exp ends at 88.7", xlabel="x", ylabel="exp(x)", xlim=(x[0], x[-1]))
    return figure


def lane_addresses(addresses: np.ndarray, title: str, sector: int = 32) -> Figure:
    """Plot which addresses the lanes of a warp read at one instant, and which memory sectors that fetches.

    Parameters
    ----------
    addresses : numpy.ndarray of int
        The byte that each lane reads first, relative to the array's start.
    title : str
        The message.
    sector : int
        The bytes that memory hands out at once.
    """
    lanes = np.arange(len(addresses))
    sectors = np.unique(addresses // sector)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        for number in sectors:
            axes.axvspan(number * sector, (number + 1) * sector, color=GREY, alpha=0.3, linewidth=0.8)
        axes.scatter(addresses, lanes, c=lanes, cmap=LANES, s=22, zorder=3)
        axes.set(title=title, xlabel="address in x (bytes)", ylabel="lane of the warp")
        axes.set_yticks([0, 8, 16, 24, 31])
        axes.invert_yaxis()
        note = axes.text(0.99, 0.96, f"{len(sectors)} sectors of {sector} bytes", transform=axes.transAxes)
        note.set(ha="right", va="top", backgroundcolor="white")
    return figure
