"""The lens: launches that record every access of global and shared memory, for :mod:`fa_numba.trace` to count.

While a lens is open, a launch is a :class:`TracedLaunch` and its arrays are :class:`TracedArray`: the choice falls once
a launch, so that a closed lens costs nothing. After every block its accesses go into the counts of :mod:`traffic` and
through the search of :mod:`races`. Local arrays are a thread's registers, and stay out of it.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAAtomic

from fa_numba.simulator import source
from fa_numba.simulator.arithmetic import Arithmetic
from fa_numba.simulator.arrays import KernelArray
from fa_numba.simulator.errors import RaceError, UninitializedReadError
from fa_numba.simulator.integers import loaded
from fa_numba.simulator.launch import Launch, Thread
from fa_numba.simulator.module import KernelCuda
from fa_numba.simulator.races import Moments, Races
from fa_numba.simulator.traffic import ATOMIC, LOAD, STORE, Block, Region, Site, Traffic

FLOPS = "flops"  # beside the names of barriers and warp operations

_open: list[list[TracedLaunch]] = []


@contextlib.contextmanager
def opened() -> Iterator[list[TracedLaunch]]:
    """Trace the launches inside the ``with`` block; yields a list that gets each launch as it starts."""
    launches: list[TracedLaunch] = []
    _open.append(launches)
    try:
        yield launches
    finally:
        _open[:] = [each for each in _open if each is not launches]


def launch_class() -> Callable[..., Launch]:
    """Return what a launch is now."""
    return TracedLaunch if _open else Launch


def cuda_module(launch: Launch) -> KernelCuda:
    """Return what ``cuda`` means to the threads of a launch."""
    return TracedCuda(launch) if isinstance(launch, TracedLaunch) else KernelCuda(launch)


class TracedArray(KernelArray):
    """An array whose elements are recorded as they are read and written."""

    __slots__ = ("_region",)

    def __init__(self, region: Region, data: np.ndarray, launch: TracedLaunch, space: str, **memory: Any):
        super().__init__(data, launch, space, **memory)
        self._region = region

    region = property(lambda self: self._region)

    def __getitem__(self, index: Any) -> Any:
        try:
            item = KernelArray.__getitem__(self, index)
        except UninitializedReadError as error:
            self._launch.postpone(error)
            item = loaded(self._data[index])
        if type(item) is not TracedArray:
            self._launch.record(self._region, self._bytes_to(index), LOAD, self._data.itemsize)
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        KernelArray.__setitem__(self, index, value)
        self._launch.record(self._region, self._bytes_to(index), STORE, self._data.itemsize)

    def read_run(self, index: Any, length: int) -> np.ndarray:
        """Read consecutive elements: one access."""
        try:
            run = KernelArray.read_run(self, index, length)
        except UninitializedReadError as error:
            self._launch.postpone(error)
            run = self._data[self._run_index(index, length)]
        self._launch.record(self._region, self._bytes_to_run(index), LOAD, run.nbytes)
        return run

    def write_run(self, index: Any, values: tuple) -> None:
        """Write consecutive elements: one access."""
        KernelArray.write_run(self, index, values)
        self._launch.record(self._region, self._bytes_to_run(index), STORE, len(values) * self._data.itemsize)

    def begin_copy(self, index: Any, values: np.ndarray) -> Callable[[], None]:
        """Begin to write consecutive elements: one access, which lasts from here to its end."""
        write = KernelArray.begin_copy(self, index, values)
        access = (self._region, self._bytes_to_run(index), STORE, len(values) * self._data.itemsize)
        self._launch.record(*access)

        def end() -> None:
            write()
            self._launch.record(*access, is_counted=False)

        return end

    def record_atomic(self, index: Any) -> KernelArray:
        """Record one atomic operation; return the array for it to work on."""
        self._check(index)
        self._launch.record_atomic(self._region, self._bytes_to(index), self._data.itemsize)
        return KernelArray(
            self._data,
            self._launch,
            self.space,
            origin=self._origin,
            shadow=self._shadow,
            alignment=self.alignment,
        )

    def _view(self, data: np.ndarray, shadow: np.ndarray | None) -> TracedArray:
        memory = {"origin": self._origin, "shadow": shadow, "alignment": self.alignment}
        view = TracedArray(self._region, data, self._launch, self.space, **memory)
        if self._region.is_dynamic:  # cut to pieces by the kernel, which have names of their own
            view._region = self._launch.piece_of(self._region, view._offset(()), data)
        return view

    def _bytes_to(self, index: Any) -> int:
        return self._offset(index if type(index) is tuple else (index,))

    def _bytes_to_run(self, index: Any) -> int:
        if type(index) is tuple:
            return self._offset(index)
        return self._offset(()) + index * self._data.itemsize  # C-contiguous, as a run must be


class TracedThread(Thread):
    """A thread that knows by which calls it came to where it is, and how far its barriers have brought it."""

    __slots__ = ("moment", "number", "path")

    def __init__(self, number: int, block_index: Dim3, thread_index: Dim3):
        super().__init__(number, block_index, thread_index)
        self.number = number
        self.path = 0
        self.moment = number


class TracedLaunch(Launch):
    """A launch that records.

    Attributes
    ----------
    traffic : Traffic
        What the accesses of the blocks so far add up to.
    operations : collections.Counter
        How often what was done where: floating-point operations (``FLOPS``) by threads, barriers by blocks and warp
        operations by warps, by their names. The keys are the path of calls, the function's code by number, the line,
        and what it is; :meth:`lines` makes lines of them.
    arithmetic : Arithmetic
        What counts floating-point operations.
    static_shared : int
        The bytes of static shared memory of a block: of the block that has most.
    arguments : list
        The kernel's arguments, arrays as NumPy's.
    has_ended : bool
        Whether all blocks have run to their end.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.traffic = Traffic()
        self.operations: Counter[tuple[int, int, int, str]] = Counter()
        self.arithmetic = Arithmetic(self.count_flops)
        self.static_shared = 0
        self.arguments: list[Any] = []
        self.has_ended = False
        self._races = Races(self)
        self._regions: dict[tuple, Region] = {}
        self._sites: dict[tuple, int] = {}
        self._paths: dict[tuple, int] = {}
        self._calls: list[tuple[str, ...]] = [()]  # by path
        self._entries: dict[Callable, Callable] = {}
        self._code_by_id: dict[int, CodeType] = {}
        self._log: list[int] = []
        self._moments = Moments(0)
        self._postponed: Exception | None = None
        for launches in _open:
            launches.append(self)

    # -- what the threads do --------------------------------------------------------------------------------------

    def record(self, region: Region, offset: int, kind: int, size: int, is_counted: bool = True) -> None:
        """Note an access by the running thread, of so many bytes from an offset in the region's memory."""
        frame = self._kernel_frame(sys._getframe(2))
        thread = self.thread
        key = (thread.path, id(frame.f_code), frame.f_lasti, region, kind, size, is_counted)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = self._site(region, kind, size, is_counted, frame)
        self._log += (site, thread.moment, offset)

    def record_atomic(self, region: Region, offset: int, size: int) -> None:
        """Note an atomic operation by the running thread."""
        self.record(region, offset, ATOMIC, size)
        self._races.fences.atomic(self.thread.number, (region.place, offset))

    def fence(self) -> None:
        """Note a fence of the running thread."""
        self._races.fences.fence(self.thread.number, self._moments.epoch)

    def count_flops(self, code: CodeType, line: int, number: int) -> None:
        """Count floating-point operations of the running thread."""
        self.operations[self.thread.path, id(code), line, FLOPS] += number

    def postpone(self, error: Exception) -> None:
        """Keep an error until the block has come to its end: the access that explains it, a race, may come later."""
        self._postponed = self._postponed or error

    def bound(self, function: Callable) -> Callable:
        """Return a function as the threads call it; a device function notes by which call it was entered."""
        if function not in self._entries:
            copy = super().bound(function)
            self._code_by_id.update((id(code), code) for code in source.codes_of(copy.__code__))
            self._entries[function] = copy if function is self.function else self._noting(copy)
        return self._entries[function]

    def _code_of(self, function: Callable) -> tuple[CodeType, dict[str, Any]]:
        code, names = super()._code_of(function)
        counting, counters = self.arithmetic.counting(code)
        return counting, {**names, **counters}

    def _noting(self, function: Callable) -> Callable:
        def enter(*arguments: Any, **named: Any) -> Any:
            thread, outer = self.thread, self.thread.path
            frame = self._kernel_frame(sys._getframe(2))
            thread.path = self._paths.get((outer, id(frame.f_code), frame.f_lasti, function)) or self._path(
                outer, frame, function
            )
            try:
                return function(*arguments, **named)
            finally:
                thread.path = outer

        return enter

    def _path(self, outer: int, frame: FrameType, function: Callable) -> int:
        call = (outer, id(frame.f_code), source.instruction(frame), function)
        if call not in self._paths:
            self._paths[call] = len(self._calls)
            self._calls.append((source.line_of(frame, self._codes), *self._calls[outer]))
        self._paths[outer, id(frame.f_code), frame.f_lasti, function] = self._paths[call]
        return self._paths[call]

    def _kernel_frame(self, frame: FrameType) -> FrameType:
        while id(frame.f_code) not in self._code_by_id:
            frame = frame.f_back
        return frame

    def _site(self, region: Region, kind: int, size: int, is_counted: bool, frame: FrameType) -> int:
        """Return the number of a site; the bytecode's own place is no name, as it moves with specialization."""
        key = (self.thread.path, id(frame.f_code), source.instruction(frame), region, kind, size, is_counted)
        if key not in self._sites:
            self._sites[key] = self._new_site(region, kind, size, is_counted, frame)
        return self._sites[key]

    def _new_site(self, region: Region, kind: int, size: int, is_counted: bool, frame: FrameType | None) -> int:
        frames = []
        while frame is not None:
            if id(frame.f_code) in self._code_by_id:
                frames.append(frame)
            frame = frame.f_back
        if region.name is None:
            region.name = _name_in(frames, region)
        lines = tuple(source.line_of(each, self._codes) for each in frames)
        return self.traffic.add_site(Site(region, kind, size, lines, is_counted))

    # -- memory ---------------------------------------------------------------------------------------------------

    def array(self, key: Any, data: np.ndarray, space: str, **memory: Any) -> TracedArray:
        """Return an array that records."""
        origin = memory["origin"]
        if space == "global":
            place = ("global", origin.__array_interface__["data"][0])
        else:
            place = ("shared", "dynamic" if isinstance(key, np.dtype) else key)
        array = TracedArray(None, data, self, space, **memory)
        array._region = self._region_of((key, place), place, origin.nbytes, array._offset(()), data)
        array._region.is_dynamic = place == ("shared", "dynamic")
        if space == "global":
            array._region.name = key
        return array

    def piece_of(self, whole: Region, start: int, data: np.ndarray) -> Region:
        """Return the region of a part of dynamic shared memory."""
        return self._region_of((whole, start, data.shape), whole.place, whole.memory_bytes, start, data)

    def _region_of(self, key: tuple, place: tuple, nbytes: int, start: int, data: np.ndarray) -> Region:
        if key not in self._regions:
            self._regions[key] = Region(place, nbytes, start, data.shape, data.strides, data.dtype)
        return self._regions[key]

    def unit_of(self, place: tuple) -> int:
        """Return the bytes that no access of a memory touches in part."""
        return min(region.unit for region in self._regions.values() if region.place == place)

    # -- scheduling -----------------------------------------------------------------------------------------------

    def run(self, arguments: list[Any], cuda: Any) -> None:
        """Run every block, and say so."""
        self.arguments = _plain(arguments)
        super().run(arguments, cuda)
        self.has_ended = True

    def _new_thread(self, number: int, block_index: Dim3, thread_index: Dim3) -> TracedThread:
        return TracedThread(number, block_index, thread_index)

    def _run_block(self, block_index: Dim3, arguments: list[Any]) -> None:
        self._log = []
        self._postponed = None
        x, y, z = self.block
        self._moments = Moments(x * y * z)
        self._races.fences.begin_block()
        fault = None
        try:
            super()._run_block(block_index, arguments)
        except Exception as error:
            fault = error
        race = self._end_block(block_index)
        fault = self._postponed or fault
        if race is not None:
            raise race from fault
        if fault is not None:
            raise fault

    def _thread_body(self, arguments: list[Any]) -> None:
        try:
            super()._thread_body(arguments)
        except Exception as error:
            self.postpone(error)

    def _end_block(self, block_index: Dim3) -> RaceError | None:
        log = np.array(self._log, np.int64).reshape(-1, 3)
        block = Block(tuple(block_index), *log.T, self._moments)
        self.traffic.add(block)
        self.static_shared = max(self.static_shared, self._static_shared)
        return self._races.search(block)

    def _meet(self, op: str, lanes: list[TracedThread]) -> None:
        self._count_meeting(op, lanes[0])
        super()._meet(op, lanes)
        if op != "activemask":  # orders nothing
            self._moments.after_warp_op(lanes)

    def _release_block(self, waiting: list[TracedThread]) -> None:
        super()._release_block(waiting)
        self._count_meeting(waiting[0].waiting.op, waiting[0])
        self._moments.after_barrier(waiting)

    def _count_meeting(self, op: str, thread: TracedThread) -> None:
        frame = self._kernel_frame(thread.greenlet.gr_frame)
        self.operations[thread.path, id(frame.f_code), frame.f_lineno, op] += 1

    def operations_by_line(self) -> dict[tuple[str, ...], Counter[str]]:
        """Return the operations of each source line, in the order in which the lines were first executed.

        A line is told apart by those of the calls that led there, which follow it in the key.
        """
        by_line: dict[tuple[str, ...], Counter[str]] = {}
        for (path, code, line, what), count in self.operations.items():
            lines = (source.text_of(self._code_by_id[code], line), *self._calls[path])
            by_line.setdefault(lines, Counter())[what] += count
        return by_line


