"""What notebook 05 says of the record in words holds in the record that it reads."""

import nbformat
import pytest
from conftest import ROOT

from fa_numba import recorded

RECORD = recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "05_flash_backward.ipynb", as_version=4)
TEXT = "\n".join(cell.source for cell in NOTEBOOK.cells).replace('"\n    "', "")
CASE = {"heads": 32, "n": 4096, "d": 64, "causal": False}
SHORT = {"heads": 1, "n": 1024}
OURS, STANDARD, EFFICIENT, MATH = "flash_backward", "standard_attention_backward", "torch EFFICIENT", "torch MATH"


SOFTMAXES = RECORD.softmaxes(8192, 4096)


def ms(contestant, section="backward", **case):
    return RECORD.one(section=section, contestant=contestant, **{**CASE, **case})["ms"]


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
    "storing $P$ is a little faster than making it again, in 25 times the memory": lambda: (
        0.8 < ms(STANDARD) / ms(OURS) < 1 and round(peak_bytes(STANDARD) / peak_bytes(OURS)) == 25
    ),
    "in *time* the question of the opening can end in a tie": lambda: abs(ms(EFFICIENT) / ms(MATH) - 1) < 0.05,
    "A product of the backward costs about what one of the forward does": lambda: all(
        0.8 < each / (ms("flash_forward", "forward") / 2) < 1.4 for each in ms_a_product()
    ),
    "$\\delta$ costs nothing": lambda: kernel("delta_kernel") < 0.02 * ms(OURS),
    "is ahead of both flash kernels": lambda: ms(MATH, **SHORT) < min(ms(EFFICIENT, **SHORT), ms(OURS, **SHORT)),
    "at a length of 1,024 MATH is the fastest": lambda: (
        ms(MATH, **SHORT) < min(ms(each, **SHORT) for each in (OURS, STANDARD, EFFICIENT))
    ),
    "As a softmax the online kernel is hardly faster": lambda: (
        1 < SOFTMAXES["three passes"]["ms"] / SOFTMAXES["two passes"]["ms"] < 1.05
    ),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_claim_stands_in_the_text_and_in_the_record(words):
    assert words in TEXT
    assert CLAIMS[words]()
