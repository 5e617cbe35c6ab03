"""Counts the device bytes that our functions hold: the memory this series is about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_open: list[Ledger] = []


@dataclass(eq=False)  # two ledgers that hold the same are still two
class Ledger:
    """Bytes held on the device while the ledger was open, the same on GPU and simulator.

    Counted are the inputs of a call while it runs (on the device already, or copied there), contiguous copies,
    working memory, and an output as long as the array that was returned exists (a view of it does not count).

    Attributes
    ----------
    peak : int
        The most bytes held at one time.
    at_peak : dict
        The bytes held at that time, by name (``q``, ``o``, ``lse``, ...); they add up to ``peak``.
    """

    peak: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)
    _held: dict[int, tuple[str, int, int]] = field(default_factory=dict, repr=False)  # address: name, bytes, holders

    @property
    def held(self) -> int:
        """The bytes held now."""
        return sum(nbytes for _, nbytes, _ in self._held.values())

    def _hold(self, name: str, address: int, nbytes: int) -> None:
        name, known, holders = self._held.get(address, (name, 0, 0))
        self._held[address] = name, max(known, nbytes), holders + 1  # two views of one array count once
        if self.held > self.peak:
            self.peak = self.held
            self.at_peak = {}
            for each, size, _ in self._held.values():
                self.at_peak[each] = self.at_peak.get(each, 0) + size

    def _release(self, address: int) -> None:
        name, nbytes, holders = self._held.pop(address)
        if holders > 1:
            self._held[address] = name, nbytes, holders - 1


@contextlib.contextmanager
def ledger() -> Iterator[Ledger]:
    """Open a :class:`Ledger` for the calls made inside the ``with`` block; several may be open at once."""
    book = Ledger()
    _open.append(book)
    try:
        yield book
    finally:
        _open.remove(book)


def is_open() -> bool:
    """Say whether anybody counts."""
    return bool(_open)


def hold(name: str, array: Any) -> Callable[[], None]:
    """Enter a device array into every open ledger; the returned function strikes it out again."""
    books = list(_open) if array.nbytes else []
    address = _address(array) if books else 0
    for book in books:
        book._hold(name, address, array.nbytes)

    def release() -> None:
        for book in books:
            book._release(address)

    return release


def _address(array: Any) -> int:
    """Return where a device array starts. On the simulator it wraps a NumPy array."""
    if hasattr(array, "ptr"):
        return array.ptr
    wrapped = getattr(array, "_ary", None)
    interface = array.__cuda_array_interface__ if wrapped is None else wrapped.__array_interface__
    return interface["data"][0]
