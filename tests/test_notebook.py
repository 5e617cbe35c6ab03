"""What the notebooks call: the check must fail where it should."""

import math

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


def test_rungs_stand_in_a_table_or_are_said_to_be_missing(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda markdown: shown.append(markdown.data))
    told = {"device": "NVIDIA Made-up", "driver": "1.2", "numba": "0.1", "date": "2026-01-02T03:04:05+00:00"}
    rows = [
        {"step": "softmax", "contestant": "slow", "order": 0, "ms": 0.12345, "gbs": 2000.4},
        {"step": "softmax", "contestant": "fast", "order": 1, "ms": 0.0617, "gbs": 4000.2, "gain": 2.0008},
        {"step": "softmax", "contestant": "copy", "ms": 0.06, "gbs": 4100.0},
        {"step": "standard", "contestant": "only", "order": 0, "ms": 12.0, "tflops": 9.96},
    ]
    record = recorded.Record(told, [{"section": "rungs", "fault": None, **row} for row in rows])
    for step in ("softmax", "standard", "forward"):
        notebook.rungs_table(record, step)
    head = "| rung | ms | rate | gain |\n| --- | ---: | ---: | ---: |\n"
    assert shown == [
        head + "| slow | 0.123 | 2,000 GB/s |  |\n| fast | 0.0617 | 4,000 GB/s | 2.00× |",
        head + "| only | 12 | 10.0 TFLOP/s |  |",
        "No rungs of this step in the record: NVIDIA Made-up, driver 1.2, numba 0.1, 2026-01-02.",
    ]
