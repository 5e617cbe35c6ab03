"""Figures about attention: masks, tiles, the rescaled accumulator, and the sweeps of the backward pass."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba.plots.style import BLUE, FLASH, GREY, STYLE, WIDTH


def mask(panels: dict[str, np.ndarray], title: str) -> Figure:
    """Draw which key each query sees.

    Parameters
    ----------
    panels : dict of numpy.ndarray of bool, of shape (n_q, n_k)
        By name. One panel each.
    title : str
        The message.
    """
    with plt.rc_context(STYLE):
        widths = [see.shape[1] for see in panels.values()]
        figure, axes_row = plt.subplots(
            1, len(panels), figsize=(WIDTH, 3.1), width_ratios=widths, squeeze=False, sharey=False
        )
        for axes, (name, see) in zip(axes_row[0], panels.items()):
            n_q, n_k = see.shape
            colours = ListedColormap(["#EEEEEE", BLUE])
            axes.pcolormesh(see.astype(float), cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
            axes.set_title(name, fontsize=11)
            axes.set(aspect="equal", xlabel="key j", ylim=(n_q, 0), anchor="NW")
            axes.set(xticks=np.arange(n_k) + 0.5, xticklabels=range(n_k))
            axes.set(yticks=np.arange(n_q) + 0.5, yticklabels=range(n_q))
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        axes_row[0][0].set_ylabel("query i")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def online_walk(scores: np.ndarray, m: np.ndarray, l: np.ndarray, alpha: np.ndarray, acc: np.ndarray) -> Figure:
    """Draw a row's online softmax, tile by tile: scores and m; l and acc, what was repaired and what was added.

    Parameters
    ----------
    scores : numpy.ndarray of shape (tiles, keys of a tile)
        The row's scores.
    m, l, alpha, acc : numpy.ndarray of shape (tiles,)
        After each tile: the maximum, the sum, the factor that repaired the past, one column of the accumulator.
    """
    tiles, keys = scores.shape
    with plt.rc_context(STYLE):
        figure, (top, *panels) = plt.subplots(3, 1, figsize=(WIDTH, 6.0), height_ratios=(3, 2, 2), sharex=True)
        top.bar(np.arange(tiles * keys), scores.ravel(), width=0.7, color=GREY)
        for t in range(tiles):
            left, right = t * keys - 0.5, (t + 1) * keys - 0.5
            top.plot([left, right], [m[t], m[t]], color=FLASH)
            label = f"m = {m[t]:.1f}" if t == 0 else f"m = {m[t]:.1f},  α = {alpha[t]:.2f}"
            top.text((left + right) / 2, m[t] + 0.1, label, ha="center", va="bottom")
        top.axhline(0, color="black", linewidth=0.8)
        top.set(ylabel="scores", ylim=(scores.min() - 0.2, m[-1] + 0.8))
        for axes, name, value in zip(panels, ("l (sum)", "acc (output)"), (l, acc)):
            _draw_repairs(axes, name, value, alpha, keys)
        centres = (np.arange(tiles) + 0.5) * keys - 0.5
        panels[-1].set_xticks(centres, [f"tile {t + 1}" for t in range(tiles)])
        panels[-1].tick_params(axis="x", length=0)
        for axes in (top, *panels):
            for t in range(1, tiles):
                axes.axvline(t * keys - 0.5, color=GREY, linewidth=0.8, linestyle=":")
        figure.suptitle("A larger maximum shrinks what was added before", x=0.01, ha="left", fontsize=12)
    return figure


def _draw_repairs(axes: Axes, name: str, value: np.ndarray, alpha: np.ndarray, keys: int) -> None:
    """Draw for each tile the value before it, and the one after it: the repaired past below, the new part on top."""
    for t in range(len(value)):
        centre = (t + 0.5) * keys - 0.5
        before = value[t - 1] if t else 0.0
        kept = alpha[t] * before
        if t:
            axes.bar(centre - 1.1, before, width=0.9, fill=False, edgecolor="black", linestyle="--", linewidth=1)
            axes.text(centre - 1.1, before, f"{before:.2f}", ha="center", va="bottom")
            axes.bar(centre + 0.4, kept, width=0.9, color=GREY)
            axes.text(centre - 0.35, kept / 2, "×α", ha="center", va="center")
        axes.bar(centre + 0.4, value[t] - kept, bottom=kept, width=0.9, color=FLASH)
        axes.text(centre + 0.4, value[t], f"{value[t]:.2f}", ha="center", va="bottom")
        axes.text(centre + 0.95, (kept + value[t]) / 2, "new", ha="left", va="center", fontsize=10)
    axes.set(ylabel=name, ylim=(0, 1.25 * max(value)))


def causal_tiles(n: int, block: int) -> Figure:
    """Draw which tiles of the scores causal attention computes, masks on the diagonal, and skips."""
    tiles = -(-n // block)
    i, j = np.mgrid[:tiles, :tiles]
    kinds = np.sign(j - i)  # -1: whole, 0: on the diagonal, 1: skipped
    styles = {
        -1: dict(facecolor=FLASH),
        0: dict(facecolor=FLASH, alpha=0.45, hatch="///"),
        1: dict(facecolor="#F2F2F2"),
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.2))
        for kind, style in styles.items():
            for row, column in zip(*np.nonzero(kinds == kind)):
                axes.add_patch(Rectangle((column * block, row * block), block, block, edgecolor="white", **style))
        names = {-1: "whole: plain products", 0: "diagonal: masked", 1: "skipped: not loaded"}
        for kind, place in ((-1, 0.78), (0, 0.5), (1, 0.22)):
            axes.add_patch(
                Rectangle((1.05, place - 0.04), 0.08, 0.08, transform=axes.transAxes, clip_on=False, **styles[kind])
            )
            text = f"{np.count_nonzero(kinds == kind)} tiles\n{names[kind]}"
            axes.text(1.16, place, text, transform=axes.transAxes, va="center", fontsize=10)
        ticks = np.linspace(0, n, 5)
        axes.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xticks=ticks, yticks=ticks)
        axes.set(xlabel="key", ylabel="query")
        done = np.count_nonzero(kinds <= 0)
        axes.set_title(f"Causal: {done} of {tiles * tiles} tiles are computed")
    return figure


def backward_sweeps(tiles: int = 4) -> Figure:
    """Draw which tiles of the scores a block visits in each kernel of the backward pass, in its order."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.9))
        _draw_sweep(panels[0], tiles, [(t, 1) for t in range(tiles)], "dK, dV: a block owns keys")
        _draw_sweep(panels[1], tiles, [(1, t) for t in range(tiles)], "dQ: a block owns queries")
        panels[0].set_xlabel("keys\n4 products a tile: S, dP, dV, dK")
        panels[1].set_xlabel("keys\n3 products a tile: S, dP, dQ")
        figure.suptitle("Every tile is computed twice, and every sum has one owner", x=0.01, ha="left", fontsize=12)
    return figure


def _draw_sweep(axes: Axes, tiles: int, visited: list[tuple[int, int]], title: str) -> None:
    """Draw a grid of tiles; number those that one block visits."""
    for row, column in np.ndindex(tiles, tiles):
        colour = FLASH if (row, column) in visited else "#F2F2F2"
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
    for number, (row, column) in enumerate(visited, 1):
        axes.text(column + 0.5, row + 0.5, str(number), ha="center", va="center", color="white", fontweight="bold")
    (row, column), (last_row, last_column) = visited[0], visited[-1]
    down = last_row > row
    x, y = (0.2, 0.5) if down else (0.5, 0.2)
    axes.annotate(
        "",
        xytext=(column + x, row + y),
        xy=(last_column + x, last_row + y),
        arrowprops=dict(arrowstyle="->", color="white", linewidth=2),
    )
    axes.set(xlim=(0, tiles), ylim=(tiles, 0), aspect="equal", xticks=[], yticks=[], ylabel="queries")
    axes.set_title(title, fontsize=11)
    axes.spines[["left", "bottom"]].set_visible(False)
