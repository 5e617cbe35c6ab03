"""Figures about softmax: overflow, threads and their groups, shuffles, and the online recurrence."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba.plots.style import BLUE, GREY, LANES, ORANGE, STYLE, WIDTH

ROUNDING = 2.0**-24  # the most by which float32 rounds a number between 1 and 2


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


def running_softmax(row: np.ndarray, m: np.ndarray, l: np.ndarray) -> Figure:
    """Plot the running maximum m and sum l along a row, and where a larger element repairs l.

    Parameters
    ----------
    row : numpy.ndarray of shape (n,)
        Finite scores.
    m, l : numpy.ndarray of shape (n,)
        After each element: the maximum and the sum.
    """
    row, m, l = (np.asarray(numbers, np.float64) for numbers in (row, m, l))
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


def thread_hierarchy(blocks: int, threads: int) -> Figure:
    """Draw a launch opened twice: the grid's blocks, the first block's warps, the first warp's lanes.

    Parameters
    ----------
    blocks : int
        In the grid.
    threads : int
        In a block; a multiple of 32.
    """
    warps = threads // 32
    levels = ((blocks, "grid", "block"), (warps, "block 0", "warp"), (32, "warp 0", "lane"))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        for level, (count, whole, part) in enumerate(levels):
            _draw_level(axes, -1.6 * level, count, part)
            axes.text(-0.02, -1.6 * level + 0.35, whole, ha="right", va="center")
            if level:
                axes.plot([0, 0], [-1.6 * level + 0.75, -1.6 * level + 1.55], color="black", linewidth=0.8)
                right = 1 / levels[level - 1][0]
                axes.plot([right, 1], [-1.6 * level + 1.55, -1.6 * level + 0.75], color="black", linewidth=0.8)
        axes.set(xlim=(-0.14, 1.01), ylim=(-3.35, 0.8))
        axes.set_title(f"{blocks * threads:,} threads: {blocks} blocks of {warps} warps of 32 lanes")
        axes.axis("off")
    return figure


def _draw_level(axes: Axes, y: float, count: int, part: str) -> None:
    """Draw a row of numbered boxes; lanes have the colours of lanes."""
    lanes = plt.get_cmap(LANES)(np.linspace(0, 1, count))
    for number in range(count):
        colour = lanes[number] if part == "lane" else BLUE if number == 0 else "#EEEEEE"
        box = Rectangle((number / count, y), 1 / count, 0.7, facecolor=colour, edgecolor="white", linewidth=1.5)
        axes.add_patch(box)
        light = (part == "lane" and number < 20) or number == 0
        text = f"{part} {number}" if count <= 8 else str(number)
        size = 11 if count <= 8 else 8
        centre = (number + 0.5) / count
        axes.text(centre, y + 0.35, text, ha="center", va="center", fontsize=size, color="white" if light else "black")


def busy_multiprocessors(launches: dict[str, int], count: int) -> Figure:
    """Draw which of a GPU's multiprocessors get a block.

    Parameters
    ----------
    launches : dict of int
        By name: how many blocks the grid has. One panel each; the first is the message.
    count : int
        The multiprocessors.
    """
    across = 22
    with plt.rc_context(STYLE):
        down = -(-count // across)
        figure, panels = plt.subplots(len(launches), 1, figsize=(WIDTH, 0.3 + 1.75 * len(launches)), squeeze=False)
        for axes, (name, blocks) in zip(panels[:, 0], launches.items()):
            for number in range(count):
                place = (number % across + 0.08, number // across + 0.08)
                colour = BLUE if number < blocks else "#DDDDDD"
                axes.add_patch(Rectangle(place, 0.84, 0.84, facecolor=colour))
            axes.set(xlim=(0, across), ylim=(down, 0), aspect="equal")
            axes.set_title(f"{name}: {min(blocks, count)} of {count} have work", fontsize=11)
            axes.axis("off")
        blocks = next(iter(launches.values()))
        message = f"{max(count - blocks, 0)} of {count} multiprocessors have nothing to do"
        figure.suptitle(message, x=0.01, ha="left", fontsize=12)
    return figure


def merge_tree(row: np.ndarray, parts: int = 4) -> Figure:
    """Draw how the (m, l) of parts of a row are merged in pairs, each l repaired by its factor on the way.

    Parameters
    ----------
    row : numpy.ndarray of shape (n,)
        Finite scores; n is a multiple of parts.
    parts : int
        A power of two.
    """
    pieces = np.split(np.asarray(row, np.float64), parts)
    pairs = [(piece.max(), np.exp(piece - piece.max()).sum()) for piece in pieces]
    places = np.arange(parts) + 0.5
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": BLUE, "linewidth": 1.5}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.4))
        for place, piece in zip(places, pieces):
            numbers = "  ".join(f"{x:g}" for x in piece)
            axes.text(place, -0.42, numbers, ha="center", va="center", color="#555555")
        level = 0
        while True:
            for place, (m, l) in zip(places, pairs):
                label = f"$m$ = {m:.2f}\n$l$ = {l:.2f}"
                axes.text(place, level, label, ha="center", va="center", bbox=box, zorder=3)
            if len(pairs) == 1:
                break
            pairs, places = _draw_merges(axes, level, places, pairs)
            level += 1
        axes.set(xlim=(0, parts), ylim=(-0.6, level + 0.25))
        axes.set_title("At every merge, one side is kept (× 1) and the other repaired")
        axes.axis("off")
    return figure


def _draw_merges(
    axes: Axes, level: int, places: np.ndarray, pairs: list[tuple[float, float]]
) -> tuple[list[tuple[float, float]], np.ndarray]:
    """Join neighbours by lines that carry their factors; return the merged pairs and where they stand."""
    merged, centres = [], places.reshape(-1, 2).mean(axis=1)
    for first, centre in zip(range(0, len(pairs), 2), centres):
        m = max(pairs[first][0], pairs[first + 1][0])
        l = 0.0
        for place, (m_part, l_part) in zip(places[first : first + 2], pairs[first : first + 2]):
            factor = np.exp(m_part - m)
            l += l_part * factor
            colour = BLUE if factor == 1 else ORANGE
            axes.plot([place, centre], [level, level + 1], color=colour, zorder=1)
            label = "× 1" if factor == 1 else f"× {factor:.2g}"
            middle = (place + centre) / 2
            white = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            axes.text(middle, level + 0.5, label, ha="center", va="center", bbox=white, zorder=2)
        merged.append((m, l))
    return merged, centres


def errors_by_scale(scales: np.ndarray, errors: dict[str, np.ndarray], title: str, unit: str) -> Figure:
    """Plot the largest error of each computation as its inputs grow, and where one has no result any more.

    Parameters
    ----------
    scales : numpy.ndarray
        What the inputs were multiplied by.
    errors : dict of numpy.ndarray
        By name: the largest error at each scale; NaN where the result is not finite. Those that have such a scale are
        drawn in orange.
    title : str
        The message.
    unit : str
        What the errors are, for the axis.
    """
    styles = iter(zip((BLUE, "black", "#777777"), ("-", "--", ":"), "osD"))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.0))
        for name, error in errors.items():
            error = np.asarray(error)
            lost = np.flatnonzero(~np.isfinite(error))
            colour, line, marker = (ORANGE, "-", "^") if lost.size else next(styles)
            axes.loglog(scales, error, line, color=colour, marker=marker, markersize=5, label=name)
            if lost.size:
                axes.axvspan(scales[lost[0]], scales[-1], color=ORANGE, alpha=0.15, linewidth=0)
                middle = np.sqrt(scales[lost[0]] * scales[-1])
                axes.text(middle, 6e-7, f"{name}: NaN", ha="center", va="center")
        axes.axhline(ROUNDING, color=GREY, linewidth=1, zorder=0)
        axes.text(scales[-1], ROUNDING * 1.08, "rounding of a number near 1", ha="right", va="bottom", fontsize=10)
        axes.legend(frameon=False, fontsize=10, ncols=2, loc="lower center")
        axes.set(xlabel="scale of the logits", ylabel=unit, ylim=(1e-9, 1e-6))
        axes.set_title(title)
        axes.minorticks_off()
    return figure
