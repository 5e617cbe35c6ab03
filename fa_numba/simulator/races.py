"""Races: two threads touch one element, one of them writes, and nothing says which comes first.

What orders two accesses is a barrier of the block, or within a warp a warp operation that names both lanes: syncwarp, a
shuffle or a vote. Accesses of different blocks are ordered only where one block's thread executes a fence and then an
atomic operation, and later another block's an atomic operation on the same element and then a fence. The order in which
the threads happened to run plays no part, so a race is found in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa_numba.simulator.errors import RaceError
from fa_numba.simulator.traffic import ATOMIC, LOAD, STORE, Block, Site
from fa_numba.simulator.warp import WARP_SIZE

if TYPE_CHECKING:
    from fa_numba.simulator.lens import TracedLaunch, TracedThread

_VERBS = {LOAD: "reads", ATOMIC: "changes"}


class Moments:
    """The stretches that barriers and warp operations cut the threads of a block into.

    A moment is a number: a thread between two of its barriers or warp operations. The lanes of a warp keep vector
    clocks (Mattern, 1988): what a lane knows of each other lane's stretches.
    """

    def __init__(self, threads: int):
        warps = -(-threads // WARP_SIZE)
        self._clocks = [np.eye(WARP_SIZE, dtype=np.int32) for _ in range(warps)]
        self._epoch = 0
        self._table = [(number, 0, self._clocks[number // WARP_SIZE]) for number in range(threads)]

    def after_barrier(self, threads: list[TracedThread]) -> None:
        """All threads of the block have met."""
        self._epoch += 1
        for thread in threads:
            self._begin(thread, self._clocks[thread.warp])

    def after_warp_op(self, lanes: list[TracedThread]) -> None:
        """Some lanes of a warp have met: each knows now what any of them knew."""
        warp, numbers = lanes[0].warp, [thread.lane for thread in lanes]
        clocks = self._clocks[warp].copy()
        clocks[numbers] = clocks[numbers].max(axis=0)
        clocks[numbers, numbers] += 1
        self._clocks[warp] = clocks
        for thread in lanes:
            self._begin(thread, clocks)

    def _begin(self, thread: TracedThread, clocks: np.ndarray) -> None:
        thread.moment = len(self._table)
        self._table.append((thread.number, self._epoch, clocks))

    @property
    def epoch(self) -> int:
        """How many barriers the block has met in."""
        return self._epoch

    def threads(self) -> np.ndarray:
        """Return the thread of every moment."""
        return np.array([number for number, _, _ in self._table], np.int64)

    def epochs(self) -> np.ndarray:
        """Return how many barriers of the block lie before every moment."""
        return np.array([epoch for _, epoch, _ in self._table], np.int64)

    def are_ordered(self, earlier: int, later: int) -> bool:
        """Say whether a warp operation orders two moments between the same barriers of the block."""
        (a, _, clocks), (b, _, clocks_later) = self._table[earlier], self._table[later]
        if a // WARP_SIZE != b // WARP_SIZE:
            return False
        lane = a % WARP_SIZE
        return bool(clocks_later[b % WARP_SIZE, lane] >= clocks[lane, lane])


class Fences:
    """What blocks know of one another, by fences and atomic operations (PTX ISA, release and acquire patterns).

    Knowledge is a number for each earlier block: of its accesses, those before so many barriers are ordered.
    """

    def __init__(self):
        self._block = -1
        self._by_element: dict[tuple, dict[int, int]] = {}

    def begin_block(self) -> None:
        """Blocks run one after another."""
        self._block += 1
        self._released: dict[int, int] = {}  # by thread: barriers before its last fence
        self._pending: dict[int, list[tuple]] = {}  # by thread: elements of its atomic operations since then
        self._acquired: list[tuple[int, dict[int, int]]] = []  # barriers before a fence, and what is known after it

    @property
    def block(self) -> int:
        """The number of the block that runs."""
        return self._block

    def fence(self, thread: int, epoch: int) -> None:
        """Take note of a fence: what the thread's atomic operations have seen is known to the block from now on."""
        for element in self._pending.pop(thread, ()):
            self._acquired.append((epoch, dict(self._by_element.get(element, ()))))
        self._released[thread] = epoch

    def atomic(self, thread: int, element: tuple) -> None:
        """Take note of an atomic operation: after a fence, it hands on what the block has done and knows."""
        self._pending.setdefault(thread, []).append(element)
        if thread in self._released:
            epoch = self._released[thread]
            known = self._by_element.setdefault(element, {})
            for acquired, others in self._acquired:
                if acquired <= epoch:
                    _merge(known, others)
            _merge(known, {self._block: epoch})

    def are_ordered(self, earlier: _Access, later: _Access) -> bool:
        """Say whether an access of an earlier block comes before one of the block that runs."""
        return any(
            epoch < later.epoch and known.get(earlier.block_number, -1) > earlier.epoch
            for epoch, known in self._acquired
        )


