"""Figures of what the lens saw: who reads which address, which bank, how often, and how many bytes in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba.memory import readable
from fa_numba.plots.style import FLASH, GREY, LANES, STANDARD, STYLE, WIDTH

if TYPE_CHECKING:
    from fa_numba.trace import ArrayReport, LineReport

SECTOR = 32  # the bytes that memory hands out at once
WORD = 4  # the bytes of a float32, and of what a bank of shared memory hands out
BANKS = 32
QUARTER = 8  # lanes: a request of 16 bytes a lane is served in four parts


def lane_sectors(panels: Mapping[str, LineReport], title: str) -> Figure:
    """Draw the memory sectors that a warp fetches in one request, and in colour the bytes that its lanes use.

    Parameters
    ----------
    panels : dict of LineReport
        By name: a source line of a trace, of float32 in global memory. One panel each.
    title : str
        The message.
    """
    with plt.rc_context(STYLE):
        figure, axes_row = plt.subplots(1, len(panels), figsize=(WIDTH, 4.2), sharey=True, squeeze=False)
        for axes, (name, line) in zip(axes_row[0], panels.items()):
            lanes = _draw_sectors(axes, name, line)
        axes_row[0][0].set_ylabel("sector fetched")
        label = "lane that uses the bytes (grey: none)"
        figure.colorbar(lanes, ax=axes_row[0].tolist(), label=label, ticks=[0, 8, 16, 24, 31])
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_sectors(axes: Axes, name: str, line: LineReport) -> QuadMesh:
    """Draw each sector as a row of eight words, coloured by the lane that uses a word."""
    users, words = _words(line.lanes, _size(line))
    sectors, row = np.unique(words * WORD // SECTOR, return_inverse=True)
    fetched = np.ma.masked_all((len(sectors), SECTOR // WORD))
    fetched[row, words % (SECTOR // WORD)] = users
    mesh = axes.pcolormesh(fetched, cmap=LANES, vmin=0, vmax=31, edgecolors="white", linewidth=0.5)
    axes.add_patch(Rectangle((0, 0), SECTOR // WORD, len(sectors), color=GREY, zorder=0))
    used = f"{WORD * fetched.count():,} of {SECTOR * len(sectors):,} bytes used"
    axes.set_title(f"{name}:\n{len(sectors)} sectors,\n{used}", fontsize=11)
    axes.set(xlabel="byte of the sector", xticks=[0, 4, 8], xticklabels=["0", "16", "32"], ylim=(32, 0))
    return mesh


def _size(line: LineReport) -> int:
    """Return the bytes of one lane's access."""
    return line.nbytes // line.accesses


