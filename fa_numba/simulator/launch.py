"""Run a kernel's blocks on one OS thread: each CUDA thread is a greenlet, a barrier is a switch."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
from greenlet import getcurrent, greenlet
from numba import cuda as numba_cuda
from numba import types
from numba.cuda.simulator.kernelapi import Dim3

from fa_numba.simulator import source, warp
from fa_numba.simulator.arrays import POISON, KernelArray, shadow_view, unwritten
from fa_numba.simulator.errors import KernelError, SyncError
from fa_numba.simulator.integers import KernelInteger
from fa_numba.simulator.mathematics import KernelMath

BLOCK_OPS = {
    "syncthreads": lambda values: None,
    "syncthreads_count": lambda values: sum(bool(value) for value in values),
    "syncthreads_and": lambda values: int(all(values)),
    "syncthreads_or": lambda values: int(any(values)),
}

_kernel_math = KernelMath()
_shuffle: random.Random | None = None


@contextlib.contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Run the threads of every block in an order drawn from ``seed``, anew between any two barriers."""
    global _shuffle
    previous, _shuffle = _shuffle, random.Random(seed)
    try:
        yield
    finally:
        _shuffle = previous


class _NumbaModule:
    """The module ``numba`` or ``numba.types`` inside a kernel, for those who write ``numba.cuda.grid(1)``."""

    def __init__(self, module: ModuleType, stand_in: Callable[[Any], Any]):
        self._module = module
        self._stand_in = stand_in

    def __getattr__(self, name: str) -> Any:
        return self._stand_in(getattr(self._module, name))


class Waiting(NamedTuple):
    """Where a thread waits, and what it brings."""

    op: str
    mask: int
    value: Any
    argument: Any
    site: tuple


class Thread:
    """One CUDA thread."""

    __slots__ = ("answer", "blockIdx", "functions", "greenlet", "lane", "threadIdx", "waiting", "warp")

    def __init__(self, number: int, block_index: Dim3, thread_index: Dim3):
        self.blockIdx = block_index
        self.threadIdx = thread_index
        self.warp, self.lane = divmod(number, warp.WARP_SIZE)
        self.functions = [None]  # the device functions it is inside, innermost last
        self.greenlet = None
        self.waiting = None
        self.answer = None

    @property
    def finished(self) -> bool:
        return self.greenlet.dead


