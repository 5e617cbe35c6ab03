"""Compare what ``fa_numba.trace`` counts with what NVIDIA's ``ncu`` measures of the same launches on a GPU.

``python docs/measure_traffic.py --output DIR``, with Nsight Compute installed, and the right to read the GPU's counters
(https://developer.nvidia.com/ERR_NVGPUCTRPERM says how to give it), takes a few minutes. It leaves the record, which
:mod:`fa_numba.recorded` describes, in ``DIR/traffic.json``, and beside it what ncu has written. ``--again`` makes the
record anew from what ncu has written to DIR, counted by the present simulator; that needs no GPU.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fa_numba
from fa_numba import (
    child,
    device,
    recorded,
    reference,
    selection,
    step2_online_softmax,
    step3_standard_attention,
    step4_flash_forward,
    step5_flash_backward,
    timing,
)
from fa_numba.folder import CannotRun, require_writable
from fa_numba.step4_flash_forward import few_queries
from fa_numba.step4_flash_forward import wide_tiles as wide_forward
from fa_numba.step5_flash_backward import wide_tiles as wide_backward
from fa_numba.trace import KernelReport, LineReport

Row = dict[str, Any]

# What is measured, by the name it has in the record: as ncu calls it. The copies are those past the registers, from
# global to shared memory. ncu has their requests and sectors among the loads, but not their bytes, and does not count
# them as stores to shared memory.
METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_bytes": "smsp__sass_data_bytes_mem_global_op_ld.sum",
    "copy_requests": "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
    "copy_sectors": "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
    "cached_copy_requests": "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "cached_copy_sectors": "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "copy_bytes": "smsp__sass_data_bytes_mem_global_op_ldgsts.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "store_bytes": "smsp__sass_data_bytes_mem_global_op_st.sum",
    "shared_load_requests": "smsp__inst_executed_op_shared_ld.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_requests": "smsp__inst_executed_op_shared_st.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "additions": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "multiplications": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "multiply_adds": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "l2_sectors": "lts__t_sectors_srcunit_tex.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "nanoseconds": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "blocks_by_registers": "launch__occupancy_limit_registers",
    "blocks_by_shared": "launch__occupancy_limit_shared_mem",
    "blocks_by_warps": "launch__occupancy_limit_warps",
    "blocks_by_blocks": "launch__occupancy_limit_blocks",
    "occupancy": "sm__maximum_warps_per_active_cycle_pct",
}
BASIC = "l1tex__", "dram__", "gpu__"  # how those begin that every GPU has
COLUMNS = "Kernel Name", "Block Size", "Grid Size"  # of ncu's own
TOLD = *recorded._TITLED, "ncu"  # what a provenance must say
DIFFERENCES = """\
Requests and sectors of global memory agree in every launch, but for the sectors of one kind of copy. Where cells
differ:

- **Load bytes.** Where several lanes of a warp ask for the same number, ncu counts it once for the request, the
  simulator once for each lane: `m`, `l` and `delta` in the backward, the query in the kernel of few queries.
- **Load sectors of the wide kernels.** Copies of 16 bytes a lane past the registers (`cp.async`) end in rows of shared
  memory that are padded by 16 bytes, so that every second row begins in the middle of a sector of 32 bytes. There eight
  lanes write to five sectors instead of four, and the hardware counts the larger number: 18 for a request of two rows.
  (A kernel that only copies showed it on the same GPU: 16 with rows of 64 or 72 numbers, 18 with rows of 68.)
- **Requests to shared memory.** ncu counts instructions of the compiled program. The compiler joins neighbouring loads
  into one of 8 or 16 bytes, and keeps in a register what the source reads again. And ncu counts an instruction also if
  it is switched off for all lanes and so has no wavefront: stores of zeros past the ends of an array, beside the
  copies, and loads in the wide kernels.
- **Wavefronts and bank conflicts of shared memory.** Those of loads agree wherever the compiler joined or spared no
  loads. Those of stores agree but for the copies' part, which the hardware does not count as stores.
