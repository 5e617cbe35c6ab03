"""GPU or simulator: each question in a process of its own, since a process decides once."""

import json

import pytest
from conftest import ROOT, gpu_only, is_bundled, run_python

from fa_numba import selection

WHICH = "import json, fa_numba; from fa_numba import device, selection; print(json.dumps([*selection.select()]))"
UNSET = dict(FA_NUMBA_DEVICE=None, NUMBA_ENABLE_CUDASIM=None)
NO_GPU = dict(CUDA_VISIBLE_DEVICES="")


def chosen(source=WHICH, **environment):
    finished = run_python(source, **{**UNSET, **environment})
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return json.loads(finished.stdout.splitlines()[-1])


def failure(source=WHICH, **environment):
    """Return the last line of a traceback."""
    finished = run_python(source, **{**UNSET, **environment})
    assert finished.returncode != 0
    return finished.stderr.strip().splitlines()[-1]


def test_without_a_gpu_the_simulator_is_chosen_and_the_reason_told():
    device, reason = chosen(**NO_GPU)
    assert device == "simulator"
    assert reason in ("no NVIDIA driver was found", "the NVIDIA driver reports no usable GPU (CUDA status 100)") or (
        is_bundled() and "is not installed" in reason
    )


@gpu_only
def test_a_gpu_that_works_is_chosen():
    assert chosen() == ["gpu", "a GPU works here"]


@pytest.mark.parametrize(
    "environment",
    [
        dict(FA_NUMBA_DEVICE="simulator"),
        dict(FA_NUMBA_DEVICE="Simulator"),
        dict(NUMBA_ENABLE_CUDASIM="1"),
        dict(FA_NUMBA_DEVICE="simulator", NUMBA_ENABLE_CUDASIM="0"),
    ],
)
def test_the_simulator_can_be_asked_for(environment):
    assert chosen(**environment)[0] == "simulator"


@pytest.mark.parametrize(
    "environment",
    [
        dict(FA_NUMBA_DEVICE="gpu"),
        dict(NUMBA_ENABLE_CUDASIM="0"),
        dict(FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM="1"),
    ],
)
@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_a_gpu_can_be_asked_for(environment):
    assert chosen(**environment)[0] == "gpu"


@pytest.mark.parametrize("call", ["naive_softmax(np.ones(3, np.float32))", "device.launch(copy_kernel, 1, 1)"])
@pytest.mark.parametrize("variable", ["FA_NUMBA_DEVICE=gpu", "NUMBA_ENABLE_CUDASIM=0"])
@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_asking_for_a_gpu_that_is_not_there(variable, call):
    source = f"""
import numpy as np
from fa_numba import device, naive_softmax
from fa_numba.arrays import copy_kernel
{call}
"""
    message = failure(source, **dict([variable.split("=")]), **NO_GPU)
    assert message.startswith(f"RuntimeError: {variable} asks for the GPU, but no GPU can be used here: ")
    assert message.endswith("Unset the variable, or set FA_NUMBA_DEVICE=simulator.")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("FA_NUMBA_DEVICE", "cpu", "'gpu' or 'simulator'"), ("NUMBA_ENABLE_CUDASIM", "yes", "'0' or '1'")],
)
def test_other_values_are_errors(name, value, allowed):
    message = failure("import fa_numba", **{name: value})
    if name == "NUMBA_ENABLE_CUDASIM" and is_bundled():
        return  # numba itself speaks up first
    assert message == f"ValueError: {name} is {value!r}; it can be {allowed}, or unset to choose by itself"


@gpu_only
def test_numba_s_warnings_are_off_even_if_numba_cuda_was_imported_first():
    source = """
from numba import cuda
import fa_numba
import numpy as np

@cuda.jit
def one_kernel(x):
    x[0] = 1

one_kernel[1, 1](np.zeros(1))
"""
    finished = run_python(source, **UNSET)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_numba_s_variables_hold_when_it_reads_them_again():
    """It does, before it compiles, whenever one of them has changed."""
    source = """
import os, numba, fa_numba
os.environ["NUMBA_DEBUG_CACHE"] = "0"
numba.config.reload_config()
from numba.cuda.simulator.api import stream
print(numba.config.ENABLE_CUDASIM, numba.config.CUDA_LOW_OCCUPANCY_WARNINGS, numba.config.CUDA_WARN_ON_IMPLICIT_COPY)
"""
    finished = run_python(source, **{**UNSET, "FA_NUMBA_DEVICE": "simulator"})
    assert finished.stdout == "1 0 0\n", finished.stderr


