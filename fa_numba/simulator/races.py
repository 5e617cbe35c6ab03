"""Races: two threads touch one element, one of them writes, and nothing says which comes first.

What orders two accesses is a barrier of the block, or within a warp a warp operation that names both lanes: syncwarp, a
shuffle or a vote. Nothing orders accesses of different blocks. The order in which the threads happened to run plays no
part, so a race is found in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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


class Races:
    """The search of a launch, block by block; of global memory it remembers what earlier blocks have touched."""

    def __init__(self, launch: TracedLaunch):
        self._launch = launch
        self._touched: dict[tuple, _Touched] = {}

    def search(self, block: Block) -> RaceError | None:
        """Return an error about a race in the block, or of it with an earlier one; None if there is none."""
        sites = self._launch.traffic.sites
        places: dict[tuple, list[int]] = {}
        for number in np.unique(block.sites):
            places.setdefault(sites[number].region.place, []).append(number)
        for place, numbers in places.items():
            accesses = _Accesses(block, sites, numbers, self._launch.unit_of(place))
            pair = accesses.find_race()
            if pair is None and place[0] == "global":
                pair = self._touched.setdefault(place, _Touched()).find_race(accesses)
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
            array=region.name,
            index=index,
        )

    def _words(self, access: _Access) -> str:
        verb = _VERBS.get(access.site.kind, "writes")
        return f"thread {self._thread_index(access)} of block {access.block} {verb} it at {access.site.lines[0]}"

    def _thread_index(self, access: _Access) -> tuple[int, int, int]:
        x, y, _ = self._launch.block
        return (access.thread % x, access.thread // x % y, access.thread // (x * y))


class _Access:
    """One access, as an error needs it."""

    def __init__(self, site: Site, block: tuple, thread: Any, offset: Any):
        self.site = site
        self.block = block
        self.thread = int(thread)
        self.offset = int(offset)


class _Accesses:
    """The accesses of one block to one memory, in units that no access touches in part."""

    def __init__(self, block: Block, sites: list[Site], numbers: list[int], unit: int):
        self.block = block
        self.sites = sites
        self.unit = unit
        sizes, kinds = np.zeros(len(sites), np.int64), np.zeros(len(sites), np.int64)
        for number in numbers:
            sizes[number], kinds[number] = sites[number].size, sites[number].kind
        rows = np.flatnonzero(sizes[block.sites])
        count = sizes[block.sites[rows]] // self.unit
        self.rows = np.repeat(rows, count)
        within = np.arange(len(self.rows)) - np.repeat(np.cumsum(count) - count, count)
        self.units = block.offsets[self.rows] // self.unit + within
        self.kinds = kinds[block.sites[self.rows]]

    def access(self, at: int) -> _Access:
        """Describe one of them."""
        row = self.rows[at]
        return _Access(
            self.sites[self.block.sites[row]], self.block.index, self.block.threads[row], self.units[at] * self.unit
        )

    def find_race(self) -> tuple[_Access, _Access] | None:
        """Return two accesses of the block that nothing orders."""
        epochs = self.block.clock.epochs()[self.block.moments[self.rows]]
        order = np.lexsort((epochs, self.units))  # stable: within a group as they ran
        changes = np.diff(self.units[order]) | np.diff(epochs[order])
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
    """Who wrote and who read each unit of a global memory, of the blocks so far."""

    def __init__(self):
        self._by_kind: tuple[dict[int, _Access], ...] = ({}, {}, {})

    def find_race(self, accesses: _Accesses) -> tuple[_Access, _Access] | None:
        """Return an access of an earlier block and one of this that touch the same unit, one of them writing."""
        found = [np.unique(accesses.units[accesses.kinds == kind]).tolist() for kind in range(3)]
        for kind, earlier_kind in ((1, 0), (1, 1), (1, 2), (0, 1), (0, 2), (2, 0), (2, 1)):
            earlier = self._by_kind[earlier_kind]
            unit = next((unit for unit in found[kind] if unit in earlier), None)
            if unit is not None:
                at = np.flatnonzero((accesses.units == unit) & (accesses.kinds == kind))[0]
                return earlier[unit], accesses.access(at)
        for kind in range(3):
            self._remember(kind, accesses)
        return None

    def _remember(self, kind: int, accesses: _Accesses) -> None:
        of_kind = np.flatnonzero(accesses.kinds == kind)
        units, first = np.unique(accesses.units[of_kind], return_index=True)
        known = self._by_kind[kind]
        for unit, at in zip(units.tolist(), of_kind[first].tolist()):
            if unit not in known:
                known[unit] = accesses.access(at)
