"""The figures of the series: one style, and one function for each kind of picture."""

from fa_numba.plots.attention import (
    attention_shapes,
    backward_sweeps,
    causal_tiles,
    mask,
    online_walk,
    product_steps,
    register_tile,
    softmax_jacobian,
    streaming_tiles,
)
from fa_numba.plots.backward import (
    backward_rates,
    backward_tile,
    barriers,
    difference_errors,
    sum_orders,
    wrong_elements,
)
from fa_numba.plots.errors import error_growth
from fa_numba.plots.front import front_page, front_page_text, gains
from fa_numba.plots.lens import access_maps, lane_sectors, shared_banks, traffic_bars
from fa_numba.plots.measured import attention_rates, attention_times, kernel_times, rungs, softmax_bandwidth
from fa_numba.plots.memory import CARDS, LONGEST, memory_lengths
from fa_numba.plots.roofline import roofline
from fa_numba.plots.softmax import (
    busy_multiprocessors,
    butterfly,
    errors_by_scale,
    exp_overflow,
    merge_tree,
    running_softmax,
    thread_hierarchy,
)
from fa_numba.plots.style import DOTS_PER_INCH, show
from fa_numba.plots.traffic import requested_traffic

__all__ = [
    "CARDS",
    "DOTS_PER_INCH",
    "LONGEST",
    "access_maps",
    "attention_rates",
    "attention_shapes",
    "attention_times",
    "backward_rates",
    "backward_sweeps",
    "backward_tile",
    "barriers",
    "busy_multiprocessors",
    "butterfly",
    "causal_tiles",
    "difference_errors",
    "error_growth",
    "errors_by_scale",
    "exp_overflow",
    "front_page",
    "front_page_text",
    "gains",
    "kernel_times",
    "lane_sectors",
    "mask",
    "memory_lengths",
    "merge_tree",
    "online_walk",
    "product_steps",
    "register_tile",
    "requested_traffic",
    "roofline",
    "rungs",
    "running_softmax",
    "shared_banks",
    "show",
    "softmax_bandwidth",
    "softmax_jacobian",
    "streaming_tiles",
    "sum_orders",
    "thread_hierarchy",
    "traffic_bars",
    "wrong_elements",
]
