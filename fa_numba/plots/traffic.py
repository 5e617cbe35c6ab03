"""Figures about traffic: the bytes that kernels ask of memory."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from fa_numba.plots.style import FLASH, STANDARD, STYLE, WIDTH


def requested_traffic(requested: dict[int, int], footprint: int, scores: int, title: str) -> Figure:
    """Plot the bytes that flash attention requests against its tile, between its footprint and the traffic of S and P.

    Parameters
    ----------
    requested : dict of int
        By block_q: the bytes that flash attention asks for.
    footprint : int
        The bytes that flash attention holds.
    scores : int
        The bytes that standard attention writes and reads for S and P.
    title : str
        The message.
    """
    blocks = list(requested)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.loglog(blocks, [nbytes / 1e6 for nbytes in requested.values()], "o-", color=FLASH)
        for block_q, nbytes in requested.items():
            label, offset = f"{nbytes / 1e6:,.0f} MB", {"xytext": (4, 6), "textcoords": "offset points"}
            axes.annotate(label, (block_q, nbytes / 1e6), color=FLASH, **offset)
        for nbytes, colour, line, name in (
            (scores, STANDARD, "-", f"standard: S and P alone, {scores / 1e6:.0f} MB"),
            (footprint, FLASH, "--", f"footprint of flash: {footprint / 1e6:.1f} MB"),
        ):
            axes.axhline(nbytes / 1e6, color=colour, linestyle=line, linewidth=1.5)
            axes.text(blocks[0], nbytes / 1e6 / 1.1, name, color=colour, ha="left", va="top")
        axes.set_xticks(blocks, [str(block_q) for block_q in blocks])
        axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        axes.minorticks_off()
        axes.set(xlabel="block_q, queries of a block", ylabel="MB", ylim=(1, 3 * max(requested.values()) / 1e6))
        axes.set_xlim(0.9 * blocks[0], 1.35 * blocks[-1])
        axes.set_title(title)
    return figure