def _plain(argument: Any) -> Any:
    """Return an argument of a kernel with NumPy's arrays, also in tuples."""
    if isinstance(argument, KernelArray):
        return argument._data
    if isinstance(argument, (list, tuple)):
        parts = map(_plain, argument)
        return type(argument)(*parts) if hasattr(argument, "_fields") else type(argument)(parts)
    return argument


def _name_in(frames: list[FrameType], region: Region) -> str:
    """Find the variable that holds an array, in the kernel first, then in the device functions it has called."""
    for frame in reversed(frames):
        for name, value in frame.f_locals.items():
            if isinstance(value, TracedArray) and value.region is region:
                return name
    return f"{region.place[0]} memory"


class _TracedAtomics:
    """``cuda.atomic``: an operation is one access, which races with no other atomic one."""

    def __init__(self):
        self._operations = FakeCUDAAtomic()

    def __getattr__(self, name: str) -> Callable:
        operation = getattr(self._operations, name)

        def traced(array: KernelArray, *arguments: Any) -> Any:
            if isinstance(array, TracedArray):
                array = array.record_atomic((0,) * array.ndim if name == "compare_and_swap" else arguments[0])
            return operation(array, *arguments)

        return traced


class TracedCuda(KernelCuda):
    """The ``cuda`` of a traced launch."""

    def __init__(self, launch: TracedLaunch):
        super().__init__(launch)
        self._atomic = _TracedAtomics()

    def fma(self, a, b, c):
        frame = sys._getframe(1)
        self._launch.count_flops(frame.f_code, frame.f_lineno, 2)
        return super().fma(a, b, c)

    def threadfence(self):
        self._launch.fence()

    def threadfence_system(self):
        self._launch.fence()