class Launch:
    """One kernel launch: its blocks one after another, the threads of a block in turns.

    Parameters
    ----------
    name : str
        The kernel's name, for messages.
    function : callable
        The kernel's Python function.
    grid, block : tuple of int
        Three numbers each.
    dynamic_shared : int
        Bytes of dynamic shared memory.
    check_shared : callable
        Called with the bytes of static shared memory in use whenever a block takes more; raises if there are too many.
    """

    def __init__(
        self,
        name: str,
        function: Callable,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_shared: int,
        check_shared: Callable[[int], None],
    ):
        self.name = name
        self.function = function
        self.grid = grid
        self.block = block
        self.dynamic_shared = dynamic_shared
        self.check_shared = check_shared
        self.thread: Thread | None = None  # the one that runs now
        self._threads: list[Thread] = []
        self._scheduler: greenlet | None = None
        self._shared: dict[tuple, KernelArray] = {}
        self._static_shared = 0
        self._dynamic_memory: tuple[np.ndarray, np.ndarray] | None = None
        self._bound: dict[Callable, Callable] = {}
        self._codes: source.Codes = set()
        self._stand_ins: dict[int, Any] = {}

    # -- functions ----------------------------------------------------------------------------------------------

    def bound(self, function: Callable) -> Callable:
        """Return a function as the kernel's threads call it, with the simulated ``cuda``, ``math`` and integer types.

        It is a copy with globals of its own. The module's stay as they are, for other threads of the process.
        """
        if function not in self._bound:
            code, names = self._code_of(function)
            cells = dict(zip(function.__code__.co_freevars, map(self._cell_stand_in, function.__closure__ or ())))
            closure = tuple(cells[name] for name in code.co_freevars)
            copy = FunctionType(code, names, function.__name__, function.__defaults__, closure)
            copy.__kwdefaults__ = function.__kwdefaults__
            self._bound[function] = copy
            self._codes.update(source.codes_of(code))
        return self._bound[function]

    def _code_of(self, function: Callable) -> tuple[CodeType, dict[str, Any]]:
        """Return the code that the threads run for a function, and its globals."""
        return function.__code__, {name: self._stand_in(value) for name, value in function.__globals__.items()}

    def _stand_in(self, value: Any) -> Any:
        if isinstance(value, types.Integer):
            return KernelInteger(value)
        return self._stand_ins.get(id(value), value)

    def _cell_stand_in(self, cell: CellType) -> CellType:
        try:
            return CellType(self._stand_in(cell.cell_contents))
        except ValueError:  # never assigned: an error only if the kernel comes to use it
            return cell

    # -- scheduling ---------------------------------------------------------------------------------------------

    def run(self, arguments: list[Any], cuda: Any) -> None:
        """Run every block; ``cuda`` is what that name means to its threads."""
        modules = {id(module): _NumbaModule(module, self._stand_in) for module in (numba, types)}
        self._stand_ins = {id(numba_cuda): cuda, **modules, **_kernel_math.stand_ins()}
        for x, y, z in np.ndindex(*self.grid):
            self._run_block(Dim3(x, y, z), arguments)

    def _run_block(self, block_index: Dim3, arguments: list[Any]) -> None:
        self._shared.clear()
        self._static_shared = 0
        self._dynamic_memory = None
        self._scheduler = getcurrent()
        self._threads = [self._new_thread(number, block_index, i) for number, i in enumerate(self._thread_indices())]
        try:
            runnable = self._threads
            while runnable:
                self._advance(runnable, arguments)
                runnable = self._release()
        finally:
            for thread in self._threads:
                if thread.greenlet is not None and not thread.finished:
                    thread.greenlet.throw()

    def _new_thread(self, number: int, block_index: Dim3, thread_index: Dim3) -> Thread:
        return Thread(number, block_index, thread_index)

    def _thread_indices(self) -> Iterator[Dim3]:
        x_size, y_size, z_size = self.block
        return (Dim3(x, y, z) for z in range(z_size) for y in range(y_size) for x in range(x_size))

    def _advance(self, threads: list[Thread], arguments: list[Any]) -> None:
        """Let each of the threads run until it waits or returns."""
        order = threads if _shuffle is None else _shuffle.sample(threads, len(threads))
        for thread in order:
            self.thread = thread
            thread.waiting = None
            if thread.greenlet is None:
                thread.greenlet = greenlet(self._thread_body)
                thread.greenlet.copies = []  # begun and not waited for (see fa_numba.simulator.wide)
            thread.greenlet.switch(arguments)

    def _thread_body(self, arguments: list[Any]) -> None:
        with np.errstate(all="ignore"):  # a greenlet does not inherit it; a GPU gives inf and NaN without a word
            try:
                self.bound(self.function)(*arguments)
            except Exception as error:
                self._add_place(error)
                raise

    def wait(self, op: str, mask: int = warp.FULL_MASK, value: Any = None, argument: Any = None) -> Any:
        """Called by a thread: wait for the others, return what the operation gives this thread."""
        thread = self.thread
        # Lanes may meet in a shuffle from anywhere in the code, so there the place does not matter.
        placed = op in BLOCK_OPS or op == "activemask"
        site = source.call_site(sys._getframe(2), self._codes) if placed else ()
        thread.waiting = Waiting(op, mask, value, argument, site)
        self._scheduler.switch()
        return thread.answer

    def _release(self) -> list[Thread]:
        """Return the threads that may go on; none if all have returned. Raises SyncError if they wait for ever."""
        waiting = [thread for thread in self._threads if thread.waiting is not None]
        released = self._release_warps(waiting)
        if not released and waiting:
            self._release_block(waiting)
            released = waiting
        return released

    def _release_warps(self, waiting: list[Thread]) -> list[Thread]:
        groups: dict[tuple, list[Thread]] = {}
        for thread in waiting:
            op, mask, _, _, site = thread.waiting
            if op not in BLOCK_OPS:
                # Lanes meet in an operation from anywhere in the code; activemask asks which of them came to one place.
                place = site if op == "activemask" else ()
                groups.setdefault((thread.warp, op, mask, place), []).append(thread)
        released = []
        for (number, op, mask, _), group in groups.items():
            if op == "activemask" or len(group) == len(self._lanes(number, mask)):
                self._meet(op, group)
                released += group
        return released

    def _meet(self, op: str, lanes: list[Thread]) -> None:
        """Give the lanes that have met in a warp operation their answers."""
        for thread, answer in zip(lanes, warp.results(op, lanes)):
            thread.answer = answer

    def _lanes(self, number: int, mask: int) -> list[Thread]:
        """Return the threads of a warp that the mask names. Lanes past the end of the block do not exist."""
        lanes = self._threads[number * warp.WARP_SIZE : (number + 1) * warp.WARP_SIZE]
        return [thread for thread in lanes if mask >> thread.lane & 1]

    def _release_block(self, waiting: list[Thread]) -> None:
        first = waiting[0]
        if first.waiting.op not in BLOCK_OPS or not all(_meets(thread, first) for thread in self._threads):
            raise self._stuck(waiting)
        answer = BLOCK_OPS[first.waiting.op]([thread.waiting.value for thread in waiting])
        for thread in waiting:
            thread.answer = answer

    # -- memory -------------------------------------------------------------------------------------------------

    def shared_array(self, site: tuple, count: int, shape: Any, dtype: np.dtype, alignment: int) -> KernelArray:
        """Return the block's static shared array that was declared at a place in the source."""
        key = (self.thread.functions[-1], site, count, dtype)  # compiled anew for other argument types
        if key not in self._shared:
            self._static_shared += count * dtype.itemsize
            self.check_shared(self._static_shared)
            data, shadow = _unwritten(count, shape, dtype)
            self._shared[key] = self.array(key, data, "shared", origin=data, shadow=shadow, alignment=alignment)
        return self._shared[key]

    def dynamic_shared_array(self, dtype: np.dtype) -> KernelArray:
        """Return all dynamic shared memory as elements of a type; such arrays alias one another."""
        if self._dynamic_memory is None:
            raw = np.full(self.dynamic_shared, POISON, np.uint8)
            self._dynamic_memory = raw, np.zeros_like(raw)
        whole = self.dynamic_shared // dtype.itemsize * dtype.itemsize
        raw, written = (memory[:whole] for memory in self._dynamic_memory)
        return self.array(dtype, raw.view(dtype), "shared", origin=raw, shadow=shadow_view(written, dtype))

    def local_array(self, count: int, shape: Any, dtype: np.dtype, alignment: int) -> KernelArray:
        """Return a new array of the running thread's own."""
        data, shadow = _unwritten(count, shape, dtype)
        return KernelArray(data, self, "local", origin=data, shadow=shadow, alignment=alignment)

    def array(self, key: Any, data: np.ndarray, space: str, **memory: Any) -> KernelArray:
        """Return what the threads see of global or shared memory.

        ``key`` says which array it is: the name of an argument, the place of a static shared array, and the dtype of
        dynamic shared memory.
        """
        return KernelArray(data, self, space, **memory)

    # -- errors -------------------------------------------------------------------------------------------------

    def thread_error(self, kind: type, what: str) -> Exception:
        """Make an error about the thread that runs now, at the line where it stands."""
        line = source.line_of(sys._getframe(1), self._codes)
        message = f"{self._place(line)} {what}"
        return kind(message, kernel=self.name, line=line, threads=[tuple(self.thread.threadIdx)])

    def _place(self, line: str) -> str:
        thread, block = tuple(self.thread.threadIdx), tuple(self.thread.blockIdx)
        return f"{self.name}, {line}: thread {thread} of block {block}"

    def _add_place(self, error: Exception) -> None:
        """Add kernel, line and thread to an exception that the kernel's code raised; it stays the same exception."""
        if isinstance(error, KernelError):
            return
        line = source.raising_line(error.__traceback__, self._codes)
        where = self._place(line) if line else self.name  # no line of it runs if the arguments are too few
        error.args = (f"{where}: {error}",)

    def _stuck(self, waiting: list[Thread]) -> SyncError:
        """Explain why none of the waiting threads can go on."""
        first = min(waiting, key=lambda thread: thread.waiting.op in BLOCK_OPS)  # a warp operation explains more
        expected, group = self._expected_with(first)
        missing = [thread for thread in expected if not _meets(thread, first)]
        line = source.line_of(first.greenlet.gr_frame, self._codes)
        message = (
            f"{self.name}, {line}: cuda.{first.waiting.op} in block {tuple(first.blockIdx)} waits for {group}, "
            f"but {len(missing)} never reach it: {self._places(missing)}"
        )
        return SyncError(message, kernel=self.name, line=line, threads=[tuple(thread.threadIdx) for thread in missing])

    def _expected_with(self, thread: Thread) -> tuple[list[Thread], str]:
        """Return the threads that an operation waits for, and who they are in words."""
        if thread.waiting.op in BLOCK_OPS:
            return self._threads, f"the block's {len(self._threads)} threads"
        lanes = self._lanes(thread.warp, thread.waiting.mask)
        return lanes, f"the {len(lanes)} threads that mask 0x{thread.waiting.mask:08x} names in warp {thread.warp}"

    def _places(self, threads: list[Thread]) -> str:
        places: dict[str, list[str]] = {}
        for thread in threads:
            places.setdefault(self._place_of(thread), []).append(str(tuple(thread.threadIdx)))
        return "; ".join(f"{_some(names)} {place}" for place, names in places.items())

    def _place_of(self, thread: Thread) -> str:
        if thread.finished:
            return "already returned"
        return f"in cuda.{thread.waiting.op} at {source.line_of(thread.greenlet.gr_frame, self._codes)}"


def _unwritten(count: int, shape: Any, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a poisoned array and its shadow."""
    data, shadow = unwritten(count, dtype)
    return data.reshape(shape), None if shadow is None else shadow.reshape(shape)


def _meets(thread: Thread, other: Thread) -> bool:
    """Say whether two threads wait in the same operation: a barrier at one place, a warp operation with one mask."""
    if thread.waiting is None or thread.waiting.op != other.waiting.op:
        return False
    if other.waiting.op in BLOCK_OPS:
        return thread.waiting.site == other.waiting.site
    return thread.warp == other.warp and thread.waiting.mask == other.waiting.mask


def _some(names: list[str]) -> str:
    """Name the first four."""
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
