"""What ``math`` means inside a simulated kernel: Python's functions, with the types that Numba gives their results."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


class KernelMath:
    """Python's ``math``, but ``exp`` of a float32 is a float32 and ``exp`` of a float64 a float64.

    Python's own functions return a Python float, which NumPy takes for any precision: a float64 kernel that adds one
    to a float32 zero would go on in float32, where the compiler goes on in float64.
    """

    def __init__(self):
        for name, value in vars(math).items():
            setattr(self, name, _typed(value) if callable(value) else value)

    def stand_ins(self) -> dict[int, Any]:
        """Return what replaces the module and its functions in a kernel's globals, by their identity."""
        functions = {id(value): getattr(self, name) for name, value in vars(math).items() if callable(value)}
        return {id(math): self, **functions}


def _typed(function: Callable) -> Callable:
    @functools.wraps(function)
    def typed(*arguments: Any) -> Any:
        result = function(*arguments)
        return _precision(arguments)(result) if type(result) is float else result

    return typed


def _precision(arguments: tuple) -> type:
    """Return the type Numba gives the result: that of the floating-point arguments, float64 for other numbers."""
    types = {type(argument) if isinstance(argument, np.floating) else np.float64 for argument in arguments}
    return types.pop() if len(types) == 1 else np.float64
