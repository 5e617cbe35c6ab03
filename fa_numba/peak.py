"""What a GPU's CUDA cores could compute in float32 at most."""

from numba import cuda

# Lanes for float32 of a multiprocessor, by compute capability (CUDA C++ Programming Guide, arithmetic instructions).
LANES = {
    **dict.fromkeys(((7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)), 128),
}


def fp32_tflops(compute_capability: tuple[int, int], multiprocessors: int, kilohertz: int) -> float | None:
    """Return TFLOP/s in float32, a multiplication and an addition a lane and cycle; None for an unknown GPU.

    Parameters
    ----------
    compute_capability : tuple of int
        Major and minor.
    multiprocessors : int
        Their number.
    kilohertz : int
        The highest clock.
    """
    lanes = LANES.get(compute_capability)
    return None if lanes is None else multiprocessors * lanes * 2 * kilohertz * 1e-9


def of_current_gpu() -> float | None:
    """Return the TFLOP/s of this thread's GPU; None if it is unknown."""
    gpu = cuda.get_current_device()
    return fp32_tflops(tuple(gpu.compute_capability), gpu.MULTIPROCESSOR_COUNT, gpu.CLOCK_RATE)
