"""FlashAttention, step by step, as Numba CUDA kernels that also run without a GPU."""

from fa_numba import selection

if selection.select().device == selection.SIMULATOR:  # decided before numba.cuda is first imported
    from fa_numba import simulator

    simulator.install()

from fa_numba import device
from fa_numba.step1_naive_softmax import naive_softmax

__version__ = "0.1.0"

__all__ = ["__version__", "device", "naive_softmax"]
