"""`fa-numba run`: execute the notebooks in order, and leave executed copies and HTML in a folder."""

import asyncio
import html
import logging
import re
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbconvert.filters import strip_ansi
from nbformat.v4 import new_markdown_cell, new_notebook
from tqdm import tqdm

from fa_numba.folder import CannotRun, replace, require_writable

_NO_TEXT = 'alt="No description has been provided for this image"'  # as nbconvert writes it
# The kernels are shown as Markdown output, to which nbconvert gives the font of running text.
_KERNEL_STYLE = """<style>
.jp-RenderedMarkdown.jp-OutputArea-output pre { font-family: var(--jp-code-font-family, monospace) !important;
  font-size: 12px; word-break: normal; background: var(--jp-cell-editor-background, #f5f5f5); padding: 0.6em 0.8em; }
.jp-RenderedMarkdown.jp-OutputArea-output pre * { font-family: inherit !important; }
</style>"""
_LINK = re.compile(r'href="(\w+)\.(?:ipynb|md)(#[\w-]*)?"')  # to a neighbour, of which there is a page
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
GLOSSARY = "glossary.md"  # beside the notebooks, which link to it


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
        If a notebook or the glossary beside it cannot be read, or the folder not written, before anything is executed.
    """
    _require_own_names(paths, output)
    notebooks = [(path, _read(path)) for path in paths]
    require_writable(output)
    for folder in dict.fromkeys(path.parent for path in paths):
        _copy_glossary(folder, output)
    failures = 0
    for path, notebook in notebooks:
        start = time.perf_counter()
        try:
            problem = _execute(path, notebook)
        except KeyboardInterrupt:
            print(f"{path.name}: interrupted; {_keep_part(path, notebook, output)}, finished notebooks in {output}")
            return 130
        verdict = problem or f"done in {time.perf_counter() - start:.0f} s"
        try:
            print(f"{path.name}: {verdict}; see {_write(path, notebook, output)}")
        except OSError as error:
            problem = f"{path.name}: {verdict}; but {error.filename} cannot be written: {error.strerror}"
            print(problem)
        failures += problem is not None
    return 1 if failures else 0


def _copy_glossary(folder: Path, output: Path) -> None:
    """Write the glossary that lies beside notebooks, if there is one, and its page."""
    glossary = folder / GLOSSARY
    if not glossary.is_file():
        return
    try:
        text = glossary.read_text(encoding="utf-8")
        page = _html(new_notebook(cells=[new_markdown_cell(text)]), glossary.stem)
        replace(output / GLOSSARY, text.encode())
        replace((output / GLOSSARY).with_suffix(".html"), page.encode())
    except (OSError, UnicodeError) as error:
        raise CannotRun(f"{glossary} cannot be copied to {output}: {error}") from None


def _keep_part(path: Path, notebook: nbformat.NotebookNode, output: Path) -> str:
    """Write what an interrupted notebook has so far, beside an earlier result of it; say where."""
    part = output / f"{path.stem}.interrupted.ipynb"
    try:
        replace(part, _encoded(notebook))
    except OSError as error:
        return f"its finished cells cannot be written to {part}: {error.strerror}"
    return f"its finished cells are in {part}"


def _require_own_names(paths: list[Path], output: Path) -> None:
    """Refuse what would overwrite one result, or a notebook itself, with another."""
    for path in paths:
        if not path.is_file():
            raise CannotRun(f"there is no file {path}")
        if path.suffix != ".ipynb":
            raise CannotRun(f"{path} is not a notebook: its name does not end in .ipynb")
        if path.resolve().parent == output.resolve():
            raise CannotRun(f"{path} lies in the output folder, where it would be overwritten; choose another --output")
    names = [path.name for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise CannotRun(f"two notebooks are named {twice}; run them one at a time, with an --output each")


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what older notebooks lack
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # nbformat raises what it happens to meet in a file that is no notebook
        reason = str(error).partition("\n")[0]
        raise CannotRun(f"{path} cannot be read as a notebook: {type(error).__name__}: {reason}") from None
    return notebook


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
                return f"cell [{_executed(cells)}] failed: {error.ename}: {strip_ansi(error.evalue)}"
            except RuntimeError as error:  # nbclient's DeadKernelError, and what it raises if a kernel never starts
                stderr.seek(0)
                last = [line for line in stderr.read().splitlines() if line and "WARNING" not in line][-1:]
                return f"the notebook's kernel ended after cell [{_executed(cells)}]: {' '.join([str(error), *last])}"
    return None


def _execute_unless_interrupted(client: NotebookClient, stderr: IO[str]) -> None:
    """Execute in another thread: in the main one, nbclient takes Ctrl-C for itself, and the run ends in a traceback."""
    with ThreadPoolExecutor(1) as pool:
        execution = pool.submit(lambda: asyncio.run(client.async_execute(stderr=stderr)))
        try:
            execution.result()
        except KeyboardInterrupt:
            while not execution.done():  # nbclient cleans up when its kernel is gone, be it just starting
                _kill_kernel(client)
                wait([execution], timeout=0.1)
            raise


def _kill_kernel(client: NotebookClient) -> None:
    process = getattr(getattr(client.km, "provisioner", None), "process", None)
    if process is not None and client.kc is not None:
        process.kill()


def _executed(cells: list[nbformat.NotebookNode]) -> int:
    return sum(cell.execution_count is not None for cell in cells)


def _write(path: Path, notebook: nbformat.NotebookNode, output: Path) -> Path:
    """Write the executed copy and its page; return the page's path."""
    page = output / f"{path.stem}.html"
    replace(output / path.name, _encoded(notebook))
    replace(page, _html(notebook, path.stem).encode())
    return page


def _encoded(notebook: nbformat.NotebookNode) -> bytes:
    return f"{nbformat.writes(notebook)}\n".encode()


def _html(notebook: nbformat.NotebookNode, title: str) -> str:
    """Return the notebook as a page, with the figures' alternative texts, which nbconvert's template leaves out."""
    exporter = HTMLExporter()
    exporter.log.setLevel(logging.ERROR)  # it warns of the missing texts
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    page = page.replace("</head>", _KERNEL_STYLE + "</head>", 1)
    page = _LINK.sub(r'href="\1.html\2"', page)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                text = output.metadata.get("image/png", {}).get("alt", "a figure")
                page = page.replace(_NO_TEXT, f'alt="{html.escape(text)}"', 1)
    return page
