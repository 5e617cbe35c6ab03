"""`fa-numba bench`: every step and its peers, measured side by side on a GPU, and a record of it.

Each contestant is checked before it is timed. They then take turns, and each call starts with none of its data in the
L2 cache. The record holds medians and quartiles; what its entries mean is written in :mod:`fa_numba.recorded`.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numba import cuda
from tqdm import tqdm

from fa_numba import (
    contestants,
    device,
    memory,
    overhead,
    pool,
    recorded,
    reference,
    selection,
    stopwatch,
    tables,
    timing,
)
from fa_numba.contestants import COPY, PEERS, Contestant
from fa_numba.folder import CannotRun

Row = dict[str, Any]

SECONDS = 0.1  # a contestant of a case may take, beyond the fewest rounds
FEWEST, MOST = 5, 50  # rounds
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every output."""
        return self.rows, self.n

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
        return f"{_heads(self.heads)}, N = {self.n:,}, d = {self.d}{', causal' if self.causal else ''}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every output."""
        return self.heads, self.n, self.d

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


def _heads(number: int) -> str:
    return f"{number} heads" if number > 1 else "1 head"


class AttentionForward(Attention):
    """As Attention, the forward pass alone: head dims whose backward kernels would take long to compile."""

    sections: ClassVar = ("forward",)


@dataclass(frozen=True)
class Decode:
    """Attention of one query a head to many keys, in float32: the time is that of reading K and V."""

    heads: int
    n_k: int
    d: int
    n_q: int = 1
    sections: ClassVar = ("decode",)

    def __str__(self) -> str:
        return f"{_heads(self.heads)}, {self.n_q} query, {self.n_k:,} keys, d = {self.d}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return self.heads, self.n_q, self.d

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the same random numbers every time."""
        rng = np.random.default_rng(0)
        lengths = {"q": self.n_q, "k": self.n_k, "v": self.n_k, "do": self.n_q}
        return {name: rng.standard_normal((self.heads, n, self.d), np.float32) for name, n in lengths.items()}

    def truth(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what contestants should give for the last head, in float64, and k for the copy."""
        q, k, v = (inputs[name][-1] for name in "qkv")
        return {"o": reference.attention(q, k, v).o, "k": k}

    def sample(self, name: str, array: Any) -> np.ndarray:
        """Return the last head of an array on the host or the device."""
        return _to_host(array[self.heads - 1])

    def contestants(self, section: str, inputs: dict[str, Any], torch: Any) -> list[Contestant]:
        """Return who takes part."""
        return contestants.decode(inputs, torch)

    def rate(self, section: str, ms: float) -> dict[str, float]:
        """Return GB/s of K and V, each element read once; a copy of K reads and writes as many bytes."""
        return {"gbs": 2 * self.heads * self.n_k * self.d * 4 / ms * 1e-6}

    def matrix_bytes(self, section: str) -> int:
        """Return the bytes of S and P."""
        return 2 * self.heads * self.n_q * self.n_k * 4


