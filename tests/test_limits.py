"""Launch limits: what is counted, and what the refusals say."""

import types

import numpy as np
import pytest
from numba import cuda, float32, float64

from fa_numba import limits

A100 = limits.of_capability("8.0")
ROWS = 8


@cuda.jit
def plain_kernel(x):
    x[0] = 1


def make_tiles(rows, width):
    """CASES A18: three float32 tiles of 32 x D."""

    @cuda.jit
    def tiles_kernel(x):
        q = cuda.shared.array((rows, width), float32)
        k = cuda.shared.array(shape=(rows, width), dtype=float32)
        v = cuda.shared.array((rows, width), np.float32)
        q[0, 0] = k[0, 0] = v[0, 0] = x[0]

    return tiles_kernel


@cuda.jit(device=True)
def deeper():
    return cuda.shared.array(10, float64)


@cuda.jit(device=True)
def deep():
    half = ROWS // 2
    tile = cuda.shared.array((half, half + 1), float32)
    return tile[0, 0] + deeper()[0]


@cuda.jit
def nested_kernel(x):
    memory = cuda.shared.array(0, float32)
    memory[0] = deep()
    x[0] = deep()


def test_static_shared_memory_is_read_off_the_source():
    assert limits.static_shared_bytes(plain_kernel.py_func) == 0
    assert limits.static_shared_bytes(make_tiles(32, 128).py_func) == 49152
    assert limits.static_shared_bytes(make_tiles(16, 8).py_func) == 3 * 16 * 8 * 4
    assert limits.static_shared_bytes(nested_kernel.py_func) == 4 * 5 * 4 + 80  # device functions count once


def test_static_shared_memory_at_and_over_48_kib():
    limits.check_launch(make_tiles(32, 128), (1, 1, 1), (32, 1, 1), 0, A100)
    with pytest.raises(ValueError, match=r"tiles_kernel declares 49536 bytes of static shared memory.* limit is 49152"):
        limits.check_launch(make_tiles(32, 129), (1, 1, 1), (32, 1, 1), 0, A100)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        ((1, 1, 1), (64, 32, 1), 0, "64×32 = 2048 threads in a block; the limit is 1024. Use smaller blocks and more"),
        ((1, 1, 1), (1025, 1, 1), 0, "asks for 1025 threads in a block; the limit is 1024"),
        ((1, 1, 1), (1, 1, 65), 0, "a block of 65 threads along z; the limit is 64"),
        ((0, 1, 1), (1, 1, 1), 0, "a grid of 0 along x; it must be a whole number above 0"),
        ((1, 1, 1), (0, 1, 1), 0, "a block of 0 along x"),
        ((1, 1, 1), (1.5, 1, 1), 0, "a block of 1.5 along x"),
        ((1, True, 1), (1, 1, 1), 0, "a grid of True along y"),
        ((2**31, 1, 1), (1, 1, 1), 0, "a grid of 2147483648 blocks along x; the limit is 2147483647"),
        ((1, 65536, 1), (1, 1, 1), 0, "a grid of 65536 blocks along y; the limit is 65535. Put the long axis on x"),
        ((1, 1, 65536), (1, 1, 1), 0, "a grid of 65536 blocks along z; the limit is 65535"),
        ((1, 1, 1), (1, 1, 1), 166913, "166913 bytes of shared memory in a block; .* is 166912. Use smaller tiles"),
        ((1, 1, 1), (1, 1, 1), 1.5, "1.5 bytes of dynamic shared memory; it must be a whole number"),
        ((1, 1, 1), (1, 1, 1), -1, "-1 bytes of dynamic shared memory; it must be a whole number"),
    ],
)
def test_what_is_refused(grid, block, shared, message):
    with pytest.raises(ValueError, match=f"plain_kernel .*{message}" if "asks" not in message else message):
        limits.check_launch(plain_kernel, grid, block, shared, A100)


def test_what_is_just_allowed():
    limits.check_launch(plain_kernel, (2**31 - 1, 65535, 65535), (64, 16, 1), 166912, A100)
    limits.check_launch(plain_kernel, (np.int64(3), 1, 1), (1, 1, 64), 0, A100)


def test_static_and_dynamic_shared_memory_add_up():
    with pytest.raises(ValueError, match="asks for 49152 static \\+ 117761 dynamic bytes of shared memory"):
        limits.check_launch(make_tiles(32, 128), (1, 1, 1), (1, 1, 1), 166912 - 49152 + 1, A100)


