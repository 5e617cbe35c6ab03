"""What calls cost the host: launches and array arguments are counted, and each has bare launches beside it."""

import numpy as np
import pytest
from conftest import simulator_only
from measuring import FakeGpu
from numba import cuda

from fa_numba import overhead, stopwatch, tables

OURS = ("naive_softmax", "flash_forward", "flash_backward")


@pytest.fixture
def inputs(rng):
    return {name: cuda.to_device(rng.standard_normal((1, 4, 4), np.float32)) for name in ("q", "k", "v", "do")}


@pytest.fixture
def rows(inputs, monkeypatch):
    """Measurements that say 12 µs for any call, and 3 µs an array argument for a bare launch."""

    def per_call(call, gpu, *, calls, batches):
        call()
        return [12.0] * batches

    def bare(array, count, gpu):
        return {**made[count], "us": 3.0 * count, "us_launch": 3.0 * count, "bare_us": 3.0 * count}

    monkeypatch.setattr(stopwatch, "per_call", per_call)
    made = {count: overhead._bare(inputs["q"], count, None) for count in range(1, 13)}
    monkeypatch.setattr(overhead, "_bare", bare)
    return {row["contestant"]: row for row in overhead.measure(inputs, FakeGpu(), None)}


@simulator_only
def test_a_call_stands_beside_bare_launches_of_as_many_arrays(rows):
    for name in OURS:
        row = rows[name]
        assert row["us"] == 12.0 and row["launches"] == len(row["arrays"])
        assert row["us_launch"] == 12.0 / row["launches"]
        assert row["bare_us"] == 3.0 * sum(row["arrays"])
        assert all(f"bare launch, {count} arrays" in rows for count in row["arrays"])
    assert rows["naive_softmax"]["arrays"] == [2]
    assert rows["flash_backward"]["launches"] > 1
    assert rows["bare launch, 2 arrays"]["launches"] == 1


@simulator_only
def test_a_copy_launches_nothing_of_ours(rows):
    assert "launches" not in rows["copy"] and rows["copy"]["us"] == 12.0


@simulator_only
def test_the_table_says_how_many_launches_a_call_makes(rows):
    lines = tables.overhead("overhead", list(rows.values())).split("\n")
    (line,) = (line for line in lines if line.split()[:1] == ["naive_softmax"])
    assert line.split()[1:] == ["12.0", "12.0–12.0", "1", "12.0", "6.0"]
    (line,) = (line for line in lines if line.split()[:1] == ["copy"])
    assert line.split()[-1] == "12.0–12.0"


@simulator_only
def test_a_call_that_fails_is_a_row_with_a_fault(inputs, monkeypatch):
    def fail(*arguments, **options):
        raise ValueError("too small")

    monkeypatch.setattr(stopwatch, "per_call", fail)
    rows = [overhead._row(each, FakeGpu()) for each in overhead._ours(inputs, "")]
    assert [(row["contestant"], row["fault"]) for row in rows] == [(name, "ValueError: too small") for name in OURS]
    assert tables.overhead("overhead", rows).count("FAILED") == 3


@pytest.mark.parametrize("count", [1, 2, 9])
def test_an_empty_kernel_takes_so_many_arrays(count):
    x = np.ones(4, np.float32)
    there = cuda.to_device(x)
    overhead._empty_kernel(count)[1, 32](*[there] * count)
    assert (there.copy_to_host() == x).all()