def _words(lanes: Sequence[int | None], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that lanes access and, of each, the lane."""
    users = np.array([lane for lane, start in enumerate(lanes) if start is not None])
    starts = np.array([start for start in lanes if start is not None]) // WORD
    apart = np.arange(size // WORD)
    return np.repeat(users, len(apart)), (starts[:, None] + apart).ravel()


def shared_banks(panels: Mapping[str, Sequence[int | None]], size: int, title: str) -> Figure:
    """Draw which bank of shared memory each lane of a request wants, and in how many turns all are served.

    A request of 16 bytes a lane is served in four quarters of a warp, unless neighbouring lanes share addresses: the
    first one is drawn.

    Parameters
    ----------
    panels : dict of sequence of int or None
        By name: where each lane's access begins, in bytes, as ``LineReport.lanes``. One panel each.
    size : int
        The bytes of one lane's access: 4 or 16.
    title : str
        The message.
    """
    served = {
        name: _turns(*_words(starts[: QUARTER if size == 16 else BANKS], size)) for name, starts in panels.items()
    }
    heights = [len(turns) for turns in served.values()]
    with plt.rc_context(STYLE):
        figure, axes_column = plt.subplots(
            len(panels),
            1,
            figsize=(WIDTH, 0.9 + 0.45 * len(panels) + 0.32 * sum(heights)),
            height_ratios=heights,
            sharex=True,
            squeeze=False,
        )
        for axes, (name, turns) in zip(axes_column[:, 0], served.items()):
            _draw_banks(axes, turns, size // WORD)
            axes.set_title(f"{name}: {len(turns)} turn{'s' if len(turns) > 1 else ''}", fontsize=11)
        axes.set(xlabel="bank", xticks=np.array([0, 8, 16, 24, 31]) + 0.5, xticklabels=["0", "8", "16", "24", "31"])
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_banks(axes: Axes, turns: np.ma.MaskedArray, words: int) -> None:
    """Draw which lane each bank serves, turn by turn; lanes that want four words each carry their numbers."""
    axes.add_patch(Rectangle((0, 0), BANKS, len(turns), color="#EEEEEE", zorder=0))
    last = QUARTER - 1 if words == 4 else BANKS - 1
    lines = {"edgecolors": "white", "linewidth": 0.3} if words == 1 else {}  # none through the names of lanes
    axes.pcolormesh(turns, cmap=LANES, vmin=0, vmax=last, **lines)
    for turn, bank in zip(*np.nonzero(~np.ma.getmaskarray(turns))):
        lane = int(turns[turn, bank])
        if words == 4 and bank % words == 0:
            ink = "white" if lane < 0.65 * last else "black"
            axes.text(bank + words / 2, turn + 0.5, f"lane {lane}", ha="center", va="center", color=ink, fontsize=9)
    ticks = np.arange(len(turns))
    axes.set(xlim=(0, BANKS), ylim=(len(turns), 0), ylabel="turn", yticks=ticks + 0.5, yticklabels=ticks + 1)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _turns(users: np.ndarray, words: np.ndarray) -> np.ma.MaskedArray:
    """Return, by turn and bank, a lane that is served; a word that several lanes want is handed out once."""
    wanted = [
        dict(zip(words[words % BANKS == bank][::-1], users[words % BANKS == bank][::-1])) for bank in range(BANKS)
    ]
    turns = np.ma.masked_all((max(map(len, wanted)), BANKS))
    for bank, by_word in enumerate(wanted):
        turns[: len(by_word), bank] = [by_word[word] for word in sorted(by_word)]
    return turns


def access_maps(methods: Mapping[str, Mapping[str, Sequence[ArrayReport]]], title: str) -> Figure:
    """Draw, to scale, how often each element of the matrices of attention is read and written.

    Parameters
    ----------
    methods : dict of dict of list of ArrayReport
        By name, for each matrix by name what the launches did to it. A row of maps each; the first has every matrix,
        and where another lacks one, a dotted outline stands.
    title : str
        The message.
    """
    counts = {
        method: {name: _counts(arrays) for name, arrays in matrices.items()} for method, matrices in methods.items()
    }
    most = max(int(sum(pair).max()) for matrices in counts.values() for pair in matrices.values())
    colours = ListedColormap(["white", *plt.get_cmap("cividis_r")(np.linspace(0.05, 0.95, most))])
    first = next(iter(counts.values()))
    with plt.rc_context(STYLE):
        widths = [reads.shape[1] for reads, _ in first.values()]
        figure, axes_grid = plt.subplots(
            len(methods), len(first), figsize=(WIDTH, 0.6 + 1.95 * len(methods)), width_ratios=widths, squeeze=False
        )
        for axes_row, (method, matrices) in zip(axes_grid, counts.items()):
            for axes, (name, (reads, _)) in zip(axes_row, first.items()):
                _draw_map(axes, name, matrices.get(name), reads.shape, colours, most)
            axes_row[0].set_ylabel(method)
        scale = ScalarMappable(Normalize(0, most + 1), colours)
        bar = figure.colorbar(scale, ax=axes_grid.ravel().tolist(), label="reads and writes of an element", shrink=0.7)
        bar.set_ticks(np.arange(most + 1) + 0.5, labels=[str(count) for count in range(most + 1)])
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _counts(arrays: Sequence[ArrayReport]) -> tuple[np.ndarray, np.ndarray]:
    """Return how often launches read and wrote each element of a matrix, of the first head."""
    reads, writes = (sum(getattr(array, kind) for array in arrays) for kind in ("reads", "writes"))
    return tuple(each.reshape(-1, *each.shape[-2:])[0] for each in (reads, writes))


def _draw_map(
    axes: Axes,
    name: str,
    counts: tuple[np.ndarray, np.ndarray] | None,
    shape: tuple[int, int],
    colours: ListedColormap,
    most: int,
) -> None:
    """Draw one matrix, or its outline if nobody touches it."""
    height, width = shape
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[], anchor="N")
    axes.set_title(name, loc="center", fontsize=11)
    if counts is None:
        for spine in axes.spines.values():
            spine.set(visible=True, linestyle=":", color="#777777")
        axes.text(width / 2, height / 2, "never\nwritten", ha="center", va="center", color="#777777")
        return
    reads, writes = counts
    axes.spines[:].set_visible(False)
    touched = reads + writes
    lines = [f"{kind} {_range(each)}" for kind, each in (("read", reads), ("written", writes)) if each.any()]
    narrow = width < height // 2
    uneven = touched.min() < touched.max()
    axes.text(
        width / 2,
        height / 2,
        (", " if narrow else "\n").join(lines),
        ha="center",
        va="center",
        rotation=90 if narrow else 0,
        color="white" if touched.min() > most / 2 else "black",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5} if uneven else None,
    )
    axes.pcolormesh(touched, cmap=colours, vmin=0, vmax=most + 1, rasterized=True)


def _range(counts: np.ndarray) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low}×" if low == high else f"{low} to {high}×"


def traffic_bars(rows: Mapping[str, tuple[int, int]], minimum: int, title: str) -> Figure:
    """Draw the bytes that kernels request, within them those that are different, and the least that must move.

    Parameters
    ----------
    rows : dict of tuple of int
        By name: the bytes requested and the footprint. Names that begin with "flash" have its colour.
    minimum : int
        The bytes of the inputs and outputs, each once.
    title : str
        The message.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.5 + 0.55 * len(rows)))
        for y, (name, (requested, footprint)) in enumerate(rows.items()):
            colour = FLASH if name.startswith("flash") else STANDARD
            axes.barh(y, requested / 1e3, height=0.75, color=colour, alpha=0.35)
            axes.barh(y, footprint / 1e3, height=0.4, color=colour)
            axes.text(requested / 1e3, y, f" {readable(requested)}", va="center")
        axes.axvline(minimum / 1e3, color="black", linewidth=1, linestyle=":")
        note = f"inputs and outputs\nonce: {readable(minimum)}"
        axes.annotate(note, (minimum / 1e3, -0.5), xytext=(5, 0), textcoords="offset points", va="bottom", fontsize=10)
        axes.text(0.99, 0.03, "pale: requested\nsolid: footprint", transform=axes.transAxes, ha="right", fontsize=10)
        longest = max(requested for requested, _ in rows.values()) / 1e3
        axes.set(xlabel="kB", xlim=(0, 1.2 * longest), ylim=(len(rows) - 0.4, -1.3))
        axes.set_yticks(range(len(rows)), list(rows))
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
    return figure
