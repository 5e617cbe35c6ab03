"""Compile kernels without a GPU and read what the compiler says.

It needs a process of its own: Numba compiles only where its simulator is off.
"""

import itertools
import os
import re
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from unittest import mock

ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@dataclass
class Report:
    """What NVVM and ptxas made of one kernel for one architecture."""

    form: str
    architecture: str
    float64: list[str]  # instructions that compute in float64
    local: list[str]  # PTX lines that use local memory
    stack: int  # bytes a thread keeps in memory, spills among them
    spilled: int
    shared: int  # bytes of static shared memory a block
    registers: int


def nvvm_version() -> tuple[int, ...]:
    """Return the version of the NVVM that Numba compiles with; (99,) if only its library is there."""
    try:
        return tuple(int(part) for part in metadata.version("nvidia-nvvm").split(".")[:2])
    except metadata.PackageNotFoundError:
        nvcc = shutil.which("nvcc")
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
        found = re.search(r"release (\d+)\.(\d+)", told)
        return tuple(map(int, found.groups())) if found else (99,)


def forms():
    """Yield (name, kernel, argument types) for every kernel of the package, and the architectures if not all."""
    from numba import float32, float64, types

    from fa_numba import step3_standard_attention, step4_flash_forward, step5_flash_backward
    from fa_numba.arrays import copy_kernel, log_sum_exp_kernel, zero_kernel
    from fa_numba.step1_naive_softmax import naive_softmax_kernel
    from fa_numba.step2_online_softmax import make_block_softmax, make_online_softmax, make_register_softmax
    from fa_numba.step4_flash_forward.split_keys import merge_splits_kernel
    from fa_numba.stopwatch import busy_kernel
    from fa_numba.walk import flash_row_kernel, softmax_steps_kernel

    vector = types.Array(float32, 1, "C")
    yield "busy_kernel float32", busy_kernel, (vector, vector, types.int64)
    for dtype in (float32, float64):
        vector, matrix, heads = (types.Array(dtype, axes, "C") for axes in (1, 2, 3))
        yield f"naive_softmax_kernel {dtype}", naive_softmax_kernel, (matrix, matrix)
        for make_kernel in (make_block_softmax, make_online_softmax):
            for threads, width in ((32, 1), (64, 4), (256, 4)) if dtype is float32 else ((64, 1),):
                kernel = make_kernel(threads, width, dtype)
                yield f"{kernel.py_func.__name__} {threads} {width} {dtype}", kernel, (matrix, matrix)
        for form in _register_tiles(dtype, float32):
            text = "threads={} rows={} groups={} width={} {}".format(*form)
            yield f"register_softmax_kernel {text}", make_register_softmax(*form), (matrix, matrix)
        yield f"softmax_steps_kernel {dtype}", softmax_steps_kernel, (vector, types.int64, matrix)
        yield f"copy_kernel {dtype}", copy_kernel, (types.Array(dtype, 3, "A"), vector)
        yield f"log_sum_exp_kernel {dtype}", log_sum_exp_kernel, (vector, vector, vector)
        yield f"zero_kernel {dtype}", zero_kernel, (vector,)
        scalars = (types.boolean, types.int64)
        yield f"row_softmax_kernel {dtype}", step3_standard_attention.row_softmax_kernel, (heads, heads, *scalars)
        yield f"row_gradient_kernel {dtype}", step3_standard_attention.row_gradient_kernel, (*[heads] * 3, *scalars)
        for transposed in ((False, True, 0), (False, False, 1), (True, False, -1)):
            matmul = step3_standard_attention.make_matmul(*transposed, 64, dtype)
            numbers = (dtype, *[types.int64] * 4)
            yield f"matmul_kernel {transposed} {dtype}", matmul, (heads, heads, heads, *numbers)
        if dtype is float32:
            for transposed in ((False, True, 1), (False, False, 1), (True, False, -1)):
                for tile in ((128, 64, True), (128, 64, False))[: 2 if transposed[0] else 1]:
                    matmul = step3_standard_attention.make_wide_matmul(*transposed, *tile)
                    numbers = (dtype, *[types.int64] * 5)
                    yield f"wide_matmul_kernel {transposed} {tile} {dtype}", matmul, (heads, heads, heads, *numbers)
        yield f"delta_kernel {dtype}", step5_flash_backward.delta_kernel, (heads, heads, matrix)
        walked = (*[matrix] * 3, types.int64, types.int64, dtype, matrix, vector, vector, matrix, vector, matrix)
        yield f"flash_row_kernel {dtype}", flash_row_kernel, walked
        rows = (heads, heads, heads, heads, matrix, matrix)
        numbers = (dtype, types.int64, types.int64)
        for form in _tiles(dtype, float32):
            text = "block_q={} block_k={} d={} d_v={} causal={} {}".format(*form)
            forward = step4_flash_forward.make_flash_forward(*form)
            yield f"flash_forward_kernel {text}", forward, (*rows, *numbers)
            dk_dv = step5_flash_backward.make_flash_backward_dk_dv(*form)
            yield f"flash_backward_dk_dv_kernel {text}", dk_dv, (*rows, matrix, heads, heads, *numbers)
            dq = step5_flash_backward.make_flash_backward_dq(*form)
            yield f"flash_backward_dq_kernel {text}", dq, (*rows, matrix, heads, *numbers)
        if dtype is float32:
            yield f"merge_splits_kernel {dtype}", merge_splits_kernel, (heads, matrix, matrix, heads, matrix, matrix)
            yield from _forms_of_one_thread_a_row(rows, numbers)
            yield from _forms_of_few_queries((*rows, *numbers, types.int64))
            yield from _wide_forms_of_the_forward((*rows, *numbers, types.int64))
            turns = types.Array(types.int32, 1, "C")
            yield from _wide_forms_of_the_backward((*rows, matrix, heads, heads, heads, turns, *numbers, types.int64))


