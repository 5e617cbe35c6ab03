"""The simulator's errors. Each names kernel, source line and threads; most stand for what a GPU does in silence."""

from __future__ import annotations

from typing import Any


class KernelError(RuntimeError):
    """A fault inside a kernel.

    Attributes
    ----------
    kernel : str
        Name of the launched kernel.
    line : str
        The source line, as ``file.py:24 (the source text)``.
    threads : list of tuple of int
        ``threadIdx`` of the threads concerned.
    """

    def __init__(self, message: str, *, kernel: str, line: str, threads: list[tuple[int, int, int]]):
        super().__init__(message)
        self.kernel = kernel
        self.line = line
        self.threads = threads

    def __reduce__(self) -> tuple:
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[KernelError], arguments: tuple, attributes: dict[str, Any]) -> KernelError:
    """Make an error anew in another process, where pickle would call its type without the keywords that it needs."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(attributes)
    return error


class SyncError(KernelError):
    """A barrier or warp operation that some of the threads it waits for never reach."""


class UninitializedReadError(KernelError):
    """A read of shared or local memory that nothing wrote."""


class OutOfBoundsError(KernelError, IndexError):
    """An index outside the array; a negative one too, which Numba would wrap around."""


class MisalignedAccessError(KernelError):
    """A 4-wide access at an address that need not be a multiple of 16 bytes. (A GPU stops with an error of its own.)"""


class RaceError(KernelError):
    """Two threads touch one element, one of them writing, with no barrier between them. The lens finds it.

    Attributes
    ----------
    lines : tuple of str
        The source lines of the two accesses; ``line`` is the first, and ``threads`` are both.
    kernel_lines : tuple of str
        The lines of the kernel itself: the same, or where it calls the device functions that have them.
    array : str
        The array's name in the kernel.
    index : tuple of int
        The element's index in it.
    """

    def __init__(
        self,
        message: str,
        *,
        lines: tuple[str, str],
        kernel_lines: tuple[str, str],
        array: str,
        index: tuple[int, ...],
        **place: Any,
    ):
        super().__init__(message, **place)
        self.lines = lines
        self.kernel_lines = kernel_lines
        self.array = array
        self.index = index
