"""``docs/every_kernel.py``: it runs what it says, and a wrong result does not pass."""

import importlib.util

import numpy as np
import pytest
from conftest import ROOT

from fa_numba import step4_flash_forward, step5_flash_backward


@pytest.fixture
def every_kernel():
    spec = importlib.util.spec_from_file_location("every_kernel", ROOT / "docs" / "every_kernel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rung_is_run_and_checked(every_kernel, monkeypatch):
    ran = []
    for rungs in (step4_flash_forward.RUNGS, step5_flash_backward.RUNGS):
        for name, rung in rungs.items():
            monkeypatch.setitem(
                rungs, name, lambda *of, name=name, rung=rung, **more: ran.append(name) or rung(*of, **more)
            )
    problem = every_kernel.Problem(1, 1, 5, 6, 4, 4, causal=True)
    every_kernel.attend(problem, np.random.default_rng(0))
    assert ran == [*step4_flash_forward.RUNGS, *step5_flash_backward.RUNGS]
    ran.clear()
    every_kernel.attend(problem._replace(dtype=np.float64), np.random.default_rng(0))
    assert ran == [name for name in (*step4_flash_forward.RUNGS, *step5_flash_backward.RUNGS) if "8x8" not in name]


def test_a_wrong_result_does_not_pass(every_kernel):
    for wrong in (np.float32([1, 2.1]), np.float32([1, np.nan])):
        with pytest.raises(AssertionError, match=r"o is off by"):
            every_kernel.check("o", wrong, np.array([1.0, 2.0]))
