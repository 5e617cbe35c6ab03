"""The picture of the README: what each step of the series reached on a GPU, and what attention holds in memory."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_numba import memory
from fa_numba.contestants import COPY, EFFICIENT
from fa_numba.plots.memory import CARDS, LONGEST, draw_card
from fa_numba.plots.style import BLUE, FLASH, GREY, STANDARD, STYLE
from fa_numba.recorded import Record

WIDTH, HEIGHT = 9.0, 5.0  # inches: it fills a page
SOFTMAX = {"section": "softmax", "rows": 8192, "n": 4096}
SOFTMAXES = {
    "naive_softmax": "1 naive",
    "three passes": "2 block",
    "two passes": "2 online",
    "row in registers": "2 registers",
    COPY: "copy",
}
ATTENTION = {"heads": 32, "n": 4096, "d": 64, "causal": False}
BOTH = "forward+backward"


def front_page(record: Record) -> Figure:
    """Draw the bandwidth of softmax, the speed of attention, and the memory of attention against its length.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    """
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(WIDTH, HEIGHT))
        grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.15), height_ratios=(4, 6.6))
        _draw_bandwidths(figure.add_subplot(grid[0, 0]), record)
        _draw_speeds(figure.add_subplot(grid[1, 0]), record)
        _draw_memory(figure.add_subplot(grid[:, 1]), record)
        smaller, faster = gains(record)
        figure.suptitle(
            f"Flash attention, with gradients: 1/{smaller:.0f} of standard's memory, {faster:.1f} times as fast\n",
            x=0.01,
            ha="left",
            fontsize=14,
        )
        figure.text(0.01, 0.925, _measured(record), fontsize=9, color="#555555", va="center")
    return figure


def front_page_text(record: Record) -> str:
    """Return the picture in words, for those who do not see it."""
    standard, flash = _peaks(record)
    naive, *_, fastest, copy = (f"{gbs:,.0f}" for gbs in _bandwidths(record).values())
    tflops = {
        name: f"{_row(record, {'section': 'forward', **ATTENTION}, name)['tflops']:.1f}"
        for name in ("standard_attention", "flash_forward")
    }
    return (
        f"Bars: naive softmax reaches {naive} GB/s, our fastest {fastest}, a copy "
        f"{copy}; standard attention {tflops['standard_attention']} TFLOP/s, flash attention "
        f"{tflops['flash_forward']}. Lines: with the backward pass, standard attention holds "
        f"{memory.readable(standard)} at {ATTENTION['n']:,} queries and grows with the square of the length, flash "
        f"attention holds {memory.readable(flash)} and grows with the length. Measured on {record.title()}."
    )


def gains(record: Record) -> tuple[float, float]:
    """Return by which factors flash attention holds less memory than standard, and is as fast, with its gradients."""
    standard, flash = (_row(record, {"section": BOTH, **ATTENTION}, method) for method in memory.METHODS)
    return standard["peak_bytes"] / flash["peak_bytes"], standard["ms"] / flash["ms"]


def _row(record: Record, case: dict[str, Any], contestant: str) -> dict[str, Any]:
    return record.one(**case, contestant=contestant)


def _peaks(record: Record) -> list[int]:
    return [_row(record, {"section": BOTH, **ATTENTION}, method)["peak_bytes"] for method in memory.METHODS]


def _bandwidths(record: Record) -> dict[str, float]:
    """Return the GB/s of each softmax that was measured, by its label."""
    measured = record.softmaxes(SOFTMAX["rows"], SOFTMAX["n"])
    return {label: measured[name]["gbs"] for name, label in SOFTMAXES.items() if name in measured}


def _measured(record: Record) -> str:
    return (
        f"{ATTENTION['heads']} heads of N = {ATTENTION['n']:,}, d = {ATTENTION['d']}, float32; softmax: "
        f"{SOFTMAX['rows']:,} rows of {SOFTMAX['n']:,}. {record.title()}"
    )


def _draw_bandwidths(axes: Axes, record: Record) -> None:
    values = _bandwidths(record)
    colours = [GREY if label == SOFTMAXES[COPY] else BLUE for label in values]
    _draw_bars(axes, list(values), list(values.values()), colours, "{:,.0f}", range(len(values)))
    axes.set_title("Softmax, GB/s")


def _draw_speeds(axes: Axes, record: Record) -> None:
    """Draw forward and backward, each with PyTorch's own beside it."""
    labels, values, colours, places = [], [], [], []
    for first, section, standard, flash in ((0, "forward", "", "4 flash"), (3.5, "backward", "_backward", "5 flash")):
        where = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "center"}
        axes.text(0.02, first, section, color="white", fontsize=10, **where)  # in the first bar of its group
        contestants = (f"standard_attention{standard}", f"flash_{section}", EFFICIENT)
        values += [_row(record, {"section": section, **ATTENTION}, name)["tflops"] for name in contestants]
        labels += ["3 standard", flash, "PyTorch"]
        colours += [STANDARD, FLASH, GREY]
        places += [first, first + 1, first + 2]
    _draw_bars(axes, labels, values, colours, "{:.1f}", places)
    axes.set_title("Attention, TFLOP/s")


def _draw_bars(
    axes: Axes, labels: list[str], values: list[float], colours: list[str], form: str, places: Sequence[float]
) -> None:
    bars = axes.barh(places, values, color=colours)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=10)
    axes.set_yticks(places, labels)
    axes.set(xlim=(0, 1.2 * max(values)), ylim=(places[-1] + 0.6, -0.6), xticks=[])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)


def _draw_memory(axes: Axes, record: Record) -> None:
    """Draw the formula as lines, and as dots what the GPU's ledger counted."""
    lengths = 2 ** np.arange(8, int(np.log2(LONGEST)) + 1)
    for method, colour, peak in zip(memory.METHODS, (STANDARD, FLASH), _peaks(record)):
        y = [memory.computed_bytes(method, BOTH, int(n), ATTENTION["d"], ATTENTION["heads"]) for n in lengths]
        axes.loglog(lengths, y, color=colour, label=method)
        axes.plot(ATTENTION["n"], peak, "o", color=colour, markeredgecolor="white", markersize=8)
        axes.text(LONGEST * 1.15, y[-1], f"{method}\n{memory.readable(y[-1])}", color=colour, va="center")
    for name, card in CARDS.items():
        draw_card(axes, f"{name}: {card} GB", card, {"A100": 6}.get(name, 1.3) * lengths[0])
    axes.set(xlim=(lengths[0], LONGEST), xlabel="N, queries and keys")
    axes.set_xticks([256, 4096, 65536], ["256", "4,096", "65,536"])
    axes.set_yticks([1e7, 1e8, 1e9, 1e10, 1e11, 1e12], ["10 MB", "100 MB", "1 GB", "10 GB", "100 GB", "1 TB"])
    axes.minorticks_off()
    axes.set_title("Peak memory with backward")
