"""A function called on the simulator in a process of its own, and ``fa_numba.trace`` where there is a GPU."""

import functools
import os
import pickle
import sys

import numpy as np
import pytest
from conftest import gpu_only, is_bundled, run_python, simulator_only
from numba import cuda

import fa_numba
from fa_numba import child, device, step3_standard_attention
from fa_numba.simulator import OutOfBoundsError, RaceError, SyncError, UninitializedReadError

no_gpu_mode = pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")


class OwnError(Exception):
    def __init__(self, *, number):
        super().__init__(f"number {number}")


def told(text):
    print(text)
    return os.environ["FA_NUMBA_DEVICE"], device.SIMULATED


def fail(kind, **arguments):
    raise kind(**arguments)


def leave(status):
    os._exit(status)


def give_back():
    return lambda: None


def test_it_runs_on_the_simulator_and_may_print(capfd):
    assert child.call(told, text="a word") == ("simulator", True)
    assert capfd.readouterr().err == "a word\n"


def test_what_goes_wrong_there_is_raised_here():
    with pytest.raises(RuntimeError, match=r"^OwnError: number 3$"):
        child.call(fail, OwnError, number=3)
    with pytest.raises(RuntimeError, match="ended with status 3"):
        child.call(leave, 3)
    with pytest.raises(TypeError, match="what the function returned cannot be brought back"):
        child.call(give_back)
    with pytest.raises(TypeError, match=r"takes a function of a module, or a functools.partial of one"):
        child.call(lambda: None)


def test_a_function_that_the_child_cannot_import_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "typed_in", told, raising=False)
    monkeypatch.setattr(told, "__module__", "__main__")
    monkeypatch.setattr(told, "__qualname__", "typed_in")
    with pytest.raises(TypeError, match="Put it into a module, or set FA_NUMBA_DEVICE=simulator"):
        child.call(told, "a word")


@pytest.mark.parametrize("kind", [OutOfBoundsError, SyncError, UninitializedReadError])
def test_errors_of_kernels_keep_what_they_say(kind):
    error = kind("what", kernel="copy_kernel", line="a.py:3 (x)", threads=[(1, 0, 0)])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == "what" and vars(again) == vars(error)


def test_races_keep_what_they_say():
    place = {"kernel": "copy_kernel", "line": "a.py:3", "threads": [(1, 0, 0), (2, 0, 0)]}
    error = RaceError(
        "what", lines=("a.py:3", "a.py:4"), kernel_lines=("b.py:5", "a.py:4"), array="x", index=(5,), **place
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RaceError and str(again) == "what" and vars(again) == vars(error)


@simulator_only
def test_its_report_is_that_of_this_process(rng):
    q, k, v = (rng.standard_normal((16, 8)).astype(np.float32) for _ in range(3))
    function = functools.partial(step3_standard_attention.RUNGS["4x4 register tiles"], causal=True)
    there, here = child.call(fa_numba.trace, function, q, k, v=v), fa_numba.trace(function, q, k, v=v)
    assert str(there) == str(here)
    np.testing.assert_array_equal(there.result.p, here.result.p)
    for launch, other in zip(there.launches, here.launches):
        assert launch.lines == other.lines
        np.testing.assert_array_equal(launch["c" if "matmul" in launch.kernel else "p"].writes, 1)


BESIDE_A_GPU = """
import numpy as np
import fa_numba
from fa_numba.step4_flash_forward import RUNGS

assert not fa_numba.device.SIMULATED
q = np.ones((8, 8), np.float32)
report = fa_numba.trace(RUNGS["4x4 register tiles"], q, q, q, causal=True)
assert report["flash_forward_kernel"]["q"].reads.sum() == 64
assert report.result.o.shape == (8, 8) and (report.result.m != 0).all()
for wrong, kind in ((lambda: fa_numba.trace(), RuntimeError), (lambda: fa_numba.trace(print, lambda: 0), TypeError)):
    try:
        wrong()
    except kind as error:
        print(error)
"""


@no_gpu_mode
def test_beside_a_gpu_a_call_is_traced():
    finished = run_python(BESIDE_A_GPU, FA_NUMBA_DEVICE="gpu")
    assert finished.returncode == 0, finished.stderr
    with_form, unnamed = finished.stdout.splitlines()
    assert "call trace(function, ...) instead, or set FA_NUMBA_DEVICE=simulator" in with_form
    assert "arguments that can be pickled" in unnamed


@gpu_only
def test_arrays_of_a_gpu_are_traced_and_come_back_as_numpy_arrays(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    report = fa_numba.trace(fa_numba.naive_softmax, cuda.to_device(x))
    assert report.launches[0]["x"].loads == 3 * x.size
    np.testing.assert_allclose(report.result, fa_numba.naive_softmax(x), rtol=1e-5)
