"""The figures of the series: one style, and one function for each kind of picture."""

from fa_numba.plots.attention import backward_sweeps, causal_tiles, mask, online_walk
from fa_numba.plots.measured import attention_times, kernel_times, softmax_bandwidth
from fa_numba.plots.memory import CARDS, LONGEST, memory_lengths
from fa_numba.plots.softmax import butterfly, exp_overflow, lane_sectors, running_softmax
from fa_numba.plots.style import DOTS_PER_INCH, show

__all__ = [
    "CARDS",
    "DOTS_PER_INCH",
    "LONGEST",
    "attention_times",
    "backward_sweeps",
    "butterfly",
    "causal_tiles",
    "exp_overflow",
    "kernel_times",
    "lane_sectors",
    "mask",
    "memory_lengths",
    "online_walk",
    "running_softmax",
    "show",
    "softmax_bandwidth",
]
