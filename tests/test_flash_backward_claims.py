"""What notebook 05 says of the record in words holds in the record that it reads."""

import nbformat
import pytest
from conftest import ROOT

from fa_numba import recorded

RECORD = recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "05_flash_backward.ipynb", as_version=4)
TEXT = "\n".join(cell.source for cell in NOTEBOOK.cells).replace('"\n    "', "")
CASE = {"heads": 32, "n": 4096, "d": 64, "causal": False}
OURS, STANDARD, EFFICIENT, MATH = "flash_backward", "standard_attention_backward", "torch EFFICIENT", "torch MATH"


def ms(contestant, section="backward", **case):
    return RECORD.one(section=section, contestant=contestant, **{**CASE, **case})["ms"]


def kernel(name):
    return RECORD.one(section="kernels", kernel=name, **CASE)["ms"]


def one_head(contestant):
    return [ms(contestant, heads=1, n=n) for n in (1024, 4096, 16384)]


def all_less(times, others):
    return all(time < other for time, other in zip(times, others))


CLAIMS = {
    "Making $P$ twice beats storing it, in our own pair": lambda: ms(OURS) < ms(STANDARD),
    "Beside PyTorch we lose": lambda: ms(OURS) > max(ms(EFFICIENT), ms(MATH)),
    "in *time* the question of the opening can end in a tie": lambda: abs(ms(EFFICIENT) / ms(MATH) - 1) < 0.05,
    "Flash is half again as fast as standard attention": lambda: 1.4 < ms(STANDARD) / ms(OURS) < 1.6,
    "both of PyTorch's are more than twice as fast": lambda: ms(OURS) > 2 * max(ms(EFFICIENT), ms(MATH)),
    "The kernel of $dQ$ multiplies as fast as the forward": lambda: (
        kernel("flash_backward_dq_kernel") / 3 < 1.05 * ms("flash_forward", "forward") / 2
    ),
    "The one of $dK$ and $dV$ pays": lambda: (
        kernel("flash_backward_dk_dv_kernel") / 4 > 1.1 * kernel("flash_backward_dq_kernel") / 3
    ),
    "and $\\delta$ nothing": lambda: kernel("delta_kernel") < 0.01 * ms(OURS),
    "is ahead of both flash kernels, of ours at every length": lambda: (
        one_head(MATH)[0] < one_head(EFFICIENT)[0] and all_less(one_head(MATH), one_head(OURS))
    ),
    "faster than our standard attention at every length": lambda: all_less(one_head(OURS), one_head(STANDARD)),
    "EFFICIENT, in grey, is faster than both": lambda: all_less(one_head(EFFICIENT), one_head(OURS)),
    "MATH the fastest up to 4,096": lambda: all_less(one_head(MATH)[:2], one_head(EFFICIENT)[:2]),
    "As a softmax the online kernel is no faster": lambda: (
        RECORD.softmaxes(65536, 1024)["two passes"]["ms"] > RECORD.softmaxes(65536, 1024)["three passes"]["ms"]
    ),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_claim_stands_in_the_text_and_in_the_record(words):
    assert words in TEXT
    assert CLAIMS[words]()
