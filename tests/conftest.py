"""What every test file may use: which device the suite runs on, and Python processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fa_numba import device

ROOT = Path(__file__).parent.parent

simulator_only = pytest.mark.skipif(not device.SIMULATED, reason="about the simulator")
gpu_only = pytest.mark.skipif(device.SIMULATED, reason="needs a GPU")


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def run_python(source: str, **environment: str | None) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own; an environment variable given as None is unset."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, "-c", source]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, cwd=ROOT)
