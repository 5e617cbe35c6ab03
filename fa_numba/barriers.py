"""Kernels with a barrier removed, to see what it is there for: the race that follows, or the wrong result."""

from __future__ import annotations

import functools
import inspect
import io
import linecache
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral
from pathlib import PurePath
from types import ModuleType
from typing import Any

_BARRIER = re.compile(r"(?P<indent>\s*)cuda\.sync(threads|warp)\(.*\n")


def lines_of(module: ModuleType) -> list[int]:
    """Return the source lines of a module that are barriers, of a block or a warp, in order."""
    lines = inspect.getsource(module).splitlines(keepends=True)
    return [number for number, line in enumerate(lines, 1) if _BARRIER.fullmatch(line)]


def without_barrier(function: Callable, module: ModuleType, number: int) -> Callable:
    """Return what a function is when a barrier of a module's kernels is not there.

    Parameters
    ----------
    function : callable
        A function of the module, or a ``functools.partial`` of or with one, as the values of each ``RUNGS`` are.
    module : module
        Its kernels are made anew, from its source without the line; the module itself stays as it is.
    number : int
        Which of its barriers, from 1, in the order of the source.

    Returns
    -------
    callable
        It runs on a GPU and on the simulator, and :func:`fa_numba.trace` takes it on both.

    Raises
    ------
    ValueError
        If the module has no such barrier, if the function is none of the module's, or if it lacks a barrier already.
    """
    if not isinstance(number, Integral) or isinstance(number, bool):
        raise ValueError(f"which barrier is said by a whole number, and they count from 1; {number!r} was given")
    count = len(lines_of(module))
    if number not in range(1, count + 1):
        raise ValueError(f"{module.__name__} has {count} barriers; {number} was asked for, and they count from 1")
    broken = _WithoutBarrier(function, module.__name__, int(number))
    broken.made()
    return broken


@dataclass(frozen=True)
class _WithoutBarrier:
    """A function, made by name in whatever process calls it."""

    function: Callable
    module: str
    number: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.made()(*args, **kwargs)

    def made(self) -> Callable:
        """Return the function, with what it takes from the module taken from the module without the barrier."""
        try:
            by_name = pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise ValueError(f"{self._no_function()}: {problem}") from None
        maker = _Maker(by_name, _module_without(self.module, self.number))
        made = maker.load()
        if not maker.has_changed:
            raise ValueError(self._no_function())
        return made

    def _no_function(self) -> str:
        return f"{self.function!r} is no function of {self.module}, nor a functools.partial with one"


class _Maker(pickle.Unpickler):
    """Loads a function that was pickled by name, and looks up names of one module in another."""

    def __init__(self, pickled: bytes, broken: ModuleType):
        super().__init__(io.BytesIO(pickled))
        self._broken = broken
        self.has_changed = False

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _WithoutBarrier.__name__):
            raise ValueError("the function lacks a barrier already, and one at a time can be removed: give it whole")
        if module != self._broken.__name__:
            return super().find_class(module, name)
        self.has_changed = True
        return getattr(self._broken, name)


@functools.cache
def _module_without(name: str, number: int) -> ModuleType:
    """Run a module's source without one of its barriers, the other lines at their numbers."""
    module = import_module(name)
    lines = inspect.getsource(module).splitlines(keepends=True)
    at = lines_of(module)[number - 1] - 1
    lines[at] = f"{_BARRIER.fullmatch(lines[at])['indent']}pass\n"
    file = f"<{name} without barrier {number}>/{PurePath(module.__file__).name}"
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # where inspect and error messages look it up
    broken = ModuleType(name)
    exec(compile("".join(lines), file, "exec"), vars(broken))
    return broken
