"""Times on a GPU: calls that take turns, each between two events, with the GPU kept busy until all is queued."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import cuda, float32

from fa_numba import device, peak

BUSY_THREADS = 256
MOST_LEAD = 1024  # passes
WARM_UPS = 2


@cuda.jit
def busy_kernel(x, out, passes):
    """Read x from end to end, several times."""
    total = float32(0)
    for _ in range(passes):
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            total += x[i]
    if total < float32(0):  # never; but the compiler does not know, and keeps the loop
        out[0] = total


class Gpu:
    """The GPU as the measurements need it: marks in its default stream, work to keep it busy, its memory and peak."""

    def __init__(self) -> None:
        gpu = cuda.get_current_device()
        self.memory: int = cuda.current_context().get_memory_info().total
        self.fp32_tflops = peak.of_current_gpu()
        self._blocks = 8 * gpu.MULTIPROCESSOR_COUNT
        self._x = cuda.to_device(np.ones(2 * gpu.L2_CACHE_SIZE // 4, np.float32))
        self._out = cuda.device_array(1, np.float32)

    def occupy(self, passes: int) -> None:
        """Queue work for some time: read twice the L2 cache, so that what comes next finds nothing of its own there."""
        device.launch(busy_kernel, self._blocks, BUSY_THREADS, self._x, self._out, passes)

    def mark(self) -> Any:
        """Return an event that happens when all that is queued by now is done."""
        event = cuda.event()
        event.record()
        return event

    def has_passed(self, event: Any) -> bool:
        """Say whether an event has happened."""
        return event.query()

    def milliseconds(self, start: Any, end: Any) -> float:
        """Wait for the later of two events; return the time between them."""
        end.synchronize()
        return start.elapsed_time(end)

    def synchronize(self) -> None:
        """Wait until all that is queued is done."""
        cuda.synchronize()

    def keep(self) -> contextlib.AbstractContextManager:
        """Return a context inside which no memory is freed, as that would make the host wait for the GPU."""
        return cuda.defer_cleanup()

    def free(self) -> None:
        """Free the memory of arrays that nobody holds any more; Numba puts that off."""
        cuda.current_context().memory_manager.deallocations.clear()


@dataclass
class Times:
    """The times of one contestant.

    Attributes
    ----------
    each : list of float
        One a call, in milliseconds.
    ahead : bool
        Whether the host had queued each call before the GPU came to it. If not, times include the host's work.
    fault : str or None
        What a call raised; it was not called again.
    """

    each: list[float] = field(default_factory=list)
    ahead: bool = True
    fault: str | None = None
    lead: int = 8  # passes of the busy kernel that give the host time to queue the call
    spent: float = 0.0  # seconds


def take_turns(
    entrants: dict[str, Callable[[], Callable[[], Any]]],
    gpu: Any,
    *,
    seconds: float,
    fewest: int,
    most: int,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Time several calls, which take turns so that a drift of the GPU meets all of them.

    Parameters
    ----------
    entrants : dict of callable
        By name: what prepares, and returns the call to time. What the call returns is dropped.
    gpu : Gpu
        Or what stands in for it.
    seconds : float
        A call that has had this much drops out, after ``fewest`` rounds.
    fewest, most : int
        The number of rounds, not counting those to warm up.
    now : callable
        The clock of the host, in seconds.

    Returns
    -------
    dict of Times
        By name.
    """
    times = {name: Times() for name in entrants}
    calls = {name: _guarded(times[name], prepare) for name, prepare in entrants.items()}
    for _ in range(WARM_UPS):
        for name, call in calls.items():
            _guarded(times[name], _turn, call, gpu, times[name])
    for round_ in range(most):
        for name, call in calls.items():
            taken = times[name]
            if round_ < fewest or taken.spent < seconds:
                start = now()
                ms = _guarded(taken, _turn, call, gpu, taken)
                taken.each += [] if ms is None else [ms]
                taken.spent += now() - start
    return times


def _guarded(times: Times, action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns. If it raises, now or before, return None: the others' times are still wanted."""
    if times.fault is None:
        try:
            return action(*arguments)
        except Exception as problem:
            times.fault = told(problem)
    return None


def told(problem: Exception) -> str:
    """Return an exception as one line."""
    return f"{type(problem).__name__}: {problem}".split("\n")[0]


def _turn(call: Callable[[], Any], gpu: Any, times: Times) -> float:
    """Return the milliseconds of one call; while the GPU was faster than the host, repeat it with a longer lead."""
    while True:
        gpu.occupy(times.lead)
        start = gpu.mark()
        with gpu.keep():
            outputs = call()
            end = gpu.mark()
            late = gpu.has_passed(start)
        del outputs
        ms = gpu.milliseconds(start, end)
        gpu.free()
        if not late or not times.ahead:
            return ms
        if times.lead == MOST_LEAD:  # the call itself waits for the GPU: no lead helps
            times.ahead = False
            times.lead = 1
        else:
            times.lead = min(2 * times.lead, MOST_LEAD)


def per_call(
    call: Callable[[], Any], gpu: Any, *, calls: int, batches: int, now: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the microseconds that one call takes of the host's time, for each of several batches of calls."""
    call()
    found = []
    for _ in range(batches):
        gpu.synchronize()
        start = now()
        for _ in range(calls):
            call()
        gpu.synchronize()
        found.append((now() - start) / calls * 1e6)
    return found


def summary(unit: str, values: list[float]) -> dict[str, float]:
    """Return median, quartiles and number of values, named by their unit."""
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {unit: median, f"{unit}_low": low, f"{unit}_high": high, "calls": len(values)}
