"""Kernels without one of their barriers, on the device and traced on the simulator."""

import functools
import inspect
import pickle

import numpy as np
import pytest
from conftest import is_bundled, run_python, simulator_only

import fa_numba
from fa_numba import barriers, step1_naive_softmax, step2_online_softmax, step4_flash_forward
from fa_numba.barriers import without_barrier
from fa_numba.simulator import RaceError
from fa_numba.step5_flash_backward import RUNGS, small_tiles

TWO_KERNELS = RUNGS["two kernels, 4x4 register tiles"]


def inputs(rng, n=8, d=8):
    q, k, v, do = (rng.standard_normal((n, d)).astype(np.float32) for _ in range(4))
    return do, q, k, v, *fa_numba.flash_forward(q, k, v)


def test_the_barriers_of_a_module_in_order():
    lines = inspect.getsource(small_tiles).splitlines()
    found = [lines[number - 1].strip() for number in barriers.lines_of(small_tiles)]
    assert len(found) == 8 and all(text.startswith("cuda.syncthreads()") for text in found)
    assert barriers.lines_of(step1_naive_softmax) == []


def test_what_no_barrier_is_needed_for_stays_as_it_is(rng):
    """The last barrier of block_sum keeps scratch for a later use, which three passes have not."""
    x = rng.standard_normal((3, 300)).astype(np.float32)
    function = step2_online_softmax.RUNGS["three passes"]
    broken = without_barrier(function, step2_online_softmax, 4)
    np.testing.assert_array_equal(broken(x), function(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(broken))(x), function(x))


@simulator_only
def test_the_race_is_named_and_the_module_stays_whole(rng):
    arguments = inputs(rng)
    broken = without_barrier(TWO_KERNELS, small_tiles, 4)
    with pytest.raises(RaceError) as caught:
        fa_numba.trace(broken, *arguments, causal=True)
    race = caught.value
    assert (race.kernel, race.array) == ("flash_backward_dk_dv_kernel", "p_tile")
    written = "p_tile[(y + r * rows) * (block_q + PAD) + x + j * columns] = ds[r, j]"
    number = next(i for i, line in enumerate(inspect.getsource(small_tiles).splitlines(), 1) if written in line)
    assert race.lines[0] == race.kernel_lines[0] == f"small_tiles.py:{number} ({written})"
    assert race.lines[1].startswith("tiles.py:") and race.kernel_lines[1].startswith("small_tiles.py:")
    assert f"called at {race.kernel_lines[1]}" in str(race)
    fa_numba.trace(TWO_KERNELS, *arguments)


@simulator_only
def test_modules_of_one_file_name_keep_their_own_lines(rng):
    """Whichever lost a barrier last."""
    broken = without_barrier(TWO_KERNELS, small_tiles, 2)
    without_barrier(step4_flash_forward.RUNGS["4x4 register tiles"], step4_flash_forward.small_tiles, 2)
    with pytest.raises(RaceError) as caught:
        fa_numba.trace(broken, *inputs(rng))
    lines = inspect.getsource(small_tiles).splitlines()
    for told in caught.value.kernel_lines:
        number = int(told.removeprefix("small_tiles.py:").partition(" ")[0])
        assert told == f"small_tiles.py:{number} ({lines[number - 1].strip()})"


def test_what_cannot_be_removed_is_refused():
    with pytest.raises(ValueError, match="small_tiles has 8 barriers; 9 was asked for, and they count from 1"):
        without_barrier(TWO_KERNELS, small_tiles, 9)
    with pytest.raises(ValueError, match="small_tiles has 8 barriers; 0 was asked for"):
        without_barrier(TWO_KERNELS, small_tiles, 0)
    for function in (fa_numba.flash_backward, functools.partial(fa_numba.flash_backward, causal=True)):
        with pytest.raises(ValueError, match=r"no function of fa_numba.step5_flash_backward.small_tiles"):
            without_barrier(function, small_tiles, 1)


@pytest.mark.parametrize("number", [1.0, True, "1", None])
def test_which_barrier_is_a_whole_number(number):
    with pytest.raises(ValueError, match=f"by a whole number, and they count from 1; {number!r} was given"):
        without_barrier(TWO_KERNELS, small_tiles, number)


def test_a_function_without_a_name_is_refused():
    with pytest.raises(ValueError, match=r"no function of fa_numba.step5_flash_backward.small_tiles.* pickle"):
        without_barrier(lambda: None, small_tiles, 1)


def test_one_barrier_at_a_time_is_removed():
    broken = without_barrier(TWO_KERNELS, small_tiles, 4)
    for function in (broken, functools.partial(broken, causal=True)):
        with pytest.raises(ValueError, match="lacks a barrier already, and one at a time can be removed"):
            without_barrier(function, small_tiles, 3)


BESIDE_A_GPU = """
import numpy as np
import fa_numba
from fa_numba.barriers import without_barrier
from fa_numba.simulator import RaceError
from fa_numba.step4_flash_forward import RUNGS, small_tiles

assert not fa_numba.device.SIMULATED
q = np.ones((8, 8), np.float32)
try:
    fa_numba.trace(without_barrier(RUNGS["4x4 register tiles"], small_tiles, 3), q, q, q)
except RaceError as race:
    print(race.array, *race.kernel_lines, sep="\\n")
"""


@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_beside_a_gpu_the_race_is_named_too():
    finished = run_python(BESIDE_A_GPU, FA_NUMBA_DEVICE="gpu")
    assert finished.returncode == 0, finished.stderr
    array, first, second = finished.stdout.splitlines()
    assert array == "p_tile" and "online_softmax_tile(" in first and "add_products(" in second
