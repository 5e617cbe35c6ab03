"""Which device this process computes on: a GPU if one works, else the simulator.

Numba fixes its mode when ``numba.cuda`` is first imported, so this must be decided before. What
the Makefile needs of it, which CUDA extra to install, works before anything is installed.
"""

import ctypes
import functools
import importlib.util
import os
import sys
from typing import NamedTuple

GPU = "gpu"
SIMULATOR = "simulator"
LOWEST_CAPABILITY = (7, 5)  # the oldest GPUs that CUDA 13 and our kernels support (T4)

# cuda.h: CUdevice_attribute
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


class Selection(NamedTuple):
    """The chosen device, ``"gpu"`` or ``"simulator"``, and the reason in words."""

    device: str
    reason: str


@functools.cache
def select() -> Selection:
    """Choose GPU or simulator and put Numba in that mode.

    ``FA_NUMBA_DEVICE`` (``gpu`` or ``simulator``) decides; else ``NUMBA_ENABLE_CUDASIM``; else the simulator if
    ``numba.cuda`` was already imported in that mode, or if no GPU works; else the GPU.

    Raises
    ------
    ValueError
        If one of the two variables holds something else.
    RuntimeError
        If ``numba.cuda`` was already imported in the other mode.
    """
    chosen = _chosen_device()
    imported = _imported_mode()
    if imported not in (None, chosen.device):
        raise RuntimeError(
            f"numba.cuda was imported before fa_numba, in {imported} mode, but {chosen.reason}. "
            f"Restart Python and import fa_numba first, or set NUMBA_ENABLE_CUDASIM={int(chosen.device == SIMULATOR)} "
            f"before Python starts."
        )
    _configure_numba(chosen.device)
    return chosen


def gpu_fault() -> str | None:
    """Say why no GPU can be used here, or None if one can."""
    for package in ("numba_cuda", "cuda.bindings"):
        if not _is_installed(package):
            return f"the package {package.replace('_', '-')} is not installed"
    driver = load_driver()
    if driver is None:
        return "no NVIDIA driver was found"
    return _device_fault(driver) or _library_fault()


def cuda_extra() -> str | None:
    """Name the extra that fits the installed driver: ``cu13``, ``cu12``, or None without a usable driver."""
    driver = load_driver()
    version = ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    if version.value >= 13000:
        return "cu13"
    return "cu12" if version.value >= 12000 else None


def _device_fault(driver: ctypes.CDLL) -> str | None:
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return f"the NVIDIA driver reports no usable GPU (CUDA status {status})"
    capability = _capability(driver)
    if capability < LOWEST_CAPABILITY:
        has, lowest = (".".join(map(str, each)) for each in (capability, LOWEST_CAPABILITY))
        return f"the GPU has compute capability {has}; {lowest} is the lowest supported"
    return None


def _library_fault() -> str | None:
    """Load what numba-cuda compiles with, from packages or an installed CUDA toolkit."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        for library in ("nvvm", "nvrtc", "nvJitLink"):
            load_nvidia_dynamic_lib(library)
    except DynamicLibNotFoundError:
        return f"the CUDA library {library} is not installed (pip install 'fa_numba[{cuda_extra()}]')"
    return None


def _chosen_device() -> Selection:
    asked = os.environ.get("FA_NUMBA_DEVICE", "").lower()
    if asked not in ("", GPU, SIMULATOR):
        raise ValueError(f"FA_NUMBA_DEVICE is {asked!r}; it can be 'gpu' or 'simulator', or unset to choose by itself")
    if asked:
        return Selection(asked, f"FA_NUMBA_DEVICE={asked} asks for the {_word(asked)}")
    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM", "")
    if simulated not in ("", "0", "1"):
        raise ValueError(f"NUMBA_ENABLE_CUDASIM is {simulated!r}; it can be '0' or '1', or unset to choose by itself")
    if simulated:
        device = SIMULATOR if simulated == "1" else GPU
        return Selection(device, f"NUMBA_ENABLE_CUDASIM={simulated} asks for the {_word(device)}")
    if _imported_mode() == SIMULATOR:
        return Selection(SIMULATOR, "numba.cuda was imported in simulator mode")
    fault = gpu_fault()
    return Selection(SIMULATOR, fault) if fault else Selection(GPU, "a GPU works here")


def _word(device: str) -> str:
    return "GPU" if device == GPU else device


def _imported_mode() -> str | None:
    cuda = sys.modules.get("numba.cuda")
    if cuda is None:
        return None
    return SIMULATOR if "simulator" in cuda.jit.__module__ else GPU


def _configure_numba(device: str) -> None:
    """Set Numba's variables for a device. It reads them when it is imported, and again if they have changed."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = str(int(device == SIMULATOR))
    # Warnings about small grids and host arrays differ by device, and teach nothing here.
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    os.environ.setdefault("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0")
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def load_driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver, or None if there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _capability(driver: ctypes.CDLL) -> tuple[int, int]:
    device, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return major.value, minor.value


if __name__ == "__main__":
    print(cuda_extra() or "")
