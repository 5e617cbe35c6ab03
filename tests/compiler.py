"""Compile kernels without a GPU and read what the compiler says. Run as a program it prints one JSON report.

It needs a process of its own: Numba compiles only where its simulator is off.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@dataclass
class Report:
    """What NVVM and ptxas made of one kernel for one architecture."""

    form: str
    architecture: str
    float64: list[str]  # instructions that compute in float64
    local: list[str]  # PTX lines that use local memory
    stack: int  # bytes a thread keeps in memory, spills among them
    spilled: int
    shared: int  # bytes of static shared memory a block
    registers: int


def ptxas_path() -> str | None:
    """Return ptxas: the one of the nvidia-cuda-nvcc package, else one on the PATH."""
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        files = []
    packaged = next((str(file.locate()) for file in files if file.name == "ptxas"), None)
    return packaged or shutil.which("ptxas")


def forms():
    """Yield (name, kernel, argument types) for every kernel of the package."""
    from numba import float32, float64, types

    from fa_numba.arrays import copy_kernel
    from fa_numba.step1_naive_softmax import naive_softmax_kernel

    def matrix(dtype):
        return types.Array(dtype, 2, "C")

    for dtype in (float32, float64):
        yield f"naive_softmax {dtype}", naive_softmax_kernel, (matrix(dtype), matrix(dtype))
        yield f"copy {dtype}", copy_kernel, (types.Array(dtype, 3, "A"), types.Array(dtype, 1, "C"))


def compile_form(name, kernel, arguments, architecture) -> Report:
    """Compile one kernel for one architecture."""
    from numba import cuda, types

    options = kernel.targetoptions
    capability = tuple(int(part) for part in architecture.split("."))
    cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)  # device functions ask
    ptx, _ = cuda.compile_ptx(
        kernel.py_func,
        types.void(*arguments),
        cc=capability,
        fastmath=options["fastmath"],
        lineinfo=options["lineinfo"],
        launch_bounds=options["launch_bounds"],
    )
    return Report(name, architecture, *_read_ptx(ptx), *_assemble(ptx, capability, options.get("max_registers")))


def _read_ptx(ptx):
    instructions = re.findall(r"^\s+(?:@!?%\w+ )?([a-z][\w.]*)\s", ptx, re.MULTILINE)
    float64 = sorted({each for each in instructions if ".f64" in each and not each.startswith("ld.param")})
    local = [line.strip() for line in ptx.splitlines() if re.search(r"\.local\b", line)]
    return float64, local


def _assemble(ptx, capability, max_registers):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        limit = [f"-maxrregcount={max_registers}"] if max_registers else []
        target = f"-arch=sm_{capability[0]}{capability[1]}"
        command = [ptxas_path(), "-v", target, *limit, "-o", os.devnull, str(source)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def number(pattern):
        found = re.search(pattern, told)
        return int(found.group(1)) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return number(r"(\d+) bytes stack frame"), spilled, number(r"(\d+) bytes smem"), number(r"Used (\d+) registers")


def report() -> list[dict]:
    """Compile every form for every architecture."""
    return [
        asdict(compile_form(name, kernel, arguments, architecture))
        for name, kernel, arguments in forms()
        for architecture in ARCHITECTURES
    ]


if __name__ == "__main__":
    json.dump(report(), sys.stdout)
