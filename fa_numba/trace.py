"""``fa_numba.trace``: what kernels do to memory, counted on the simulator, and the races between their threads."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba import child, compiler, device
from fa_numba.occupancy import Occupancy, occupancy

if TYPE_CHECKING:
    from fa_numba.simulator.lens import TracedLaunch
    from fa_numba.simulator.traffic import Line

_KINDS = ("load", "store", "atomic")
_SECTOR = 32


@dataclass(frozen=True)
class LineReport:
    """The accesses of one kind to one array, at one source line.

    Attributes
    ----------
    array, space, kind : str
        The array's name in the kernel; ``"global"`` or ``"shared"``; ``"load"``, ``"store"`` or ``"atomic"``.
    line : str
        The source line, as ``file.py:24 (the source text)``.
    calls : tuple of str
        The lines of the calls that led there, the innermost first; empty for a line of the kernel itself.
    accesses, nbytes : int
        By threads: how many, of how many bytes together. A 4-wide access is one.
    footprint : int
        Distinct bytes.
    requests : int
        Warp instructions: the k-th accesses of the lanes of a warp are one (see :mod:`fa_numba.simulator.traffic`).
    sectors, used_bytes : int
        Of global memory: the sectors of 32 bytes that the requests fetch, and the bytes that they want of them.
    ways, wavefronts, conflicts : int
        Of shared memory: how many words of one bank a request wants at worst, 1 without a conflict; how many times the
        memory had to deliver, one word of each bank at a time; and how many of these there would not be without
        conflicts. A request of 8-byte accesses counts as two halves of a warp, one of 16-byte accesses as four
        quarters, and a load as half as many where lanes share addresses pairwise (see
        :mod:`fa_numba.simulator.traffic`).
    lanes : tuple of int or None
        Where each lane's access begins in the first request, in bytes behind the start of the memory.
    """

    array: str
    space: str
    kind: str
    line: str
    calls: tuple[str, ...]
    accesses: int
    nbytes: int
    footprint: int
    requests: int
    sectors: int
    used_bytes: int
    ways: int
    wavefronts: int
    conflicts: int
    lanes: tuple[int | None, ...] = field(repr=False)

    @property
    def sectors_per_request(self) -> float:
        """Sectors that a warp instruction fetches: 4 if 32 lanes read neighbouring float32, 32 at worst."""
        return self.sectors / self.requests

    @property
    def used(self) -> float:
        """The share of the fetched bytes that were wanted; 1 for shared memory, which fetches no sectors."""
        return self.used_bytes / (_SECTOR * self.sectors) if self.sectors else 1.0


@dataclass(frozen=True)
class ArrayReport:
    """All accesses to one array.

    Attributes
    ----------
    name, space : str
        Its name in the kernel; ``"global"`` or ``"shared"``.
    loads, stores : int
        Accesses by threads. An atomic operation counts as both.
    loaded, stored : int
        Their bytes.
    footprint : int
        Distinct bytes touched; of shared memory, which is new in every block, those of its one place.
    reads_per_byte : float
        How often each byte that is read at all is read, on average; 0 if none is.
    reads, writes : numpy.ndarray
        How often each element was read and written, in the array's shape.
    """

    name: str
    space: str
    loads: int
    stores: int
    loaded: int
    stored: int
    footprint: int
    reads_per_byte: float
    reads: np.ndarray = field(repr=False)
    writes: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class OperationReport:
    """What is done at one source line beside accesses.

    Attributes
    ----------
    line, calls
        As in :class:`LineReport`.
    flops : int
        Floating-point operations by threads; 0 in a function whose source cannot be found.
    barriers, shuffles, syncwarps : int
        As in :class:`KernelReport`.
    """

    line: str
    calls: tuple[str, ...]
    flops: int
    barriers: int
    shuffles: int
    syncwarps: int


@dataclass(frozen=True)
class KernelReport:
    """One launch of a kernel.

    Attributes
    ----------
    kernel : str
        Its name.
    grid, block : tuple of int
        Blocks and threads along x, y and z.
    lines : tuple of LineReport
        In the order in which they were first executed.
    arrays : tuple of ArrayReport
        In the order in which they were first touched.
    operations : tuple of OperationReport
        In the order in which their lines were first executed.
    static_shared, dynamic_shared : int
        Bytes of shared memory of a block.
    barriers : int
        How often a block met in a barrier, over all blocks.
    shuffles : int
        Shuffles by warps; one that all 32 lanes take part in counts once.
    syncwarps : int
        The same, of ``syncwarp``.
    flops : int or None
        Floating-point operations of all threads: +, -, * and /, so that a multiply-add is two; comparisons, ``max`` and
        the functions of ``math`` do not count. None if the source of a function cannot be found.
    requested : int
        Bytes of global memory that threads loaded and stored.
    footprint : int
        Distinct bytes of global memory among them.
    form : Form or None
        By what another process can compile the kernel; None if that could not import it.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    lines: tuple[LineReport, ...]
    arrays: tuple[ArrayReport, ...]
    operations: tuple[OperationReport, ...]
    static_shared: int
    dynamic_shared: int
    barriers: int
    shuffles: int
    syncwarps: int
    flops: int | None
    requested: int
    footprint: int
    form: compiler.Form | None = field(repr=False)

    @property
    def intensity(self) -> float | None:
        """Floating-point operations for each byte of global memory requested; None if either is unknown or 0."""
        return self._per(self.requested)

    @property
    def footprint_intensity(self) -> float | None:
        """Floating-point operations for each distinct byte: what the intensity would be with a perfect cache."""
        return self._per(self.footprint)

    def _per(self, nbytes: int) -> float | None:
        return None if self.flops is None or nbytes == 0 else self.flops / nbytes

    def registers(self, capability: str = "9.0") -> int | None:
        """Return how many registers a thread has, as NVIDIA's compiler says: see :func:`fa_numba.compiler.registers`.

        It takes some seconds. None where the compiler is not installed, or if the kernel is not of a module.
        """
        return None if self.form is None else compiler.registers(self.form, capability)

    def occupancy(self, capability: str = "9.0", registers: int | None = None) -> Occupancy:
        """Return how many of its blocks a multiprocessor holds at a time: see :func:`fa_numba.occupancy.occupancy`.

        The simulator compiles nothing: without the ``registers`` of a thread, as :meth:`registers` finds them, they are
        left out.
        """
        shared = self.static_shared + self.dynamic_shared
        return occupancy(math.prod(self.block), shared, capability=capability, registers=registers)

    def __getitem__(self, name: str) -> ArrayReport:
        """Return the report of the array of a name; KeyError if none was touched."""
        for array in self.arrays:
            if array.name == name:
                return array
        raise KeyError(name)

    def select(self, array: str, kind: str) -> tuple[LineReport, ...]:
        """Return the lines that access an array: ``kind`` is ``"load"``, ``"store"`` or ``"atomic"``."""
        return tuple(line for line in self.lines if (line.array, line.kind) == (array, kind))

    def __str__(self) -> str:
        grid, block = (_product(extents) for extents in (self.grid, self.block))
        parts = [
            f"{self.kernel}: {grid} blocks of {block} threads, {self.barriers} barriers, {self.shuffles} shuffles, "
            f"{self.static_shared + self.dynamic_shared} bytes of shared memory a block",
            f"{self.requested} bytes of global memory requested, {self.footprint} different ones",
            self._arithmetic_words(),
            _table(("array", "memory", "loads", "stores", "footprint", "reads a byte"), map(_array_row, self.arrays)),
            _table(
                ("array", "memory", "", "count", "requests", "sectors", "used", "ways", "line"),
                map(_line_row, self.lines),
            ),
        ]
        if self.operations:
            head = ("flops", "barriers", "shuffles", "syncwarps", "line")
            parts.append(_table(head, map(_operation_row, self.operations)))
        return "\n".join(parts[:3]) + "\n\n" + "\n\n".join(parts[3:])

    def _arithmetic_words(self) -> str:
        if self.flops is None:
            return "floating-point operations not counted: a function's source cannot be found"
        of_bytes = ((self.intensity, "requested byte"), (self.footprint_intensity, "different one"))
        ratios = [f"{ratio:.2f} a {what}" for ratio, what in of_bytes if ratio is not None]
        return ", ".join((f"{self.flops} floating-point operations", *ratios))