- **Floating-point operations.** Those of products agree. A division and an exponential are several instructions on a
  GPU; the simulator counts a division as one operation and an exponential as none. And the compiler leaves out what
  need not be computed, such as the addition to 0 with which a sum begins.
"""
PROBE = "naive_softmax"  # the call on which ncu is asked which metrics it knows
ARTICLE = 4096, 64  # length and head dim; too long to be counted, so it is measured only


@dataclass(frozen=True)
class Call:
    """A call whose launches are compared: a function, what makes its arguments, and whether the simulator counts it."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[np.ndarray, ...]]
    is_counted: bool = True


def _normal(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


def _qkv(n_q: int, n_k: int, d: int) -> tuple[np.ndarray, ...]:
    return _normal((n_q, d), (n_k, d), (n_k, d))


def _with_p(n: int, d: int) -> tuple[np.ndarray, ...]:
    do, q, k, v = _normal(*[(n, d)] * 4)
    return do, q, k, v, reference.attention(q, k, v).p.astype(np.float32)


def _with_output(n_q: int, n_k: int, d: int) -> tuple[np.ndarray, ...]:
    """Return what flash_backward takes; o, m and l by the definitions."""
    do, q, k, v = _normal((n_q, d), (n_q, d), (n_k, d), (n_k, d))
    s = q.astype(float) @ k.T / d**0.5
    m = s.max(axis=-1)
    p = np.exp(s - m[:, None])
    l = p.sum(axis=-1)
    return do, q, k, v, *(array.astype(np.float32) for array in (p / l[:, None] @ v, m, l))


def _softmaxes() -> Iterator[tuple[str, Call]]:
    yield "naive_softmax", Call(fa_numba.naive_softmax, functools.partial(_normal, (256, 64)))
    for name in ("block_softmax", "online_softmax"):
        yield name, Call(getattr(fa_numba, name), functools.partial(_normal, (64, 1024)))
    for rung, function in step2_online_softmax.RUNGS.items():
        yield f"softmax, {rung}", Call(function, functools.partial(_normal, (64, 1024)))


def _standard() -> Iterator[tuple[str, Call]]:
    for rung, function in step3_standard_attention.RUNGS.items():
        yield f"standard, {rung}", Call(function, functools.partial(_qkv, 128, 128, 64))
    backward = fa_numba.standard_attention_backward
    yield "standard_attention_backward", Call(backward, functools.partial(_with_p, 64, 64))


def _flash() -> Iterator[tuple[str, Call]]:
    """Tiles are given, as the simulator would choose others than a GPU, and none has keys enough to be split."""
    small = functools.partial(fa_numba.flash_forward, block_q=64, block_k=64)
    tiny = functools.partial(fa_numba.flash_forward, block_q=16, block_k=16)
    wide, few = (functools.partial(step4_flash_forward._forward, m.launch) for m in (wide_forward, few_queries))
    wide = functools.partial(wide, tile=wide_forward.Tile(128, 8, 8))
    for name, causal in (("", False), (", causal", True)):
        inputs = functools.partial(_qkv, 256, 256, 64)
        yield f"flash, 4x4 register tiles{name}", Call(functools.partial(small, causal=causal), inputs)
        inputs = functools.partial(_qkv, 128, 128, 64)
        yield f"flash, 8x8 register tiles{name}", Call(functools.partial(wide, causal=causal), inputs)
    yield "flash, 4x4 register tiles, N = 64, d = 16", Call(tiny, functools.partial(_qkv, 64, 64, 16))
    row = step4_flash_forward.RUNGS["one thread a row"]
    yield "flash, one thread a row", Call(row, functools.partial(_qkv, 128, 64, 64))
    yield "flash, few queries", Call(few, functools.partial(_qkv, 4, 256, 64))


def _backwards() -> Iterator[tuple[str, Call]]:
    small = functools.partial(fa_numba.flash_backward, block_q=64, block_k=64)
    wide = functools.partial(step5_flash_backward._backward, wide_backward.launch, tile=wide_backward.Tile(128, 4, 8))
    yield "flash backward, two kernels, 4x4 register tiles", Call(small, functools.partial(_with_output, 128, 128, 64))
    yield "flash backward, one kernel, 8x8 register tiles", Call(wide, functools.partial(_with_output, 64, 256, 64))


def _article() -> Iterator[tuple[str, Call]]:
    n, d = ARTICLE
    forward, with_output = functools.partial(_qkv, n, n, d), functools.partial(_with_output, n, n, d)
    functions = {"standard_attention": fa_numba.standard_attention, "flash_forward": fa_numba.flash_forward}
    functions |= {f"flash, {rung}": function for rung, function in step4_flash_forward.RUNGS.items()}
    for name, function in functions.items():
        yield f"N = {n}: {name}", Call(function, forward, is_counted=False)
    yield f"N = {n}: flash_backward", Call(fa_numba.flash_backward, with_output, is_counted=False)


CALLS = dict([*_softmaxes(), *_standard(), *_flash(), *_backwards(), *_article()])


# -- measured ---------------------------------------------------------------------------------------------------------


def measure(folder: Path) -> None:
    """Run ncu over the calls; leave ``ncu.csv``, ``launches.json`` and ``provenance.json`` in a folder."""
    told = recorded.provenance("python docs/measure_traffic.py") | {"ncu": _ncu_version()}
    (folder / "provenance.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    metrics = known_metrics(folder)
    print(f"{len(metrics)} of {len(METRICS)} metrics; measuring {len(CALLS)} calls", flush=True)
    run_ncu(metrics, folder, "ncu", list(CALLS))


def _require_gpu() -> None:
    if device.SIMULATED:
        raise CannotRun(f"it needs a GPU: {selection.select().reason}. With --again it needs none")
    try:
        device.require_gpu()
    except RuntimeError as problem:
        raise CannotRun(f"it needs a GPU: {problem}") from None


def _ncu_version() -> str:
    try:
        told = subprocess.run(["ncu", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise CannotRun(f"ncu, of Nsight Compute, does not start: {problem}") from None
    return told.strip().splitlines()[-1]


def known_metrics(folder: Path) -> list[str]:
    """Return the metrics that this ncu can measure on this GPU: it measures nothing if it does not know one."""
    metrics = list(METRICS.values())
    while True:
        told = run_ncu(metrics, folder, "probe", [PROBE])
        if any(read_csv((folder / "probe.csv").read_text(encoding="utf-8"))):
            return metrics
        errors = "\n".join(line for line in told.splitlines() if "ERROR" in line)
        unknown = [name for name in metrics if re.search(rf"\b{name.partition('.')[0]}\b", errors)]
        unknown = unknown or [name for name in metrics if not name.startswith(BASIC)]
        metrics = [name for name in metrics if name not in unknown]
        if not unknown or not metrics:
            raise SystemExit(f"ncu measures nothing:\n{told}")
        print("without", ", ".join(unknown), flush=True)


def run_ncu(metrics: list[str], folder: Path, name: str, calls: list[str]) -> str:
    """Measure calls in a process of their own; return all that ncu says, which also goes to ``{name}.log``."""
    table = folder / f"{name}.csv"
    table.unlink(missing_ok=True)
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table), "--force-overwrite"]
    command += ["--profile-from-start", "off", "--cache-control", "all", "--clock-control", "none"]
    command += ["--metrics", ",".join(metrics), sys.executable, __file__, "--output", str(folder), "--launch", *calls]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    table.touch()
    told = f"{finished.stdout}\n{table.read_text(encoding='utf-8', errors='replace')}\n"
    told += f"ncu ended with status {finished.returncode}"
    (folder / f"{name}.log").write_text(told, encoding="utf-8")
    return told


def launch(folder: Path, names: list[str]) -> None:
    """Under ncu: make each call twice, and let it see the second time. Leave call and kernel of each launch."""
    from numba import cuda  # after fa_numba has chosen the device

    launches = []
    for name in names:
        inputs = [cuda.to_device(array) for array in CALLS[name].inputs()]
        try:
            CALLS[name].function(*inputs)
            cuda.synchronize()
            with timing.observe() as observed, cuda.profiling():
                CALLS[name].function(*inputs)
                cuda.synchronize()
        except Exception as problem:  # of one call: the others are still worth measuring
            print(f"FAILED: {name}: {type(problem).__name__}: {problem}", flush=True)
            continue
        launches += [[name, launched.kernel] for launched in observed]
        (folder / "launches.json").write_text(json.dumps(launches, indent=1), encoding="utf-8")
        print(f"{name}: {len(observed)} launches", flush=True)


def read_csv(text: str) -> Iterator[dict[str, str]]:
    """Yield the launches that ncu has measured: its table begins after some lines of its own, with a row of units."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    yield from (row for row in csv.DictReader(lines[start:]) if (row["ID"] or "").isdigit())


def measured(row: dict[str, str]) -> Row:
    """Return what ncu has measured of one launch, by our names; what it does not know is missing.

    To the simulator a copy is a load and a store, so what ncu leaves out of either is added here.
    """
    numbers = {name: _number(row.get(metric)) for name, metric in METRICS.items()}
    for name, copied in (
        ("load_bytes", ("copy_bytes",)),
        ("shared_store_requests", ("copy_requests", "cached_copy_requests")),
    ):
        if numbers[name] is not None:
            numbers[name] += sum(numbers[each] or 0 for each in copied)
    if all(numbers[name] is not None for name in ("additions", "multiplications", "multiply_adds")):
        numbers["flops"] = numbers["additions"] + numbers["multiplications"] + 2 * numbers["multiply_adds"]
    return {name: number for name, number in numbers.items() if number is not None}


def _number(text: str | None) -> float | int | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


# -- counted ----------------------------------------------------------------------------------------------------------


def count() -> dict[str, list[KernelReport]]:
    """Trace the calls on the simulator, in processes side by side."""
    calls = {name: call for name, call in CALLS.items() if call.is_counted}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = pool.map(lambda call: child.call(fa_numba.trace, call.function, *call.inputs()), calls.values())
        return {name: report.launches for name, report in zip(calls, reports)}


def counted(report: KernelReport) -> Row:
    """Return what the simulator counts of one launch."""
    numbers: Row = {}
    for kind in ("load", "store"):
        lines = [line for line in report.lines if line.kind == kind]
        outside, shared = ([line for line in lines if line.space == space] for space in ("global", "shared"))
        numbers |= {
            f"{kind}_requests": _sum("requests", outside),
            f"{kind}_sectors": _sum("sectors", outside),
            f"{kind}_bytes": _sum("nbytes", outside),
            f"shared_{kind}_requests": _sum("requests", shared),
            f"shared_{kind}_wavefronts": _sum("wavefronts", shared),
            f"shared_{kind}_conflicts": _sum("conflicts", shared),
        }
    return numbers | {"flops": report.flops, "footprint": report.footprint}


def _sum(what: str, lines: Iterable[LineReport]) -> int:
    return sum(getattr(line, what) for line in lines)


# -- side by side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """What :func:`measure` has left: provenance, call and kernel of each launch, and ncu's entry for each."""

    told: dict[str, Any]
    launches: list[tuple[str, str]]
    entries: list[dict[str, str]]


def read(folder: Path) -> Measurement:
    """Return what was measured; raise CannotRun if a file of it is missing, or if they do not fit together."""
    told, launches = _json(folder / "provenance.json"), _json(folder / "launches.json")
    entries = list(read_csv(_text(folder / "ncu.csv")))
    if not isinstance(told, dict) or not all(isinstance(told.get(name), str) for name in TOLD):
        raise CannotRun(f"{folder / 'provenance.json'} must say {', '.join(TOLD)}; measure again")
    if not isinstance(launches, list) or not all(map(_is_pair, launches)):
        raise CannotRun(f"{folder / 'launches.json'} must hold pairs of call and kernel; measure again")
    if len(entries) != len(launches):
        made = f"{len(launches)} were made: see {folder / 'ncu.log'}"
        raise CannotRun(f"ncu has measured {len(entries)} launches, and {made}")
    if not all(entry.get(column) for entry in entries for column in COLUMNS):
        raise CannotRun(f"{folder / 'ncu.csv'} must have the columns {', '.join(COLUMNS)}; measure again")
    return Measurement(told, launches, entries)


def _is_pair(launched: Any) -> bool:
    return isinstance(launched, list) and [type(name) for name in launched] == [str, str]


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError):
        raise CannotRun(f"{path} is not JSON; measure again") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise CannotRun(f"{path} cannot be read: {problem.strerror}; without --again it is measured anew") from None


def side_by_side(measurement: Measurement, reports: dict[str, list[KernelReport]]) -> recorded.Record:
    """Return the record: a row for each launch, of what was measured and what was counted."""
    remaining = {name: iter(each) for name, each in reports.items()}
    rows = [
        _row(name, kernel, entry, next(remaining[name], None) if name in remaining else None)
        for (name, kernel), entry in zip(measurement.launches, measurement.entries)
    ]
    return recorded.Record(measurement.told, rows)


def _row(call: str, kernel: str, entry: dict[str, str], report: KernelReport | None) -> Row:
    grid, block = ([int(n) for n in entry[f"{what} Size"].strip("()").split(",")] for what in ("Grid", "Block"))
    row = {"section": "traffic", "contestant": call, "kernel": kernel, "grid": grid, "block": block, "fault": None}
    if kernel not in entry["Kernel Name"]:
        row["fault"] = f"ncu measured {entry['Kernel Name']} in its place"
    elif report is not None and (report.kernel, [*report.grid], [*report.block]) != (kernel, grid, block):
        row["fault"] = f"the simulator launched {report.kernel} of {report.grid} blocks of {report.block} threads"
    row["measured"] = measured(entry)
    return row if report is None else {**row, "counted": counted(report)}


def document(record: recorded.Record) -> str:
    """Return the table of a record with what one has to know to read it, in Markdown."""
    return f"""# What the simulator counts, beside what a GPU measures

{record.title()}; Nsight Compute, {record.provenance["ncu"]}. Made by `docs/measure_traffic.py`.

A row is a launch. A cell has one number where both agree, else *counted / measured*; launches too large for the
simulator have no count.

{table(record.rows)}

{DIFFERENCES}"""


def table(rows: list[Row]) -> str:
    """Return a line for each launch: one number where both agree, else what was counted / what was measured."""
    names = [name for name in METRICS if any(name in row.get("counted", {}) for row in rows)] + ["flops"]
    head = ["call", "kernel", *(name.replace("_", " ") for name in names)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [_cell(row.get("counted", {}).get(name), row["measured"].get(name)) for name in names]
        lines.append([row["contestant"], row["kernel"], *cells])
    faults = [f"{row['contestant']}, {row['kernel']}: {row['fault']}" for row in rows if row["fault"]]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), *faults])


