"""What the notebooks call besides the kernels: where this runs, a kernel's source, and a check with a verdict."""

import inspect
import textwrap
from typing import Any

import numpy as np
from IPython.display import Markdown, display

from fa_numba import device
from fa_numba.contestants import EFFICIENT
from fa_numba.recorded import Record
from fa_numba.trace import KernelReport, LineReport


def where() -> None:
    """Print which device this notebook runs on."""
    print(f"Running on {device.describe()}.")


def show_source(function: Any, start: str | None = None, end: str | None = None) -> None:
    """Show the source of a kernel or function, as it was imported, or a piece of it.

    Parameters
    ----------
    function
        A Python function or what ``cuda.jit`` returned.
    start, end : str, optional
        Show from the first line that contains ``start`` to the line before the next one that contains ``end``.

    Raises
    ------
    ValueError
        If no such line is there.
    """
    lines = textwrap.dedent(inspect.getsource(getattr(function, "py_func", function))).splitlines()
    first = 0 if start is None else _line_with(start, lines, 0)
    last = len(lines) if end is None else _line_with(end, lines, first + 1)
    piece = textwrap.dedent("\n".join(lines[first:last])).rstrip()
    display(Markdown(f"```python\n{piece}\n```"))


def _line_with(text: str, lines: list[str], first: int) -> int:
    """Return the number of the first line, from one on, that contains a text."""
    for number in range(first, len(lines)):
        if text in lines[number]:
            return number
    raise ValueError(f"no line from line {first + 1} on contains {text!r}")


def show_table(columns: tuple[str, ...], rows: list[tuple[str, ...]], words: int = 1) -> None:
    """Show a table; its first columns, one or so many, hold words, the others numbers."""
    aligned = ["---"] * words + ["---:"] * (len(columns) - words)
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, aligned, *rows)]
    display(Markdown("\n".join(lines)))


def show_lines(launch: KernelReport, space: str) -> None:
    """Show what a traced launch did to a memory, a row for each source line of the kernel.

    Parameters
    ----------
    launch : KernelReport
        Of :func:`fa_numba.trace`.
    space : str
        ``"global"``: how many sectors a request fetches, and the share of their bytes that is used. ``"shared"``: in
        how many turns a request is served at worst.
    """
    if space == "global":
        columns, cells = ("sectors a request", "bytes used"), _sector_cells
    else:
        columns, cells = ("turns a request",), _bank_cells
    rows = [
        (f"`{text_of((line.calls or (line.line,))[-1])}`", line.array, line.kind, f"{line.requests:,}", *cells(line))
        for line in launch.lines
        if line.space == space
    ]
    show_table(("line", "array", "", "requests", *columns), rows, words=3)


def text_of(line: str) -> str:
    """Return what stands in a line of a trace or of an error, ``file.py:24 (the text)``, without its comment."""
    return line.partition(" (")[2].removesuffix(")").partition("  #")[0]


def _sector_cells(line: LineReport) -> tuple[str, ...]:
    return f"{line.sectors_per_request:.3g}", f"{line.used:.1%}".replace(".0%", "%")


def _bank_cells(line: LineReport) -> tuple[str, ...]:
    return (str(line.ways),)


def show_rungs(record: Record, step: str, peer: str = EFFICIENT) -> None:
    """Show the rungs of a step as a record has them, and how the last stands; one line if it has none.

    Parameters
    ----------
    record : Record
        Measurements of a GPU.
    step : str
        ``"softmax"``, ``"standard"``, ``"forward"`` or ``"backward"``.
    peer : str
        Which contestant they are compared with, in the last row.
    """
    rows = record.select(section="rungs", step=step)
    rungs = sorted((row for row in rows if "order" in row), key=lambda row: row["order"])
    if not rungs:
        display(Markdown(f"The record ({record.title()}) has no rungs of this step."))
        return
    peers = [row for row in rows if row["contestant"] == peer]
    unit = "gbs" if "gbs" in rungs[0] else "tflops"
    columns = ("rung", "ms", {"gbs": "GB/s", "tflops": "TFLOP/s"}[unit], "over the rung before", f"speed over {peer}")
    show_table(columns, [_rung_cells(row, unit, peer) for row in [*rungs, *peers]])
    first, last = rungs[0], rungs[-1]
    told = [f"{record.title()}.", f"The last rung is {first['ms'] / last['ms']:.1f} times as fast as the first"]
    if peer in last.get("ratios", {}):
        told.append(f"and has {last['ratios'][peer]:.2f} times the speed of {peers[0]['label']}")
    display(Markdown(f"{' '.join(told)}."))


def _rung_cells(row: dict[str, Any], unit: str, peer: str) -> tuple[str, ...]:
    gain = f"{row['gain']:.1f}×" if "gain" in row else ""
    ratio = f"{row['ratios'][peer]:.2f}×" if peer in row.get("ratios", {}) else ""
    rate = f"{row[unit]:,.0f}" if unit == "gbs" else f"{row[unit]:.1f}"
    return row["label"], f"{row['ms']:.3g}", rate, gain, ratio


def check(what: str, result: Any, truth: Any, within: float, of: str = "float64") -> None:
    """Print PASS if a result is as close to the truth as it should be; raise AssertionError with the error otherwise.

    Parameters
    ----------
    what : str
        What is checked, in words.
    result : array
        On the host or the device.
    truth : numpy.ndarray
        In float64.
    within : float
        The largest absolute error allowed. NaN and infinities must stand where the truth has them, and nowhere else.
    of : str
        What the truth is, in words.
    """
    result = result.copy_to_host() if hasattr(result, "copy_to_host") else np.asarray(result)
    if result.shape != truth.shape:
        raise AssertionError(f"{what}: the shape is {result.shape}, not {truth.shape}")
    finite = np.isfinite(truth)
    if not np.array_equal(np.isfinite(result), finite) or not np.array_equal(
        result[~finite], truth[~finite], equal_nan=True
    ):
        raise AssertionError(f"{what}: NaN or infinities stand in other places than in {of}")
    error = np.abs(result[finite] - truth[finite]).max(initial=0.0)
    if error > within:
        raise AssertionError(f"{what}: off by {error:.3g} from {of}, and {within:g} is allowed")
    print(f"PASS  {what}  within {within:g} of {of}")
