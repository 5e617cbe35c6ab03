"""`fa-numba run`: execute the notebooks in order, and leave executed copies and HTML in a folder."""

import asyncio
import html
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from tqdm import tqdm

_NO_TEXT = 'alt="No description has been provided for this image"'  # as nbconvert writes it
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


class CannotRun(Exception):  # noqa: N818 (not a fault of the program)
    """The notebooks or the output folder cannot be used; the message says why."""


class ThisPythonSpec(KernelSpecManager):
    """Knows one kernel: the interpreter that runs this, whatever kernels are registered on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return that kernel."""
        return KernelSpec(argv=make_ipkernel_cmd(), display_name="Python 3", language="python")


class ThisPython(AsyncKernelManager):
    """Starts this interpreter as a notebook kernel."""

    def __init__(self, **options: Any):
        super().__init__(kernel_spec_manager=ThisPythonSpec(), **options)


def find_notebooks() -> list[Path]:
    """Return the notebooks of the series, in order; raise CannotRun if there are none."""
    found = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise CannotRun(f"there are no notebooks in {NOTEBOOKS}; run this from a clone, or name the notebooks")
    return found


def run(paths: list[Path], output: Path) -> int:
    """Execute notebooks in order, each on a fresh kernel.

    Parameters
    ----------
    paths : list of pathlib.Path
        The notebooks; they are only read.
    output : pathlib.Path
        The folder for the executed copies and HTML pages.

    Returns
    -------
    int
        The exit status: 0, 1 if a cell failed, 130 if interrupted.

    Raises
    ------
    CannotRun
        If a notebook cannot be read or the folder not written, before anything is executed.
    """
    notebooks = [(path, _read(path)) for path in paths]
    _require_writable(output)
    failures = 0
    for path, notebook in notebooks:
        start = time.perf_counter()
        try:
            problem = _execute(path, notebook)
        except KeyboardInterrupt:
            _write(path, notebook, output)
            print(f"{path.name}: interrupted; what was finished is in {output}")
            return 130
        failures += problem is not None
        verdict = problem or f"done in {time.perf_counter() - start:.0f} s"
        print(f"{path.name}: {verdict}; see {_write(path, notebook, output)}")
    return 1 if failures else 0


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises what it happens to meet in a file that is no notebook
        reason = str(error).partition("\n")[0]
        raise CannotRun(f"{path} cannot be read as a notebook: {type(error).__name__}: {reason}") from None
    return notebook


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"the output folder {folder} cannot be written: {error.strerror}; choose one with --output"
        raise CannotRun(why) from None


def _execute(path: Path, notebook: nbformat.NotebookNode) -> str | None:
    """Execute a notebook in place; say which cell failed and why, or None."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tqdm(total=len(cells), desc=path.name, unit="cell", leave=False, disable=None) as progress:
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisPython,
            timeout=None,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_executed=lambda **_: progress.update(),
        )
        with tempfile.TemporaryFile(
            "w+"
        ) as stderr:  # the kernel process speaks of its transport there, and of its death
            try:
                _execute_unless_interrupted(client, stderr)
            except CellExecutionError as error:
                return f"cell [{_executed(cells)}] failed: {error.ename}: {error.evalue}"
            except RuntimeError as error:  # nbclient's DeadKernelError, and what it raises if a kernel never starts
                stderr.seek(0)
                last = stderr.read().strip().rpartition("\n")[2]
                return f"the notebook's kernel ended after cell [{_executed(cells)}]: {error} {last}"
    return None


def _execute_unless_interrupted(client: NotebookClient, stderr: IO[str]) -> None:
    """Execute in another thread: in the main one, nbclient takes Ctrl-C for itself, and the run ends in a traceback."""
    with ThreadPoolExecutor(1) as pool:
        execution = pool.submit(asyncio.run, client.async_execute(stderr=stderr))
        try:
            execution.result()
        except KeyboardInterrupt:
            if client.km is not None and client.km.has_kernel:
                asyncio.run(client.km.shutdown_kernel(now=True))
            raise


def _executed(cells: list[nbformat.NotebookNode]) -> int:
    return sum(cell.execution_count is not None for cell in cells)


def _write(path: Path, notebook: nbformat.NotebookNode, output: Path) -> Path:
    """Write the executed copy and its page; return the page's path."""
    page = output / f"{path.stem}.html"
    _replace(output / path.name, nbformat.writes(notebook) + "\n")
    _replace(page, _html(notebook))
    return page


def _html(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook as a page, with the figures' alternative texts, which nbconvert's template leaves out."""
    exporter = HTMLExporter()
    exporter.log.setLevel(logging.ERROR)  # it warns of the missing texts
    page, _ = exporter.from_notebook_node(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                text = output.metadata.get("image/png", {}).get("alt", "a figure")
                page = page.replace(_NO_TEXT, f'alt="{html.escape(text)}"', 1)
    return page


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
