"""What the text of notebook 04 says of the record of an H200 and of shared memory, held to both."""

import numpy as np
import pytest
from conftest import ROOT

import fa_numba
from fa_numba import limits, recorded
from fa_numba.plots import measured
from fa_numba.step4_flash_forward import RUNGS, wide_tiles
from fa_numba.step4_flash_forward.small_tiles import _elements


@pytest.fixture(scope="module")
def record():
    return recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")


def forward(record, contestant, entry="ms", heads=32, n=4096, d=64, causal=False):
    row = record.one(section="forward", contestant=contestant, heads=heads, n=n, d=d, causal=causal)
    return row[entry]


def test_flash_is_faster_than_standard_attention_at_every_length(record):
    for n in (1024, 4096, 16384):
        assert forward(record, "flash_forward", heads=1, n=n) < forward(record, "standard_attention", heads=1, n=n)


def test_the_ceiling_is_not_reached(record):
    assert forward(record, "flash_forward", "tflops") < 0.95 * measured.CUDA_CORES


@pytest.mark.parametrize("contestant", ["flash_forward", "standard_attention"])
def test_causal_takes_a_little_more_than_half_the_time(record, contestant):
    assert 0.5 < forward(record, contestant, causal=True) / forward(record, contestant) < 0.61


def test_tiles_of_64_fit_an_h200_and_not_a_t4():
    nbytes = 4 * _elements(64, 64, 64, 64)
    assert round(nbytes / 1000) == 70
    t4, h200 = (limits.of_capability(capability).shared_per_block for capability in ("7.5", "9.0"))
    assert (t4, h200) == (64 * 1024, 227 * 1024)
    assert t4 < nbytes < h200


def test_an_h200_does_14_operations_in_the_time_of_a_byte():
    assert round(measured.CUDA_CORES / 4.8) == 14  # TFLOP/s over TB/s, both by its datasheet


def test_the_fast_kernel_has_as_many_scores_and_sums_as_the_notebook_counts():
    tile = wide_tiles.TILES[64][0]
    assert (tile.columns, 64 // tile.across, wide_tiles.R8) == (8, 8, 8)
    assert 1024 // wide_tiles.FEW.block_q == 16  # blocks, for one head


@pytest.mark.parametrize(("n", "block"), [(32, 16), (64, 8), (64, 32)])
def test_traffic_times_shared_memory_is_as_the_square_of_what_is_multiplied(n, block):
    """Θ(N² d² / M), by counting: between 24 and 32 bytes times numbers for tiles up to the head dim, whatever N."""
    d = 32
    q, k, v = np.random.default_rng(0).standard_normal((3, n, d)).astype(np.float32)
    (launch,) = fa_numba.trace(fa_numba.flash_forward, q, k, v, block_q=block, block_k=block).launches
    shared = sum(array.footprint for array in launch.arrays if array.space == "shared") // 4
    assert shared == 3 * block * d + block**2
    nbytes = launch["k"].loaded + launch["v"].loaded
    assert nbytes * shared / (n * d) ** 2 == 8 * (3 + block / d)


def test_flash_reads_its_inputs_once_from_memory_and_standard_attention_moves_its_matrices():
    """What ncu saw at N = 4096; the article's factor is 86.67."""
    traffic = recorded.load(ROOT / "notebooks" / "recorded" / "h200_traffic.json")

    def dram(call, *directions):
        rows = traffic.select(section="traffic", contestant=f"N = 4096: {call}")
        return sum(row["measured"][f"dram_{direction}"] for row in rows for direction in directions) / 2**20

    flash, standard = "flash, 4x4 register tiles", "standard_attention"
    assert dram(flash, "read") == pytest.approx(3, rel=0.05) and dram(flash, "written") == 0
    assert dram(standard, "read") > 2 * 64 and dram(standard, "written") > 64
    assert dram(standard, "read", "written") / dram(flash, "read", "written") == pytest.approx(86.67, rel=0.1)
    with_all_writes = (dram(standard, "read") + 2 * 64 + 1) / (dram(flash, "read") + 1)  # S, P and o; o
    assert with_all_writes == pytest.approx(75, rel=0.03)


def test_the_slowest_and_the_fastest_rung_hold_as_few_warps():
    traffic = recorded.load(ROOT / "notebooks" / "recorded" / "h200_traffic.json")
    one, between, fast = (
        traffic.one(section="traffic", contestant=f"flash, {rung}")["measured"]["occupancy"] for rung in RUNGS
    )
    assert one == fast == between / 2


@pytest.mark.parametrize("d", [64, 128])
def test_one_query_takes_little_more_than_the_datasheet_allows(record, d):
    ms = {name: record.one(section="decode", contestant=name, d=d)["ms"] for name in ("flash_forward", "copy")}
    least = 32 * 40_000 * 2 * d * 4 / 4.8e9
    assert 1.15 < ms["flash_forward"] / least < 1.3 and ms["copy"] / least == pytest.approx(1.125, abs=0.03)