@dataclass
class Report:
    """What :func:`trace` saw: a :class:`KernelReport` of each launch, and ``result``, what the function returned."""

    launches: list[KernelReport] = field(default_factory=list)
    result: Any = field(default=None, repr=False)

    def __getitem__(self, kernel: str) -> KernelReport:
        """Return the report of a kernel's first launch; KeyError if there was none."""
        for launch in self.launches:
            if launch.kernel == kernel:
                return launch
        raise KeyError(kernel)

    def __str__(self) -> str:
        return "\n\n\n".join(map(str, self.launches)) or "no kernel was launched"


def trace(function: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the lens on: count what its kernels do to memory, and find races between their threads.

    Without a function, the context manager of the same: ``with trace() as report:``, on the simulator only. With one,
    it also works where fa_numba computes on a GPU: the call is made in a process of its own, on the simulator.

    Parameters
    ----------
    function : callable, optional
        It launches kernels, as ``fa_numba.flash_forward`` does. Beside a GPU it must be a function of a module, or a
        ``functools.partial`` of one, so that the other process can import it.
    *args, **kwargs
        Its arguments. Beside a GPU they are copied, arrays on a device to NumPy.

    Returns
    -------
    Report
        An entry for each launch, in order. What the function returned is its ``result``: beside a GPU, with NumPy
        arrays.

    Raises
    ------
    fa_numba.simulator.RaceError
        If two threads touch an element, one of them writing, with no barrier between them: of the block, or within a
        warp ``syncwarp``, a shuffle or a vote.
    TypeError
        If there are arguments without a function. Beside a GPU, also if the function cannot be imported by name, or if
        an argument or the result cannot be pickled.
    RuntimeError
        If the context manager is used beside a GPU.

    Notes
    -----
    Counted is what the source says, as if every load and store were executed: a compiler may keep a value in a register
    instead of loading it again. Allocations are taken to start at multiples of 256 bytes, as they do on a GPU. Local
    arrays are a thread's registers and are not counted. A launch that fails has no entry.
    """
    if function is None:
        if args or kwargs:
            raise TypeError("trace was given arguments but None as the function; call trace(function, *args, **kwargs)")
        if not device.SIMULATED:
            raise RuntimeError(
                "with trace() needs the simulator in its own process: call trace(function, ...) instead, or set "
                "FA_NUMBA_DEVICE=simulator before fa_numba is imported"
            )
        return _traced()
    if not device.SIMULATED:
        return child.call(trace, function, *args, **kwargs)
    with _traced() as report:
        report.result = function(*args, **kwargs)
    return report


@contextlib.contextmanager
def _traced() -> Iterator[Report]:
    from fa_numba.simulator import lens

    report = Report()
    with lens.opened() as launches:
        yield report
    report.launches += [_report(launch) for launch in launches if launch.has_ended]


def _report(launch: TracedLaunch) -> KernelReport:
    lines = list(launch.traffic.lines)
    in_global = [line for line in lines if line.region.place[0] == "global"]
    memories = {line.region.place: [] for line in in_global}
    for line in in_global:
        memories[line.region.place].append(line)
    operations = tuple(_operation_report(*each) for each in launch.operations_by_line().items())
    return KernelReport(
        kernel=launch.name,
        grid=launch.grid,
        block=launch.block,
        lines=tuple(map(_line_report, lines)),
        arrays=tuple(_array_reports(lines)),
        operations=operations,
        static_shared=launch.static_shared,
        dynamic_shared=launch.dynamic_shared,
        barriers=sum(each.barriers for each in operations),
        shuffles=sum(each.shuffles for each in operations),
        syncwarps=sum(each.syncwarps for each in operations),
        flops=sum(each.flops for each in operations) if launch.arithmetic.is_complete else None,
        requested=sum(line.nbytes * (2 if _KINDS[line.kind] == "atomic" else 1) for line in in_global),
        footprint=sum(map(_footprint, memories.values())),
        form=compiler.form_of(launch.function, launch.arguments),
    )


def _line_report(line: Line) -> LineReport:
    return LineReport(
        array=line.region.name,
        space=line.region.place[0],
        kind=_KINDS[line.kind],
        line=line.lines[0],
        calls=line.lines[1:],
        accesses=line.accesses,
        nbytes=line.nbytes,
        footprint=_footprint([line]),
        requests=line.requests,
        sectors=line.sectors,
        used_bytes=line.used_bytes,
        ways=line.ways,
        wavefronts=line.wavefronts,
        conflicts=line.wavefronts - line.phases,
        lanes=line.lanes,
    )


def _operation_report(lines: tuple[str, ...], counts: Counter[str]) -> OperationReport:
    def sum_of(prefix: str) -> int:
        return sum(count for what, count in counts.items() if what.startswith(prefix))

    return OperationReport(
        line=lines[0],
        calls=lines[1:],
        flops=sum_of("flops"),
        barriers=sum_of("syncthreads"),  # and those that count or vote
        shuffles=sum_of("shfl"),
        syncwarps=sum_of("syncwarp"),
    )


def _array_reports(lines: list[Line]) -> Iterator[ArrayReport]:
    regions = dict.fromkeys(line.region for line in lines)
    for region in regions:
        own = [line for line in lines if line.region is region]
        loads, stores = ([line for line in own if line.kind in (kind, 2)] for kind in (0, 1))
        loaded = sum(line.nbytes for line in loads)
        yield ArrayReport(
            name=region.name,
            space=region.place[0],
            loads=sum(line.accesses for line in loads),
            stores=sum(line.accesses for line in stores),
            loaded=loaded,
            stored=sum(line.nbytes for line in stores),
            footprint=_footprint(own),
            reads_per_byte=loaded / _footprint(loads) if loads else 0.0,
            reads=region.elements(_counts(loads, own[0])),
            writes=region.elements(_counts(stores, own[0])),
        )


def _counts(lines: list[Line], like: Line) -> np.ndarray:
    """Return how often each unit of a memory was accessed."""
    return functools.reduce(np.add, (line.counts for line in lines), np.zeros_like(like.counts))


def _footprint(lines: list[Line]) -> int:
    """Count the distinct bytes that lines touch of one memory."""
    touched = np.zeros(0, bool)
    for line in lines:
        own = np.repeat(line.counts > 0, line.region.unit)
        if len(touched) < len(own):
            touched = np.pad(touched, (0, len(own) - len(touched)))
        touched[: len(own)] |= own
    return int(touched.sum())


def _product(extents: tuple[int, ...]) -> str:
    return "×".join(map(str, extents)).removesuffix("×1").removesuffix("×1")


def _array_row(array: ArrayReport) -> tuple[str, ...]:
    numbers = (array.loads, array.stores, array.footprint)
    return (array.name, array.space, *map(str, numbers), f"{array.reads_per_byte:.1f}")


def _line_row(line: LineReport) -> tuple[str, ...]:
    is_global = line.space == "global"
    return (
        line.array,
        line.space,
        line.kind,
        str(line.accesses),
        str(line.requests),
        f"{line.sectors_per_request:.1f}" if is_global else "",
        f"{line.used:.0%}" if is_global else "",
        "" if is_global else str(line.ways),
        _route(line),
    )


def _operation_row(each: OperationReport) -> tuple[str, ...]:
    numbers = (each.flops, each.barriers, each.shuffles, each.syncwarps)
    return (*(str(number or "") for number in numbers), _route(each))


def _route(each: LineReport | OperationReport) -> str:
    """Return a line behind those of the calls that led there, with the text of the kernel's own."""
    *inner, outer = (each.line, *each.calls)
    return " → ".join((outer, *map(_place, reversed(inner))))


def _place(line: str) -> str:
    """Return a line without its text."""
    return line.partition(" (")[0]


def _table(head: tuple[str, ...], rows: Any) -> str:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width) for cell, width in zip(row, widths)
        ).rstrip()
        for row in cells
    )
