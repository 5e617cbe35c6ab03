"""How calls are timed: in turns, within bounds, and with the host ahead of the GPU."""

import numpy as np
import pytest
from conftest import gpu_only
from measuring import FakeGpu
from numba import cuda

from fa_numba import stopwatch

BOUNDS = {"seconds": 1.0, "fewest": 3, "most": 10}


@pytest.fixture
def gpu():
    return FakeGpu()


def take_turns(calls, gpu, **bounds):
    entrants = {name: lambda call=call: call for name, call in calls.items()}
    return stopwatch.take_turns(entrants, gpu, now=gpu.now, **{**BOUNDS, **bounds})


def test_calls_take_turns(gpu):
    order = []
    take_turns({name: lambda name=name: order.append(name) for name in "abc"}, gpu, most=4)
    assert "".join(order) == "abc" * (stopwatch.WARM_UPS + 4)


def test_every_call_is_prepared_once_and_warmed_up(gpu):
    prepared = []

    def prepare():
        prepared.append(gpu.time)
        return gpu.call(2.0)

    times = stopwatch.take_turns({"a": prepare}, gpu, now=gpu.now, **BOUNDS)
    assert prepared == [0.0]
    assert times["a"].each == [2.0] * 10
    assert gpu.time == 2.0 * (stopwatch.WARM_UPS + 10)


@pytest.mark.parametrize(("ms", "rounds"), [(1, 10), (150, 7), (400, 3), (5000, 3)])
def test_a_slow_call_has_fewer_rounds(gpu, ms, rounds):
    times = take_turns({"slow": gpu.call(ms), "fast": gpu.call(0.5)}, gpu)
    assert times["slow"].each == pytest.approx([ms] * rounds)
    assert len(times["fast"].each) == 10


def test_the_lead_grows_until_the_host_is_ahead(gpu):
    times = take_turns({"a": gpu.call(1.0, needs=100), "b": gpu.call(2.0)}, gpu)
    assert (times["a"].lead, times["b"].lead) == (128, 8)
    assert times["a"].ahead and times["b"].ahead
    assert times["a"].each == [1.0] * 10


def test_a_call_that_waits_for_the_gpu_is_marked(gpu):
    times = take_turns({"a": gpu.call(1.0, needs=10**9)}, gpu)
    assert not times["a"].ahead
    assert times["a"].each == [1.0] * 10


@pytest.mark.parametrize("when", [0, 1, stopwatch.WARM_UPS + 2])
def test_a_call_that_raises_does_not_stop_the_others(gpu, when):
    count = iter(range(100))

    def fails():
        if next(count) == when:
            raise MemoryError("no room\nat all")

    times = take_turns({"bad": fails, "good": gpu.call(1.0)}, gpu)
    assert times["bad"].fault == "MemoryError: no room"
    assert next(count) == when + 1
    assert times["good"].fault is None and len(times["good"].each) == 10


def test_what_cannot_be_prepared_is_reported(gpu):
    def prepare():
        raise ValueError("bad tile")

    times = stopwatch.take_turns({"bad": prepare}, gpu, now=gpu.now, **BOUNDS)
    assert times["bad"].fault == "ValueError: bad tile"


def test_microseconds_a_call(gpu):
    found = stopwatch.per_call(gpu.call(0.25), gpu, calls=4, batches=3, now=gpu.now)
    assert found == pytest.approx([250.0] * 3)


@gpu_only
def test_a_gpu_is_timed_without_what_the_host_does():
    import time

    gpu = stopwatch.Gpu()
    x, y = cuda.to_device(np.ones(2**24, np.float32)), cuda.device_array(2**24, np.float32)

    def call():
        time.sleep(0.002)  # the host is slow, the copy is not
        y.copy_to_device(x)

    times = stopwatch.take_turns({"copy": lambda: call}, gpu, seconds=1.0, fewest=5, most=5)
    assert times["copy"].ahead
    assert 0 < np.median(times["copy"].each) < 2


def test_median_and_quartiles():
    assert stopwatch.summary("ms", [5.0, 1.0, 2.0, 4.0, 3.0]) == {"ms": 3.0, "ms_low": 2.0, "ms_high": 4.0, "calls": 5}
