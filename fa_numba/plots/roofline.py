"""The figure that has every step on it: speed against arithmetic intensity, below the roofs of a GPU."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_numba.plots.style import BLUE, FLASH, STANDARD, STYLE, WIDTH
from fa_numba.work import Work

APART = 1.32  # the factor of speed between names, so that they do not touch


def roofline(steps: Mapping[str, tuple[Work, float]], peak: float, bandwidth: float, title: str, of: str) -> Figure:
    """Plot the speed of each step against its arithmetic intensity, and what a GPU allows at most.

    A step is a line: it begins at the intensity of the bytes requested, and ends at that of the footprint. As a GPU
    moves no less than the footprint and, but for sectors that are not used, no more than is requested, the true
    intensity lies between.

    Parameters
    ----------
    steps : dict of tuple of Work and float
        By name: the work, and the milliseconds that it took. Names that begin with "standard" or "flash" have the
        colours of these.
    peak : float
        TFLOP/s of the arithmetic units.
    bandwidth : float
        TB/s of the memory.
    title : str
        The message.
    of : str
        Whose times, roofs and sizes they are.
    """
    speeds = {name: work.flops / ms / 1e9 for name, (work, ms) in steps.items()}
    ends = {name: (work.flops / work.requested, work.flops / work.footprint) for name, (work, _) in steps.items()}
    least, most = min(low for low, _ in ends.values()) / 2, 30 * max(high for _, high in ends.values())
    bend = peak / bandwidth
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.8))
        axes.plot([least, bend, most], [least * bandwidth, peak, peak], color="black", linewidth=1.2, zorder=1)
        axes.text(bend / 4, bandwidth * bend / 5, f"{bandwidth:g} TB/s", va="top")
        axes.text(most, peak * 1.08, f"{peak:g} TFLOP/s", ha="right", va="bottom")
        place = np.inf
        for name in sorted(speeds, key=speeds.get, reverse=True):
            place = min(speeds[name], place / APART)
            _draw_step(axes, name, ends[name], speeds[name], place)
        axes.set(xscale="log", yscale="log", xlim=(least, most), ylim=(min(speeds.values()) / 2, 3 * peak))
        axes.set(xlabel="floating-point operations a byte (● requested … ○ footprint, ◆ both)", ylabel="TFLOP/s")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
        axes.set_title(of, fontsize=9, color="#555555")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_step(axes: Axes, name: str, ends: tuple[float, float], speed: float, place: float) -> None:
    """Draw one step, with its name beside its end, at a height of its own."""
    colour = STANDARD if name.startswith("standard") else FLASH if name.startswith("flash") else BLUE
    axes.plot(ends, [speed, speed], color=colour, linewidth=1.5)
    axes.plot(ends[0], speed, "o", color=colour, markersize=6)
    if np.isclose(*ends):  # one point, with nothing read twice: on top, as other lines may end there
        axes.plot(ends[1], speed, "D", color=colour, markersize=7, markeredgecolor="white", zorder=4)
    else:
        axes.plot(ends[1], speed, "o", color=colour, markersize=6, markerfacecolor="white")
    axes.text(ends[1] * 1.25, place, name, color=colour, va="center", fontsize=10)
