"""The figures: one style for the whole series, and one function for each kind of picture."""

import io

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba import memory
from fa_numba.contestants import COPY, EFFICIENT, MATH, TORCH_SOFTMAX
from fa_numba.recorded import Record

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
BLUE, GREY, ORANGE = "#0072B2", "#BBBBBB", "#E69F00"
STANDARD, FLASH = "#D55E00", "#009E73"
LANES = "viridis"  # perceptually uniform: the lanes of a warp
SECTOR = 32  # the bytes that memory hands out at once
WORD = 4  # the bytes of a float32
CARDS = {"T4": 16, "A100": 80, "H200": 141}  # GB of memory
PEERS = {COPY: "#555555", TORCH_SOFTMAX: GREY, EFFICIENT: "#555555", MATH: "#999999"}
LONGEST = 131072  # the length at which memory figures end


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


def memory_lengths(
    passes: tuple[str, ...], counted: dict[tuple[str, str, int], int] | None = None, d: int = 64
) -> Figure:
    """Plot the peak memory of one head against its length: computed as lines, counted as dots, and where cards end.

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
            axes.axhline(card * 1e9, color="black", linewidth=0.8, linestyle=":")
            axes.text(12, card * 1e9, f"{name}: {card} GB", va="top" if name == "A100" else "bottom", fontsize=9)
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


def _slope_triangle(axes: Axes, n: int, y: float, power: int, colour: str) -> None:
    """Draw how much a quantity grows, as a power of N, over a factor of eight: N² above its line, N below."""
    high = y * 8**power
    corner = (n, high) if power == 2 else (8 * n, y)
    axes.plot([n, corner[0], 8 * n, n], [y, corner[1], high, y], color=colour, linewidth=1)
    place = (0.85 * n, "right", "∝ N²") if power == 2 else (9.2 * n, "left", "∝ N")
    axes.text(place[0], y * 8 ** (power / 2), place[2], ha=place[1], va="center", color=colour, fontsize=10)


def softmax_bandwidth(record: Record, rows: int, n: int, live: Record | None = None) -> Figure:
    """Plot the bandwidth that each softmax reaches, against that of a copy of the same array.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    rows, n : int
        The array's shape.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.
    """
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 2.8)
        for axes, each in panels:
            measured = {row["contestant"]: row["gbs"] for row in each.select(section="softmax", rows=rows, n=n)}
            shares = {name: gbs / measured[COPY] for name, gbs in measured.items()}
            _draw_bars(axes, measured, [f"{gbs:,.0f} ({shares[name]:.0%})" for name, gbs in measured.items()], BLUE)
            axes.axvline(measured[COPY], color=PEERS[COPY], linewidth=1, linestyle=":", zorder=0)
            axes.set(xlabel="GB/s read and written", xlim=(0, 1.3 * max(measured.values())))
            if each is record:
                best = max((name for name in shares if name not in PEERS), key=shares.get)
                message = f"{best} reaches {shares[best]:.0%} of a copy's bandwidth"
        figure.suptitle(f"{message}\n({rows:,} rows of {n:,} float32)", x=0.01, ha="left", fontsize=12)
    return figure


def attention_times(
    record: Record,
    section: str = "forward",
    *,
    heads: int | None = None,
    tokens: int | None = None,
    d: int = 64,
    live: Record | None = None,
) -> Figure:
    """Plot the time of attention against its length: standard, flash, and PyTorch's in grey.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    section : str
        ``"forward"``, ``"backward"`` or ``"forward+backward"``.
    heads, tokens : int, optional
        Give one: the number of heads, or heads times length, which longer lengths then share among fewer heads.
    d : int
        The head dim.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.
    """
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 4.0)
        for axes, each in panels:
            rows = each.select(section=section, d=d, causal=False)
            rows = [row for row in rows if heads == row["heads"] or tokens == row["heads"] * row["n"]]
            lines = _times_by_length(rows)
            for name, times in lines.items():
                axes.loglog(list(times), list(times.values()), "o-", color=_colour(name), markersize=4, label=name)
            _label_ends(axes, {name: list(times.items())[-1] for name, times in lines.items()})
            lengths = sorted({row["n"] for row in rows})
            axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
            axes.set(xlabel="N, queries and keys", ylabel="ms")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            if each is record:
                message = _comparison(lines)
        which = f"{heads} head{'s' if heads > 1 else ''}" if heads else f"heads · N = {tokens:,}"
        figure.suptitle(f"{message}\n({section}, {which}, d = {d}, float32)", x=0.01, ha="left", fontsize=12)
    return figure


def _times_by_length(rows: list[dict]) -> dict[str, dict[int, float]]:
    """Return the milliseconds by contestant and length; flash_attention, which calls another of them, is left out."""
    lines: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row["n"]):
        if row["contestant"] != "flash_attention":
            lines.setdefault(row["contestant"], {})[row["n"]] = row["ms"]
    return lines


def _comparison(lines: dict[str, dict[int, float]]) -> str:
    """Say how flash and standard attention compare at the longest length that both have."""
    standard, flash = (next(lines[name] for name in lines if name.startswith(kind)) for kind in ("standard", "flash"))
    n = max(set(standard) & set(flash))
    faster, slower = ("flash", "standard") if flash[n] <= standard[n] else ("standard", "flash")
    factor = max(standard[n], flash[n]) / min(standard[n], flash[n])
    return f"At N = {n:,}, {faster} is {factor:.1f} times as fast as {slower}"


def kernel_times(
    record: Record, contestant: str, heads: int, n: int, d: int = 64, causal: bool = False, live: Record | None = None
) -> Figure:
    """Plot the time of each kernel that a call launches.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    contestant : str
        ``"standard_attention"``, ``"standard_attention_backward"`` or ``"flash_backward"``.
    heads, n, d, causal
        The case.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.
    """
    case = {"section": "kernels", "contestant": contestant, "heads": heads, "n": n, "d": d, "causal": causal}
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 0.9 + 0.5 * len(record.select(**case)))
        for axes, each in panels:
            times = {row["what"]: row["ms"] for row in each.select(**case)}
            total = sum(times.values())
            _draw_bars(axes, times, [f"{ms:.3g} ms, {ms / total:.0%}" for ms in times.values()], _colour(contestant))
            axes.set(xlabel="ms", xlim=(0, 1.35 * max(times.values())))
            if each is record:
                longest = max(times, key=times.get)
                message = f"{longest}: {times[longest] / total:.0%} of the {total:.3g} ms of {contestant}"
        which = f"{heads} head{'s' if heads > 1 else ''}, N = {n:,}, d = {d}{', causal' if causal else ''}"
        figure.suptitle(f"{message}\n({which}, float32)", x=0.01, ha="left", fontsize=12)
    return figure


def _panels(record: Record, live: Record | None, height: float) -> tuple[Figure, list[tuple[Axes, Record]]]:
    """Return a figure with a panel for each record, which its device and date are written above."""
    records = [record] if live is None else [record, live]
    figure, panels = plt.subplots(len(records), 1, figsize=(WIDTH, 0.5 + height * len(records)), squeeze=False)
    for axes, each in zip(panels[:, 0], records):
        axes.set_title(each.title(), fontsize=9, color="#555555")
    return figure, list(zip(panels[:, 0], records))


def _draw_bars(axes: Axes, values: dict[str, float], labels: list[str], colour: str) -> None:
    """Draw a bar for each value, the first on top; those of peers in grey."""
    bars = axes.barh(list(values), list(values.values()), color=[PEERS.get(name, colour) for name in values])
    axes.bar_label(bars, labels, padding=4)
    axes.set_ylim(len(values) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)


def _label_ends(axes: Axes, ends: dict[str, tuple[int, float]]) -> None:
    """Write each line's name at its end, and no two names over each other."""
    low, high = np.log10(axes.get_ylim())
    apart = 0.06 * (high - low)
    free = -np.inf
    for name, (n, ms) in sorted(ends.items(), key=lambda item: item[1][1]):
        free = max(np.log10(ms), free + apart)
        axes.text(n * 1.08, 10**free, name, color=_colour(name), va="center", fontsize=10)


def _colour(name: str) -> str:
    """Return the colour that a contestant has in every figure."""
    return PEERS.get(name) or (STANDARD if name.startswith("standard") else FLASH)
