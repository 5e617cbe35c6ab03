"""The ``fa-numba`` command."""

import argparse
import os
import sys
from pathlib import Path

from fa_numba import __version__, device, trace_report
from fa_numba.folder import CannotRun


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every letter of a message
    options = _parser().parse_args(arguments)
    try:
        status = options.action(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except CannotRun as problem:
        print(f"fa-numba {options.command}: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fa-numba: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read what we print has left; let Python's last flush go nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fa-numba", description="FlashAttention, step by step, in Numba CUDA.")
    parser.add_argument("--version", action="version", version=f"fa_numba {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")

    about = "say what this machine has: device, versions, limits, and whether a kernel runs"
    doctor = commands.add_parser("doctor", help=about, description=f"fa-numba doctor: {about}.")
    doctor.set_defaults(action=_doctor)

    about = "compare flash attention and its gradients with float64, and with the article's errors"
    check = commands.add_parser("check", help=about, description=f"fa-numba check: {about}.")
    check.set_defaults(action=_check)

    about = "write the peak memory of standard and flash attention against the length: a table, CSV and a figure"
    memory = commands.add_parser("memory", help=about, description=f"fa-numba memory: {about}.")
    _add_output(memory)
    memory.set_defaults(action=_memory)

    about = "count what a step's kernels do to memory, on the simulator, and look for races"
    trace = commands.add_parser("trace", help=about, description=f"fa-numba trace: {about}.")
    trace.add_argument("step", metavar="STEP", choices=trace_report.STEPS, help=", ".join(trace_report.STEPS))
    trace.add_argument(
        "--n",
        type=int,
        default=64,
        help="rows of a softmax, or queries and keys (default: 64); twice as many of these take four times as long",
    )
    trace.add_argument("--d", type=int, default=16, help="length of a row, or head dim (default: 16)")
    trace.add_argument("--causal", action="store_true", help="mask the keys after a query (attention)")
    about = "compute capability of the GPU whose occupancy is told (default: 9.0)"
    trace.add_argument("--capability", default="9.0", help=about)
    trace.set_defaults(action=_trace)

    about = "execute the notebooks in order; write executed copies and HTML to a folder"
    run = commands.add_parser("run", help=about, description=f"fa-numba run: {about}.")
    run.add_argument(
        "notebooks",
        nargs="*",
        type=Path,
        help="notebooks to execute (default: the series, in a clone of the repository)",
    )
    _add_output(run)
    run.set_defaults(action=_run)

    about = "measure every step on this machine's GPU, beside PyTorch's own if it is installed"
    bench = commands.add_parser(
        "bench",
        help=about,
        description=f"fa-numba bench: {about}. Prints tables and writes a JSON file, which notebooks can plot. "
        f"Every result is checked before it is timed. It takes a few minutes.",
    )
    bench.add_argument("--quick", action="store_true", help="a few cases only: under a minute on a big GPU")
    default = Path("build", "bench.json")
    bench.add_argument("--output", type=Path, default=default, help=f"the file to write (default: {default})")
    bench.set_defaults(action=_bench)
    return parser


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output", type=Path, default=Path("build"), help="the folder to write to (default: build)")


def _doctor(options: argparse.Namespace) -> int:
    from fa_numba import doctor

    return 0 if doctor.report() else 1


def _check(options: argparse.Namespace) -> int:
    from fa_numba import accuracy

    print(f"Running on {_where()}.")
    n, d = accuracy.SIZE
    print(f"Largest absolute error against float64, at N = {n}, d = {d}, inputs uniform in [-1, 1], dO = 1:\n")
    try:
        rows = accuracy.rows(n, d)
    except Exception as problem:  # whatever the driver, the compiler or the simulator say, the reader must see it
        print(f"FAILED: {type(problem).__name__}: {problem}")
        return 1
    print(accuracy.table(rows))
    if (n, d) != accuracy.ARTICLE_SIZE:
        article_n, article_d = accuracy.ARTICLE_SIZE
        print(
            f"\nThe article's errors are of N = {article_n}, d = {article_d}, on a GPU: do not compare them with these."
        )
    return 0 if all(row.fault is None for row in rows) else 1


def _memory(options: argparse.Namespace) -> int:
    print(f"Running on {_where()}.")
    from fa_numba import memory_report  # Matplotlib takes a while to import

    memory_report.write(options.output)
    return 0


def _trace(options: argparse.Namespace) -> int:
    return trace_report.report(options.step, options.n, options.d, causal=options.causal, capability=options.capability)


def _where() -> str:
    """Name the device; raise CannotRun if there is none, or if limits are asked for that are not known."""
    try:
        name = device.describe()
        device.device_limits()
    except (RuntimeError, ValueError) as problem:
        raise CannotRun(str(problem)) from None
    return name


def _run(options: argparse.Namespace) -> int:
    from fa_numba import runner  # Jupyter's packages take a while to import

    return runner.run(options.notebooks or runner.find_notebooks(), options.output)


def _bench(options: argparse.Namespace) -> int:
    from fa_numba import bench

    return bench.run(options.output, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
