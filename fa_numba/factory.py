"""Functions that make kernels: what they are given becomes constants of the kernel, for the compiler."""

import functools
from collections.abc import Callable
from typing import Any


def kernel_factory(make: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the kernels that a function makes, by what it was given, and note on each kernel's function how it was made.

    The note, ``made_by``, is module, name and arguments: with it another process can make the same kernel.
    """

    @functools.cache
    @functools.wraps(make)
    def kept(*arguments: Any) -> Any:
        kernel = make(*arguments)
        kernel.py_func.made_by = make.__module__, make.__name__, arguments
        return kernel

    return kept
