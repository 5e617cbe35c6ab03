"""Kernels compiled without a GPU, for what only the compiler knows: the registers of a thread, and what spills.

NVVM, which numba-cuda brings, makes PTX of a kernel, and ptxas, from a CUDA toolkit or the package nvidia-cuda-nvcc,
machine code. Numba compiles only where its simulator is off; :func:`registers` asks a process of its own.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numba import cuda, typeof, types

from fa_numba import child, limits


@dataclass(frozen=True)
class Form:
    """A kernel as another process can find it, and the types of its arguments.

    Attributes
    ----------
    module, name : str
        Of the kernel, or of the factory that made it.
    made_with : tuple or None
        What the factory was given; None for a kernel of a module.
    arguments : tuple of numba.types.Type
        The types that it is compiled for.
    """

    module: str
    name: str
    made_with: tuple | None
    arguments: tuple[Any, ...]

    def kernel(self) -> Any:
        """Import the kernel, or have it made."""
        found = getattr(import_module(self.module), self.name)
        return found if self.made_with is None else found(*self.made_with)


@dataclass(frozen=True)
class Compiled:
    """What NVVM and ptxas made of one kernel for one compute capability.

    Attributes
    ----------
    ptx : str
        The kernel in PTX.
    registers : int
        Of a thread.
    stack, spilled : int
        Bytes that a thread keeps in memory, and those of them that are written and read for want of registers.
    shared : int
        Bytes of static shared memory of a block.
    """

    ptx: str
    registers: int
    stack: int
    spilled: int
    shared: int


def form_of(function: Callable[..., Any], arguments: Iterable[Any]) -> Form | None:
    """Return the form in which a launch would compile a kernel; None if another process could not find the kernel.

    Parameters
    ----------
    function : callable
        The kernel's Python function.
    arguments : iterable
        The arguments of the launch, arrays as NumPy's.
    """
    module, name, made_with = getattr(function, "made_by", (function.__module__, function.__name__, None))
    found = getattr(sys.modules.get(module), name, None)
    kernel = found if made_with is None or found is None else found(*made_with)
    if module == "__main__" or getattr(kernel, "py_func", None) is not function:
        return None
    return Form(module, name, made_with, tuple(map(_type_of, arguments)))


def _type_of(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types(tuple(map(_type_of, argument)), type(argument))
    found = typeof(argument)
    return types.Array(found.dtype, found.ndim, found.layout) if isinstance(found, types.Array) else found


def ptxas_path() -> str | None:
    """Return ptxas: the one of the nvidia-cuda-nvcc package, else one on the PATH."""
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        files = []
    packaged = next((str(file.locate()) for file in files if file.name == "ptxas"), None)
    return packaged or shutil.which("ptxas")


@functools.cache
def registers(form: Form, capability: str = "9.0") -> int | None:
    """Return how many registers a thread of a kernel has; None where the compiler is not installed.

    Parameters
    ----------
    form : Form
        As :func:`form_of` returns it.
    capability : str
        The compute capability that it is compiled for.

    Raises
    ------
    ValueError
        If the compute capability is not known.
    """
    limits.of_capability(capability)
    return child.call_compiler(_registers, form, capability) if ptxas_path() else None


def _registers(form: Form, capability: str) -> int | None:
    """In a process whose simulator is off: compile the kernel, if NVVM is there."""
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except NvvmSupportError:
        return None
    (compiled,) = compile_kernel(form.kernel(), form.arguments, [capability])
    return compiled.registers


def compile_kernel(kernel: Any, arguments: tuple[Any, ...], capabilities: list[str]) -> list[Compiled]:
    """Compile one kernel for some compute capabilities; needs a process whose simulator is off.

    To LLVM IR it is the same for all; from there on it is compiled for each.
    """
    from numba.cuda.compiler import _compile_pyfunc_with_fixup

    numbers = [tuple(int(part) for part in capability.split(".")) for capability in capabilities]
    cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=numbers[0])  # functions ask
    options = kernel.targetoptions
    library, _ = _compile_pyfunc_with_fixup(
        kernel.py_func,
        types.void(*arguments),
        device=False,
        abi="numba",
        cc=numbers[0],
        fastmath=options["fastmath"],
        lineinfo=options["lineinfo"],
        launch_bounds=options["launch_bounds"],
    )
    most = options.get("max_registers")
    return [_assembled(library.get_asm_str(cc=capability), capability, most) for capability in numbers]


def _assembled(ptx: str, capability: tuple[int, ...], max_registers: int | None) -> Compiled:
    """Make machine code of PTX, and read what ptxas says of it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        limit = [f"-maxrregcount={max_registers}"] if max_registers else []
        target = f"-arch=sm_{capability[0]}{capability[1]}"
        command = [ptxas_path(), "-v", target, *limit, "-o", os.devnull, str(source)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def number(pattern: str) -> int:
        found = re.search(pattern, told)
        return int(found.group(1)) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    stack, shared = number(r"(\d+) bytes stack frame"), number(r"(\d+) bytes smem")
    return Compiled(ptx, number(r"Used (\d+) registers"), stack, spilled, shared)
