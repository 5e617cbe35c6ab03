"""The command: what it prints, what it writes, and how it ends."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from conftest import ROOT, is_bundled, run_python, simulator_only
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fa_numba import __version__, compiler, device, flash_forward, trace_report
from fa_numba.__main__ import main


@pytest.fixture
def write_notebook(tmp_path):
    def write(name, *sources):
        cells = [new_markdown_cell("# Title"), *(new_code_cell(source) for source in sources)]
        nbformat.write(new_notebook(cells=cells), tmp_path / name)
        return str(tmp_path / name)

    return write


def outputs(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return ["".join(output.get("text", output.get("ename", "")) for output in cell.outputs) for cell in cells]


def test_run_writes_executed_copies_and_pages(write_notebook, tmp_path, capfd):
    first = write_notebook("one.ipynb", "x = 1", "print(x + 1)")
    second = write_notebook("two.ipynb", "import os; print(os.path.basename(os.getcwd()))", "print('x' in dir())")
    before = (tmp_path / "one.ipynb").read_bytes()
    assert main(["run", first, second, "--output", str(tmp_path / "out" / "deep")]) == 0
    out = tmp_path / "out" / "deep"
    assert sorted(path.name for path in out.iterdir()) == ["one.html", "one.ipynb", "two.html", "two.ipynb"]
    assert outputs(out / "one.ipynb") == ["", "2\n"]
    assert outputs(out / "two.ipynb") == [f"{tmp_path.name}\n", "False\n"]  # in its own folder, on a fresh kernel
    assert "print" in (out / "one.html").read_text()
    assert (tmp_path / "one.ipynb").read_bytes() == before
    printed = capfd.readouterr()
    assert [line.partition(": ")[0] for line in printed.out.splitlines()] == ["one.ipynb", "two.ipynb"]
    assert printed.err == ""


def test_run_says_which_cell_failed_and_goes_on(write_notebook, tmp_path, capfd):
    bad = write_notebook("bad.ipynb", "print('before')", "1 / 0", "print('after')")
    good = write_notebook("good.ipynb", "print(1)")
    assert main(["run", bad, good, "--output", str(tmp_path / "out")]) == 1
    printed = capfd.readouterr()
    assert "bad.ipynb: cell [2] failed: ZeroDivisionError: division by zero" in printed.out
    assert "good.ipynb: done" in printed.out
    assert "Traceback" not in printed.err
    assert outputs(tmp_path / "out" / "bad.ipynb") == ["before\n", "ZeroDivisionError", ""]
    assert (tmp_path / "out" / "bad.html").exists()


def test_run_says_that_a_kernel_died(write_notebook, tmp_path, capfd):
    path = write_notebook("dead.ipynb", "print('before')", "import os; os._exit(3)")
    assert main(["run", path, "--output", str(tmp_path / "out")]) == 1
    assert "dead.ipynb: the notebook's kernel ended" in capfd.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"cells": 3}'])
def test_run_says_that_a_notebook_cannot_be_read(tmp_path, capfd, content):
    path = tmp_path / "no.ipynb"
    path.write_text(content)
    assert main(["run", str(path), "--output", str(tmp_path / "out")]) == 2
    assert f"fa-numba run: {path} cannot be read as a notebook" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_run_says_that_the_folder_cannot_be_written(write_notebook, tmp_path, capfd):
    path = write_notebook("one.ipynb", "print(1)")
    (tmp_path / "file").write_text("kept")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["run", path, "--output", str(folder)]) == 2
        assert f"fa-numba run: the output folder {folder} cannot be written" in capfd.readouterr().err
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_run_says_that_the_folder_is_read_only(write_notebook, tmp_path, capfd):
    path = write_notebook("one.ipynb", "print(1)")
    folder = tmp_path / "out"
    folder.mkdir(mode=0o500)
    assert main(["run", path, "--output", str(folder)]) == 2
    assert "cannot be written: Permission denied" in capfd.readouterr().err


def test_run_overwrites_nothing(write_notebook, tmp_path, capfd):
    path = write_notebook("one.ipynb", "print(1)")
    before = (tmp_path / "one.ipynb").read_bytes()
    assert main(["run", path, "--output", str(tmp_path)]) == 2
    assert "lies in the output folder, where it would be overwritten" in capfd.readouterr().err
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "one.ipynb").write_bytes(before)
    assert main(["run", path, str(tmp_path / "two" / "one.ipynb"), "--output", str(tmp_path / "out")]) == 2
    assert "two notebooks are named one.ipynb" in capfd.readouterr().err
    (tmp_path / "page.html").write_text("")
    assert main(["run", str(tmp_path / "nosuch.ipynb"), "--output", str(tmp_path / "out")]) == 2
    assert f"there is no file {tmp_path / 'nosuch.ipynb'}" in capfd.readouterr().err
    assert main(["run", str(tmp_path / "page.html"), "--output", str(tmp_path / "out")]) == 2
    assert "is not a notebook: its name does not end in .ipynb" in capfd.readouterr().err
    assert (tmp_path / "one.ipynb").read_bytes() == before
    assert not (tmp_path / "out").exists()


def test_run_goes_on_when_a_result_cannot_be_written(write_notebook, tmp_path, capfd):
    first, second = write_notebook("one.ipynb", "print(1)"), write_notebook("two.ipynb", "print(2)")
    (tmp_path / "out" / "one.html").mkdir(parents=True)
    assert main(["run", first, second, "--output", str(tmp_path / "out")]) == 1
    printed = capfd.readouterr()
    assert "one.ipynb: done in" in printed.out and "cannot be written" in printed.out
    assert "two.ipynb: done in" in printed.out
    assert "Traceback" not in printed.err
    assert not list((tmp_path / "out").glob("*.part"))


def test_run_leaves_the_glossary_beside_the_pages_that_link_to_it(tmp_path):
    text = "[a warp](glossary.md#warp), [02](two.ipynb), [the code](../README.md), [a page](https://example.org/x.md#y)"
    nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), tmp_path / "one.ipynb")
    (tmp_path / "glossary.md").write_text("# Words\n\n### shared memory\n\nIn [01](one.ipynb).\n")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "one.ipynb"), "--output", str(out)]) == 0
    assert (out / "glossary.md").read_bytes() == (tmp_path / "glossary.md").read_bytes()
    links = set(re.findall(r'<a [^>]*href="([^"]+)"', (out / "one.html").read_text()))
    assert links == {"glossary.html#warp", "two.html", "../README.md", "https://example.org/x.md#y"}
    page = (out / "glossary.html").read_text()
    assert 'id="shared-memory"' in page and 'href="one.html"' in page


def test_run_refuses_a_glossary_that_is_no_text(write_notebook, tmp_path, capfd):
    (tmp_path / "glossary.md").write_bytes(b"\xff\xfe")
    assert main(["run", write_notebook("one.ipynb", "print(1)"), "--output", str(tmp_path / "out")]) == 2
    assert "glossary.md cannot be copied" in capfd.readouterr().err
    assert not (tmp_path / "out" / "one.ipynb").exists()


def test_run_puts_the_alternative_text_on_the_page(write_notebook, tmp_path):
    source = "from fa_numba import plots\nplots.show(plots.exp_overflow(), 'it <ends>')"
    assert main(["run", write_notebook("one.ipynb", source), "--output", str(tmp_path / "out")]) == 0
    assert 'alt="it &lt;ends&gt;"' in (tmp_path / "out" / "one.html").read_text()


def test_run_without_notebooks(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("fa_numba.runner.NOTEBOOKS", tmp_path)
    assert main(["run", "--output", str(tmp_path / "out")]) == 2
    assert f"there are no notebooks in {tmp_path}" in capfd.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupted_run_loses_nothing(write_notebook, tmp_path):
    first = write_notebook("one.ipynb", "print(1)")
    second = write_notebook("two.ipynb", "print('before')", "import time; open('started', 'w'); time.sleep(60)")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fa_numba", "run", first, second, "--output", str(out)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "two.ipynb: interrupted; its finished cells are in" in stdout
    assert "Traceback" not in stderr
    assert outputs(out / "one.ipynb") == ["1\n"]
    assert outputs(out / "two.interrupted.ipynb")[0] == "before\n"
    assert not (out / "two.ipynb").exists()


@simulator_only
def test_doctor(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"fa_numba   {__version__}, Python {sys.version.split()[0]}" in printed
    assert "device     the simulator, on numba" in printed
    assert "limits     1024 threads and 166912 bytes of shared memory in a block" in printed
    assert printed.endswith("kernel     naive_softmax ran, and its result is right\n")


@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_doctor_without_the_gpu_that_was_asked_for():
    source = "from fa_numba.__main__ import main; raise SystemExit(main(['doctor']))"
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 1
    assert "device     none: " in finished.stdout
    assert "kernel     FAILED: RuntimeError: FA_NUMBA_DEVICE=gpu asks for the GPU" in finished.stdout
    assert finished.stderr == ""


def test_doctor_sees_a_wrong_kernel(monkeypatch, capsys):
    monkeypatch.setattr("fa_numba.doctor.naive_softmax", lambda x: x)
    assert main(["doctor"]) == 1
    assert "FAILED: naive_softmax is off by" in capsys.readouterr().out


@simulator_only
def test_doctor_with_limits_that_are_not_known(monkeypatch, capsys):
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "1")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "limits     none: compute capability '1' is not known" in printed
    assert "FAILED: ValueError: compute capability '1' is not known" in printed


def test_check(capsys):
    assert main(["check"]) == 0
    where, what, _, _, *rows = capsys.readouterr().out.splitlines()
    assert where == f"Running on {device.describe()}."
    n, d = (48, 16) if device.SIMULATED else (256, 64)
    assert f"at N = {n}, d = {d}," in what
    assert [row.split()[0] for row in rows[:4]] == ["O", "dV", "dQ", "dK"]
    assert all(row.endswith("  PASSED") for row in rows[:4])
    note = ["", "The article's errors are of N = 256, d = 64, on a GPU: do not compare them with these."]
    assert rows[4:] == (note if device.SIMULATED else [])


def test_check_fails_when_a_kernel_is_wrong(monkeypatch, capsys):
    def slightly_wrong(q, k, v):
        o, m, l = flash_forward(q, k, v)
        o[0, 0] += 1e-5
        return o, m, l

    monkeypatch.setattr("fa_numba.accuracy.SIZE", (16, 8))
    monkeypatch.setattr("fa_numba.accuracy.flash_forward", slightly_wrong)
    assert main(["check"]) == 1
    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines() if row.startswith(("O", "d"))}
    assert rows["O"].endswith("  FAILED: above what is allowed")
    assert rows["dV"].endswith("  PASSED")  # made of p and do, not of o


def test_check_fails_when_a_kernel_raises(monkeypatch, capsys):
    def broken(*arguments):
        raise IndexError("outside s")

    monkeypatch.setattr("fa_numba.accuracy.SIZE", (16, 8))
    monkeypatch.setattr("fa_numba.accuracy.flash_backward", broken)
    assert main(["check"]) == 1
    assert capsys.readouterr().out.endswith("FAILED: IndexError: outside s\n")


@pytest.fixture
def short_memory(monkeypatch):
    """One short length of narrow heads."""
    monkeypatch.setattr("fa_numba.memory_report.LENGTHS", [16])
    monkeypatch.setattr("fa_numba.memory_report.D", 8)


def test_memory_prints_a_table_and_writes_it_with_a_figure(short_memory, tmp_path, capsys):
    out = tmp_path / "out" / "deep"
    assert main(["memory", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Running on {device.describe()}.\n")
    assert "one head of N queries and keys, d = 8, float32" in printed
    # q, k, v, o and, at the forward's peak, s and p; or p, dp and ds, with do, dq, dk and dv
    standard = [(4 * 16 * 8 + 2 * 16 * 16) * 4, (8 * 16 * 8 + 3 * 16 * 16) * 4]
    flash = [(4 * 16 * 8 + 2 * 16) * 4, (8 * 16 * 8 + 3 * 16) * 4]
    assert (out / "memory.csv").read_bytes().decode().splitlines() == [
        "method,passes,n,d,bytes,how",
        f"standard,forward,16,8,{standard[0]},counted",
        f"standard,forward+backward,16,8,{standard[1]},counted",
        f"flash,forward,16,8,{flash[0]},counted",
        f"flash,forward+backward,16,8,{flash[1]},counted",
    ]
    (row,) = (line.split() for line in printed.splitlines() if line.strip().startswith("16 "))
    assert row == ["16", "4.1", "kB", "7.17", "kB", "counted", "2.18", "kB", "4.29", "kB", "counted"]
    assert (out / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert printed.endswith(f"Wrote {out / 'memory.csv'}\nWrote {out / 'memory.png'}\n")
    assert sorted(path.name for path in out.iterdir()) == ["memory.csv", "memory.png"]


def test_memory_says_that_the_folder_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fa_numba.memory_report.peaks", lambda: pytest.fail("counted before it looked"))
    (tmp_path / "file").write_text("kept")
    assert main(["memory", "--output", str(tmp_path / "file")]) == 2
    message = f"fa-numba memory: the output folder {tmp_path / 'file'} cannot be written: "
    assert capsys.readouterr().err.startswith(message)
    assert (tmp_path / "file").read_text() == "kept"


def test_memory_says_that_a_file_cannot_be_written(short_memory, tmp_path, capsys):
    (tmp_path / "memory.png").mkdir()
    assert main(["memory", "--output", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert f"Wrote {tmp_path / 'memory.csv'}" in printed.out
    assert printed.err.startswith(f"fa-numba memory: {tmp_path / 'memory.png'} cannot be written: ")
    assert len(printed.err.splitlines()) == 1


@simulator_only
@pytest.mark.parametrize("step", trace_report.STEPS)
def test_trace_prints_the_report_of_a_step(step, capsys, monkeypatch):
    monkeypatch.setattr(compiler, "registers", lambda form, capability: {"7.5": 40}[capability])
    assert main(["trace", step, "--n", "8", "--d", "8", "--capability", "7.5"]) == 0
    printed = capsys.readouterr().out
    assert "bytes of global memory requested" in printed
    assert "floating-point operations, " in printed
    assert "\nOccupancy on compute capability 7.5:\n" in printed and "_kernel: 40 registers a thread, " in printed
    assert printed.endswith(
        "\nNo race: where two threads meet in an element and one of them writes, something orders them.\n"
    )


@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_trace_runs_on_the_simulator_whatever_the_device():
    source = "from fa_numba.__main__ import main; raise SystemExit(main(['trace', 'naive_softmax']))"
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("naive_softmax_kernel: 1 blocks of 256 threads")


@simulator_only
@pytest.mark.parametrize(
    "options",
    [
        ["flash_forward", "--n", "0"],
        ["flash_forward", "--d", "300"],
        ["naive_softmax", "--causal"],
        ["naive_softmax", "--capability", "1.0"],
    ],
)
def test_trace_refuses_in_one_line(options, capsys):
    assert main(["trace", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fa-numba trace: ")


@pytest.mark.parametrize("command", ["check", "memory"])
@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_commands_that_need_the_gpu_that_was_asked_for(command):
    source = f"from fa_numba.__main__ import main; raise SystemExit(main(['{command}']))"
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 2
    assert finished.stdout == ""
    message = f"fa-numba {command}: FA_NUMBA_DEVICE=gpu asks for the GPU, but no GPU can be used here: "
    assert finished.stderr.startswith(message)
    assert len(finished.stderr.splitlines()) == 1


@simulator_only
@pytest.mark.parametrize("command", ["check", "memory"])
def test_commands_with_limits_that_are_not_known(monkeypatch, capsys, command):
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "1")
    assert main([command]) == 2
    assert capsys.readouterr().err.startswith(f"fa-numba {command}: compute capability '1' is not known")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["doctor", "--help"],
        ["check", "--help"],
        ["memory", "--help"],
        ["run", "--help"],
        ["bench", "--help"],
        ["trace", "--help"],
    ],
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: fa-numba" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--fast"], ["bench", "build"], ["trace", "fly"]])
def test_unknown_words(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: fa-numba" in capsys.readouterr().err


def through_the_door(*arguments, **environment):
    """Run the command as the installed script does."""
    source = f"import sys, fa_numba_command; sys.argv[1:] = {arguments}; sys.exit(fa_numba_command.main())"
    return run_python(source, **environment)


@pytest.mark.parametrize(
    ("variable", "value", "can_be"),
    [("FA_NUMBA_DEVICE", "tpu", "'gpu' or 'simulator'"), ("NUMBA_ENABLE_CUDASIM", "yes", "'0' or '1'")],
)
def test_a_device_that_is_none_is_told_in_one_line(variable, value, can_be):
    finished = through_the_door("doctor", **{"FA_NUMBA_DEVICE": None, variable: value})
    assert finished.returncode == 2
    assert finished.stdout == ""
    message = f"fa-numba: {variable} is {value!r}; it can be {can_be}, or unset to choose by itself\n"
    assert finished.stderr == message


def test_the_installed_command_takes_arguments_and_returns_a_status(tmp_path):
    assert through_the_door("--version").stdout == f"fa_numba {__version__}\n"
    (tmp_path / "file").touch()
    finished = through_the_door("memory", "--output", str(tmp_path / "file"), FA_NUMBA_DEVICE="simulator")
    assert finished.returncode == 2
    assert finished.stderr.startswith("fa-numba memory: the output folder ")


@pytest.mark.skipif(sys.platform == "win32", reason="about pipes of POSIX shells")
def test_a_reader_who_leaves_early_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m fa_numba doctor | true"
    finished = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert (finished.returncode, finished.stderr) == (0, "")
