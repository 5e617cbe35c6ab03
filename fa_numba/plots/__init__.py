"""The figures of the series: one style, and one function for each kind of picture."""

from fa_numba.plots.attention import backward_sweeps, causal_tiles, mask, online_walk, streaming_tiles
from fa_numba.plots.errors import error_growth
from fa_numba.plots.measured import attention_rates, attention_times, kernel_times, softmax_bandwidth
from fa_numba.plots.memory import CARDS, LONGEST, memory_lengths
from fa_numba.plots.softmax import butterfly, exp_overflow, lane_sectors, running_softmax
from fa_numba.plots.style import DOTS_PER_INCH, show
from fa_numba.plots.traffic import requested_traffic

__all__ = [
    "CARDS",
    "DOTS_PER_INCH",
    "LONGEST",
    "attention_rates",
    "attention_times",
    "backward_sweeps",
    "butterfly",
    "causal_tiles",
    "error_growth",
    "exp_overflow",
    "kernel_times",
    "lane_sectors",
    "mask",
    "memory_lengths",
    "online_walk",
    "requested_traffic",
    "running_softmax",
    "show",
    "softmax_bandwidth",
    "streaming_tiles",
]