def make_choice(causal):
    @cuda.jit
    def choice_kernel(x):
        if causal:
            tile = cuda.shared.array(10000, float32)
        elif ROWS > 4:
            tile = cuda.shared.array(8000, float32)
        else:
            tile = cuda.shared.array(9000, float32)
        x[0] = tile[0]

    return choice_kernel


@cuda.jit
def runtime_choice_kernel(x):
    if x[0] > 0:
        tile = cuda.shared.array(10, float32)
        x[0] = tile[0]
    else:
        tile = cuda.shared.array(20, float32)
        x[0] = tile[1]


def test_only_what_is_compiled_counts():
    """What a factory decides leaves one branch; of what the data or the types decide, the larger one counts."""
    assert limits.static_shared_bytes(make_choice(True).py_func) == 40000
    assert limits.static_shared_bytes(make_choice(False).py_func) == 32000
    assert limits.static_shared_bytes(runtime_choice_kernel.py_func) == 80  # the least there can be


WIDE, TALL = 200, 100


@cuda.jit
def evaluated_kernel(n):
    a, b = WIDE, TALL
    first = cuda.shared.array(max(a, b), float32)
    n = 3
    second = cuda.shared.array((n, len((1, 2))), dtype="float32")
    n = 100000
    first[0] = second[0, 0] = n


@cuda.jit
def unknown_kernel(WIDE):  # noqa: N803 (hides a global on purpose)
    a = cuda.shared.array(WIDE, float32)
    b = cuda.shared.array(4)
    c = cuda.shared.array(4, a.dtype)
    b[0] = c[0] = a[0]


def test_expressions_are_evaluated_in_order_and_unknown_ones_left_out():
    assert limits.static_shared_bytes(evaluated_kernel.py_func) == 4 * 200 + 4 * 6
    assert limits.static_shared_bytes(unknown_kernel.py_func) == 0


def test_device_functions_of_other_modules_count():
    other = types.SimpleNamespace(deep=deep)

    @cuda.jit
    def far_kernel(x):
        x[0] = other.deep()

    assert limits.static_shared_bytes(far_kernel.py_func) == 160


def make_pruned(option, big):
    @cuda.jit(device=True)
    def small_tile():
        return cuda.shared.array(7000, float32)[0]

    @cuda.jit(device=True)
    def big_tile():
        return cuda.shared.array(8000, float32)[0]

    @cuda.jit
    def pruned_kernel(x):
        tile = cuda.shared.array(2000, float32) if big else cuda.shared.array(1000, float32)
        if option is None:
            x[0] = small_tile() + tile[0]
        elif x.ndim == 1:
            x[0] = big_tile() + tile[0]

    return pruned_kernel


def test_branches_that_are_pruned_do_not_count():
    assert limits.static_shared_bytes(make_pruned(None, True).py_func) == 4 * 9000
    assert limits.static_shared_bytes(make_pruned(1, False).py_func) == 4 * 9000


def test_launch_bounds_are_kept():
    for bounds in (64, (64, 2)):
        kernel = cuda.jit(launch_bounds=bounds)(plain_kernel.py_func)
        limits.check_launch(kernel, (1, 1, 1), (64, 1, 1), 0, A100)
        with pytest.raises(ValueError, match=r"asks for 65 threads in a block; it was compiled for 64 at most"):
            limits.check_launch(kernel, (1, 1, 1), (65, 1, 1), 0, A100)


def test_capabilities():
    sizes = {
        cc: limits.of_capability(cc).shared_per_block // 1024 for cc in ("7.5", "8.0", "8.6", "8.9", "9.0", "12.0")
    }
    assert sizes == {"7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "12.0": 99}
    with pytest.raises(ValueError, match=r"compute capability '8.1' is not known; known are 7.5, 8.0"):
        limits.of_capability("8.1")


def test_the_simulator_keeps_the_limits_of_a_chosen_capability(monkeypatch):
    monkeypatch.delenv("FA_NUMBA_SIMULATED_CC", raising=False)
    assert limits.simulated() == A100
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "7.5")
    assert limits.simulated().shared_per_block == 65536


def test_heads_past_65535_go_on_x():
    """CASES A19: B*H = 65536 blocks, one a head."""
    limits.check_launch(plain_kernel, (65536, 1, 1), (64, 1, 1), 0, A100)
