"""The time of each kernel that a call launches: :func:`fa_numba.device.launch` reports to whoever observes."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from numba import cuda

from fa_numba import selection

_TIMED = selection.select().device == selection.GPU  # how long the simulator takes says nothing about a GPU
_NOTHING = contextlib.nullcontext()


class Launch(NamedTuple):
    """A kernel that was launched, the milliseconds it took (None on the simulator), how many arguments are arrays."""

    kernel: str
    ms: float | None
    arrays: int


class _Observer:
    """Collects a kernel's name, the events before and after it, and its number of arrays, launch by launch."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, Any, Any, int]] = []


_open: list[_Observer] = []


@contextlib.contextmanager
def observe() -> Iterator[list[Launch]]:
    """Time the kernels launched inside the ``with`` block; several may be open at once.

    Yields
    ------
    list of Launch
        Empty until the block ends, and then one entry a launch, in order. If the GPU had nothing else to do, a time
        includes some microseconds that the host needs for the launch.
    """
    observer, launches = _Observer(), []
    _open.append(observer)
    try:
        yield launches
    finally:
        _open.remove(observer)
    launches.extend(Launch(name, _milliseconds(start, end), arrays) for name, start, end, arrays in observer.marks)


def watch(kernel: Any, stream: Any, arguments: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Return a context for one launch of a kernel, which reports it to the observers, if there are any."""
    return _report(kernel.py_func.__name__, stream, arguments) if _open else _NOTHING


@contextlib.contextmanager
def _report(name: str, stream: Any, arguments: Sequence[Any]) -> Iterator[None]:
    arrays = sum(bool(getattr(argument, "shape", ())) for argument in arguments)  # a NumPy number has the shape ()
    start = _mark(stream)
    yield
    end = _mark(stream)
    for observer in _open:
        observer.marks.append((name, start, end, arrays))


def _mark(stream: Any) -> Any:
    """Return an event that happens when the stream has done what it was given so far."""
    if not _TIMED:
        return None
    event = cuda.event()
    event.record(stream)
    return event


def _milliseconds(start: Any, end: Any) -> float | None:
    if not _TIMED:
        return None
    end.synchronize()
    return start.elapsed_time(end)