def test_numba_imported_first_is_no_problem():
    source = "import numba\n" + WHICH + "\nfrom numba import cuda\nassert 'fa_numba' in cuda.jit.__module__"
    assert chosen(source, FA_NUMBA_DEVICE="simulator")[0] == "simulator"


def test_numba_cuda_imported_first_in_simulator_mode_decides():
    first = "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '1'; from numba import cuda\n"
    then = "del os.environ['NUMBA_ENABLE_CUDASIM']\n"
    assert chosen(first + then + WHICH)[0] == "simulator"


@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
@pytest.mark.parametrize(
    ("first", "environment", "fix"),
    [
        ("from numba import cuda", dict(FA_NUMBA_DEVICE="simulator"), "NUMBA_ENABLE_CUDASIM=1"),
        (
            "import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '1'; from numba import cuda",
            dict(FA_NUMBA_DEVICE="gpu"),
            "NUMBA_ENABLE_CUDASIM=0",
        ),
    ],
)
def test_numba_cuda_imported_first_in_the_other_mode(first, environment, fix):
    """CASES C43: the variable is read once, when numba.cuda is imported."""
    message = failure(f"{first}\n{WHICH}", **environment)
    assert message.startswith("RuntimeError: numba.cuda was imported before fa_numba, in ")
    assert f"import fa_numba first, or set {fix} before Python starts" in message


class FakeDriver:
    """Answers as libcuda does."""

    def __init__(self, status=0, count=1, capability=(9, 0), version=13000):
        self.status, self.count, self.capability, self.version = status, count, capability, version

    def cuInit(self, flags):  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        value._obj.value = self.capability[attribute == 76]
        return 0

    def cuDriverGetVersion(self, version):  # noqa: N802
        version._obj.value = self.version
        return 0


@pytest.mark.parametrize(
    ("driver", "fault"),
    [
        (FakeDriver(), None),
        (FakeDriver(capability=(7, 5)), None),
        (None, "no NVIDIA driver was found"),
        (FakeDriver(status=100), "the NVIDIA driver reports no usable GPU (CUDA status 100)"),
        (FakeDriver(count=0), "the NVIDIA driver reports no usable GPU (CUDA status 0)"),
        (FakeDriver(capability=(6, 1)), "the GPU has compute capability 6.1; 7.5 is the lowest supported"),
    ],
)
def test_why_no_gpu_works(monkeypatch, driver, fault):
    monkeypatch.setattr(selection, "load_driver", lambda: driver)
    monkeypatch.setattr(selection, "_is_installed", lambda package: True)
    monkeypatch.setattr(selection, "_library_fault", lambda: None)
    assert selection.gpu_fault() == fault


@pytest.mark.skipif(is_bundled(), reason="needs numba-cuda")
def test_no_gpu_works_without_cuda_s_libraries(monkeypatch):
    from cuda import pathfinder

    def missing(library):
        raise pathfinder.DynamicLibNotFoundError(library)

    monkeypatch.setattr(selection, "load_driver", FakeDriver)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    assert selection.gpu_fault() == "the CUDA library nvvm is not installed (pip install 'fa_numba[cu13]')"


def test_no_gpu_works_without_numba_cuda(monkeypatch):
    monkeypatch.setattr(selection, "load_driver", FakeDriver)
    monkeypatch.setattr(selection, "_is_installed", lambda package: False)
    assert selection.gpu_fault() == "the package numba-cuda is not installed"


@pytest.mark.parametrize(
    ("driver", "extra"),
    [
        (None, None),
        (FakeDriver(version=11080), None),
        (FakeDriver(version=12020), "cu12"),
        (FakeDriver(version=12090), "cu12"),
        (FakeDriver(version=13000), "cu13"),
        (FakeDriver(version=14010), "cu13"),
    ],
)
def test_the_extra_follows_the_driver(monkeypatch, driver, extra):
    monkeypatch.setattr(selection, "load_driver", lambda: driver)
    assert selection.cuda_extra() == extra


def test_the_extra_can_be_told_before_anything_is_installed():
    """The Makefile runs this file before anything is installed."""
    source = f"""
import runpy, sys
before = set(sys.modules)
runpy.run_path({str(ROOT / "fa_numba" / "selection.py")!r}, run_name="__main__")
print(sorted({{name.partition('.')[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names))
"""
    finished = run_python(source)
    assert finished.stdout.splitlines()[-1] == "[]", finished.stderr
