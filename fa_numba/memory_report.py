"""`fa-numba memory`: the memory that attention holds against the length, as a table, a CSV file and a figure."""

import csv
import io
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from numba import cuda
from tqdm import tqdm

from fa_numba import device, memory, plots
from fa_numba.folder import CannotRun, replace, require_writable

D = 64
LENGTHS = [2**power for power in range(4, plots.LONGEST.bit_length())]
LONGEST_SIMULATED = 16  # what the simulator counts in seconds; twice the length takes it half a minute
COUNTED, COMPUTED = "counted", "computed"


class Peak(NamedTuple):
    """The most bytes that attention on one head of n float32 queries and keys, d wide, holds; counted or computed."""

    method: str
    passes: str
    n: int
    d: int
    bytes: int
    how: str


def write(output: Path) -> None:
    """Print the table; write memory.csv and memory.png to a folder.

    Raises
    ------
    CannotRun
        If the folder, before anything is counted, or one of the files cannot be written.
    """
    require_writable(output)
    found = peaks()
    print(f"Bytes at the peak, inputs and outputs included: one head of N queries and keys, d = {D}, float32.")
    print("Counted: the ledger's sum while the kernels ran. Computed: the formula that the ledger's counts bear out.\n")
    print(table(found), end="\n\n")
    for name, content in (("memory.csv", as_csv(found)), ("memory.png", as_png(found))):
        _write(output / name, content)


def peaks() -> list[Peak]:
    """Return the peaks of both methods and passes at every length: counted while they fit the device, else computed."""
    runs = [(method, n) for method, lengths in _lengths_to_count().items() for n in lengths]
    counted = {}
    for method, n in tqdm(runs, desc="counting", leave=False, disable=None):
        counted[method, n] = memory.counted_peaks(method, n, D)
    found = []
    for method, passes, n in product(memory.METHODS, memory.PASSES, LENGTHS):
        if (method, n) in counted:
            nbytes, how = counted[method, n][passes], COUNTED
        else:
            nbytes, how = memory.computed_bytes(method, passes, n, D), COMPUTED
        found.append(Peak(method, passes, n, D, nbytes, how))
    return found


def table(found: list[Peak]) -> str:
    """Return the peaks as text, in readable units: a line for each length."""
    by_key = {(peak.method, peak.passes, peak.n): peak for peak in found}
    lines = [
        f"{'':6}" + "".join(f"{method:>9}{'':27}" for method in memory.METHODS),
        f"{'N':>6}" + f"{'forward':>9}{'with backward':>15}{'':12}" * len(memory.METHODS),
    ]
    for n in sorted({peak.n for peak in found}):
        line = f"{n:>6}"
        for method in memory.METHODS:
            forward, both = (by_key[method, passes, n] for passes in memory.PASSES)
            line += f"{memory.readable(forward.bytes):>9}{memory.readable(both.bytes):>15}  {both.how:<10}"
        lines.append(line)
    return "\n".join(line.rstrip() for line in lines)


def as_csv(found: list[Peak]) -> bytes:
    """Return the peaks as a CSV file with a heading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([Peak._fields, *found])
    return text.getvalue().encode()


def as_png(found: list[Peak]) -> bytes:
    """Return the figure of peak memory against length as a PNG file: counted dots on the formula's lines."""
    counted = {(peak.method, peak.passes, peak.n): peak.bytes for peak in found if peak.how == COUNTED}
    picture = io.BytesIO()
    figure = plots.memory_lengths(memory.PASSES, counted, D)
    figure.savefig(picture, format="png", dpi=plots.DOTS_PER_INCH)
    plt.close(figure)
    return picture.getvalue()


def _lengths_to_count() -> dict[str, list[int]]:
    """Return, by method, the lengths that take the simulator seconds, or at most half of the GPU's free memory."""
    if device.SIMULATED:
        return {method: [n for n in LENGTHS if n <= LONGEST_SIMULATED] for method in memory.METHODS}
    room = cuda.current_context().get_memory_info().free // 2
    return {
        method: [n for n in LENGTHS if memory.computed_bytes(method, "forward+backward", n, D) <= room]
        for method in memory.METHODS
    }


def _write(path: Path, content: bytes) -> None:
    try:
        replace(path, content)
    except OSError as error:
        raise CannotRun(f"{path} cannot be written: {error.strerror}") from None
    print(f"Wrote {path}")