def _cell(count: int | None, measure: float | None) -> str:
    if count == measure:
        return str(count)
    return " / ".join("?" if number is None else str(number) for number in (count, measure))


def main() -> int:
    """Measure, count, and write the record; return the exit status."""
    try:
        run(_options())
    except CannotRun as problem:
        print(f"measure_traffic.py: {problem}", file=sys.stderr)
        return 2
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare what fa_numba.trace counts with what ncu measures.")
    parser.add_argument("--output", type=Path, required=True, help="the folder for the record and what ncu writes")
    parser.add_argument("--again", action="store_true", help="use what ncu has written there before; needs no GPU")
    parser.add_argument("--launch", nargs="+", metavar="CALL", choices=CALLS, help="what ncu starts: make these calls")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Do what the command line asks for; raise CannotRun if that cannot be done here."""
    if options.launch or not options.again:
        _require_gpu()
    require_writable(options.output)
    if options.launch:
        launch(options.output, options.launch)
        return
    if not options.again:
        measure(options.output)
    record = side_by_side(read(options.output), count())
    record.save(options.output / "traffic.json")
    (options.output / "traffic.md").write_text(document(record), encoding="utf-8")
    print(table(record.rows))
    print(f"{record.title()}: {len(record.rows)} launches in {options.output / 'traffic.json'}")


if __name__ == "__main__":
    sys.exit(main())