def _merge(known: dict[int, int], others: dict[int, int]) -> None:
    for block, epoch in others.items():
        known[block] = max(epoch, known.get(block, epoch))


class Races:
    """The search of a launch, block by block; of global memory it remembers what earlier blocks have touched."""

    def __init__(self, launch: TracedLaunch):
        self._launch = launch
        self._touched: dict[tuple, _Touched] = {}
        self.fences = Fences()

    def search(self, block: Block) -> RaceError | None:
        """Return an error about a race in the block, or of it with an earlier one; None if there is none."""
        sites = self._launch.traffic.sites
        places: dict[tuple, list[int]] = {}
        for number in np.unique(block.sites):
            places.setdefault(sites[number].region.place, []).append(number)
        for place, numbers in places.items():
            accesses = _Accesses(block, sites, numbers, self._launch.unit_of(place), self.fences.block)
            pair = accesses.find_race()
            if pair is None and place[0] == "global":
                pair = self._touched.setdefault(place, _Touched()).find_race(accesses, self.fences)
            if pair is not None:
                return self._error(*pair)
        return None

    def _error(self, first: _Access, second: _Access) -> RaceError:
        launch = self._launch
        region = second.site.region
        index = region.index_of(second.offset)
        what = f"{region.name}[{', '.join(map(str, index))}]"
        blocks = "one block" if first.block == second.block else "two blocks, which no barrier joins"
        message = (
            f"{launch.name}: two threads of {blocks} touch {what} of {region.place[0]} memory with no barrier between "
            f"them: {self._words(first)}; {self._words(second)}"
        )
        return RaceError(
            message,
            kernel=launch.name,
            line=first.site.lines[0],
            threads=[self._thread_index(each) for each in (first, second)],
            lines=(first.site.lines[0], second.site.lines[0]),
            kernel_lines=(first.site.lines[-1], second.site.lines[-1]),
            array=region.name,
            index=index,
        )

    def _words(self, access: _Access) -> str:
        verb = _VERBS.get(access.site.kind, "writes")
        line, *calls = access.site.lines
        called = f", called at {calls[-1]}" if calls else ""
        return f"thread {self._thread_index(access)} of block {access.block} {verb} it at {line}{called}"

    def _thread_index(self, access: _Access) -> tuple[int, int, int]:
        x, y, _ = self._launch.block
        return (access.thread % x, access.thread // x % y, access.thread // (x * y))


@dataclass(frozen=True)
class _Access:
    """One access, as an error needs it."""

    site: Site
    block: tuple[int, int, int]
    block_number: int
    epoch: int  # barriers of the block before it
    thread: int
    offset: int


class _Accesses:
    """The accesses of one block to one memory, in units that no access touches in part."""

    def __init__(self, block: Block, sites: list[Site], numbers: list[int], unit: int, block_number: int):
        self.block = block
        self.sites = sites
        self.unit = unit
        self.block_number = block_number
        sizes, kinds = np.zeros(len(sites), np.int64), np.zeros(len(sites), np.int64)
        for number in numbers:
            sizes[number], kinds[number] = sites[number].size, sites[number].kind
        rows = np.flatnonzero(sizes[block.sites])
        count = sizes[block.sites[rows]] // self.unit
        self.rows = np.repeat(rows, count)
        within = np.arange(len(self.rows)) - np.repeat(np.cumsum(count) - count, count)
        self.units = block.offsets[self.rows] // self.unit + within
        self.kinds = kinds[block.sites[self.rows]]
        self.epochs = block.clock.epochs()[block.moments[self.rows]]

    def access(self, at: int) -> _Access:
        """Describe one of them."""
        row = self.rows[at]
        return _Access(
            self.sites[self.block.sites[row]],
            self.block.index,
            self.block_number,
            int(self.epochs[at]),
            int(self.block.threads[row]),
            int(self.units[at] * self.unit),
        )

    def find_race(self) -> tuple[_Access, _Access] | None:
        """Return two accesses of the block that nothing orders."""
        order = np.lexsort((self.epochs, self.units))  # stable: within a group as they ran
        changes = np.diff(self.units[order]) | np.diff(self.epochs[order])
        starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
        threads, kinds = self.block.threads[self.rows][order], self.kinds[order]
        several = np.minimum.reduceat(threads, starts) != np.maximum.reduceat(threads, starts)
        suspect = several & (np.maximum.reduceat(kinds, starts) > LOAD) & (np.minimum.reduceat(kinds, starts) < ATOMIC)
        ends = np.append(starts[1:], len(order))
        for start, end in zip(starts[suspect], ends[suspect]):
            pair = self._first_conflict(order[start:end].tolist())
            if pair is not None:
                return self.access(pair[0]), self.access(pair[1])
        return None

    def _first_conflict(self, group: list[int]) -> tuple[int, int] | None:
        """Go through the accesses of an element between two barriers: all writers and readers since the last write.

        Where only a block barrier orders, the last writer and two different readers would do; a warp operation orders
        some threads and not others, so each reader is kept.
        """
        rows = self.rows[group]
        accesses = zip(
            group, self.kinds[group].tolist(), self.block.threads[rows].tolist(), self.block.moments[rows].tolist()
        )
        writers: dict[tuple[int, int], tuple[int, int]] = {}
        readers: dict[tuple[int, int], tuple[int, int]] = {}
        for at, kind, thread, moment in accesses:
            for (other, other_kind), (other_at, other_moment) in self._opponents(kind, writers, readers):
                harmless = other == thread or kind == other_kind == ATOMIC
                if not harmless and not self.block.clock.are_ordered(other_moment, moment):
                    return other_at, at
            if kind == STORE:
                writers, readers = {}, {}
            (readers if kind == LOAD else writers)[thread, kind] = at, moment
        return None

    @staticmethod
    def _opponents(kind: int, writers: dict, readers: dict) -> Iterator[tuple]:
        return iter(writers.items()) if kind == LOAD else itertools.chain(writers.items(), readers.items())


class _Touched:
    """Of each unit of a global memory, the last access of each kind by the blocks so far, and the first read too.

    Reads and atomic operations count since the last write.
    """

    def __init__(self):
        self._last: tuple[dict[int, _Access], ...] = ({}, {}, {})
        self._first_read: dict[int, _Access] = {}

    def find_race(self, accesses: _Accesses, fences: Fences) -> tuple[_Access, _Access] | None:
        """Return an access of an earlier block and one of this that nothing orders."""
        for kind in (LOAD, STORE, ATOMIC):
            of_kind = np.flatnonzero(accesses.kinds == kind)
            units, first = np.unique(accesses.units[of_kind], return_index=True)
            for unit, at in zip(units.tolist(), of_kind[first].tolist()):
                for earlier in self._opponents(kind, unit):
                    access = accesses.access(at)
                    if not fences.are_ordered(earlier, access):
                        return earlier, access
        for kind in (STORE, LOAD, ATOMIC):
            self._remember(kind, accesses)
        return None

    def _opponents(self, kind: int, unit: int) -> Iterator[_Access]:
        """Yield the accesses of a unit that one of this kind must not race with."""
        loads, stores, atomics = self._last
        against = {LOAD: (stores, atomics), STORE: (stores, loads, self._first_read, atomics), ATOMIC: (stores, loads)}
        return (known[unit] for known in against[kind] if unit in known)

    def _remember(self, kind: int, accesses: _Accesses) -> None:
        of_kind = np.flatnonzero(accesses.kinds == kind)[::-1]
        units, last = np.unique(accesses.units[of_kind], return_index=True)
        for unit, at in zip(units.tolist(), of_kind[last].tolist()):
            access = accesses.access(at)
            if kind == STORE:
                for known in (*self._last, self._first_read):
                    known.pop(unit, None)
            self._last[kind][unit] = access
            if kind == LOAD:
                self._first_read.setdefault(unit, access)
