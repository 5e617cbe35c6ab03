"""What Numba's CUDA simulator lacks: speed, warp operations, and errors where a GPU would say nothing.

:func:`install` replaces ``numba.cuda.jit``, so that every kernel decorated afterwards runs here. It works on the
simulator of numba-cuda and on the one that is bundled in numba. Nothing here knows about attention.
"""

from numba import cuda

from fa_numba.simulator.errors import (
    KernelError,
    MisalignedAccessError,
    OutOfBoundsError,
    RaceError,
    SyncError,
    UninitializedReadError,
)
from fa_numba.simulator.kernel import SimulatedKernel, jit, offset_of
from fa_numba.simulator.launch import shuffled

__all__ = [
    "KernelError",
    "MisalignedAccessError",
    "OutOfBoundsError",
    "RaceError",
    "SimulatedKernel",
    "SyncError",
    "UninitializedReadError",
    "install",
    "offset_of",
    "shuffled",
]


def install() -> None:
    """Let ``@cuda.jit`` make kernels for this simulator."""
    cuda.jit = jit
