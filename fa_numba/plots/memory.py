"""Figures about memory against length."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_numba import memory
from fa_numba.plots.style import FLASH, STANDARD, STYLE, WIDTH

CARDS = {"T4": 16, "A100": 80, "H200": 141}  # GB of memory
LONGEST = 131072  # the length at which the figures end


def memory_lengths(
    passes: tuple[str, ...], counted: dict[tuple[str, str, int], int] | None = None, d: int = 64
) -> Figure:
    """Plot the peak memory of one head against its length: computed as lines, counted as dots, and where cards end.

    A diamond marks where standard attention, with the last of the passes, fills a card.

    Parameters
    ----------
    passes : tuple of str
        ``"forward"``, ``"forward+backward"`` or both.
    counted : dict, optional
        By method, passes and length: the bytes that the ledger counted.
    d : int
        The head dim.
    """
    lengths = 2 ** np.arange(4, int(np.log2(LONGEST)) + 1)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6))
        for method, colour in (("standard", STANDARD), ("flash", FLASH)):
            for each in passes:
                y = [memory.computed_bytes(method, each, int(n), d) for n in lengths]
                dashed = len(passes) > 1 and each == "forward"
                axes.loglog(lengths, y, color=colour, linestyle="--" if dashed else "-", label=f"{method} {each}")
            axes.text(LONGEST * 1.15, y[-1], f"{method}\n{memory.readable(y[-1])}", color=colour, va="center")
        for (method, _, n), nbytes in (counted or {}).items():
            axes.plot(n, nbytes, "o", color=STANDARD if method == "standard" else FLASH, markeredgecolor="white")
        for name, card in CARDS.items():
            end = memory.longest("standard", passes[-1], card * 10**9, d)
            axes.plot(end, card * 1e9, "D", color="black", markersize=4, zorder=3, clip_on=False)
            draw_card(axes, f"{name}, {card} GB: N = {end:,}", card, {"A100": 900}.get(name, 14))
        axes.text(14, 3.2e11, "dotted: a card, and the N at which standard fills it", va="bottom", fontsize=10)
        if counted:
            note = "dots: counted by the ledger\nlines: the formula"
            axes.text(0.98, 0.02, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=10)
        _slope_triangle(axes, 1024, 10 * memory.computed_bytes("standard", passes[-1], 1024, d), 2, STANDARD)
        _slope_triangle(axes, 8192, memory.computed_bytes("flash", passes[0], 8192, d) / 5, 1, FLASH)
        axes.set(xlim=(11, LONGEST), ylim=(4e3, 1e12), xlabel="N, queries and keys", ylabel="bytes at the peak")
        axes.set_xticks([16, 256, 4096, 65536], ["16", "256", "4,096", "65,536"])
        axes.set_yticks([1e4, 1e6, 1e8, 1e10, 1e12], ["10 kB", "1 MB", "100 MB", "10 GB", "1 TB"])
        axes.minorticks_off()
        what = "dashed: forward, solid: with backward" if len(passes) > 1 else passes[0].replace("+", " and ")
        axes.set_title(f"Standard attention runs out of memory; flash goes on\n({what}; one head, d = {d})")
    return figure


def draw_card(axes: Axes, text: str, card: int, x: float) -> None:
    """Draw where a card of so many GB ends, with a text that stands in the line."""
    axes.axhline(card * 1e9, color="black", linewidth=0.8, linestyle=":")
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.text(x, card * 1e9, text, va="center", fontsize=10, bbox=white)


def _slope_triangle(axes: Axes, n: int, y: float, power: int, colour: str) -> None:
    """Draw how much a quantity grows, as a power of N, over a factor of eight: N² above its line, N below."""
    high = y * 8**power
    corner = (n, high) if power == 2 else (8 * n, y)
    axes.plot([n, corner[0], 8 * n, n], [y, corner[1], high, y], color=colour, linewidth=1)
    place = (0.85 * n, "right", "∝ N²") if power == 2 else (9.2 * n, "left", "∝ N")
    axes.text(place[0], y * 8 ** (power / 2), place[2], ha=place[1], va="center", color=colour, fontsize=10)
