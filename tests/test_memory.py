"""The formula of peak memory, held against the ledger to the byte."""

import numpy as np
import pytest

from fa_numba import memory


@pytest.mark.parametrize("method", memory.METHODS)
@pytest.mark.parametrize("passes", memory.PASSES)
@pytest.mark.parametrize(("n", "d", "heads", "dtype"), [(16, 8, 1, np.float32), (33, 5, 2, np.float64)])
def test_the_formula_is_what_the_ledger_counts(method, passes, n, d, heads, dtype):
    counted = memory.counted_bytes(method, passes, n, d, heads, dtype)
    assert counted == memory.computed_bytes(method, passes, n, d, heads, np.dtype(dtype).itemsize)


def test_standard_grows_with_the_square_of_the_length_and_flash_with_the_length():
    for passes in memory.PASSES:
        standard = [memory.computed_bytes("standard", passes, n, 64) for n in (2**16, 2**17)]
        flash = [memory.computed_bytes("flash", passes, n, 64) for n in (2**16, 2**17)]
        assert 3.9 < standard[1] / standard[0] < 4
        assert flash[1] / flash[0] == 2


def test_the_figures_of_the_texts():
    """One head of 4096 keys, 64 wide: 134 MB of s and p; flash holds 4 matrices and two numbers a row."""
    assert memory.computed_bytes("standard", "forward", 4096, 64) - 4 * 4096 * 64 * 4 == 2 * 4096**2 * 4
    assert memory.computed_bytes("flash", "forward", 4096, 64) == 4 * 4096 * 64 * 4 + 2 * 4096 * 4
