"""A function called in a process of its own: how a machine with a GPU traces kernels, and the simulator compiles them.

Numba is on the simulator or off it for as long as a process lives. So function and arguments go to a second process, as
:mod:`pickle` writes them: a function by the name it is imported by, an array by its elements. The result comes back in
the same way.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from numba import cuda

# The child finds what its parent finds; then it takes in the rest.
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from fa_numba import child; child.answer_parent()"
)


def call(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns on the simulator.

    Parameters
    ----------
    function : callable
        One that can be imported by name, or a ``functools.partial`` of one.
    *args, **kwargs
        Its arguments. Arrays on a device are copied to NumPy, also those within lists, dicts and other arguments.
        What the function writes to an array stays in its process.

    Returns
    -------
    object
        What the function returned, its arrays as NumPy arrays.

    Raises
    ------
    TypeError
        If the function cannot be imported by name, or if an argument or the result cannot be pickled.
    RuntimeError
        If the process ends without an answer.
    Exception
        Whatever the function raises, with its causes.
    """
    try:
        request = _pickled((function, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as problem:
        raise TypeError(_requirement(problem)) from None
    return _answer_of("simulator", request, {**os.environ, "FA_NUMBA_DEVICE": "simulator"})


def call_compiler(function: Callable, *args: Any) -> Any:
    """Return what a function returns where Numba's simulator is off, so that it can compile; a GPU need not be there.

    Function, arguments and errors are as for :func:`call`.
    """
    off = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    return _answer_of("compiler", _pickled((function, args, {})), {**off, "FA_NUMBA_DEVICE": "gpu"})


def _answer_of(name: str, request: bytes, environment: dict[str, str]) -> Any:
    """Start a process with an environment; return what it answers, or raise the error that it answers with."""
    finished = subprocess.run(
        [sys.executable, "-c", _START],
        input=pickle.dumps(sys.path) + request,
        env=environment,
        stdout=subprocess.PIPE,
    )
    if finished.returncode != 0 or not finished.stdout:
        raise RuntimeError(f"the {name}'s process ended with status {finished.returncode}, without an answer")
    try:
        result, errors = pickle.loads(finished.stdout)
    except Exception as problem:
        raise _no_way_back(problem) from None
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    if errors:
        raise errors[0]
    return result


def answer_parent() -> None:
    """In the child: call what the parent has asked for, and write result and errors to the pipe that was stdout."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function writes, a library in C or a process of its own, must not get in between
    sys.stdout = sys.stderr
    with pipe:
        pipe.write(_answer(sys.stdin.buffer.read()))


def _answer(request: bytes) -> bytes:
    """Return, pickled, the result and an empty list; or None and a list of the error, its cause, the cause of that."""
    try:
        function, args, kwargs = pickle.loads(request)
    except (ImportError, AttributeError) as problem:
        return _pickled((None, [TypeError(_requirement(problem))]))
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return _pickled((None, [_sendable(each) for each in _with_causes(error)]))
    try:
        return _pickled((result, []))
    except Exception as problem:
        return _pickled((None, [_no_way_back(problem)]))


def _with_causes(error: BaseException) -> list[BaseException]:
    errors: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in errors:  # an error can be its own cause
        errors.append(cause)
        cause = cause.__cause__
    return errors


def _sendable(error: BaseException) -> BaseException:
    """Return an error, or one in its place that pickle can bring back."""
    try:
        pickle.loads(_pickled(error))  # an exception with arguments of its own may fail only here
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _no_way_back(problem: Exception) -> TypeError:
    return TypeError(f"what the function returned cannot be brought back: {problem}")


def _requirement(problem: Exception) -> str:
    return (
        f"beside a GPU the simulator runs in a process of its own, which imports the function by name: it takes a "
        f"function of a module, or a functools.partial of one, and arguments that can be pickled ({problem}). Put it "
        f"into a module, or set FA_NUMBA_DEVICE=simulator before fa_numba is imported"
    )


class _Pickler(pickle.Pickler):
    """Writes arrays that lie on a device as NumPy's, wherever they stand."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):  # those of arrays have what their arrays have
            return NotImplemented
        if hasattr(value, "__cuda_array_interface__"):
            return cuda.as_cuda_array(value).copy_to_host().__reduce__()
        if hasattr(value, "__cuda_ndarray__"):  # the simulator's, which has no interface
            return value.copy_to_host().__reduce__()
        return NotImplemented


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
