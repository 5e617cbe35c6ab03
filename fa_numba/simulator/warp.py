"""What the warp operations compute, once all their lanes have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.simulator.integers import wrapped

if TYPE_CHECKING:
    from fa_numba.simulator.launch import Thread

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF
SHUFFLED_TYPES = (np.int32, np.int64, np.float32, np.float64)  # what Numba compiles; the GPU moves 32-bit registers


def results(op: str, threads: list[Thread]) -> list[Any]:
    """Return what the operation gives each of the threads that wait in it."""
    if op in _SOURCE_LANES:
        values = {thread.lane: thread.waiting.value for thread in threads}
        return [_shuffled(op, thread, values) for thread in threads]
    if op in _VOTES:
        votes = [(thread.lane, bool(thread.waiting.value)) for thread in threads]
        return [_VOTES[op](votes)] * len(threads)
    if op == "activemask":
        return [sum(1 << thread.lane for thread in threads)] * len(threads)
    return [None] * len(threads)  # syncwarp


def _shuffled(op: str, thread: Thread, values: dict[int, Any]) -> Any:
    source = _SOURCE_LANES[op](thread.lane, int(thread.waiting.argument) % WARP_SIZE)
    return values[source] if source in values else _undefined(values[thread.lane])


def _undefined(value: Any) -> Any:
    """Stand for what a GPU reads from a lane that does not take part: NaN, or the lowest integer."""
    return type(value)(np.nan) if isinstance(value, (float, np.floating)) else np.iinfo(np.int64).min


# PTX ISA, shfl.sync: the lane whose value arrives. A lane that would read past the warp's ends keeps its own.
_SOURCE_LANES = {
    "shfl_sync": lambda lane, source: source,
    "shfl_up_sync": lambda lane, delta: lane - delta if lane >= delta else lane,
    "shfl_down_sync": lambda lane, delta: lane + delta if lane + delta < WARP_SIZE else lane,
    "shfl_xor_sync": lambda lane, mask: lane ^ mask,
}

# PTX ISA, vote.sync
_VOTES = {
    "all_sync": lambda votes: all(vote for _, vote in votes),
    "any_sync": lambda votes: any(vote for _, vote in votes),
    "eq_sync": lambda votes: len({vote for _, vote in votes}) == 1,
    "ballot_sync": lambda votes: wrapped(sum(vote << lane for lane, vote in votes), 32, signed=True),  # Numba: int32
}
