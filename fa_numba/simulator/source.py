"""Find and name the kernel's source line behind a Python frame."""

import linecache
import os
import sys
from types import FrameType, TracebackType

_HERE = os.path.dirname(os.path.abspath(__file__))


def kernel_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that runs kernel code, starting at ``frame`` and going outwards."""
    while frame is not None and _is_simulator(frame):
        frame = frame.f_back
    return frame


def current_line() -> str:
    """Name the kernel's line that is being executed."""
    return line_of(kernel_frame(sys._getframe(1)))


def raising_line(traceback: TracebackType | None) -> str:
    """Name the innermost kernel line of a traceback."""
    frame, number = None, 0
    while traceback is not None:
        if not _is_simulator(traceback.tb_frame):
            frame, number = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return _format(frame, number) if frame else "an unknown line"


def line_of(frame: FrameType | None) -> str:
    """Name the line a frame stands at: ``file.py:24 (the source text)``."""
    return _format(frame, frame.f_lineno) if frame else "an unknown line"


def _is_simulator(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    return filename.startswith(_HERE) or f"{os.sep}numba{os.sep}cuda{os.sep}" in filename


def _format(frame: FrameType, number: int) -> str:
    filename = frame.f_code.co_filename
    text = linecache.getline(filename, number, frame.f_globals).strip()
    # A notebook cell's file name differs from run to run: name the function instead.
    if filename.endswith(".py") and "ipykernel" not in filename:
        place = f"{os.path.basename(filename)}:{number}"
    else:
        place = f"line {number} of the cell of {frame.f_code.co_name}"
    return f"{place} ({text})" if text else place