def _register_tiles(dtype, float32):
    """Yield the widest forms of softmax with a row in registers: threads, rows, groups, width, dtype."""
    yield 32, 4, 16, 1, dtype
    yield 1024, 1, 16, 1, dtype
    if dtype is float32:
        yield 32, 4, 8, 4, dtype
        yield 256, 1, 4, 4, dtype
        yield 1024, 1, 8, 4, dtype


def _tiles(dtype, float32):
    """Yield the forms of the flash kernels that must not spill: block_q, block_k, d, d_v, causal, dtype."""
    if dtype is float32:
        for d in (64, 128):
            for causal in (False, True):
                yield 64, 64, d, d, causal, dtype
    else:
        yield 16, 16, 16, 16, True, dtype


def _forms_of_one_thread_a_row(rows, numbers):
    from fa_numba.step4_flash_forward.one_thread_a_row import WIDEST, make_flash_forward_rows

    kernel = make_flash_forward_rows(WIDEST, WIDEST, True, numbers[0])
    yield f"flash_forward_rows_kernel d={WIDEST} causal=True float32", kernel, (*rows, *numbers)


def _forms_of_few_queries(arguments):
    from fa_numba.step4_flash_forward.few_queries import make_few_queries

    for lanes in (16, 32):
        kernel = make_few_queries(lanes, True)
        yield f"few_queries_kernel lanes={lanes} causal=True float32", kernel, arguments


def _wide_forms_of_the_forward(arguments):
    """Each tile for the architectures that choose it; causal, which has all the code that there is without a mask."""
    from fa_numba.step4_flash_forward.wide_tiles import choose_tile, make_wide_flash_forward

    for d, tile, asynchronous, architectures in _chosen_tiles(choose_tile):
        kernel = make_wide_flash_forward(tile, d, d, True, asynchronous)
        yield f"wide_flash_forward_kernel {tuple(tile)} d={d} causal=True float32", kernel, arguments, architectures


def _wide_forms_of_the_backward(arguments):
    from fa_numba.step5_flash_backward.wide_tiles import choose_tile, make_wide_flash_backward

    for d, tile, asynchronous, architectures in _chosen_tiles(choose_tile):
        kernel = make_wide_flash_backward(tile, d, d, True, asynchronous)
        yield f"wide_flash_backward_kernel {tuple(tile)} d={d} causal=True float32", kernel, arguments, architectures


def _chosen_tiles(choose_tile):
    """Yield head dims, tiles, whether copies are asynchronous, and the architectures that choose them.

    All architectures for d = 64, those of much memory for 128.
    """
    from fa_numba import device, limits, problem

    for d, of_interest in ((64, ARCHITECTURES), (128, ("9.0", "10.0"))):
        posed = problem.check({"q": (128, d), "k": (128, d), "v": (128, d)}, False, None)
        chosen = {}
        for architecture in of_interest:
            found = limits.of_capability(architecture)
            with mock.patch.object(device, "device_limits", return_value=found):
                chosen.setdefault((choose_tile(posed), found.asynchronous), []).append(architecture)
        for (tile, asynchronous), architectures in chosen.items():
            yield d, tile, asynchronous, architectures


def compile_form(name, kernel, arguments, architectures=ARCHITECTURES) -> list[Report]:
    """Compile one kernel for some architectures, and read its PTX."""
    from fa_numba.compiler import compile_kernel

    reports = []
    for architecture, made in zip(architectures, compile_kernel(kernel, arguments, architectures)):
        told = made.stack, made.spilled, made.shared, made.registers
        reports.append(Report(name, architecture, *_read_ptx(made.ptx), *told))
    return reports


def _read_ptx(ptx):
    instructions = re.findall(r"^\s+(?:@!?%\w+ )?([a-z][\w.]*)\s", ptx, re.MULTILINE)
    float64 = sorted({each for each in instructions if ".f64" in each and not each.startswith("ld.param")})
    local = [line.strip() for line in ptx.splitlines() if re.search(r"\.local\b", line)]
    return float64, local


def report() -> list[dict]:
    """Compile every form for every architecture, in several processes."""
    shares = os.cpu_count()
    with ProcessPoolExecutor(shares) as pool:
        return [each for reports in pool.map(_share_of_reports, range(shares), [shares] * shares) for each in reports]


def _share_of_reports(first: int, shares: int) -> list[dict]:
    share = itertools.islice(forms(), first, None, shares)
    return [asdict(each) for form in share for each in compile_form(*form)]
