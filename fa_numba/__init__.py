"""FlashAttention, step by step, as Numba CUDA kernels that also run without a GPU."""

from fa_numba import selection

if selection.select().device == selection.SIMULATOR:  # decided before numba.cuda is first imported
    from fa_numba import simulator

    simulator.install()

from fa_numba import device
from fa_numba.step1_naive_softmax import naive_softmax
from fa_numba.step2_online_softmax import block_softmax, online_softmax
from fa_numba.step3_standard_attention import standard_attention, standard_attention_backward
from fa_numba.step4_flash_forward import flash_attention, flash_forward
from fa_numba.step5_flash_backward import flash_backward
from fa_numba.trace import trace

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "block_softmax",
    "device",
    "flash_attention",
    "flash_backward",
    "flash_forward",
    "naive_softmax",
    "online_softmax",
    "standard_attention",
    "standard_attention_backward",
    "trace",
]
