"""What notebook 05 says of the record in words holds in the record that it reads."""

import dataclasses

import nbformat
import numpy as np
import pytest
from conftest import ROOT

from fa_numba import device, limits, problem, recorded, work
from fa_numba.step4_flash_forward import wide_tiles as wide_forward
from fa_numba.step5_flash_backward import wide_tiles as wide_backward

RECORD = recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "05_flash_backward.ipynb", as_version=4)
TEXT = "\n".join(cell.source for cell in NOTEBOOK.cells).replace('"\n    "', "")
CASE = {"heads": 32, "n": 4096, "d": 64, "causal": False}
SHORT = {"heads": 1, "n": 1024}
OURS, STANDARD, EFFICIENT, MATH = "flash_backward", "standard_attention_backward", "torch EFFICIENT", "torch MATH"


SOFTMAXES = RECORD.softmaxes(8192, 4096)


def ms(contestant, section="backward", **case):
    return RECORD.one(section=section, contestant=contestant, **{**CASE, **case})["ms"]


def both(contestant, **case):
    return ms(contestant, "forward+backward", **case)


def peak_bytes(contestant):
    return RECORD.one(section="backward", contestant=contestant, **CASE)["peak_bytes"]


def kernel(name):
    return RECORD.one(section="kernels", kernel=name, **CASE)["ms"]


def ms_a_product():
    """Return the milliseconds a product of each kernel that multiplies."""
    counts = {"flash_backward_dq_kernel": 3, "flash_backward_dk_dv_kernel": 4, "wide_flash_backward_kernel": 5}
    rows = RECORD.select(section="kernels", contestant=OURS, **CASE)
    return [row["ms"] / counts[row["kernel"]] for row in rows if row["kernel"] in counts]


CLAIMS = {
    "At the size of the table, where $P$ fits, the backward of standard attention is a little faster": lambda: (
        0.9 < ms(STANDARD) / ms(OURS) < 1 and 0.9 < ms(MATH) / ms(OURS) < 1
    ),
    "With one head, flash is ahead of our standard attention in the backward alone, and MATH ahead of both": lambda: (
        all(ms(MATH, heads=1, n=n) < ms(OURS, heads=1, n=n) < ms(STANDARD, heads=1, n=n) for n in (1024, 4096, 16384))
    ),
    "storing $P$ is a little faster than making it again, in 25 times the memory": lambda: (
        0.8 < ms(STANDARD) / ms(OURS) < 1 and round(peak_bytes(STANDARD) / peak_bytes(OURS)) == 25
    ),
    "recomputing (EFFICIENT) and storing (MATH) end there in a tie in *time*": lambda: (
        abs(ms(EFFICIENT) / ms(MATH) - 1) < 0.05
    ),
    "A product of the backward costs more than one of the forward, by about a third": lambda: all(
        1.2 < each / (ms("flash_forward", "forward") / 2) < 1.45 for each in ms_a_product()
    ),
    "$\\delta$ costs next to nothing": lambda: kernel("delta_kernel") < 0.02 * ms(OURS),
    "is ahead of our standard attention at lengths of 1,024, 4,096 and 16,384": lambda: all(
        ms(OURS, heads=1, n=n) < ms(STANDARD, heads=1, n=n) for n in (1024, 4096, 16384)
    ),
    "at the first two about twice as fast as EFFICIENT": lambda: all(
        1.7 < ms(EFFICIENT, heads=1, n=n) / ms(OURS, heads=1, n=n) < 2.3 for n in (1024, 4096)
    ),
    "stays ahead of ours, by a factor of more than 2 at 1,024": lambda: (
        ms(OURS, heads=1, n=1024) > 2 * ms(MATH, heads=1, n=1024)
        and ms(OURS, heads=1, n=4096) > ms(MATH, heads=1, n=4096)
    ),
    "at 16,384 it ties with EFFICIENT, and both are about a tenth ahead of ours": lambda: (
        abs(ms(MATH, heads=1, n=16384) / ms(EFFICIENT, heads=1, n=16384) - 1) < 0.05
        and all(1.05 < ms(OURS, heads=1, n=16384) / ms(each, heads=1, n=16384) < 1.15 for each in (MATH, EFFICIENT))
    ),
    "with the forward counted, flash is ahead of both": lambda: both("flash") < min(both("standard"), both(MATH)),
    "at a length of 1,024 MATH is the fastest": lambda: (
        ms(MATH, **SHORT) < min(ms(each, **SHORT) for each in (OURS, STANDARD, EFFICIENT))
    ),
    "The naive kernel is far below its roof": lambda: SOFTMAXES["naive_softmax"]["gbs"] < 0.05 * 4800,
    "The passes of notebook 02 begin *left* of the slope": lambda: (  # they ask for twice what counts, and 1.5 times
        2 * SOFTMAXES["three passes"]["gbs"] > 4800 and 1.5 * SOFTMAXES["two passes"]["gbs"] > 4800
    ),
    "both ends are one point, just under the slope": lambda: (
        SOFTMAXES["row in registers"]["gbs"] > 0.97 * SOFTMAXES["copy"]["gbs"]
    ),
    "Flash is right of it, whatever its tiles read again": lambda: all(
        done.flops / done.requested > 67 / 4.8
        for done in (work.flash_forward(4096, 64, 128), work.flash_backward(4096, 64, 128))
    ),
    "asks for twice the bytes, is still right of the bend, and has less than a fifth of the speed": lambda: (
        1.9 < work.flash_forward(4096, 64, 64).requested / work.flash_forward(4096, 64, 128).requested < 2.1
        and work.flash_forward(4096, 64, 64).flops / work.flash_forward(4096, 64, 64).requested > 67 / 4.8
        and RECORD.one(section="rungs", contestant="one thread a row", **CASE)["ms"]
        > 5 * ms("flash_forward", "forward")
    ),
    "its lines lie about the bend": lambda: all(
        done.flops / done.requested < 67 / 4.8 < done.flops / done.footprint
        for done in (work.standard_forward(4096, 64), work.standard_backward(4096, 64))
    ),
    "As a softmax it is hardly faster than the block kernel": lambda: (
        1 < SOFTMAXES["three passes"]["ms"] / SOFTMAXES["two passes"]["ms"] < 1.05
    ),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_claim_stands_in_the_text_and_in_the_record(words):
    assert words in TEXT
    assert CLAIMS[words]()


def test_the_kernels_on_the_roofline_have_blocks_of_128_on_an_h200(monkeypatch):
    h200 = dataclasses.replace(limits.of_capability("9.0"), multiprocessors=132)
    monkeypatch.setattr(device, "device_limits", lambda: h200)
    shape = (CASE["heads"], CASE["n"], CASE["d"])
    posed = problem.check(dict.fromkeys("qkv", shape), False, None, np.dtype(np.float32))
    for kernels in (wide_forward, wide_backward):
        assert kernels.choose_tile(posed).block_q == 128
