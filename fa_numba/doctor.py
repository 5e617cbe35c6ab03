"""`fa-numba doctor`: what this machine has, and whether a kernel runs on it."""

import platform
from importlib import metadata

import numpy as np
from numba import cuda

from fa_numba import __version__, device, naive_softmax, reference, selection

PACKAGES = ("numba", "numba-cuda", "numpy", "greenlet", "matplotlib", "jupyter", "nbclient", "torch")


def report() -> bool:
    """Print the report; return whether a kernel ran and gave the right result."""
    for name, text in _facts():
        print(f"{name:<10} {text}")
    verdict = _try_a_kernel()
    print(f"{'kernel':<10} {verdict or 'naive_softmax ran, and its result is right'}")
    return verdict is None


def _facts() -> list[tuple[str, str]]:
    chosen = selection.select()
    fault = None if device.SIMULATED else selection.gpu_fault()
    facts = [
        ("fa_numba", f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)),
        ("chosen", f"{chosen.device}: {chosen.reason}"),
        ("device", f"none: {fault}" if fault else _device()),
    ]
    if fault is None:
        facts.append(("limits", _limits()))
    return facts


def _limits() -> str:
    try:
        limit = device.device_limits()
    except ValueError as problem:  # FA_NUMBA_SIMULATED_CC
        return f"none: {problem}"
    return f"{limit.threads_per_block} threads and {limit.shared_per_block} bytes of shared memory in a block"


def _device() -> str:
    if device.SIMULATED:
        origin = "numba-cuda's" if "numba_cuda" in cuda.__file__ else "numba's own"
        return f"{device.describe()}, on {origin} numba.cuda"
    return _gpu()


def _gpu() -> str:
    gpu = cuda.get_current_device()
    major, minor = gpu.compute_capability
    gigabytes = cuda.current_context().get_memory_info().total / 1e9
    return (
        f"{device.describe()}, compute capability {major}.{minor}, {gpu.MULTIPROCESSOR_COUNT} multiprocessors, "
        f"{gigabytes:.0f} GB, CUDA {'.'.join(map(str, cuda.runtime.get_version()))}"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _try_a_kernel() -> str | None:
    """Run one kernel; say what went wrong, or None."""
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    try:
        error = np.abs(naive_softmax(x) - reference.softmax(x)).max()
    except Exception as problem:  # whatever the driver, the compiler or the packages say, the reader must see it
        return f"FAILED: {type(problem).__name__}: {problem}"
    return None if error < 1e-6 else f"FAILED: naive_softmax is off by {error:.2g}"
