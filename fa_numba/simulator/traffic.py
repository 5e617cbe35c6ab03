"""What recorded accesses add up to: requests of warps, sectors of global memory, banks of shared memory.

The threads of a warp run one after another here, and a GPU runs them together. So an instruction of the source (a place
in the bytecode, with the calls that lead there) counts as executed together by the lanes of a warp when it is their
k-th execution of it within the block. That is what a GPU does where all lanes of a warp take the same way, or some sit
out a guarded access. Where lanes go round a loop that holds a branch, the k-th execution of one may fall into another
round than that of its neighbour, and the pairs differ from a GPU's; sums over bytes and elements do not.

Shared memory delivers 32 words at a time, so a request of 8 bytes a lane is split into the halves of the warp, and one
of 16 bytes into its quarters. A load is split half as often if every lane has the address of the lane beside it, or
every lane that of the lane two further on: lanes n and n ^ 1, or n and n ^ 2 (an NVIDIA engineer, in
https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228/2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fa_numba.simulator.warp import WARP_SIZE

LOAD, STORE, ATOMIC = 0, 1, 2
SECTOR = 32  # bytes: what global memory is fetched in
WORD, BANKS = 4, 32  # bytes, and words that shared memory delivers at a time
_PHASES = 8  # the most that a request to shared memory is split into: two vectors of 16 bytes, in quarters of a warp


@dataclass(eq=False)
class Region:
    """An array that has a name, in a memory: a global allocation, a shared array, or all dynamic shared memory."""

    place: tuple  # the memory: "global" or "shared", and which
    memory_bytes: int
    start: int  # bytes behind the memory's start
    shape: tuple
    strides: tuple
    dtype: np.dtype
    name: str | None = None
    is_dynamic: bool = False

    @property
    def unit(self) -> int:
        """The bytes that are told apart: those of an element, or a word of it."""
        return min(WORD, self.dtype.itemsize)

    def elements(self, per_unit: np.ndarray) -> np.ndarray:
        """Return, in the array's shape, what is counted for the first unit of each element."""
        return per_unit[self._offsets() // self.unit]

    def index_of(self, offset: int) -> tuple[int, ...]:
        """Return the index of the element that holds a byte of the memory."""
        offsets = self._offsets()
        found = np.argwhere((offsets <= offset) & (offset < offsets + self.dtype.itemsize))
        return tuple(int(i) for i in found[0])

    def _offsets(self) -> np.ndarray:
        steps = (np.arange(length) * stride for length, stride in zip(self.shape, self.strides))
        offsets = np.array(self.start)
        for step in steps:
            offsets = offsets[..., None] + step
        return offsets


@dataclass(frozen=True)
class Site:
    """An instruction that accesses an array: load, store or atomic, of so many bytes.

    ``lines`` are the source line and those of the calls that led there, innermost first. What is not counted was
    counted elsewhere: the end of a copy, where it began.
    """

    region: Region
    kind: int
    size: int
    lines: tuple[str, ...]
    is_counted: bool = True


@dataclass
class Block:
    """The accesses of one block, in the order in which they ran: for each site, moment and offset in the memory."""

    index: tuple[int, int, int]
    sites: np.ndarray
    moments: np.ndarray
    offsets: np.ndarray
    clock: Any  # the Moments, which know thread and barriers
    threads: np.ndarray = field(init=False)

    def __post_init__(self):
        self.threads = self.clock.threads()[self.moments]


@dataclass
class Line:
    """Counts of the accesses of one kind to one array at one source line."""

    region: Region
    kind: int
    lines: tuple[str, ...]
    accesses: int = 0
    nbytes: int = 0
    requests: int = 0
    sectors: int = 0
    used_bytes: int = 0
    phases: int = 0
    wavefronts: int = 0
    ways: int = 0
    lanes: tuple[int | None, ...] = ()  # where the lanes of the first request begin, in bytes
    counts: np.ndarray | None = None  # how often each unit of the memory was accessed

    def add(self, threads: np.ndarray, offsets: np.ndarray, size: int) -> None:
        """Add the accesses of a block by one instruction."""
        requests = _requests(threads)
        unit = self.region.unit
        pieces = (offsets[:, None] + np.arange(0, size, unit)).ravel()
        together = np.repeat(requests, size // unit)
        self.accesses += len(offsets)
        self.nbytes += len(offsets) * size
        self.requests += len(np.unique(requests))
        self.used_bytes += len(_pairs(together, pieces)) * unit
        self._count(pieces // unit)
        if not self.lanes:
            self._keep_first(requests, threads, offsets)
        if self.region.place[0] == "global":
            self.sectors += len(_pairs(together, pieces // SECTOR))
        else:
            self._add_banks(requests, threads, offsets, size)

    def _count(self, units: np.ndarray) -> None:
        most = -(-self.region.memory_bytes // self.region.unit)
        counts = np.bincount(units, minlength=most)
        self.counts = counts if self.counts is None else self.counts + counts

    def _keep_first(self, requests: np.ndarray, threads: np.ndarray, offsets: np.ndarray) -> None:
        first = requests == requests.min()
        where = dict(zip((threads[first] % WARP_SIZE).tolist(), offsets[first].tolist()))
        self.lanes = tuple(where.get(lane) for lane in range(WARP_SIZE))

    def _add_banks(self, requests: np.ndarray, threads: np.ndarray, offsets: np.ndarray, size: int) -> None:
        """Split each request as the hardware does, and see how many words of one bank every part wants."""
        words = (offsets[:, None] + np.arange(0, max(size, WORD), WORD)) // WORD
        lanes = threads % WARP_SIZE
        parts = np.full(len(lanes), max(1, min(size, 16) // WORD))  # of the request
        if self.kind == LOAD:
            parts[_have_twins(requests, lanes, offsets)] //= 2
        part = lanes * np.maximum(parts, 1) // WARP_SIZE
        half = np.arange(words.shape[1]) * WORD // 16  # a float64 vector of four is two instructions
        phases = (requests[:, None] * _PHASES + part[:, None] + 4 * half).ravel()
        distinct = _pairs(phases, words.ravel())
        banks, counts = np.unique(distinct[:, 0] * BANKS + distinct[:, 1] % BANKS, return_counts=True)
        starts = np.flatnonzero(np.diff(banks // BANKS, prepend=-1))
        ways = np.maximum.reduceat(counts, starts)
        self.phases += len(ways)
        self.wavefronts += int(ways.sum())
        self.ways = max(self.ways, int(ways.max()))


class Traffic:
    """The counts of a launch: sites as they turn up, and a :class:`Line` for every array, kind and source line."""

    def __init__(self):
        self.sites: list[Site] = []
        self._lines: dict[tuple, Line] = {}

    @property
    def lines(self) -> Iterable[Line]:
        """The counts, in the order in which the lines were first executed."""
        return self._lines.values()

    def add_site(self, site: Site) -> int:
        """Take in a new instruction, and return its number."""
        self.sites.append(site)
        key = (site.region, site.kind, site.lines)
        if site.is_counted:
            self._lines.setdefault(key, Line(*key))
        return len(self.sites) - 1

    def add(self, block: Block) -> None:
        """Count the accesses of a block."""
        order = np.argsort(block.sites, kind="stable")
        numbers, starts = np.unique(block.sites[order], return_index=True)
        for number, rows in zip(numbers, np.split(order, starts[1:])):
            site = self.sites[number]
            if site.is_counted:
                line = self._lines[site.region, site.kind, site.lines]
                line.add(block.threads[rows], block.offsets[rows], site.size)


def _have_twins(requests: np.ndarray, lanes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Say of each access whether in its request all lanes share their addresses with n ^ 1, or all with n ^ 2."""
    _, number = np.unique(requests, return_inverse=True)
    table = np.full((number.max() + 1, WARP_SIZE), -1)  # where no lane reads
    table[number, lanes] = offsets
    shared = np.zeros(len(table), bool)
    for distance in (1, 2):
        twins = table[:, np.arange(WARP_SIZE) ^ distance]
        shared |= ((table == twins) | (table < 0) | (twins < 0)).all(axis=1)
    return shared[number]


def _requests(threads: np.ndarray) -> np.ndarray:
    """Number the warp instructions: the k-th accesses of the lanes of a warp are one."""
    order = np.argsort(threads, kind="stable")
    _, starts, counts = np.unique(threads[order], return_index=True, return_counts=True)
    turns = np.empty_like(threads)
    turns[order] = np.arange(len(threads)) - np.repeat(starts, counts)
    return threads // WARP_SIZE * (turns.max() + 1) + turns


def _pairs(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the distinct pairs, sorted."""
    span = int(values.max()) + 1
    return np.stack(np.divmod(np.unique(groups * span + values), span), axis=1)
