"""A function called on the simulator in a process of its own, and ``fa_numba.trace`` where there is a GPU."""

import functools
import os
import pickle
import subprocess
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


def write():
    os.write(1, b"by number\n")
    subprocess.run([sys.executable, "-c", "print('by a process')"], check=True)
    return 3


def end_well():
    sys.exit(0)


def nest(depth):
    nested = []
    for _ in range(depth):
        nested = [nested]
    return nested


def to_device(n):
    array = cuda.to_device(np.arange(n))
    return {"whole": array, "parts": [array[:2], (n,)]}


def kinds_and_sums(*arrays, **more):
    """Say of arrays within lists, tuples and dicts what they are and hold."""
    nested = [*arrays, *more.values()]
    flat = [nested[0], *nested[1], *nested[2]["a"], nested[3]]
    return [(type(each).__name__, int(each.sum())) for each in flat]


def fail_in_turn():
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OwnError(number=2) from error
    except OwnError as error:
        raise ValueError("last") from error


def fail_of_itself():
    error = ValueError("alone")
    raise error from error


def test_it_runs_on_the_simulator_and_may_print(capfd):
    assert child.call(told, text="a word") == ("simulator", True)
    assert capfd.readouterr().err == "a word\n"


def test_what_is_written_past_python_does_not_get_in_between(capfd):
    assert child.call(write) == 3
    told = capfd.readouterr()
    assert told.out == "" and told.err.splitlines() == ["by number", "by a process"]


@pytest.mark.parametrize("function", [end_well, functools.partial(leave, 0)])
def test_an_end_without_an_answer_is_told(function):
    with pytest.raises(RuntimeError, match="ended with status 0, without an answer"):
        child.call(function)


def test_arrays_on_a_device_are_numpy_arrays_on_both_ways():
    result = child.call(to_device, 4)
    assert type(result["whole"]) is type(result["parts"][0]) is np.ndarray
    np.testing.assert_array_equal(result["whole"], np.arange(4))
    np.testing.assert_array_equal(result["parts"][0], [0, 1])


@simulator_only
def test_arrays_on_a_device_may_stand_within_other_arguments():
    a, b, c, d = (cuda.to_device(np.full(2, number)) for number in (1, 2, 3, 4))
    function = functools.partial(kinds_and_sums, a)
    found = child.call(function, [b, b], {"a": (c,)}, last=d)
    assert found == [("ndarray", total) for total in (2, 4, 4, 6, 8)]


@simulator_only
def test_arrays_of_other_libraries_are_copied_by_their_interface(monkeypatch):
    class Elsewhere:
        __cuda_array_interface__ = {"shape": (2,)}  # noqa: RUF012 (the protocol's name and kind)

    monkeypatch.setattr(cuda, "as_cuda_array", lambda _: cuda.to_device(np.full(2, 5)), raising=False)
    a, *others = np.ones((5, 2))
    found = child.call(kinds_and_sums, a, [Elsewhere()], {"a": others[:1]}, last=Elsewhere())
    assert found == [("ndarray", total) for total in (2, 10, 2, 10)]


def test_errors_keep_their_causes():
    with pytest.raises(ValueError, match="last") as caught:
        child.call(fail_in_turn)
    second = caught.value.__cause__
    assert type(second) is RuntimeError and str(second) == "OwnError: number 2"
    assert type(second.__cause__) is KeyError and second.__cause__.__cause__ is None
    with pytest.raises(ValueError, match="alone"):
        child.call(fail_of_itself)


def test_what_is_nested_too_deeply_is_refused_on_both_ways():
    with pytest.raises(TypeError, match="what the function returned cannot be brought back"):
        child.call(nest, 100_000)
    with pytest.raises(TypeError, match="arguments that can be pickled"):
        child.call(told, nest(100_000))


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
from test_child import to_device

assert not fa_numba.device.SIMULATED
q = np.ones((8, 8), np.float32)
report = fa_numba.trace(RUNGS["4x4 register tiles"], q, q, q, causal=True)
assert report["flash_forward_kernel"]["q"].reads.sum() == 64
assert report.result.o.shape == (8, 8) and (report.result.m != 0).all()
assert type(fa_numba.trace(to_device, 4).result["whole"]) is np.ndarray
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
    array = cuda.to_device(x)
    for function, arguments in (
        (fa_numba.naive_softmax, (array,)),
        (functools.partial(fa_numba.naive_softmax, array), ()),
    ):
        report = fa_numba.trace(function, *arguments)
        assert report.launches[0]["x"].loads == 3 * x.size
        np.testing.assert_allclose(report.result, fa_numba.naive_softmax(x), rtol=1e-5)