TOKENS = 2**17  # heads times length, where the length grows at equal work for softmax
CASES = (
    *(Softmax(rows, n) for rows, n in ((1024, 512), (8192, 4096), (65536, 1024), (4096, 32768))),  # the article's first
    *(Attention(TOKENS // n, n, 64) for n in (512, 1024, 2048, 4096, 8192, 16384)),
    *(Attention(1, n, 64) for n in (1024, 4096, 16384)),
    Attention(32, 4096, 64, causal=True),
    Attention(32, 4096, 128),
    Attention(32, 4096, 128, causal=True),
    Attention(32, 100, 64),  # small and ragged
    *(AttentionForward(32, 1024, d) for d in (40, 96, 160, 256)),
    Attention(32, 1024, 80),
    *(Decode(32, 40_000, d) for d in (64, 128)),
)
QUICK_CASES = (Softmax(8192, 4096), Attention(32, 4096, 64), *(Attention(1, n, 64) for n in (1024, 4096)))
CASES_BY_KERNEL = (Attention(32, 4096, 64), Attention(32, 4096, 64, causal=True), Attention(1, 4096, 64))
ROUNDS_BY_KERNEL = 9
RUNGS_BY_CASE = {Softmax(8192, 4096): ("softmax",), Attention(32, 4096, 64): ("standard", "forward", "backward")}

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
        The JSON file. Until all is measured, what there is so far is beside it, in ``NAME.partial``.
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
    partial = output.with_name(f"{output.name}.partial")
    _require_writable(output)
    _require_writable(partial)
    record = measure(quick=quick, report=lambda table: tqdm.write(table, file=sys.stdout), keep=partial)
    record.save(output)
    partial.unlink(missing_ok=True)
    print(f"{record.title()}: {len(record.rows)} rows in {output}")
    return 1 if record.faults() else 0


def measure(
    *,
    quick: bool = False,
    report: Callable[[str], None] = lambda table: None,
    keep: Path | None = None,
    cases: Any = None,
    gpu: Any = None,
) -> recorded.Record:
    """Return the measurements of this process's GPU.

    Parameters
    ----------
    quick : bool
        A few cases only: under a minute on a big GPU.
    report : callable
        Given each table when it is ready.
    keep : pathlib.Path, optional
        A file for what has been measured so far, written after each case, lest an interruption loses it.
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
    report("\n".join([recorded.Record(told, []).title(), *_remarks(gpu, torch)]))
    cases = list(cases or (QUICK_CASES if quick else CASES))
    rows: list[Row] = []
    with contestants.in_float32(torch), tqdm(total=len(cases) + 1, unit="case", leave=False, disable=None) as progress:
        for case in cases:
            progress.set_description(str(case))
            rows += _measure_case(case, gpu, torch, report, () if quick else RUNGS_BY_CASE.get(case, ()))
            if keep is not None:
                recorded.Record(told, rows).save(keep)
            progress.update()
        progress.set_description("overhead")
        rows += _measure_overhead(gpu, torch, report)
    return recorded.Record(told, rows)


def _remarks(gpu: Any, torch: Any) -> list[str]:
    """Say what the shares are of, and who the peers are."""
    peak = f"{gpu.fp32_tflops:.1f} TFLOP/s" if gpu.fp32_tflops else "unknown"
    told = [f"Shares: of the float32 peak of its CUDA cores ({peak}), or of the bandwidth that the copy reached."]
    if torch is None:
        return [*told, "PyTorch with CUDA is not installed: our functions are measured alone."]
    return [
        *told,
        "PyTorch's EFFICIENT multiplies float32 by 3xTF32 on tensor cores, if there are; ours do not.",
    ]


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


def _measure_case(
    case: Any, gpu: Any, torch: Any, report: Callable[[str], None], steps: tuple[str, ...] = ()
) -> list[Row]:
    on_host = case.inputs()
    truth = case.truth(on_host)
    inputs = {name: cuda.to_device(array) for name, array in on_host.items()}
    rows = []
    for section in case.sections:
        fitting = [each for each in case.contestants(section, inputs, torch) if _fits(each, case, section, gpu)]
        made = measure_section(case, section, fitting, truth, gpu)
        report(tables.contest(f"{section}: {case}", made))
        rows += made
        _empty_cache(torch)
    for step in steps:
        made = measure_rungs(case, step, inputs, truth, gpu, torch)
        report(tables.contest(f"rungs, {step}: {case}", made))
        rows += made
        _empty_cache(torch)
    if case in CASES_BY_KERNEL:
        made = _measure_kernels(case, inputs, gpu)
        report(tables.kernels(f"kernels: {case}", made))
        rows += made
    return rows


def _empty_cache(torch: Any) -> None:
    """Let PyTorch give back what it keeps for later, as it is missing for others."""
    if torch:
        torch.cuda.empty_cache()


def measure_rungs(
    case: Any, step: str, inputs: dict[str, Any], truth: dict[str, np.ndarray], gpu: Any, torch: Any
) -> list[Row]:
    """Measure the rungs of a step and its peers, and what each rung gained over the one before it.

    Parameters
    ----------
    case : Softmax or Attention
    step : str
        One of ``contestants.STEPS``.
    inputs : dict of device array
    truth : dict of numpy.ndarray
        What :meth:`Softmax.truth` gives.
    gpu : stopwatch.Gpu
        Or what stands in for it.
    torch
        PyTorch, or None.

    Returns
    -------
    list of dict
        One row for each, in order. A rung after one without a time has no gain.
    """
    part = contestants.STEPS[step][1]
    entrants = [each for each in contestants.rungs(step, inputs, torch) if _fits(each, case, part, gpu)]
    rows = [row | {"section": "rungs", "step": step} for row in measure_section(case, part, entrants, truth, gpu)]
    rungs = [row for row in rows if row["contestant"] not in PEERS]
    for order, row in enumerate(rungs):
        row["order"] = order
    for before, row in itertools.pairwise(rungs):
        if before["fault"] is None and row["fault"] is None:
            row["gain"] = before["ms"] / row["ms"]
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
    _add_shares(list(rows.values()), gpu)
    return list(rows.values())


def _add_shares(rows: list[Row], gpu: Any) -> None:
    """Add the share of the device's float32 peak, or of the bandwidth that the copy reached, where that is known."""
    bandwidths = [row["gbs"] for row in rows if row["contestant"] == COPY and row["fault"] is None]
    for row in rows:
        if "tflops" in row and gpu.fp32_tflops:
            row["share"] = row["tflops"] / gpu.fp32_tflops
        if "gbs" in row and bandwidths:
            row["share"] = row["gbs"] / bandwidths[0]


def _timed(case: Any, section: str, taken: stopwatch.Times) -> Row:
    spread = stopwatch.summary("ms", taken.each)
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
    if not error <= contestant.tolerance:  # NaN neither
        return {"error": error, "fault": f"wrong: off by {error:.2g} of the largest value"}
    for name in sample:
        truth.setdefault(name, sample[name])  # what float64 does not cover, the first contestant settles
    return {"error": error, "peak_bytes": peak, "fault": None}


def _poison(case: Any, contestant: Contestant, truth: dict[str, np.ndarray], gpu: Any) -> None:
    """Leave NaN in the memory that outputs will get, lest one that writes nothing returns the last one's results."""
    nothing = np.full(case.shape, np.nan, np.float32)
    ours = [pool.allocate(case.shape, nothing.dtype, 0) for _ in contestant.outputs]
    for array in ours:
        array.copy_to_device(nothing)
    torch = contestants.find_torch()
    theirs = [torch.from_numpy(nothing).cuda() for _ in contestant.outputs] if torch else []
    del ours, theirs
    gpu.free()


def relative_error(result: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest error over the largest value of the truth; NaN if there is one in the result."""
    return float(np.abs(result - truth).max() / np.abs(truth).max())


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
            rows.append(row | stopwatch.summary("ms", [launch.ms for launch in launches]))
    return rows


def _observed(call: Callable[[], Any], gpu: Any) -> list[timing.Launch]:
    gpu.occupy(stopwatch.MOST_LEAD // 8)  # so that all launches are queued before the first one starts
    with timing.observe() as launches, gpu.keep():
        outputs = call()
    del outputs
    gpu.free()
    return launches


def _measure_overhead(gpu: Any, torch: Any, report: Callable[[str], None]) -> list[Row]:
    inputs = {name: cuda.to_device(array) for name, array in Attention(1, overhead.N, overhead.N).inputs().items()}
    rows = overhead.measure(inputs, gpu, torch)
    title = f"overhead: a call of a tiny problem ({overhead.N}×{overhead.N}) on device arrays, by the host's clock"
    report(tables.overhead(title, rows))
    return rows


def _to_host(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "copy_to_host"):  # PyTorch's
        return array.detach().cpu().numpy()
    return array.copy_to_host()
