"""The formula of peak memory, held against the ledger to the byte."""

import numpy as np
import pytest

from fa_numba import memory


@pytest.mark.parametrize("method", memory.METHODS)
@pytest.mark.parametrize(("n", "d", "heads", "dtype"), [(16, 8, 1, np.float32), (17, 5, 2, np.float64)])
def test_the_formula_is_what_the_ledger_counts(method, n, d, heads, dtype):
    counted = memory.counted_peaks(method, n, d, heads, dtype)
    itemsize = np.dtype(dtype).itemsize
    assert counted == {each: memory.computed_bytes(method, each, n, d, heads, itemsize) for each in memory.PASSES}


@pytest.mark.parametrize("method", memory.METHODS)
@pytest.mark.parametrize("passes", memory.PASSES)
def test_one_peak_can_be_counted_by_itself(method, passes):
    assert memory.counted_bytes(method, passes, 16, 8) == memory.computed_bytes(method, passes, 16, 8)


def test_the_forward_s_peak_needs_no_backward_pass(monkeypatch):
    for name in ("standard_attention_backward", "flash_backward"):
        monkeypatch.setattr(memory, name, lambda *_, **__: pytest.fail("ran"))
    for method in memory.METHODS:
        assert list(memory.counted_peaks(method, 4, 4, backward=False)) == ["forward"]


def test_standard_grows_with_the_square_of_the_length_and_flash_with_the_length():
    for passes in memory.PASSES:
        standard = [memory.computed_bytes("standard", passes, n, 64) for n in (2**16, 2**17)]
        flash = [memory.computed_bytes("flash", passes, n, 64) for n in (2**16, 2**17)]
        assert 3.9 < standard[1] / standard[0] < 4
        assert flash[1] / flash[0] == 2


@pytest.mark.parametrize("method", memory.METHODS)
@pytest.mark.parametrize("heads", [1, 32])
def test_the_longest_fits_and_one_more_does_not(method, heads):
    n = memory.longest(method, "forward+backward", 16 * 10**9, 64, heads)
    fits, too_long = (memory.computed_bytes(method, "forward+backward", each, 64, heads) for each in (n, n + 1))
    assert fits <= 16 * 10**9 < too_long
    assert memory.longest(method, "forward", 10, 64) == 0


def test_the_figures_of_the_texts():
    """One head of 4096 keys, 64 wide: 134 MB of s and p; flash holds 4 matrices and two numbers a row."""
    assert memory.computed_bytes("standard", "forward", 4096, 64) - 4 * 4096 * 64 * 4 == 2 * 4096**2 * 4
    assert memory.computed_bytes("flash", "forward", 4096, 64) == 4 * 4096 * 64 * 4 + 2 * 4096 * 4


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (12, "12 bytes"),
        (1500, "1.5 kB"),
        (135e6, "135 MB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (2e12, "2 TB"),
    ],
)
def test_bytes_have_a_unit(nbytes, text):
    assert memory.readable(nbytes) == text
