"""What the notebooks call: the check must fail where it should."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from fa_numba import device, notebook, recorded
from fa_numba.step1_naive_softmax import naive_softmax_kernel

INF, NAN = math.inf, math.nan


def test_check_passes_and_says_so(capsys):
    truth = np.array([1.0, -INF, NAN])
    notebook.check("dq", np.float32([1.0000001, -INF, NAN]), truth, within=1e-6)
    notebook.check("dq", cuda.to_device(truth), truth, within=1e-6)
    notebook.check("nothing", np.zeros((0, 3)), np.zeros((0, 3)), within=1e-6)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["PASS  dq  within 1e-06 of float64"] * 2 + ["PASS  nothing  within 1e-06 of float64"]


@pytest.mark.parametrize(
    ("result", "truth", "message"),
    [
        ([1.0, 2.1], [1.0, 2.0], "lse: off by 0.1 from float64, and 0.01 is allowed"),
        ([-INF, 5.0], [-INF, 1.0], "lse: off by 4"),
        ([INF, 1.0], [-INF, 1.0], "NaN or infinities stand in other places"),
        ([NAN, 1.0], [0.0, 1.0], "NaN or infinities stand in other places"),
        ([0.0, 1.0], [NAN, 1.0], "NaN or infinities stand in other places"),
        ([INF, 1.0], [0.0, 1.0], "NaN or infinities stand in other places"),
        ([1.0], [1.0, 1.0], r"the shape is \(1,\), not \(2,\)"),
    ],
)
def test_check_fails(result, truth, message):
    with pytest.raises(AssertionError, match=message):
        notebook.check("lse", np.array(result), np.array(truth), within=0.01)


def test_the_source_shown_is_the_one_imported(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda markdown: shown.append(markdown.data))
    notebook.show_source(naive_softmax_kernel)
    notebook.show_source(notebook.where)
    assert shown[0].startswith("```python\n@cuda.jit\ndef naive_softmax_kernel(x, y):\n")
    assert shown[0].endswith("/ l\n```")
    assert shown[1].startswith("```python\ndef where() -> None:")


def test_show_source_of_a_piece(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda markdown: shown.append(markdown.data))
    notebook.show_source(naive_softmax_kernel, "i = cuda.grid", "m = ")
    assert shown == ["```python\ni = cuda.grid(1)\nif i < x.shape[0]:\n```"]
    with pytest.raises(ValueError, match="no line from line 1 on contains 'nowhere'"):
        notebook.show_source(naive_softmax_kernel, "nowhere")
    with pytest.raises(ValueError, match=r"no line from line 2 on contains '@cuda\.jit'"):
        notebook.show_source(naive_softmax_kernel, "@cuda.jit", "@cuda.jit")


def test_a_table_has_its_numbers_on_the_right(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda markdown: shown.append(markdown.data))
    notebook.show_table(("step", "ms"), [("one", "1.5"), ("two", "20")])
    notebook.show_table(("step", "idea", "ms"), [("one", "tiles", "1.5")], words=2)
    assert shown == [
        "| step | ms |\n| --- | ---: |\n| one | 1.5 |\n| two | 20 |",
        "| step | idea | ms |\n| --- | --- | ---: |\n| one | tiles | 1.5 |",
    ]


def test_where_names_the_device(capsys):
    notebook.where()
    assert capsys.readouterr().out == f"Running on {device.describe()}.\n"


TOLD = {"device": "NVIDIA Made-up", "driver": "1.2", "numba": "0.68.0", "date": "2026-01-02T03:04:05+00:00"}


def rung(name, order, ms, **entries):
    """Return a row of a rung whose peer takes 6 ms."""
    row = {"section": "rungs", "step": "forward", "contestant": name, "label": name, "fault": None, "order": order}
    return {**row, "ms": ms, "tflops": 60 / ms, "ratios": {"torch EFFICIENT": 6 / ms}, **entries}


PEER = {
    **{"section": "rungs", "step": "forward", "contestant": "torch EFFICIENT", "label": "torch EFFICIENT (TF32)"},
    **{"ms": 6.0, "tflops": 10.0, "fault": None},
}
CASE = "NVIDIA Made-up, driver 1.2, numba 0.68.0, 2026-01-02"
HEAD = (
    "| rung | ms | TFLOP/s | over the rung before | speed over torch EFFICIENT |\n| --- | ---: | ---: | ---: | ---: |"
)


@pytest.fixture
def shown(monkeypatch):
    """What notebook displays, as a list that grows."""
    texts = []
    monkeypatch.setattr(notebook, "display", lambda markdown: texts.append(markdown.data))
    return texts


def test_rungs_stand_in_their_order_above_their_peer(shown):
    rows = [PEER, rung("8x8", 1, 5.0, gain=4.0), rung("a row", 0, 20.0)]
    notebook.show_rungs(recorded.Record(TOLD, rows), "forward")
    assert shown == [
        f"{HEAD}\n| a row | 20 | 3.0 |  | 0.30× |\n| 8x8 | 5 | 12.0 | 4.0× | 1.20× |\n"
        "| torch EFFICIENT (TF32) | 6 | 10.0 |  |  |",
        f"{CASE}. The last rung is 4.0 times as fast as the first and has 1.20 times the speed of "
        "torch EFFICIENT (TF32).",
    ]


def test_rungs_without_their_peer_and_without_one_that_failed(shown):
    rows = [rung("a row", 0, 20.0, ratios={}), rung("4x4", 1, 1.0, fault="wrong"), rung("8x8", 2, 5.0, ratios={})]
    notebook.show_rungs(recorded.Record(TOLD, rows), "forward")
    assert shown == [
        f"{HEAD}\n| a row | 20 | 3.0 |  |  |\n| 8x8 | 5 | 12.0 |  |  |",
        f"{CASE}. The last rung is 4.0 times as fast as the first.",
    ]


def test_rungs_of_softmax_are_in_bytes(shown):
    row = rung("naive", 0, 2.0, step="softmax", gbs=1234.4, ratios={"copy": 0.5})
    del row["tflops"]
    copy = {**row, "contestant": "copy", "label": "copy", "ms": 1.0, "gbs": 2468.8}
    del copy["order"], copy["ratios"]
    notebook.show_rungs(recorded.Record(TOLD, [row, copy]), "softmax", peer="copy")
    assert "| rung | ms | GB/s | over the rung before | speed over copy |" in shown[0]
    assert "| naive | 2 | 1,234 |  | 0.50× |\n| copy | 1 | 2,469 |  |  |" in shown[0]


def test_a_record_without_rungs_says_so(shown):
    notebook.show_rungs(recorded.Record(TOLD, [rung("a row", 0, 20.0)]), "backward")
    assert shown == [f"The record ({CASE}) has no rungs of this step."]


def access(text, calls=(), **counts):
    values = {"array": "x", "space": "global", "kind": "load", "requests": 1024, "ways": 0, **counts}
    return SimpleNamespace(line=text, calls=calls, **values)


def test_the_lines_of_a_launch(shown):
    lines = (
        access("a.py:3 (m = max(m, x[i, j]))", sectors_per_request=32.0, used=0.125),
        access("b.py:9 (f)", ("a.py:4 (g(x))", "a.py:7 (load(x)  # four at a time)"), sectors_per_request=4.5, used=1),
        access("a.py:5 (scratch[0] = m)", array="scratch", space="shared", kind="store", requests=8, ways=4),
    )
    notebook.show_lines(SimpleNamespace(lines=lines), "global")
    notebook.show_lines(SimpleNamespace(lines=lines), "shared")
    of_global, of_shared = (text.splitlines()[2:] for text in shown)
    assert of_global == [
        "| `m = max(m, x[i, j])` | x | load | 1,024 | 32 | 12.5% |",
        "| `load(x)` | x | load | 1,024 | 4.5 | 100% |",
    ]
    assert of_shared == ["| `scratch[0] = m` | scratch | store | 8 | 4 |"]
