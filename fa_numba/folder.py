"""The folder that a command writes to, and the error with which a command ends when it cannot do its work."""

import os
import tempfile
from pathlib import Path


class CannotRun(Exception):  # noqa: N818 (not a fault of the program)
    """A command cannot do what it was asked; the message says why."""


def require_writable(folder: Path) -> None:
    """Make a folder if it is missing; raise CannotRun if nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"the output folder {folder} cannot be written: {error.strerror}; choose one with --output"
        raise CannotRun(why) from None


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
