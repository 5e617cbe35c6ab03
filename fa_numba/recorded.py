"""Measurements with their provenance: what `fa-numba bench` writes to a JSON file, and notebooks plot.

The file holds an object of three entries:

``schema``
    1. It changes when an older reader would misread the file.
``provenance``
    ``device``, ``compute_capability``, ``memory`` (bytes), ``multiprocessors``, ``clock_mhz`` (the highest),
    ``fp32_tflops`` (what its CUDA cores compute at most, by these; null if unknown), ``driver``, ``cuda`` (the
    toolkit that compiles), ``python``, ``fa_numba``, ``numba``, ``numba-cuda``, ``numpy``, ``torch`` (null if it is
    not installed), ``date`` (UTC, ISO 8601), ``commit`` and ``dirty`` (outside a clone null, and what
    ``FA_NUMBA_COMMIT`` says, or ``"unknown"``), ``command``.
``rows``
    A list of objects. Each has ``section`` and ``contestant``, and ``fault``: null, or why there is no time. Sizes are
    ``rows`` and ``n`` of a softmax; ``heads``, ``n``, ``d`` and ``causal`` of attention; ``heads``, ``n_q``, ``n_k``
    and ``d`` of decoding. By section:

    ``softmax``, ``forward``, ``backward``, ``forward+backward``, ``decode``
        ``label`` (the contestant in words), ``ms`` (median of the GPU's times), ``ms_low`` and ``ms_high`` (quartiles),
        ``calls`` (timed), ``ahead`` (false if times include the host's work), ``peak_bytes`` (inputs, outputs and what
        lies between), ``error`` (the largest, over the largest value, against float64), ``gbs`` (10⁹ bytes a second:
        of a softmax, read and written once; of decoding, K and V read once) or ``tflops`` (attention: forward
        4·heads·n²·d operations, half if causal; backward 2.5 times as many), ``share`` (of ``fp32_tflops``, or of the
        copy's ``gbs`` in the same case; missing where that is), and, for our own, ``ratios``: by peer, its time over
        this one.
    ``rungs``
        As above, for each rung of a step and its peers, which took turns; also ``step`` (``softmax``, ``standard``,
        ``forward`` or ``backward``), and for a rung ``order`` and ``gain`` (the time of the rung before over this one).
    ``kernels``
        ``kernel``, ``what`` (the equation), ``order``, ``ms``, ``ms_low``, ``ms_high``, ``calls``: one row for each
        kernel that the contestant launches.
    ``overhead``
        ``us``, ``us_low``, ``us_high``, ``calls``: microseconds a call of a tiny problem, by the host's clock; where
        launches are ours, ``launches`` (a call), ``arrays`` (array arguments, by launch), ``us_launch`` (a launch) and
        ``bare_us`` (as many launches of an empty kernel, by Numba alone).
    ``traffic``
        Not by `fa-numba bench`, but by docs/measure_traffic.py, in a record of its own whose provenance has ``ncu``
        (its version) too. A row for each launch: ``contestant`` (the call), ``kernel``, ``grid``, ``block``,
        ``measured`` (by ncu; what it does not know is missing) and, where the simulator traced the call too,
        ``counted``. Both have ``load_requests`` (warp instructions), ``load_sectors`` (of 32 bytes) and ``load_bytes``
        (that threads asked for) of global memory, ``shared_load_requests``, ``shared_load_wavefronts`` (deliveries) and
        ``shared_load_conflicts``, the same of ``store``, and ``flops`` (multiply-adds are two). Counted is also the
        ``footprint``, in bytes; measured are ``copy_requests``, ``copy_sectors`` and ``copy_bytes`` (from global to
        shared memory past the registers: the requests and bytes are among the loads, and the requests among the stores
        to shared memory; through the L1 cache ``cached_copy_requests`` and ``cached_copy_sectors``),
        ``additions``, ``multiplications`` and ``multiply_adds``, ``l2_sectors``, ``dram_read`` and ``dram_written``
        (bytes, the caches empty at first), ``nanoseconds``, ``registers`` a thread, ``occupancy`` (percent), and how
        many blocks a multiprocessor can have ``blocks_by_registers``, ``_shared``, ``_warps`` and ``_blocks``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from numba import cuda

import fa_numba
from fa_numba import peak

SCHEMA = 1
_TITLED = ("device", "driver", "numba", "date")  # what a title says
_NAMED = {"section", "contestant", "fault"}  # what every row has
PACKAGES = ("numba", "numba-cuda", "numpy", "torch")
UNKNOWN = "unknown"


class BadRecord(ValueError):  # noqa: N818 (a word for readers)
    """A file that holds no measurements, or in a form not known here; the message says why."""


@dataclass(frozen=True)
class Record:
    """Measurements of one run.

    Attributes
    ----------
    provenance : dict
        On what, with what and when they were made.
    rows : list of dict
        What was measured, as the module says.
    """

    provenance: dict[str, Any]
    rows: list[dict[str, Any]]

    def title(self) -> str:
        """Name the device, its driver, Numba's version and the day."""
        told = self.provenance
        return f"{told['device']}, driver {told['driver']}, numba {told['numba']}, {told['date'][:10]}"

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows that have these entries, in order, without those that have a fault."""
        return [row for row in self.rows if row["fault"] is None and _has(row, wanted)]

    def one(self, **wanted: Any) -> dict[str, Any]:
        """Return the row that has these entries; raise LookupError if there is none, or more than one."""
        found = self.select(**wanted)
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows of the measurements have {wanted}; one was asked for")
        return found[0]

    def softmaxes(self, rows: int, n: int) -> dict[str, dict[str, Any]]:
        """Return the rows of softmax at one size by contestant, without those that have a fault.

        If rungs were measured at this size, they are among them, by their names. Peers come last.
        """
        measured = self.select(section="softmax", rows=rows, n=n)
        rungs = self.select(section="rungs", step="softmax", rows=rows, n=n)
        found: dict[str, dict[str, Any]] = {}
        for row in sorted((*measured, *rungs), key=lambda row: "ratios" not in row):  # only our own have ratios
            found.setdefault(row["contestant"], row)
        return found

    def faults(self) -> list[dict[str, Any]]:
        """Return the rows without a time, as the contestant was wrong or failed."""
        return [row for row in self.rows if row["fault"] is not None]

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all; its folder is made if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        text = json.dumps({"schema": SCHEMA, "provenance": self.provenance, "rows": self.rows}, indent=1)
        try:
            part.write_text(text + "\n", encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _has(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in row and row[name] == value for name, value in wanted.items())


def load(path: Path | str) -> Record:
    """Read a record.

    Raises
    ------
    BadRecord
        If the file is missing, holds something else, or has another schema.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}; `fa-numba bench` writes such a file") from None
    except (ValueError, RecursionError):
        raise BadRecord(f"{path} is not JSON; `fa-numba bench` writes such a file") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise BadRecord(f"{path} holds no measurements of `fa-numba bench`: it has no schema")
    if content["schema"] != SCHEMA:
        raise BadRecord(f"{path} has schema {content['schema']!r}; this fa_numba reads {SCHEMA}. Measure again.")
    provenance, rows = content.get("provenance"), content.get("rows")
    if not isinstance(provenance, dict) or not all(isinstance(provenance.get(name), str) for name in _TITLED):
        raise BadRecord(f"{path} does not say what was measured on; its provenance needs {', '.join(_TITLED)}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= _NAMED for row in rows):
        raise BadRecord(f"{path} has rows without {', '.join(sorted(_NAMED))}")
    return Record(provenance, rows)


def provenance(command: str) -> dict[str, Any]:
    """Say on what, with what and when this process measures."""
    commit, dirty = _commit()
    return {
        **_device(),
        "python": platform.python_version(),
        "fa_numba": fa_numba.__version__,
        **{package: _version(package) for package in PACKAGES},
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "command": command,
    }


def _device() -> dict[str, Any]:
    gpu = cuda.get_current_device()
    return {
        "device": fa_numba.device.describe(),
        "compute_capability": ".".join(map(str, gpu.compute_capability)),
        "memory": cuda.current_context().get_memory_info().total,
        "multiprocessors": gpu.MULTIPROCESSOR_COUNT,
        "clock_mhz": gpu.CLOCK_RATE / 1000,
        "fp32_tflops": peak.of_current_gpu(),
        "driver": _driver(),
        "cuda": ".".join(map(str, cuda.runtime.get_version())),
    }


def _driver() -> str:
    """Return the version of NVIDIA's driver, which CUDA itself does not tell."""
    told = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return told.split("\n")[0] if told else UNKNOWN


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> tuple[str, bool | None]:
    """Return the commit of the clone that holds this file, and whether files differ from it."""
    git = ("git", "-C", str(Path(__file__).parent))
    if _output(*git, "ls-files", Path(__file__).name) is None:  # installed, or copied without its history
        return os.environ.get("FA_NUMBA_COMMIT", UNKNOWN), None
    return _output(*git, "rev-parse", "HEAD") or UNKNOWN, _output(*git, "status", "--porcelain") is not None


def _output(*command: str) -> str | None:
    """Return what a command prints; None if that is nothing, or if it fails."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() or None if finished.returncode == 0 else None
