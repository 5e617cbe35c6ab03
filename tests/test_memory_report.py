"""The memory command: what it counts, computes and writes."""

import csv
import io

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import simulator_only

from fa_numba import memory, memory_report, plots
from fa_numba.memory_report import Peak


@pytest.fixture
def short(monkeypatch):
    """Two lengths of narrow heads, of which the simulator counts one."""
    monkeypatch.setattr(memory_report, "D", 8)
    monkeypatch.setattr(memory_report, "LENGTHS", [16, 4096])
    monkeypatch.setattr(memory_report, "LONGEST_SIMULATED", 16)


def test_lengths_run_to_the_end_of_the_figure():
    assert memory_report.LENGTHS[0] == 16
    assert memory_report.LENGTHS[-1] == plots.LONGEST


@simulator_only
def test_short_lengths_are_counted_and_long_ones_computed(short, monkeypatch):
    monkeypatch.setattr(memory, "counted_peaks", lambda method, n, d: {"forward": 1, "forward+backward": 2})
    found = {(peak.method, peak.passes, peak.n): peak for peak in memory_report.peaks()}
    assert len(found) == 2 * 2 * 2
    for method in memory.METHODS:
        for passes, counted in (("forward", 1), ("forward+backward", 2)):
            assert found[method, passes, 16] == (method, passes, 16, 8, counted, "counted")
            computed = memory.computed_bytes(method, passes, 4096, 8)
            assert found[method, passes, 4096] == (method, passes, 4096, 8, computed, "computed")


def test_a_gpu_counts_what_takes_half_of_its_free_memory(monkeypatch):
    """In 2 * 3.3 GB: standard attention to 16384, whose s, p and gradients take 3.25 GB."""
    monkeypatch.setattr(memory_report.device, "SIMULATED", False)

    class Context:
        def get_memory_info(self):
            return type("MemoryInfo", (), {"free": 6_600_000_000})

    monkeypatch.setattr(memory_report.cuda, "current_context", Context)
    lengths = memory_report._lengths_to_count()
    assert lengths["standard"] == [2**power for power in range(4, 15)]
    assert lengths["flash"] == memory_report.LENGTHS


def test_the_table():
    found = [
        Peak("standard", "forward", 16, 64, 18432, "counted"),
        Peak("standard", "forward+backward", 16, 64, 35840, "counted"),
        Peak("flash", "forward", 16, 64, 16512, "counted"),
        Peak("flash", "forward+backward", 16, 64, 32960, "computed"),
    ]
    methods, heading, row = memory_report.table(found).splitlines()
    assert methods.split() == ["standard", "flash"]
    assert heading.split() == ["N", *["forward", "with", "backward"] * 2]
    assert row.split() == ["16", "18.4", "kB", "35.8", "kB", "counted", "16.5", "kB", "33", "kB", "computed"]


def test_the_csv_holds_every_peak_to_the_byte():
    found = [Peak("standard", "forward", 16, 64, 18432, "counted"), Peak("flash", "forward", 32, 64, 5, "computed")]
    heading, *rows = csv.reader(io.StringIO(memory_report.as_csv(found).decode()))
    assert heading == ["method", "passes", "n", "d", "bytes", "how"]
    assert rows == [
        ["standard", "forward", "16", "64", "18432", "counted"],
        ["flash", "forward", "32", "64", "5", "computed"],
    ]


def test_the_figure_has_a_dot_for_what_was_counted_only(monkeypatch):
    given = []
    draw = plots.memory_lengths
    monkeypatch.setattr(plots, "memory_lengths", lambda *arguments: given.append(arguments) or draw(*arguments))
    found = [Peak("standard", "forward", 16, 64, 18432, "counted"), Peak("flash", "forward", 32, 64, 5, "computed")]
    picture = plt.imread(io.BytesIO(memory_report.as_png(found)))
    assert given == [(memory.PASSES, {("standard", "forward", 16): 18432}, 64)]
    assert picture.shape[1] > 600
    assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 10  # drawn on
    assert plt.get_fignums() == []
