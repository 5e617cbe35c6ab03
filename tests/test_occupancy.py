"""Blocks that a multiprocessor holds at a time, against what NVIDIA's calculator and an H200 say."""

import numpy as np
import pytest
from conftest import simulator_only
from numba import cuda, float32

import fa_numba
from fa_numba import device, limits
from fa_numba.occupancy import occupancy


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "blocks", "limited_by"),
    [
        (256, 0, None, 8, ("threads",)),
        (32, 0, None, 32, ("blocks",)),
        (1024, 0, 64, 1, ("registers",)),
        (128, 104 * 1024, None, 2, ("shared memory",)),
        (128, 104_448, 255, 2, ("shared memory", "registers")),  # 8x8 register tiles, d = 64
        (128, 227 * 1024, None, 1, ("shared memory",)),
        (128, 228 * 1024, None, 0, ("shared memory",)),
        (256, 0, 32, 8, ("threads", "registers")),
        (256, 0, 33, 6, ("registers",)),  # a warp takes 1280: 12 warps for each scheduler
        (33, 0, None, 32, ("threads", "blocks")),  # two warps a block
    ],
)
def test_blocks_of_an_h200(threads, shared, registers, blocks, limited_by):
    found = occupancy(threads, shared, registers=registers)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32) and found.share == found.warps / 64


@pytest.mark.parametrize(
    ("capability", "threads", "shared", "registers", "blocks"),
    [
        ("7.5", 1024, 0, 64, 1),
        ("7.5", 64, 0, None, 16),
        ("7.5", 64, 8192 + 1, None, 7),  # in units of 256 bytes, and nothing reserved
        ("8.0", 64, 8192 + 1, None, 17),  # in units of 128 bytes, 1024 reserved
        ("8.6", 64, 48 * 1024, None, 2),
        ("8.6", 32, 0, None, 16),
        ("8.9", 32, 0, None, 24),
        ("12.0", 512, 0, 40, 3),
    ],
)
def test_other_devices(capability, threads, shared, registers, blocks):
    assert occupancy(threads, shared, capability=capability, registers=registers).blocks == blocks


def test_a_block_may_have_all_shared_memory_but_what_is_reserved():
    for capability in ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "12.0"):
        most = limits.of_capability(capability).shared_per_block
        assert occupancy(32, most, capability=capability).blocks_by["shared memory"] == 1
        assert occupancy(32, most + 1, capability=capability).blocks_by["shared memory"] == 0
    with pytest.raises(ValueError, match=r"compute capability '6.0' is not known"):
        occupancy(32, 0, capability="6.0")


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "words"),
    [
        (0, 0, None, "threads of a block are a whole number from 1 to 1024; 0 was given"),
        (-5, 0, None, "from 1 to 1024; -5 was given"),
        (1025, 0, None, "from 1 to 1024; 1025 was given"),
        (128.5, 0, None, "from 1 to 1024; 128.5 was given"),
        (True, 0, None, "from 1 to 1024; True was given"),
        ("32", 0, None, "from 1 to 1024; '32' was given"),
        (32, -1, None, "bytes of shared memory of a block are a whole number from 0; -1 was given"),
        (32, 0.5, None, "from 0; 0.5 was given"),
        (32, 0, 0, "registers of a thread are a whole number from 1 to 255; 0 was given"),
        (32, 0, -3, "from 1 to 255; -3 was given"),
        (32, 0, 256, "from 1 to 255; 256 was given"),
    ],
)
def test_no_launch_has_such_numbers(threads, shared, registers, words):
    with pytest.raises(ValueError, match=words):
        occupancy(threads, shared, registers=registers)


def test_numbers_of_numpy_are_numbers():
    assert occupancy(np.int16(256), np.uint8(0), registers=np.uint8(33)) == occupancy(256, 0, registers=33)


def test_it_says_so_in_words():
    assert str(occupancy(128, 104_448)) == (
        "2 blocks of 4 warps, 12% of the 64 warps that a multiprocessor holds at most, limited by shared memory; "
        "registers are not known and left out"
    )
    assert str(occupancy(256, 0, registers=33)).endswith("at most, limited by registers")


@cuda.jit
def shared_kernel(x):
    tile, more = cuda.shared.array(96, float32), cuda.shared.array(0, float32)
    if cuda.blockIdx.x == 0:  # the other block has less
        rest = cuda.shared.array(32, float32)
        rest[0] = 1
    tile[0] = more[0] = x[0]


@simulator_only
def test_a_traced_launch_knows_threads_and_shared_memory():
    with fa_numba.trace() as report:
        device.launch(shared_kernel, 2, (1, 1, 1), np.ones(1, np.float32), shared=64)
    (launch,) = report.launches
    assert (launch.static_shared, launch.dynamic_shared) == (512, 64)
    assert launch.occupancy(registers=40) == occupancy(1, 576, registers=40)
    assert launch.occupancy("7.5") == occupancy(1, 576, capability="7.5")
    assert str(launch).splitlines()[0].endswith("0 barriers, 0 shuffles, 576 bytes of shared memory a block")
