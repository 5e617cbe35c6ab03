"""The committed notebooks: executed in order on a fresh kernel, clean, and like the code they show. nbval runs them."""

import re

import nbformat
import pytest
from conftest import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fa_numba import recorded

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FORBIDDEN = {
    "an absolute path": r"(?<![\w:/.])/(?:home|root|tmp|work|Users)/\w",
    "an address": r"0x[0-9a-f]{8,}",
    "a colour code": r"\x1b\[",
    "a progress bar": r"\d+%\|",
}


def faults(notebook):
    """Return what is wrong with a notebook, in words."""
    found = []
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("its cells were not executed in order on a fresh kernel")
    for cell in cells:
        found += [f"cell [{cell.execution_count}] {fault}" for fault in _cell_faults(cell)]
    return found


def _cell_faults(cell):
    if not cell.source.strip():
        yield "is empty"
    if re.search(r"\bprint\(", cell.source) and not cell.outputs:
        yield "prints, but stores no output"
    for output in cell.outputs:
        if output.output_type == "error":
            yield "stores an error"
        if output.get("name") == "stderr":
            yield "writes to stderr"
        if output.output_type == "execute_result":
            yield "ends with an object, whose text may change from run to run"
        yield from _text_faults(output)
    if "%timeit" in cell.source and "nbval-ignore-output" not in cell.metadata.get("tags", []):
        yield "times something, but is not tagged nbval-ignore-output"


def _text_faults(output):
    data = output.get("data", {})
    texts = [output.get("text", ""), *(text for kind, text in data.items() if kind.startswith("text"))]
    if "text/html" in data:
        yield "stores HTML, which changes with the library that made it"
    for what, pattern in FORBIDDEN.items():
        if any(re.search(pattern, str(text)) for text in texts):
            yield f"stores {what}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_as_it_was_executed(path):
    notebook = nbformat.read(path, as_version=4)
    assert faults(notebook) == []
    assert path.stat().st_size < 1_000_000
    assert notebook.metadata.kernelspec.name == "python3"


def test_what_notebook_03_says_of_its_times_is_what_the_record_says():
    record = recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")
    size = {"n": 4096, "d": 64}
    shares, totals = {}, {}
    for heads, causal in ((32, False), (1, False), (32, True)):
        case = {"section": "kernels", "contestant": "standard_attention", "heads": heads, "causal": causal, **size}
        times = [row["ms"] for row in record.select(**case)]
        assert len(times) == 3
        totals[heads, causal] = sum(times)
        shares[heads, causal] = (times[0] + times[2]) / sum(times)
    assert shares[32, False] > 0.6  # the two products take most of the time
    assert totals[32, True] > 0.5 * totals[32, False]  # a causal mask does not halve it


def test_the_series_is_there():
    assert [path.stem for path in PATHS] == [
        "01_naive_softmax",
        "02_online_softmax",
        "03_standard_attention",
        "04_flash_forward",
        "05_flash_backward",
    ]


def executed(source="print(1)", count=1, outputs=None, **metadata):
    if outputs is None:
        outputs = [new_output("stream", name="stdout", text="1\n")]
    return new_code_cell(source, execution_count=count, outputs=outputs, metadata=metadata)


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ([executed(), new_markdown_cell("text"), executed(count=2)], None),
        ([executed(count=None, outputs=[])], "not executed in order"),
        ([executed(), executed(count=3)], "not executed in order"),
        ([executed(count=2), executed(count=1)], "not executed in order"),
        ([executed(outputs=[])], "stores no output"),
        ([executed("", outputs=[])], "is empty"),
        ([executed(outputs=[new_output("stream", name="stderr", text="Warning")])], "writes to stderr"),
        ([executed(outputs=[new_output("error", ename="E", evalue="", traceback=[])])], "stores an error"),
        ([executed(outputs=[new_output("execute_result", {"text/plain": "np.float32(1)"})])], "ends with an object"),
        ([executed(outputs=[new_output("stream", text="<kernel at 0x7f3a12345678>")])], "an address"),
        ([executed(outputs=[new_output("stream", text="in /home/me/x.py")])], "an absolute path"),
        ([executed(outputs=[new_output("stream", text="\x1b[31mred")])], "a colour code"),
        ([executed(outputs=[new_output("stream", text=" 33%|###  | 1/3")])], "a progress bar"),
        ([executed(outputs=[new_output("display_data", {"text/html": "<b>1</b>"})])], "stores HTML"),
        ([executed("%timeit f()")], "not tagged nbval-ignore-output"),
        ([executed("%timeit f()", tags=["nbval-ignore-output"])], None),
    ],
)
def test_the_check_itself(cells, fault):
    """CASES A25, C48, C49, C52, C57, C60: what must not be committed."""
    found = faults(new_notebook(cells=cells))
    assert found == [] if fault is None else any(fault in each for each in found)


def test_notebooks_hold_no_copy_of_a_kernel():
    for path in PATHS:
        notebook = nbformat.read(path, as_version=4)
        assert not any("@cuda.jit" in cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_the_record_is_as_notebooks_01_and_02_say():
    """The prose speaks of the softmaxes that were measured; a new record may need new prose."""
    record = recorded.load(ROOT / "notebooks" / "recorded" / "h200.json")
    rows = record.select(section="softmax")
    sizes = {row["rows"]: row["n"] for row in rows}
    naive = {count: record.softmaxes(count, n)["naive_softmax"] for count, n in sizes.items()}
    steps = {count: naive[count]["ms"] * 1e6 / (3 * n) for count, n in sizes.items()}
    assert max(steps[1024], steps[4096], steps[8192]) < 1.1 * min(steps[1024], steps[4096], steps[8192])
    assert steps[65536] > 2 * steps[8192]
    assert max(sizes, key=lambda count: naive[count]["gbs"]) == 65536
    assert all(naive[row["rows"]]["gbs"] <= row["gbs"] for row in rows)
    in_that_time = naive[8192]["ms"] * 1e6 * record.softmaxes(8192, 4096)["copy"]["gbs"]  # bytes
    assert in_that_time > 4 * 32 * 8192 * 4096
    gbs = {(count, name): row["gbs"] for count, n in sizes.items() for name, row in record.softmaxes(count, n).items()}
    for count, contestant, share in (
        (4096, "three passes", 8 / 16),
        (4096, "two passes", 8 / 12),
        (8192, "three passes", 0.88),
        (8192, "two passes", 0.88),
    ):
        assert gbs[count, contestant] / gbs[count, "copy"] == pytest.approx(share, abs=0.03)
    assert gbs[65536, "two passes"] < min(gbs[65536, "three passes"], gbs[65536, "torch.softmax"])
    assert gbs[4096, "two passes"] > 1.2 * gbs[4096, "three passes"]
