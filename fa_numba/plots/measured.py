"""Figures of what a GPU was measured to do: bandwidth, times against length, times of kernels."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_numba.contestants import COPY, EFFICIENT, MATH, MATH_TF32, TORCH_SOFTMAX
from fa_numba.plots.style import BLUE, FLASH, GREY, STANDARD, STYLE, WIDTH
from fa_numba.recorded import Record

PEERS = {COPY: "#555555", TORCH_SOFTMAX: GREY, EFFICIENT: "#555555", MATH: "#999999", MATH_TF32: "#bbbbbb"}


def softmax_bandwidth(
    record: Record, rows: int, n: int, live: Record | None = None, about: str | None = None
) -> Figure:
    """Plot the bandwidth that each softmax reaches, against that of a copy of the same array.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    rows, n : int
        The array's shape.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.
    about : str, optional
        Whose share the title tells; that of our fastest if None.
    """
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 2.8)
        for axes, each in panels:
            measured = {name: row["gbs"] for name, row in each.softmaxes(rows, n).items()}
            if "row in registers" in measured:  # where there is this rung, online_softmax launches it
                measured.pop("online_softmax", None)
            shares = {name: gbs / measured[COPY] for name, gbs in measured.items()}
            _draw_bars(axes, measured, [f"{gbs:,.0f} ({shares[name]:.0%})" for name, gbs in measured.items()], BLUE)
            axes.axvline(measured[COPY], color=PEERS[COPY], linewidth=1, linestyle=":", zorder=0)
            axes.set(xlabel="GB/s read and written", xlim=(0, 1.3 * max(measured.values())))
            if each is record:
                best = about or max((name for name in shares if name not in PEERS), key=shares.get)
                message = f"{best}: {shares[best]:.0%} of a copy's bandwidth"
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


def rungs(record: Record, step: str, live: Record | None = None) -> Figure:
    """Plot the rate of each rung of a step, and those of its peers, which took turns with them.

    Shares are of the copy's bandwidth, or of what the GPU's CUDA cores compute in float32 at most.

    Parameters
    ----------
    record : Record
        Measurements of a GPU, with rungs.
    step : str
        ``"softmax"``, ``"standard"``, ``"forward"`` or ``"backward"``.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.

    Raises
    ------
    LookupError
        If the record has no rungs of this step.
    """
    rows = record.select(section="rungs", step=step)
    if not any("order" in row for row in rows):
        raise LookupError(f"the measurements have no rungs of {step!r}")
    unit, form, whole = ("GB/s", "{:,.0f}", "the copy") if "gbs" in rows[0] else ("TFLOP/s", "{:.1f}", "the peak")
    colour = {"softmax": BLUE, "standard": STANDARD}.get(step, FLASH)
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 0.9 + 0.42 * len(rows))
        for axes, each in panels:
            measured = each.select(section="rungs", step=step)
            rates = {row["contestant"]: row["gbs" if unit == "GB/s" else "tflops"] for row in measured}
            shares = [f" ({row['share']:.0%})" if "share" in row else "" for row in measured]
            _draw_bars(axes, rates, [form.format(rate) + share for rate, share in zip(rates.values(), shares)], colour)
            label = f"{unit} (share of {whole})" if any(shares) else unit
            axes.set(xlabel=label, xlim=(0, 1.3 * max(rates.values())))
        figure.suptitle(f"{_climb(rows)}\n({_case(rows[0])}, float32)", x=0.01, ha="left", fontsize=12)
    return figure


def _climb(rows: list[dict]) -> str:
    """Say what the rungs gained together."""
    first, *others = (row for row in rows if "order" in row)
    if not others:
        return f"One rung: {first['contestant']}"
    last = others[-1]
    return f"{last['contestant']}: {first['ms'] / last['ms']:.2f} times as fast as {first['contestant']}"


def _case(row: dict) -> str:
    """Say which case a row is of."""
    if "rows" in row:
        return f"{row['rows']:,} rows of {row['n']:,}"
    causal = ", causal" if row["causal"] else ""
    return f"{row['heads']} head{'s' if row['heads'] > 1 else ''}, N = {row['n']:,}, d = {row['d']}{causal}"


CUDA_CORES = 67  # TFLOP/s in float32 of an H200, by its datasheet


def attention_rates(record: Record, heads: int, n: int, d: int = 64, live: Record | None = None) -> Figure:
    """Plot the TFLOP/s that each forward pass reaches, full and causal, and what CUDA cores could at most.

    Parameters
    ----------
    record : Record
        Measurements of an H200.
    heads, n, d : int
        The case.
    live : Record, optional
        Measurements of this machine's GPU, drawn below, without a ceiling.
    """
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 3.8)
        for axes, each in panels:
            rates = _rates(each, heads, n, d)
            labels = [f"{rate:.1f}" for rate in rates.values()]
            bars = axes.barh(list(rates), list(rates.values()), color=[_colour(name.split(",")[0]) for name in rates])
            axes.bar_label(bars, labels, padding=4)
            axes.set(xlabel="TFLOP/s", xlim=(0, 1.15 * max(*rates.values(), CUDA_CORES)))
            axes.set_ylim(len(rates) - 0.5, -0.6)
            axes.tick_params(axis="y", length=0)
            if each is record:
                axes.axvline(CUDA_CORES, color="black", linewidth=1, linestyle=":")
                axes.text(CUDA_CORES - 1, len(rates) / 2 - 0.5, "CUDA cores,\ndatasheet", ha="right", va="center")
                message = f"flash reaches {rates['flash_forward'] / CUDA_CORES:.0%} of what CUDA cores could"
        figure.suptitle(
            f"{message}\n(forward, {heads} heads, N = {n:,}, d = {d}, float32)", x=0.01, ha="left", fontsize=12
        )
    return figure


def _rates(record: Record, heads: int, n: int, d: int) -> dict[str, float]:
    """Return the TFLOP/s by contestant, full before causal; flash_attention, which calls another, is left out."""
    rates = {}
    for causal in (False, True):
        for row in record.select(section="forward", heads=heads, n=n, d=d, causal=causal):
            if row["contestant"] != "flash_attention":
                rates[row["contestant"] + (", causal" if causal else "")] = row["tflops"]
    return rates


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
    for label in axes.bar_label(bars, labels, padding=4):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # over the line of the limit
    axes.set_ylim(len(values) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)


def _label_ends(axes: Axes, ends: dict[str, tuple[int, float]]) -> None:
    """Write each line's name at its end, and no two names over each other."""
    low, high = np.log10(axes.get_ylim())
    apart = 0.06 * (high - low)
    ordered = sorted(ends.items(), key=lambda item: item[1][1])
    places = [np.log10(ms) for _, (_, ms) in ordered]
    for i in range(1, len(places)):  # upwards, as far as needed
        places[i] = max(places[i], places[i - 1] + apart)
    places[-1] = min(places[-1], high)
    for i in reversed(range(len(places) - 1)):  # and back down, below the top
        places[i] = min(places[i], places[i + 1] - apart)
    for (name, (n, _)), place in zip(ordered, places):
        axes.text(n * 1.08, 10**place, name, color=_colour(name), va="center", fontsize=10)


def _colour(name: str) -> str:
    """Return the colour that a contestant has in every figure."""
    return PEERS.get(name) or (STANDARD if name.startswith("standard") else FLASH)
