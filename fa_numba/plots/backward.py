"""Figures about the backward pass: a tile's matrices, sums in many orders, differences, barriers, and the rate."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fa_numba.contestants import EFFICIENT
from fa_numba.plots.measured import _colour, _panels
from fa_numba.plots.style import BLUE, FLASH, ORANGE, STYLE, WIDTH
from fa_numba.recorded import Record

# What the threads of a block do between two barriers, and how they use the tiles in shared memory: W writes, R reads.
# The first phase follows the last, a tile further on.
BARRIERS = {
    "kernel of dK and dV": (
        ("load\nq, do", "Sᵀ, dPᵀ\nwrite Pᵀ", "dV +=\nPᵀ dO", "write\ndSᵀ", "dK +=\ndSᵀ Q"),
        {"q_tile": "WR  R", "do_tile": "WRR  ", "p_tile": " WRWR"},
    ),
    "kernel of dQ": (
        ("load\nk, v", "S, dP\nwrite dS", "dQ +=\ndS K"),
        {"k_tile": "WRR", "v_tile": "WR ", "ds_tile": " WR"},
    ),
}
# Products of tiles that a backward pass computes; the convention for TFLOP/s counts 5, so 2.5 times the forward's 2.
COUNTED_PRODUCTS = 5
PRODUCTS = {"standard_attention_backward": 4, "flash_backward": 7}  # of flash with two kernels


def backward_tile(s: np.ndarray, p: np.ndarray, dp: np.ndarray, ds: np.ndarray) -> Figure:
    """Draw the matrices of one tile, from its scores to their gradient.

    Parameters
    ----------
    s, p, dp, ds : numpy.ndarray of shape (block_q, block_k)
        Scores, weights, gradient of the weights, gradient of the scores.
    """
    panels_of = {"S": s, "P = exp(S − m) / l": p, "dP = dO Vᵀ": dp, "dS = P (dP − δ)": ds}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 4, figsize=(WIDTH, 2.5), sharey=True)
        for axes, (name, values) in zip(panels, panels_of.items()):
            signed = values.min() < 0
            largest = np.abs(values).max()
            limits = dict(cmap="PuOr", vmin=-largest, vmax=largest) if signed else dict(cmap="Blues", vmin=0)
            mesh = axes.pcolormesh(values, **limits)
            axes.set_title(name, fontsize=10)
            axes.set(aspect="equal", xticks=[], yticks=[], xlabel="key j", ylim=(len(values), 0))
            figure.colorbar(mesh, ax=axes, location="bottom", ticks=[-largest, largest] if signed else [0, largest])
            mesh.colorbar.ax.set_xticklabels([f"{tick:.2g}" for tick in mesh.colorbar.get_ticks()], fontsize=9)
        panels[0].set_ylabel("query i")
        figure.suptitle("One tile: made from the inputs, used, thrown away", x=0.01, ha="left", fontsize=12)
    return figure


def sum_orders(sums: np.ndarray, truth: float, terms: int) -> Figure:
    """Draw how often one float32 sum came out as each of its results, over many orders of its terms.

    Parameters
    ----------
    sums : numpy.ndarray of float32
        The results.
    truth : float
        The sum in float64.
    terms : int
        How many terms it has.
    """
    results, counts = np.unique(sums, return_counts=True)
    gap = float(np.spacing(np.float32(np.abs(truth))))
    offsets = (results.astype(np.float64) - truth) / gap
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.7))
        bars = axes.bar(offsets, counts, width=0.5, color=FLASH)
        axes.bar_label(bars, padding=2, bbox=dict(facecolor="white", edgecolor="none", pad=1))
        axes.axvline(0, color="black", linewidth=1, linestyle=":", zorder=0)
        axes.text(0.06, 1.32 * counts.max(), "float64", ha="left", va="center", fontsize=10)
        axes.set(xlabel="distance from the float64 sum, in steps of float32")
        axes.set(ylabel="orders", ylim=(0, 1.4 * counts.max()))
        axes.set_title(f"The same {terms} terms in {len(sums):,} orders: {len(results)} different sums")
    return figure


def difference_errors(steps: np.ndarray, errors: dict[str, np.ndarray]) -> Figure:
    """Plot how far a finite difference is from the gradient, against its step h.

    Parameters
    ----------
    steps : numpy.ndarray
        The steps h.
    errors : dict of numpy.ndarray
        By dtype: the largest error at each step.
    """
    colours = dict(zip(errors, (ORANGE, BLUE)))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        for name, error in errors.items():
            axes.loglog(steps, error, "o-", color=colours[name], markersize=4, label=name)
            best = int(np.argmin(error))
            place = (steps[best], 10 * error[best])
            axes.text(*place, f"{name}\n{error[best]:.0e}", color=colours[name], ha="center", va="bottom")
        floor = min(error.min() for error in errors.values())
        axes.text(0.02, 0.03, "too small: rounding, as 1/h", transform=axes.transAxes, fontsize=10)
        axes.text(0.99, 0.03, "too large: bend, as h²", transform=axes.transAxes, ha="right", fontsize=10)
        axes.set(xlabel="step h", ylabel="largest error")
        axes.set_ylim(floor / 50)
        axes.minorticks_off()
        axes.set_title("A difference is best in the middle, and far better in float64")
    return figure


def barriers() -> Figure:
    """Draw which phase of a tile writes and which reads each shared tile, and the barriers between them, numbered."""
    with plt.rc_context(STYLE):
        widths = [len(phases) for phases, _ in BARRIERS.values()]
        figure, panels = plt.subplots(1, len(BARRIERS), figsize=(WIDTH, 2.7), width_ratios=widths)
        number = 1
        for axes, (title, (phases, tiles)) in zip(panels, BARRIERS.items()):
            _draw_phases(axes, phases, tiles, number)
            axes.set_title(title, fontsize=11)
            number += len(phases)
        message = "Between a write and a read of a tile stands a barrier"
        figure.suptitle(message, x=0.01, ha="left", fontsize=12)
    return figure


def _draw_phases(axes: Axes, phases: tuple[str, ...], tiles: dict[str, str], number: int) -> None:
    """Draw phases as columns and tiles as rows; a barrier, numbered from one on, stands before each phase.

    Dotted: the first barrier again, as the next tile begins.
    """
    looks = {"W": ("write", ORANGE, "black"), "R": ("read", FLASH, "white")}
    for row, uses in enumerate(tiles.values()):
        for column, use in enumerate(uses):
            if use in looks:
                word, colour, ink = looks[use]
                axes.add_patch(Rectangle((column + 0.1, row + 0.12), 0.8, 0.76, facecolor=colour))
                axes.text(column + 0.5, row + 0.5, word, ha="center", va="center", color=ink, fontsize=10)
    for column in range(len(phases)):
        axes.plot([column, column], [-0.1, len(tiles)], color="black", linewidth=1.5)
        axes.text(column, -0.15, str(number + column), ha="center", va="bottom", fontweight="bold")
    axes.plot([len(phases)] * 2, [-0.1, len(tiles)], color="black", linewidth=1.5, linestyle=":")
    axes.text(len(phases), -0.15, str(number), ha="center", va="bottom")
    axes.set(xlim=(-0.1, len(phases) + 0.15), ylim=(len(tiles), -0.55))
    axes.set_yticks(np.arange(len(tiles)) + 0.5, list(tiles), fontsize=10)
    axes.set_xticks(np.arange(len(phases)) + 0.5, phases, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def wrong_elements(right: np.ndarray, result: np.ndarray, name: str, title: str, atol: float = 1e-5) -> Figure:
    """Draw a matrix as it should be beside what a kernel gave, with a frame around each element that is wrong.

    Parameters
    ----------
    right, result : numpy.ndarray of shape (rows, columns)
        The truth, and what was computed.
    name : str
        What the matrix is called.
    title : str
        The message; the count of wrong elements follows it.
    atol : float
        How far off an element may be.
    """
    wrong = ~np.isclose(result, right, rtol=0, atol=atol)
    limit = np.abs(right).max()
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.4), sharey=True)
        for axes, values, which in zip(panels, (right, result), ("as it should be", "as it came out")):
            mesh = axes.pcolormesh(values, cmap="PuOr", vmin=-limit, vmax=limit)
            axes.set_title(f"{name}, {which}", fontsize=11)
            axes.set(xticks=[], yticks=[], ylim=(len(values), 0), xlabel="column")
        for row, column in zip(*np.nonzero(wrong)):
            panels[1].add_patch(Rectangle((column + 0.04, row + 0.04), 0.92, 0.92, fill=False, linewidth=1.5))
        panels[0].set_ylabel("key")
        figure.colorbar(mesh, ax=panels.tolist())
        count = f"{np.count_nonzero(wrong)} of {wrong.size} numbers of {name} are wrong (framed)"
        figure.suptitle(f"{title}\n{count}", x=0.01, ha="left", fontsize=12)
    return figure


def backward_rates(record: Record, heads: int, n: int, d: int = 64, live: Record | None = None) -> Figure:
    """Plot the rate of the backward pass: by the convention, and with the products that were computed.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    heads, n, d : int
        The case, not causal.
    live : Record, optional
        Measurements of this machine's GPU, drawn below.
    """
    case = {"section": "backward", "heads": heads, "n": n, "d": d, "causal": False}
    with plt.rc_context(STYLE):
        figure, panels = _panels(record, live, 2.9)
        for axes, each in panels:
            rates = {row["contestant"]: (row["tflops"], row["ms"]) for row in each.select(**case)}
            _draw_rates(axes, rates, {**PRODUCTS, "flash_backward": flash_products(each, heads, n, d)})
            if each is record:
                share = rates["flash_backward"][0] / rates[EFFICIENT][0]
        message = f"flash_backward reaches {share:.0%} of EFFICIENT's rate"
        which = f"backward, {heads} heads, N = {n:,}, d = {d}, float32"
        figure.suptitle(f"{message}\n({which})", x=0.01, ha="left", fontsize=12)
    return figure


def flash_products(record: Record, heads: int, n: int, d: int = 64) -> int:
    """Return how many products of tiles flash_backward computed there: 5 in one kernel, or 7 in two."""
    case = {"heads": heads, "n": n, "d": d, "causal": False}
    kernels = [row["kernel"] for row in record.select(section="kernels", contestant="flash_backward", **case)]
    return COUNTED_PRODUCTS if "wide_flash_backward_kernel" in kernels else PRODUCTS["flash_backward"]


def _draw_rates(axes: Axes, rates: dict[str, tuple[float, float]], computing: dict[str, int]) -> None:
    """Draw a bar for each contestant; hatched: what it computes beyond what counts, or counts without computing it."""
    for y, (name, (tflops, ms)) in enumerate(rates.items()):
        products = computing.get(name, COUNTED_PRODUCTS)
        computed = tflops * products / COUNTED_PRODUCTS
        axes.barh(y, tflops, color=_colour(name))
        end = max(tflops, computed)
        if products > COUNTED_PRODUCTS:
            axes.barh(y, computed - tflops, left=tflops, color="white", edgecolor=_colour(name), hatch="////")
        label = f"{tflops:.1f} TFLOP/s, {ms:.1f} ms"
        if name in computing:
            label += f"\ncomputes {products} products: {computed:.1f}"
        axes.annotate(label, (end, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10)
    longest = max((tflops for tflops, _ in rates.values()), default=1)
    axes.set(xlabel="TFLOP/s, 5 products counted", xlim=(0, 1.75 * longest), ylim=(len(rates) - 0.5, -0.5))
    axes.set_yticks(range(len(rates)), list(rates))
    axes.tick_params(axis="y", length=0)


__all__ = ["backward_rates", "backward_tile", "barriers", "difference_errors", "sum_orders", "wrong_elements"]
