"""What the fastest rungs compute and ask of memory, by formula: for lengths that no simulator runs.

Tests hold the formulas against what :func:`fa_numba.trace` counts.
"""

from dataclasses import dataclass

from fa_numba.step3_standard_attention import WIDE_TILE

WORD = 4  # bytes of a float32


@dataclass(frozen=True)
class Work:
    """What kernels do.

    Attributes
    ----------
    flops : int
        Floating-point operations: of attention, those of the matrix products.
    requested, footprint : int
        Bytes of global memory that threads load and store, and the different ones among them.
    """

    flops: int
    requested: int
    footprint: int

    def times(self, count: int) -> "Work":
        """Return the work of so many that are alike: heads, or rows."""
        return Work(count * self.flops, count * self.requested, count * self.footprint)


def standard_forward(n: int, d: int) -> Work:
    """Return the work of standard attention for one head, in the kernels of 8 by 8 register tiles."""
    square, thin = n * n, n * d
    words = _product(n, n, d) + 4 * square + _product(n, d, n)  # softmax reads s three times, and writes p
    return Work(2 * 2 * n * n * d, WORD * words, WORD * (4 * thin + 2 * square))


def standard_backward(n: int, d: int) -> Work:
    """Return the work of its backward: four products, and dS, which reads p and dp twice."""
    square, thin = n * n, n * d
    words = _product(n, n, d) + 5 * square + 3 * _product(n, d, n)
    return Work(4 * 2 * n * n * d, WORD * words, WORD * (7 * thin + 3 * square))


def _product(rows: int, columns: int, depth: int) -> int:
    """Count the elements that a product asks for: A for each tile across, B for each tile down, and the result."""
    down, across = (-(-length // tile) for length, tile in zip((rows, columns), WIDE_TILE))
    return across * rows * depth + down * depth * columns + rows * columns


def flash_forward(n: int, d: int, block_q: int) -> Work:
    """Return the work of flash attention for one head, whose blocks own so many queries."""
    thin, blocks = n * d, -(-n // block_q)
    return Work(2 * 2 * n * n * d, WORD * ((2 + 2 * blocks) * thin + 2 * n), WORD * (4 * thin + 2 * n))


def flash_backward(n: int, d: int, block_k: int) -> Work:
    """Return the work of its backward in one kernel, whose blocks own so many keys, and of delta.

    A block of keys reads q, do, m, l and delta; it adds to dq, which the first one writes.
    """
    thin, blocks = n * d, -(-n // block_k)
    delta = 2 * thin + n
    words = delta + 4 * thin + blocks * (2 * thin + 3 * n) + (2 * blocks - 1) * thin
    return Work(5 * 2 * n * n * d, WORD * words, WORD * (8 * thin + 3 * n))
