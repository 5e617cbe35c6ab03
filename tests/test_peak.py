"""The float32 peak of CUDA cores, against datasheets."""

import pytest
from conftest import gpu_only

from fa_numba import peak


@pytest.mark.parametrize(
    ("name", "compute_capability", "multiprocessors", "kilohertz", "tflops"),
    [
        ("T4", (7, 5), 40, 1_590_000, 8.1),
        ("V100 SXM2", (7, 0), 80, 1_530_000, 15.7),
        ("A100 SXM4", (8, 0), 108, 1_410_000, 19.5),
        ("RTX 3090", (8, 6), 82, 1_695_000, 35.6),
        ("RTX 4090", (8, 9), 128, 2_520_000, 82.6),
        ("H200", (9, 0), 132, 1_980_000, 66.9),
    ],
)
def test_peaks_are_those_of_the_datasheets(name, compute_capability, multiprocessors, kilohertz, tflops):
    assert peak.fp32_tflops(compute_capability, multiprocessors, kilohertz) == pytest.approx(tflops, rel=0.01)


def test_a_gpu_that_is_not_known_has_none():
    assert peak.fp32_tflops((99, 0), 1, 1) is None


@gpu_only
def test_the_peak_of_this_gpu():
    found = peak.of_current_gpu()
    assert found is None or 1 < found < 1000
