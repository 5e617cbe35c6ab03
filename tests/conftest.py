"""What every test file may use: which device the suite runs on, and Python processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fa_numba import device

TESTS = Path(__file__).parent
ROOT = TESTS.parent

simulator_only = pytest.mark.skipif(not device.SIMULATED, reason="about the simulator")
gpu_only = pytest.mark.skipif(device.SIMULATED, reason="needs a GPU")


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture
def launches(monkeypatch):
    """What an attention function launches, as (grid, shared bytes); nothing runs."""
    made = []
    monkeypatch.setattr(device, "launch", lambda _, grid, block, *__, shared=0, stream=0: made.append((grid, shared)))
    return made


def is_bundled() -> bool:
    """Say whether ``numba.cuda`` is the one bundled in numba."""
    from numba import cuda  # after fa_numba has chosen its mode

    return "numba_cuda" not in cuda.__file__


def run_python(source: str, timeout: float = 300, **environment: str | None) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own; an environment variable given as None is unset."""
    path = os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])
    changed = {"PYTHONPATH": path, **environment}
    variables = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    hide = "import bundled\n" if is_bundled() else ""
    command = [sys.executable, "-c", hide + source]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
