"""What the text of notebook 04 says of the record of an H200 and of shared memory, held to both."""

import numpy as np
import pytest
from conftest import ROOT

from fa_numba import limits, recorded
from fa_numba.plots import measured
from fa_numba.step4_flash_forward.small_tiles import _elements


@pytest.fixture(scope="module")
def record():
    return recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")


def forward(record, contestant, entry="ms", heads=32, n=4096, d=64, causal=False):
    row = record.one(section="forward", contestant=contestant, heads=heads, n=n, d=d, causal=causal)
    return row[entry]


def test_flash_is_faster_than_standard_attention_at_every_length(record):
    for n in (1024, 4096, 16384):
        assert forward(record, "flash_forward", heads=1, n=n) < forward(record, "standard_attention", heads=1, n=n)
    longest = {"heads": 1, "n": 16384}
    factor = forward(record, "standard_attention", **longest) / forward(record, "flash_forward", **longest)
    assert factor == pytest.approx(3, abs=0.5)


def test_flash_leaves_two_thirds_of_the_ceiling_unused(record):
    assert forward(record, "flash_forward", "tflops") / measured.CUDA_CORES == pytest.approx(1 / 3, abs=0.05)
    efficient = [forward(record, "torch EFFICIENT", "tflops", causal=causal) for causal in (False, True)]
    flash = [forward(record, "flash_forward", "tflops", causal=causal) for causal in (False, True)]
    np.testing.assert_allclose(efficient, (34, 30), atol=1)
    np.testing.assert_allclose(flash, (23, 20), atol=1)


def test_causal_takes_a_little_more_than_half_the_time(record):
    assert 0.5 < forward(record, "flash_forward", causal=True) / forward(record, "flash_forward") < 0.6


def test_a_mask_does_not_help_standard_attention(record):
    def kernel(what, causal):
        case = {"heads": 32, "n": 4096, "d": 64, "causal": causal}
        return record.one(section="kernels", contestant="standard_attention", what=what, **case)["ms"]

    assert kernel("S = Q Kᵀ", True) == pytest.approx(kernel("S = Q Kᵀ", False), rel=0.1)
    assert kernel("O = P V", True) == pytest.approx(2 * kernel("O = P V", False), rel=0.1)


def test_one_short_head_is_where_a_tuned_library_wins(record):
    for n in (1024, 4096):
        assert forward(record, "torch MATH", heads=1, n=n) < forward(record, "flash_forward", heads=1, n=n)


def test_tiles_of_64_fit_an_h200_and_not_a_t4():
    nbytes = 4 * _elements(64, 64, 64, 64)
    assert round(nbytes / 1000) == 70
    t4, h200 = (limits.of_capability(capability).shared_per_block for capability in ("7.5", "9.0"))
    assert (t4, h200) == (64 * 1024, 227 * 1024)
    assert t4 < nbytes < h200


def test_the_times_beside_those_of_the_article(record):
    """Milliseconds, for one head of 4096."""
    flash, standard = (forward(record, each, heads=1) for each in ("flash_forward", "standard_attention"))
    assert (f"{flash:.2f}", f"{standard:.2f}") == ("0.60", "1.40")
