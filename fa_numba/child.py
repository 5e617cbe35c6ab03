"""A function called on the simulator, in a process of its own: how a machine with a GPU traces kernels.

Numba is on the simulator or on a GPU for as long as a process lives. So function and arguments go to a second process,
as :mod:`pickle` writes them: a function by the name it is imported by, an array by its elements.
"""

from __future__ import annotations

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
        Its arguments. Arrays on a device are copied to NumPy. What the function writes to an array stays in its
        process.

    Raises
    ------
    TypeError
        If the function cannot be imported by name, or if an argument or the result cannot be pickled.
    RuntimeError
        If the process ends without an answer.
    Exception
        Whatever the function raises.
    """
    try:
        host = [_on_host(each) for each in args], {name: _on_host(each) for name, each in kwargs.items()}
        request = pickle.dumps((function, *host))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise TypeError(_requirement(problem)) from None
    finished = subprocess.run(
        [sys.executable, "-c", _START],
        input=pickle.dumps(sys.path) + request,
        env={**os.environ, "FA_NUMBA_DEVICE": "simulator"},
        stdout=subprocess.PIPE,
    )
    if finished.returncode != 0:
        raise RuntimeError(f"the simulator's process ended with status {finished.returncode}")
    result, error = pickle.loads(finished.stdout)
    if error is not None:
        raise error
    return result


def answer_parent() -> None:
    """In the child: call what the parent has asked for, and write result and error to the pipe that was stdout."""
    pipe, sys.stdout = sys.stdout.buffer, sys.stderr  # what the function prints must not get in between
    pipe.write(_answer(sys.stdin.buffer.read()))
    pipe.flush()


def _answer(request: bytes) -> bytes:
    """Return the pickled pair of result and error, one of them None."""
    try:
        function, args, kwargs = pickle.loads(request)
    except (ImportError, AttributeError) as problem:
        return pickle.dumps((None, TypeError(_requirement(problem))))
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return _pickled_error(error)
    try:
        return pickle.dumps((result, None))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        return pickle.dumps((None, TypeError(f"what the function returned cannot be brought back: {problem}")))


def _pickled_error(error: Exception) -> bytes:
    try:
        answer = pickle.dumps((None, error))
        pickle.loads(answer)  # an exception with arguments of its own may fail only here
    except Exception:
        answer = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


def _requirement(problem: Exception) -> str:
    return (
        f"beside a GPU the simulator runs in a process of its own, which imports the function by name: it takes a "
        f"function of a module, or a functools.partial of one, and arguments that can be pickled ({problem}). Put it "
        f"into a module, or set FA_NUMBA_DEVICE=simulator before fa_numba is imported"
    )


def _on_host(argument: Any) -> Any:
    """Return an array that lies on a device as NumPy's; others as they are."""
    if hasattr(argument, "__cuda_array_interface__"):
        return cuda.as_cuda_array(argument).copy_to_host()
    return argument
