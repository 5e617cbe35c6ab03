"""`fa-numba bench`: every step and its peers, measured side by side on a GPU, and a record of it.

Each contestant is checked before it is timed. They then take turns, and each call starts with none of its data in the
L2 cache. The record holds medians and quartiles; what its entries mean is written in :mod:`fa_numba.recorded`.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numba import cuda
from tqdm import tqdm

from fa_numba import contestants, device, memory, pool, recorded, reference, selection, stopwatch, timing
from fa_numba.contestants import PEERS, Contestant
from fa_numba.folder import CannotRun

Row = dict[str, Any]

SECONDS = 0.2  # a contestant of a case may take, beyond the fewest rounds
FEWEST, MOST = 5, 50  # rounds
TOLERANCE = 1e-3  # of the largest value: loose, as only a wrong kernel is to be found
SAMPLE = 64  # rows of a softmax that are checked
LONG = 4096  # queries; past it, float64 on the host would take minutes, and less is checked
CHUNK = 1024  # queries whose scores are in the host's memory at a time
WORK = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}  # in forwards, by convention


@dataclass(frozen=True)
class Softmax:
    """Softmax over the rows of a float32 array of shape (rows, n)."""

    rows: int
    n: int
    sections: ClassVar = ("softmax",)

    def __str__(self) -> str:
        return f"{self.rows:,} rows of {self.n:,}"

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the same random numbers every time."""
        return {"x": np.random.default_rng(0).standard_normal((self.rows, self.n), np.float32)}

    def truth(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what contestants should give for the sample, in float64."""
        x = self.sample("x", inputs["x"])
        return {"x": x, "y": reference.softmax(x)}

    def sample(self, name: str, array: Any) -> np.ndarray:
        """Return some rows, spread evenly, of an array on the host or the device."""
        rows = np.unique(np.linspace(0, self.rows - 1, SAMPLE, dtype=int)).tolist()
        return np.stack([_to_host(array[i]) for i in rows])

    def contestants(self, section: str, inputs: dict[str, Any], torch: Any) -> list[Contestant]:
        """Return who takes part."""
        return contestants.softmax(inputs["x"], torch)

    def rate(self, section: str, ms: float) -> dict[str, float]:
        """Return GB/s, each element read and written once."""
        return {"gbs": 2 * self.rows * self.n * 4 / ms * 1e-6}

    def matrix_bytes(self, section: str) -> int:
        """Return the bytes of whoever keeps n² scores: nobody here."""
        return 0


@dataclass(frozen=True)
class Attention:
    """Attention of float32 arrays of shape (heads, n, d)."""

    heads: int
    n: int
    d: int
    causal: bool = False
    sections: ClassVar = tuple(WORK)

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.heads > 1 else "1 head"
        return f"{heads}, N = {self.n:,}, d = {self.d}{', causal' if self.causal else ''}"

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the same random numbers every time."""
        rng = np.random.default_rng(0)
        return {name: rng.standard_normal((self.heads, self.n, self.d), np.float32) for name in ("q", "k", "v", "do")}

    def truth(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what contestants should give for the sample, in float64; past LONG queries without dk and dv."""
        q, k, v, do = (inputs[name][-1] for name in ("q", "k", "v", "do"))
        o, dq, dk, dv = (np.zeros(q.shape) for _ in range(4))
        for first in range(self._first_checked(), self.n, CHUNK):
            rows, seen = slice(first, first + CHUNK), slice(first + CHUNK if self.causal else None)
            some = q[rows], k[seen], v[seen]  # with the mask, the last query still sees the last key
            o[rows] = reference.attention(*some, causal=self.causal).o
            dq[rows], more_dk, more_dv = reference.attention_backward(do[rows], *some, causal=self.causal)
            dk[seen] += more_dk
            dv[seen] += more_dv
        found = {"o": o[self._first_checked() :], "dq": dq[self._first_checked() :]}
        return found if self.n > LONG else {**found, "dk": dk, "dv": dv}

    def sample(self, name: str, array: Any) -> np.ndarray:
        """Return what is checked of an array on the host or the device: the last head, of o and dq the last rows."""
        head = _to_host(array[self.heads - 1])
        return head[self._first_checked() :] if name in ("o", "dq") else head

    def _first_checked(self) -> int:
        return 0 if self.n <= LONG else self.n - CHUNK

    def contestants(self, section: str, inputs: dict[str, Any], torch: Any) -> list[Contestant]:
        """Return who takes part."""
        return contestants.attention(section, inputs, self.causal, torch)

    def rate(self, section: str, ms: float) -> dict[str, float]:
        """Return TFLOP/s, by the convention that the papers share."""
        forward = 4 * self.heads * self.n * self.n * self.d / (2 if self.causal else 1)
        return {"tflops": WORK[section] * forward / ms * 1e-9}

    def matrix_bytes(self, section: str) -> int:
        """Return the bytes that standard attention holds at its peak."""
        passes = "forward" if section == "forward" else "forward+backward"
        return memory.computed_bytes("standard", passes, self.n, self.d, self.heads)


TOKENS = 2**17  # heads times length, where the length grows at equal work for softmax
CASES = (
    *(Softmax(rows, n) for rows, n in ((1024, 512), (8192, 4096), (65536, 1024), (4096, 32768))),  # the article's first
    *(Attention(TOKENS // n, n, 64) for n in (512, 1024, 2048, 4096, 8192, 16384)),
    *(Attention(1, n, 64) for n in (1024, 4096, 16384)),
    Attention(32, 4096, 64, causal=True),
    Attention(32, 4096, 128),
    Attention(32, 4096, 128, causal=True),
)
QUICK_CASES = (Softmax(8192, 4096), Attention(32, 4096, 64), *(Attention(1, n, 64) for n in (1024, 4096)))
CASES_BY_KERNEL = (Attention(32, 4096, 64), Attention(32, 4096, 64, causal=True), Attention(1, 4096, 64))
ROUNDS_BY_KERNEL = 9
TINY = 16  # rows and columns of the problem that shows what a call costs
TINY_CALLS, TINY_BATCHES = 50, 20

# Whose kernels are timed; and since all products have the name matmul_kernel, what they compute, in order.
BY_KERNEL = ("standard_attention", "standard_attention_backward", "flash_backward")
EQUATIONS = {
    "standard_attention": ("S = Q Kᵀ", "P = softmax(S)", "O = P V"),
    "standard_attention_backward": ("dV = Pᵀ dO", "dP = dO Vᵀ", "dS = P (dP − δ)", "dQ = dS K", "dK = dSᵀ Q"),
}


def run(output: Path, quick: bool = False) -> int:
    """Measure, print tables as they are ready, and write the record.

    Parameters
    ----------
    output : pathlib.Path
        The JSON file.
    quick : bool
        A few cases only.

    Returns
    -------
    int
        The exit status: 0, or 1 if a contestant was wrong or failed.

    Raises
    ------
    CannotRun
        Without a GPU, and if the file cannot be written; nothing is measured then.
    """
    _require_gpu()
    _require_writable(output)
    record = measure(quick=quick, report=lambda table: tqdm.write(table, file=sys.stdout))
    record.save(output)
    print(f"{record.title()}: {len(record.rows)} rows in {output}")
    return 1 if record.faults() else 0


def measure(
    *, quick: bool = False, report: Callable[[str], None] = lambda table: None, cases: Any = None, gpu: Any = None
) -> recorded.Record:
    """Return the measurements of this process's GPU.

    Parameters
    ----------
    quick : bool
        A few cases only: under a minute on a big GPU.
    report : callable
        Given each table when it is ready.
    cases : iterable of Softmax and Attention, optional
        What to measure instead.
    gpu : stopwatch.Gpu, optional
        What stands in for the GPU.

    Raises
    ------
    CannotRun
        On the simulator, whose times say nothing about a GPU.
    """
    if gpu is None:
        _require_gpu()
        gpu = stopwatch.Gpu()
    torch = contestants.find_torch()
    told = recorded.provenance("fa-numba bench --quick" if quick else "fa-numba bench")
    peers = "" if torch else "\nPyTorch with CUDA is not installed: our functions are measured alone."
    report(f"{recorded.Record(told, []).title()}{peers}")
    cases = list(cases or (QUICK_CASES if quick else CASES))
    rows: list[Row] = []
    with contestants.in_float32(torch), tqdm(total=len(cases) + 1, unit="case", leave=False, disable=None) as progress:
        for case in cases:
            progress.set_description(str(case))
            rows += _measure_case(case, gpu, torch, report)
            progress.update()
        rows += _measure_overhead(gpu, torch, report)
    return recorded.Record(told, rows)


def _require_gpu() -> None:
    if device.SIMULATED:
        reason = selection.select().reason
        raise CannotRun(f"there is nothing to measure: {reason}. The simulator's times say nothing about a GPU.")
    try:
        device.require_gpu()
    except RuntimeError as problem:
        raise CannotRun(str(problem)) from None


def _require_writable(path: Path) -> None:
    """Refuse before minutes are spent."""
    if path.is_dir():
        raise CannotRun(f"{path} is a folder; name a file with --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise CannotRun(f"{path} cannot be written: {error.strerror}; choose a file with --output") from None


def _measure_case(case: Any, gpu: Any, torch: Any, report: Callable[[str], None]) -> list[Row]:
    on_host = case.inputs()
    truth = case.truth(on_host)
    inputs = {name: cuda.to_device(array) for name, array in on_host.items()}
    rows = []
    for section in case.sections:
        fitting = [each for each in case.contestants(section, inputs, torch) if _fits(each, case, section, gpu)]
        made = measure_section(case, section, fitting, truth, gpu)
        report(table(f"{section}: {case}", made))
        rows += made
        if torch:
            torch.cuda.empty_cache()  # what it keeps for later is missing for others
    if case in CASES_BY_KERNEL:
        made = _measure_kernels(case, inputs, gpu)
        report(kernel_table(case, made))
        rows += made
    return rows


def _fits(contestant: Contestant, case: Any, section: str, gpu: Any) -> bool:
    """Leave out matrices of scores that need more than a quarter of the GPU's memory: several hold theirs at once."""
    return not contestant.needs_matrices or case.matrix_bytes(section) <= gpu.memory / 4


def measure_section(
    case: Any, section: str, entrants: list[Contestant], truth: dict[str, np.ndarray], gpu: Any
) -> list[Row]:
    """Check the contestants of one case, and time those that are right.

    Parameters
    ----------
    case : Softmax or Attention
    section : str
        One of the case's.
    entrants : list of Contestant
    truth : dict of numpy.ndarray
        What :meth:`Softmax.truth` gives.
    gpu : stopwatch.Gpu
        Or what stands in for it.

    Returns
    -------
    list of dict
        One row for each contestant, in order.
    """
    rows, right = {}, {}
    for each in entrants:
        row = {"section": section, **asdict(case), "contestant": each.name, "label": each.label or each.name}
        rows[each.name] = row | _check(case, each, truth, gpu)
        if rows[each.name]["fault"] is None:
            right[each.name] = each.prepare
    times = stopwatch.take_turns(right, gpu, seconds=SECONDS, fewest=FEWEST, most=MOST)
    for name, taken in times.items():
        rows[name] |= {"fault": taken.fault} if taken.fault else _timed(case, section, taken)
    peers = {name: row["ms"] for name, row in rows.items() if name in PEERS and row["fault"] is None}
    for name, row in rows.items():
        if name not in PEERS and row["fault"] is None:
            row["ratios"] = {peer: ms / row["ms"] for peer, ms in peers.items()}
    return list(rows.values())


def _timed(case: Any, section: str, taken: stopwatch.Times) -> Row:
    spread = summary("ms", taken.each)
    return {**spread, "ahead": taken.ahead, **case.rate(section, spread["ms"])}


def _check(case: Any, contestant: Contestant, truth: dict[str, np.ndarray], gpu: Any) -> Row:
    """Run a contestant once; return its error and peak, and the fault that keeps it from being timed."""
    _poison(case, contestant, truth, gpu)
    try:
        outputs = dict(zip(contestant.outputs, contestant.prepare()(), strict=True))
        sample = {name: case.sample(name, array) for name, array in outputs.items()}
        del outputs
        error = max(relative_error(sample[name], truth[name]) for name in sample if name in truth)
        peak = contestant.peak(contestant.prepare)
    except Exception as problem:  # of a compiler, a driver or PyTorch: the others are still worth measuring
        return {"fault": stopwatch.told(problem)}
    gpu.free()
    if not error <= TOLERANCE:  # NaN neither
        return {"error": error, "fault": f"wrong: off by {error:.2g} of the largest value"}
    for name in sample:
        truth.setdefault(name, sample[name])  # what float64 does not cover, the first contestant settles
    return {"error": error, "peak_bytes": peak, "fault": None}


def _poison(case: Any, contestant: Contestant, truth: dict[str, np.ndarray], gpu: Any) -> None:
    """Leave NaN in the memory that outputs will get, lest one that writes nothing returns the last one's results."""
    shape = (case.heads, case.n, case.d) if isinstance(case, Attention) else (case.rows, case.n)
    nothing = np.full(shape, np.nan, np.float32)
    ours = [pool.allocate(shape, nothing.dtype, 0) for _ in contestant.outputs]
    for array in ours:
        array.copy_to_device(nothing)
    torch = contestants.find_torch()
    theirs = [torch.from_numpy(nothing).cuda() for _ in contestant.outputs] if torch else []
    del ours, theirs
    gpu.free()


def relative_error(result: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest error over the largest value of the truth; NaN if there is one in the result."""
    return float(np.abs(result - truth).max() / np.abs(truth).max())


def summary(unit: str, values: list[float]) -> Row:
    """Return median, quartiles and number of values, named by their unit."""
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {unit: median, f"{unit}_low": low, f"{unit}_high": high, "calls": len(values)}


def _measure_kernels(case: Attention, inputs: dict[str, Any], gpu: Any) -> list[Row]:
    """Time each kernel of the calls that launch several."""
    entrants = [
        each
        for section in ("forward", "backward")
        for each in case.contestants(section, inputs, None)
        if each.name in BY_KERNEL and _fits(each, case, section, gpu)
    ]
    rows = []
    for each in entrants:
        try:
            call = each.prepare()
            rounds = [_observed(call, gpu) for _ in range(1 + ROUNDS_BY_KERNEL)][1:]
        except Exception:  # its own row says what is wrong with it
            continue
        equations = EQUATIONS.get(each.name, [launch.kernel for launch in rounds[0]])
        for order, (what, launches) in enumerate(zip(equations, zip(*rounds), strict=True)):
            names = {"kernel": launches[0].kernel, "what": what, "order": order}
            row = {"section": "kernels", **asdict(case), "contestant": each.name, **names, "fault": None}
            rows.append(row | summary("ms", [launch.ms for launch in launches]))
    return rows


def _observed(call: Callable[[], Any], gpu: Any) -> list[timing.Launch]:
    gpu.occupy(stopwatch.MOST_LEAD // 8)  # so that all launches are queued before the first one starts
    with timing.observe() as launches, gpu.keep():
        outputs = call()
    del outputs
    gpu.free()
    return launches


def _measure_overhead(gpu: Any, torch: Any, report: Callable[[str], None]) -> list[Row]:
    """Time calls of problems so small that only the host's work counts."""
    inputs = {name: cuda.to_device(array) for name, array in Attention(1, TINY, TINY).inputs().items()}
    x = inputs["q"][0]
    entrants = [*contestants.softmax(x, torch), *contestants.attention("forward", inputs, False, torch)]
    rows = []
    for each in entrants:
        row = {"section": "overhead", "n": TINY, "contestant": each.name, "label": each.label or each.name}
        try:
            found = stopwatch.per_call(each.prepare(), gpu, calls=TINY_CALLS, batches=TINY_BATCHES)
            rows.append({**row, "fault": None, **summary("us", found)})
        except Exception as problem:
            rows.append({**row, "fault": stopwatch.told(problem)})
    report(overhead_table(rows))
    return rows


def _to_host(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "copy_to_host"):  # PyTorch's
        return array.detach().cpu().numpy()
    return array.copy_to_host()


# -- tables ------------------------------------------------------------------------------------------------------


def table(title: str, rows: list[Row]) -> str:
    """Return the rows of one case as lines of text."""
    peers = [row["contestant"] for row in rows if row["contestant"] in PEERS and row["fault"] is None]
    unit = "GB/s" if rows and rows[0]["section"] == "softmax" else "TFLOP/s"
    head = ["", "ms", "quartiles", unit, "peak MB", *(f"vs {peer}" for peer in peers)]
    lines = _aligned([head, *(_cells(row, peers) for row in rows)])
    faults = [f"  {row['label']}: {row['fault']}" for row in rows if row["fault"]]
    late = ["  * the host could not queue these calls ahead: times include its work"]
    return "\n".join(["", title, *lines, *faults, *(late if any(not row.get("ahead", True) for row in rows) else [])])


def _cells(row: Row, peers: list[str]) -> list[str]:
    if row["fault"]:
        return [row["label"], "FAILED", "", "", "", *("" for _ in peers)]
    rate = row["gbs"] if "gbs" in row else row["tflops"]
    star = "" if row["ahead"] else "*"
    ratios = [f"{row['ratios'][peer]:.2f}×" if "ratios" in row else "" for peer in peers]
    spread = f"{row['ms_low']:.4g}–{row['ms_high']:.4g}"
    return [row["label"], f"{row['ms']:.4g}{star}", spread, f"{rate:.4g}", f"{row['peak_bytes'] / 1e6:,.1f}", *ratios]


def kernel_table(case: Attention, rows: list[Row]) -> str:
    """Return the times of kernels as lines of text."""
    cells = [["", "computes", "kernel", "ms", "share"]]
    for row in rows:
        total = sum(each["ms"] for each in rows if each["contestant"] == row["contestant"])
        cells.append(
            [f"{row['contestant']}: {row['what']}", row["kernel"], f"{row['ms']:.4g}", f"{row['ms'] / total:.0%}"]
        )
    return "\n".join(["", f"kernels: {case}", *_aligned(cells)])


def overhead_table(rows: list[Row]) -> str:
    """Return the times of tiny calls as lines of text."""
    cells = [["", "µs", "quartiles"]]
    for row in rows:
        if row["fault"]:
            cells.append([row["label"], "FAILED", row["fault"]])
        else:
            cells.append([row["label"], f"{row['us']:.1f}", f"{row['us_low']:.1f}–{row['us_high']:.1f}"])
    return "\n".join(["", f"overhead: a call of a tiny problem ({TINY}×{TINY}), by the host's clock", *_aligned(cells)])


def _aligned(cells: list[list[str]]) -> list[str]:
    """Return lines with columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        "  "
        + "  ".join(text.rjust(width) if i else text.ljust(width) for i, (text, width) in enumerate(zip(line, widths)))
        for line in cells
    ]
