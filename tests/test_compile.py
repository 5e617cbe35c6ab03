"""The compiler as a test: every kernel for every architecture, without a GPU (NVVM to PTX, then ptxas)."""

import json
import sys
from itertools import product

import compiler
import pytest
from conftest import is_bundled, run_python

from fa_numba import limits
from fa_numba.compiler import ptxas_path

pytestmark = [
    pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA has no compiler for macOS"),
    pytest.mark.skipif(is_bundled(), reason="needs numba-cuda"),
]


@pytest.fixture(scope="module")
def reports():
    assert ptxas_path(), "ptxas is missing: pip install nvidia-cuda-nvcc"
    source = "import compiler, json; print(json.dumps(compiler.report()))"
    finished = run_python(source, timeout=1200, FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM=None)
    assert finished.returncode == 0, finished.stderr
    return [compiler.Report(**each) for each in json.loads(finished.stdout)]


def test_every_form_was_compiled_for_every_architecture(reports):
    forms = {report.form for report in reports}
    # The plain kernels in float32, those of large products, and in float64, walks among them; five forms of the flash
    # kernels; the one that keeps a GPU busy; one thread a row, few queries and the merge of splits; wide tiles.
    assert len(forms) == 23 + 4 + 16 + 5 * 3 + 1 + 1 + 2 + 1 + 4 + 3
    everywhere = {form for form in forms if not form.startswith("wide_flash")}
    compiled = {(report.form, report.architecture) for report in reports}
    assert {pair for pair in compiled if pair[0] in everywhere} == set(product(everywhere, compiler.ARCHITECTURES))
    for kernel in ("forward", "backward"):  # each architecture has a tile at d = 64
        start, end = f"wide_flash_{kernel}_kernel", "d=64 causal=True float32"
        chosen = {architecture for form, architecture in compiled if form.startswith(start) and form.endswith(end)}
        assert chosen == set(compiler.ARCHITECTURES)
    assert all(report.registers > 0 for report in reports)


def test_no_kernel_is_forgotten():
    """Every kernel that a module of the package holds is in the list."""
    source = """
import importlib, json, pkgutil
import compiler, fa_numba
def modules_of(package):
    for m in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if m.name.rpartition(".")[2] not in ("__main__", "simulator", "torch"):
            module = importlib.import_module(m.name)
            yield from [module, *(modules_of(module) if m.ispkg else ())]

modules = list(modules_of(fa_numba))
named = {n for m in modules for n, value in vars(m).items() if n.endswith("_kernel") and hasattr(value, "py_func")}
print(json.dumps([sorted(named), sorted({kernel.py_func.__name__ for _, kernel, *_ in compiler.forms()})]))
"""
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM=None)
    assert finished.returncode == 0, finished.stderr
    named, compiled = json.loads(finished.stdout)
    assert named
    assert set(named) <= set(compiled)


def test_float32_kernels_compute_in_float32(reports):
    """CASES C30: a bare 0.0 becomes float64 on a GPU, and no result shows it."""
    assert {report.form: report.float64 for report in reports if "float32" in report.form and report.float64} == {}


def test_float64_kernels_are_told_apart(reports):
    assert all(
        any("f64" in each for each in report.float64)
        for report in reports
        if report.form == "naive_softmax_kernel float64"
    )


def test_no_local_memory_and_no_spills(reports):
    """NVVM 13.0 does not unroll the loops of the widest tiles for Blackwell; later versions do."""
    old = compiler.nvvm_version() < (13, 2)
    judged = [r for r in reports if not (old and "d=128" in r.form and r.architecture in ("10.0", "12.0"))]
    assert {(r.form, r.architecture): r.local for r in judged if r.local or r.stack or r.spilled} == {}


def test_static_shared_memory_fits(reports):
    assert all(report.shared <= limits.STATIC_SHARED for report in reports)


FAULTY = """
import json, sys
import compiler
from dataclasses import asdict
from numba import cuda, float32, float64, int32, types

@cuda.jit
def float64_kernel(x):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i]
    x[0] = total

@cuda.jit
def local_kernel(x):
    own = cuda.local.array(64, float32)
    for i in range(64):
        own[int32(x[i])] = x[i]
    x[0] = own[int32(x[1])]

@cuda.jit
def shared_kernel(x):
    tile = cuda.shared.array(1000, float32)
    tile[cuda.threadIdx.x] = x[0]
    cuda.syncthreads()
    x[0] = tile[31 - cuda.threadIdx.x]

vector = types.Array(float32, 1, "C")
kernels = [float64_kernel, local_kernel, shared_kernel]
json.dump([asdict(compiler.compile_form("", kernel, (vector,), ["8.0"])[0]) for kernel in kernels], sys.stdout)
"""


def test_the_machinery_sees_what_it_looks_for():
    finished = run_python(FAULTY, FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM=None)
    assert finished.returncode == 0, finished.stderr
    float64, local, shared = [compiler.Report(**each) for each in json.loads(finished.stdout)]
    assert any(each.startswith("add") for each in float64.float64)
    assert local.local
    assert local.stack >= 256
    assert shared.shared == 4000


def test_4_wide_accesses_are_one_instruction():
    source = """
import re
from numba import cuda, float32, types
from fa_numba.primitives import load4, store4

@cuda.jit
def copy4_kernel(x, y):
    tile = cuda.shared.array(128, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    store4(tile, t, load4(x, (0, t)))
    cuda.syncthreads()
    store4(y, (0, t), load4(tile, 124 - t))

matrix = types.Array(float32, 2, "C")
ptx, _ = cuda.compile_ptx(copy4_kernel.py_func, types.void(matrix, matrix), cc=(8, 0))
print(*re.findall(r"(?:ld|st)\\.(?:global|shared)\\S*", ptx))
"""
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM=None)
    assert finished.stdout.split() == ["ld.global.v4.f32", "st.shared.v4.f32", "ld.shared.v4.f32", "st.global.v4.f32"]


def test_copies_go_past_the_registers():
    source = """
import re
from numba import cuda, float32, types
from fa_numba.primitives import copy1, copy4, load2, wait_for_copies

@cuda.jit
def copy_kernel(x, y):
    tile = cuda.shared.array(128, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    copy4(tile, t, x, (0, t))
    copy1(tile, 64 + t, x, t)
    wait_for_copies()
    cuda.syncthreads()
    y[0, t] = load2(tile, 64 - t)[1]

matrix = types.Array(float32, 2, "C")
ptx, _ = cuda.compile_ptx(copy_kernel.py_func, types.void(matrix, matrix), cc=(8, 0))
for name, rest in re.findall(r"(cp[.]async[^ ;]*|ld[.](?:shared|global)[^ ;]*|bar[.]sync)(.*)", ptx):
    print(name, rest.strip(" ;").split(" ")[-1])
"""
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", NUMBA_ENABLE_CUDASIM=None)
    told = [line.split() for line in finished.stdout.splitlines()]
    assert told[:2] == [["cp.async.cg.shared.global", "16"], ["cp.async.ca.shared.global", "4"]]
    assert [name for name, *_ in told[2:]] == ["cp.async.wait_all", "bar.sync", "ld.shared.v2.f32"]
