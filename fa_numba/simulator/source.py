"""Find and name the kernel's source line behind a Python frame.

Kernel code is told by its code objects, which a launch collects as it enters functions; never by file names.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

Codes = set[CodeType]


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the lambdas and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def kernel_frame(frame: FrameType | None, codes: Codes) -> FrameType | None:
    """Return the innermost frame that runs kernel code, starting at ``frame`` and going outwards."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame


def call_site(frame: FrameType | None, codes: Codes) -> tuple:
    """Identify a place in the kernel's source, through the device functions around it."""
    site = []
    while frame is not None:
        if frame.f_code in codes:
            site += [frame.f_code, position(frame)]
        frame = frame.f_back
    return tuple(site)


def position(frame: FrameType) -> tuple:
    """Return where in the source a frame stands. (Python compiles the test of a while loop twice, at one position.)"""
    positions = _positions(frame.f_code)
    return positions[frame.f_lasti // 2] if positions else (frame.f_lineno,)


def instruction(frame: FrameType) -> tuple:
    """Return what stays the same of the instruction where a frame stands, once the interpreter has specialized it."""
    return position(frame) if _positions(frame.f_code) else (frame.f_lasti,)


@functools.lru_cache(maxsize=1024)
def _positions(code: CodeType) -> tuple:
    return tuple(code.co_positions()) if hasattr(code, "co_positions") else ()  # since Python 3.11


def raising_line(traceback: TracebackType | None, codes: Codes) -> str | None:
    """Name the innermost kernel line of a traceback; None if it has none."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            frame = traceback.tb_frame
            line = text_of(frame.f_code, traceback.tb_lineno, frame.f_globals)
        traceback = traceback.tb_next
    return line


def line_of(frame: FrameType | None, codes: Codes) -> str:
    """Name the kernel line that a frame is inside: ``file.py:24 (the source text)``."""
    frame = kernel_frame(frame, codes)
    return text_of(frame.f_code, frame.f_lineno, frame.f_globals) if frame else "an unknown line"


def text_of(code: CodeType, number: int, names: dict[str, Any] | None = None) -> str:
    """Name a line of a function: ``file.py:24 (the source text)``. ``names`` are its globals, if they are at hand."""
    filename = code.co_filename
    text = linecache.getline(filename, number, names).strip()
    # A notebook cell has a file name that differs from run to run: count from its start instead.
    if filename.endswith(".py") and "ipykernel" not in filename:
        place = f"{os.path.basename(filename)}:{number}"
    else:
        place = f"line {number} where {code.co_name} is defined"
    return f"{place} ({text})" if text else place
