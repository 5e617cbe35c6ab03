"""Figures about attention: masks, tiles, the rescaled accumulator, and the sweeps of the backward pass."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba import memory
from fa_numba.plots.style import BLUE, FLASH, GREY, LANES, ORANGE, STANDARD, STYLE, WIDTH


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


_PLACES = {  # where an array lives, and how its tiles look
    "in device memory": dict(facecolor="#E4E4E4"),
    "in shared memory": dict(facecolor=ORANGE),
    "in registers": dict(facecolor=FLASH),
    "nowhere": dict(facecolor="white", linestyle=":", linewidth=1),
}


def streaming_tiles(steps: list[Any], at: int = 1, blocks: int = 4, own: int = 1) -> Figure:
    """Draw the tiles of one block at one instant: Q stays, K and V stream past, sums are repaired, scores never stay.

    Parameters
    ----------
    steps : list of fa_numba.walk.FlashStep
        One query's: as many tiles of keys as there are steps; the numbers beside the picture.
    at : int
        The tile of keys that is there; 1 or more.
    blocks : int
        Tiles of queries.
    own : int
        The tile of queries that the block owns.
    """
    tiles, top = len(steps), 2.5  # the scores begin below the strips of K and V
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.9))
        for row in range(blocks):
            mine = row == own
            _tile(axes, 0, top + row, "in shared memory" if mine else "in device memory", "Q" if mine else "")
            _tile(axes, 2 + tiles, top + row, "in registers" if mine else "in device memory", "acc" if mine else "")
            for t in range(tiles):
                _tile(axes, 1.5 + t, top + row, "nowhere")
        _tile(axes, 1.5 + at, top + own, "in registers", "s", width=0.5)
        _tile(axes, 2.0 + at, top + own, "in shared memory", "p", width=0.5)
        for t in range(tiles):
            for y, name in ((0, "K"), (1.1, "V")):
                _tile(axes, 1.5 + t, y, "in shared memory" if t == at else "in device memory", f"{name}$_{t + 1}$")
        axes.text(0.5, top - 0.15, "Q stays", ha="center", va="bottom")
        axes.text(1.3, 1.05, "K and V\nstream by →", ha="right", va="center")
        axes.text(2.5 + tiles, top - 0.15, "O", ha="center", va="bottom")
        _write_repairs(axes, steps[at - 1], steps[at], 3.2 + tiles, top + own + 0.5)
        for number, (place, look) in enumerate(_PLACES.items()):
            x, y = 0 if number % 2 == 0 else 4.2, top + blocks + 0.35 + 0.65 * (number // 2)
            axes.add_patch(Rectangle((x, y), 0.45, 0.45, edgecolor="#777777", **look))
            text = "nowhere: the rest of S and P" if place == "nowhere" else place
            axes.text(x + 0.65, y + 0.22, text, va="center")
        axes.set(xlim=(-0.1, tiles + 7.4), ylim=(top + blocks + 1.6, -0.1), aspect="equal")
        axes.axis("off")
        title = f"One block at tile {at + 1} of {tiles}: only its sums outlive the tile"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _tile(axes: Axes, x: float, y: float, place: str, text: str = "", width: float = 1.0) -> None:
    """Draw one tile in the look of the place where it lives."""
    look = {"edgecolor": "#777777", **_PLACES[place]}
    axes.add_patch(Rectangle((x + 0.03, y + 0.03), width - 0.06, 0.94, **look))
    dark = place == "in registers"
    axes.text(x + width / 2, y + 0.5, text, ha="center", va="center", color="white" if dark else "black")


def _write_repairs(axes: Axes, before: Any, after: Any, x: float, y: float) -> None:
    """Write how m, l and the first column of acc go from one step to the next."""
    alpha = after.alpha
    lines = [
        f"m:  {before.m:.1f} → {after.m:.1f}",
        f"α = exp({before.m:.1f} − {after.m:.1f}) = {alpha:.2f}",
        *(
            f"{name}:  {alpha:.2f} · {old:.2f} + {new - alpha * old:.2f} = {new:.2f}"
            for name, old, new in (("l", before.l, after.l), ("acc", before.acc[0], after.acc[0]))
        ),
    ]
    for number, line in enumerate(lines):
        axes.text(x, y + 0.62 * (number - 1.5), line, va="center")


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


def attention_shapes(n: int, d: int, itemsize: int = 4) -> Figure:
    """Draw the matrices of standard attention's forward pass for one head, to scale, with their sizes.

    Parameters
    ----------
    n, d : int
        Queries and keys, and their width.
    itemsize : int
        Bytes of an element.
    """
    small, large = (memory.readable(n * size * itemsize) for size in (d, n))
    thin = d / n
    # x, y, width, height, colour, and the place and text of the name, in units of n elements
    shapes = (
        (-0.1 - thin, 0, thin, 1, BLUE, -0.2, 0.5, "Q"),
        (0, -0.1 - thin, 1, thin, BLUE, 0.5, -0.2, "Kᵀ"),
        (0, 0, 1, 1, STANDARD, 0.5, 0.5, f"S = QKᵀ · scale\n{large}"),
        (1.5, 0, 1, 1, STANDARD, 2.0, 0.5, f"P = softmax(S)\n{large}"),
        (2.72, 0, thin, 1, BLUE, 2.82, 0.5, "V"),
        (3.07, 0, thin, 1, BLUE, 3.19, 0.5, "O"),
    )
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.75))
        for x, y, width, height, colour, name_x, name_y, name in shapes:
            axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="none"))
            ink = "white" if colour == STANDARD else BLUE
            axes.text(name_x, name_y, name, ha="center", va="center", color=ink)
        axes.annotate("", xytext=(1.05, 0.5), xy=(1.45, 0.5), arrowprops=dict(arrowstyle="->", linewidth=1.5))
        axes.text(1.25, 0.44, "softmax", ha="center", va="bottom", fontsize=10)
        axes.text(2.62, 0.5, "×", ha="center", va="center")
        axes.text(2.98, 0.5, "=", ha="center", va="center")
        axes.text(1.25, 1.12, f"S and P: N × N.  Q, K, V and O: N × d, {small} each", ha="center", va="center")
        axes.set(xlim=(-0.35, 3.35), ylim=(1.2, -0.32), aspect="equal")
        axes.axis("off")
        message = f"To scale: two matrices of {large} between four thin ones"
        which = f"one head, N = {n:,}, d = {d}, float{8 * itemsize}"
        figure.suptitle(f"{message}\n({which})", x=0.01, ha="left", fontsize=12)
    return figure


def product_steps(
    tiles: tuple[int, int], steps: int, block: tuple[int, int], names: tuple[str, str, str] = ("A", "B", "C")
) -> Figure:
    """Draw which tiles of A and B a block loads, step by step, for its tile of C = A B.

    Parameters
    ----------
    tiles : tuple of int
        Tiles of C, down and across.
    steps : int
        Tiles along k, which the sum runs over.
    block : tuple of int
        The row and column of the block's tile.
    names : tuple of str
        What to call A, B and C.
    """
    down, across = tiles
    row, column = block
    gap = 0.35
    colours = plt.get_cmap(LANES)(np.linspace(0.05, 0.7, steps))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.7))
        corners = {names[0]: (-steps - gap, 0), names[1]: (0, -steps - gap), names[2]: (0, 0)}
        for name, (height, width) in zip(names, ((down, steps), (steps, across), tiles)):
            left, top = corners[name]
            for y, x in np.ndindex(height, width):
                axes.add_patch(Rectangle((left + x, top + y), 1, 1, facecolor="#EEEEEE", edgecolor="white"))
        for step, colour in enumerate(colours):
            for x, y in ((-steps - gap + step, row), (column, -steps - gap + step)):
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white"))
                axes.text(x + 0.5, y + 0.5, str(step + 1), ha="center", va="center", color="white", fontweight="bold")
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=STANDARD, edgecolor="white"))
        axes.text(column + 0.5, row + 0.5, "block", ha="center", va="center", color="white", fontsize=10)
        axes.text(-steps / 2 - gap, down + 0.15, names[0], ha="center", va="top")
        axes.text(across + 0.15, -steps / 2 - gap, names[1], va="center")
        axes.text(across / 2, down + 0.15, names[2], ha="center", va="top")
        axes.annotate("", xytext=(-steps - gap, -0.15), xy=(-gap, -0.15), arrowprops=dict(arrowstyle="->"))
        axes.text(-steps / 2 - gap, -0.25, "k", ha="center", va="bottom")
        axes.annotate("", xytext=(-0.15, -steps - gap), xy=(-0.15, -gap), arrowprops=dict(arrowstyle="->"))
        axes.text(-0.25, -steps / 2 - gap, "k", ha="right", va="center")
        axes.set(xlim=(-steps - gap - 0.05, across + 1.5), ylim=(down + 0.6, -steps - gap - 0.05), aspect="equal")
        axes.axis("off")
        axes.set_title(f"A block adds up its tile of {names[2].split()[0]} in {steps} steps along k")
    return figure


def register_tile(tile: int, depth: int, register: int, thread: tuple[int, int], wide: int = 4) -> Figure:
    """Draw what one thread reads of the shared tiles of A and B, and which elements of C it keeps in registers.

    Parameters
    ----------
    tile, depth : int
        A block's tile of C is ``tile`` square; its tiles of A and B have ``depth`` elements along k.
    register : int
        Rows and columns of a thread's register tile, ``tile // register`` apart.
    thread : tuple of int
        x and y of the thread in its block.
    wide : int
        Elements along k that it reads at a time.
    """
    apart = tile // register
    rows, columns = (start + apart * np.arange(register) for start in (thread[1], thread[0]))
    a_tile, b_tile, c_tile = np.zeros((tile, depth)), np.zeros((depth, tile)), np.zeros((tile, tile))
    a_tile[rows], b_tile[:, columns] = 1, 1
    a_tile[rows, :wide], b_tile[:wide, columns] = 2, 2
    c_tile[np.ix_(rows, columns)] = 3
    colours = ListedColormap(["#EEEEEE", "#A6CBE3", BLUE, STANDARD])  # of others, this thread's, read now, its own
    gap = 1.5
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.7))
        for values, left, top in ((a_tile, -depth - gap, 0), (b_tile, 0, -depth - gap), (c_tile, 0, 0)):
            x, y = (start + np.arange(size + 1) for start, size in ((left, values.shape[1]), (top, values.shape[0])))
            axes.pcolormesh(x, y, values, cmap=colours, vmin=0, vmax=3, edgecolors="white", linewidth=0.8)
        axes.text(-depth / 2 - gap, tile + 0.5, "tile of A (shared)", ha="center", va="top")
        axes.text(tile / 2, tile + 0.5, "tile of C", ha="center", va="top")
        axes.text(tile + 0.7, -depth - gap, "tile of B (shared)", va="top")
        notes = (
            (-5.2, BLUE, f"read now:\n{2 * register} · {wide} numbers"),
            (5, STANDARD, f"in registers:\n{register} × {register} sums"),
            (10, "black", f"{register * register * wide} products"),
        )
        for y, colour, note in notes:
            axes.text(tile + 0.7, y, note, va="center", color=colour)
        axes.set(
            xlim=(-depth - gap - 0.2, tile + 11), ylim=(tile + 2.6, -depth - gap - 0.2), aspect="equal", anchor="W"
        )
        axes.axis("off")
        axes.set_title(f"A thread uses each number that it reads {register} times")
    return figure


def softmax_jacobian(p: np.ndarray) -> Figure:
    """Draw the derivative of each weight of a row by each of its scores.

    Parameters
    ----------
    p : numpy.ndarray of shape (n_k,)
        The weights of one row.
    """
    jacobian = np.diag(p) - np.outer(p, p)
    limit = np.abs(jacobian).max()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.pcolormesh(jacobian, cmap="PuOr_r", vmin=-limit, vmax=limit, edgecolors="white", linewidth=2)
        for j, k in np.ndindex(jacobian.shape):
            ink = "white" if abs(jacobian[j, k]) > 0.6 * limit else "black"
            text = f"{jacobian[j, k]:+.3f}".replace("-", "−")
            axes.text(k + 0.5, j + 0.5, text, ha="center", va="center", color=ink)
        ticks = np.arange(len(p)) + 0.5
        axes.set(ylim=(len(p), 0), xlabel="per change of the score of key k", ylabel="change of the weight of key j")
        axes.set_xticks(ticks, [f"$s_{k}$" for k in range(len(p))])
        axes.set_yticks(ticks, [f"$p_{j}$ = {weight:.2f}" for j, weight in enumerate(p)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title("Raising a score raises its own weight and lowers the others")
    return figure
