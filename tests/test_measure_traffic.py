"""``docs/measure_traffic.py``: what ncu wrote, read and set beside what the simulator counts."""

import csv
import functools
import importlib.util
import json
import math
import pickle
import sys

import numpy as np
import pytest
from conftest import ROOT, simulator_only

import fa_numba
from fa_numba import recorded
from fa_numba.folder import CannotRun
from fa_numba.occupancy import occupancy


@pytest.fixture
def measure_traffic(monkeypatch):
    spec = importlib.util.spec_from_file_location("measure_traffic", ROOT / "docs" / "measure_traffic.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


RECORDED = ROOT / "notebooks" / "recorded" / "h200_traffic.json"
RECORD = recorded.load(RECORDED)
LAUNCHES = [row for row in RECORD.rows if "counted" in row]
# Where the compiler joins loads of shared memory, or spares some, and where lanes ask for the same number.
FEWER_SHARED_LOADS = {
    *("block_softmax_kernel", "online_softmax_kernel", "row_softmax_kernel", "row_gradient_kernel"),
    *("flash_forward_rows_kernel", "few_queries_kernel", "wide_flash_backward_kernel"),
}
SAME_NUMBERS = {"few_queries_kernel", "flash_backward_dk_dv_kernel", "flash_backward_dq_kernel"}


def normal(*shape):
    return (np.random.default_rng(0).standard_normal(shape, np.float32),)


def write_csv(path, metrics, *launches):
    """Write as ncu does: lines of its own, the head, a row of units, a row for each launch."""
    with path.open("w", newline="") as file:
        file.write("==PROF== Connected to process 12\n")
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow(["ID", "Kernel Name", "Block Size", "Grid Size", *metrics])
        table.writerow([""] * 4 + ["byte"] * len(metrics))
        for number, (kernel, block, grid, values) in enumerate(launches):
            name = f"cudapy::fa_numba::{kernel}[abi:v1](Array<float, 2, C>)"
            table.writerow([number, name, block, grid, *(values.get(name, "n/a") for name in metrics)])


@pytest.fixture
def folder(tmp_path):
    told = {"device": "NVIDIA X", "driver": "1.0", "numba": "0.68", "date": "2026-11-30T10:00:00", "ncu": "2026.1"}
    (tmp_path / "provenance.json").write_text(json.dumps(told))
    return tmp_path


NAIVE = "naive_softmax_kernel"


@simulator_only
def test_a_row_has_what_was_counted_beside_what_was_measured(measure_traffic, monkeypatch, folder, capsys):
    call = functools.partial(measure_traffic.Call, fa_numba.naive_softmax, functools.partial(normal, 32, 8))
    monkeypatch.setattr(measure_traffic, "CALLS", {"naive": call(), "long": call(is_counted=False)})
    (folder / "launches.json").write_text(json.dumps([["naive", NAIVE], ["long", NAIVE]]))
    metrics = measure_traffic.METRICS
    values = {metrics["load_sectors"]: "768", metrics["load_bytes"]: "3,072", metrics["dram_read"]: "1024.5"}
    values |= {
        metrics["load_requests"]: "24",
        metrics["copy_bytes"]: "8",
        metrics["copy_requests"]: "2",
        metrics["shared_store_requests"]: "5",
    }
    values |= {metrics[name]: "100" for name in ("additions", "multiplications", "multiply_adds")}
    launch = (NAIVE, "(256, 1, 1)", "(1, 1, 1)", values)
    write_csv(folder / "ncu.csv", metrics.values(), launch, launch)
    monkeypatch.setattr(sys, "argv", ["measure_traffic.py", "--output", str(folder), "--again"])
    assert measure_traffic.main() == 0
    short, long = recorded.load(folder / "traffic.json").select(section="traffic", kernel=NAIVE)
    assert (short["contestant"], short["grid"], short["block"]) == ("naive", [1, 1, 1], [256, 1, 1])
    assert short["measured"] == long["measured"]
    expected = {"load_sectors": 768, "load_bytes": 3080, "copy_bytes": 8, "dram_read": 1024.5, "flops": 400}
    expected |= {"load_requests": 24, "shared_store_requests": 7}
    assert expected.items() <= short["measured"].items()
    assert "store_bytes" not in short["measured"] and "counted" not in long
    counted = short["counted"]
    assert (counted["load_requests"], counted["load_sectors"], counted["load_bytes"]) == (24, 768, 3072)
    assert (counted["store_requests"], counted["store_sectors"], counted["footprint"]) == (8, 256, 2048)
    assert counted["shared_load_requests"] == counted["shared_store_conflicts"] == 0
    head, _, first, second, last = capsys.readouterr().out.splitlines()
    cells = [dict(zip(head.split(" | "), line.split(" | "))) for line in (first, second)]
    assert [each["load sectors"] for each in cells] == ["768", "? / 768"]
    assert cells[0]["store sectors"] == "256 / ?" and cells[0]["flops |"] == "1024 / 400 |"
    assert last.startswith("NVIDIA X, driver 1.0") and head in (folder / "traffic.md").read_text()


@simulator_only
def test_launches_that_differ_are_faults(measure_traffic, folder):
    report = fa_numba.trace(fa_numba.naive_softmax, *normal(4, 8)).launches
    (folder / "launches.json").write_text(json.dumps([["a", NAIVE], ["b", NAIVE]]))
    launches = ("other_kernel", "(256, 1, 1)", "(1, 1, 1)", {}), (NAIVE, "(128, 1, 1)", "(1, 1, 1)", {})
    write_csv(folder / "ncu.csv", measure_traffic.METRICS.values(), *launches)
    measurement = measure_traffic.read(folder)
    other, block = measure_traffic.side_by_side(measurement, {"a": report, "b": report}).faults()
    assert "ncu measured cudapy::fa_numba::other_kernel" in other["fault"]
    assert "of (1, 1, 1) blocks of (256, 1, 1) threads" in block["fault"]
    write_csv(folder / "ncu.csv", measure_traffic.METRICS.values(), launches[0])
    with pytest.raises(CannotRun, match="ncu has measured 1 launches, and 2 were made"):
        measure_traffic.read(folder)


def say_no(measure_traffic, monkeypatch, capsys, *arguments):
    """Run it; return the one line that it says, before anything is counted."""
    monkeypatch.setattr(measure_traffic, "count", lambda: pytest.fail("counted too early"))
    monkeypatch.setattr(sys, "argv", ["measure_traffic.py", *map(str, arguments)])
    assert measure_traffic.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@simulator_only
def test_without_a_gpu_it_says_that_it_needs_one(measure_traffic, monkeypatch, capsys, tmp_path):
    for more in ((), ("--launch", "naive_softmax")):
        told = say_no(measure_traffic, monkeypatch, capsys, "--output", tmp_path / "new", *more)
        assert told.startswith("measure_traffic.py: it needs a GPU: ")
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(measure_traffic, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    told = say_no(measure_traffic, monkeypatch, capsys, "--output", tmp_path / "file", "--again")
    assert "cannot be written" in told and "choose one with --output" in told


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("provenance.json", None, "cannot be read"),
        ("launches.json", None, "cannot be read"),
        ("ncu.csv", None, "cannot be read"),
        ("launches.json", "[", "is not JSON"),
        ("provenance.json", '{"device": "NVIDIA X"}', "must say device, driver, numba, date, ncu"),
        ("launches.json", '["naive"]', "must hold pairs of call and kernel"),
        ("ncu.csv", '"ID","Kernel Name"\n"0","a"', "must have the columns Kernel Name, Block Size, Grid Size"),
    ],
)
def test_what_was_measured_is_checked_before_it_counts(
    measure_traffic, monkeypatch, capsys, folder, name, content, words
):
    (folder / "launches.json").write_text(json.dumps([["a", NAIVE]]))
    write_csv(folder / "ncu.csv", [], (NAIVE, "(256, 1, 1)", "(1, 1, 1)", {}))
    measure_traffic.read(folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    told = say_no(measure_traffic, monkeypatch, capsys, "--output", folder, "--again")
    assert str(folder / name) in told and words in told


def test_a_call_that_there_is_not_is_refused_with_those_there_are(measure_traffic, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["measure_traffic.py", "--output", str(tmp_path), "--launch", "nope"])
    with pytest.raises(SystemExit) as ended:
        measure_traffic.main()
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "--launch" in told and "nope" in told and "naive_softmax" in told


@pytest.mark.parametrize(
    ("told", "is_named"),
    [
        ("==ERROR== Failed to find metric smsp__sass_data_bytes_mem_global_op_ld.sum", True),
        ("==ERROR== Failed to find metric smsp__sass_data_bytes_mem_global_op_ld", True),
        ("==ERROR== Something is wrong", False),
    ],
)
def test_metrics_that_ncu_does_not_know_are_left_out(measure_traffic, monkeypatch, tmp_path, told, is_named):
    unknown = measure_traffic.METRICS["load_bytes"]

    def run_ncu(metrics, folder, name, calls):
        launches = [] if unknown in metrics else [(NAIVE, "(256, 1, 1)", "(1, 1, 1)", {})]
        write_csv(folder / f"{name}.csv", metrics, *launches)
        return told if unknown in metrics else ""

    monkeypatch.setattr(measure_traffic, "run_ncu", run_ncu)
    known = measure_traffic.known_metrics(tmp_path)
    metrics = set(measure_traffic.METRICS.values())
    all_but_basic = {metric for metric in metrics if not metric.startswith(("l1tex__", "dram__", "gpu__"))}
    assert metrics - set(known) == ({unknown} if is_named else all_but_basic)


def test_without_the_right_to_measure_it_says_what_ncu_said(measure_traffic, monkeypatch, tmp_path):
    monkeypatch.setattr(measure_traffic, "run_ncu", lambda *_: "==ERROR== ERR_NVGPUCTRPERM")
    (tmp_path / "probe.csv").write_text("")
    with pytest.raises(SystemExit, match="ncu measures nothing:\n==ERROR== ERR_NVGPUCTRPERM"):
        measure_traffic.known_metrics(tmp_path)


def test_the_inputs_of_the_backward_are_an_output_of_the_forward(measure_traffic):
    _, q, k, v, *output = measure_traffic._with_output(16, 24, 8)
    for given, computed in zip(output, fa_numba.flash_forward(q, k, v), strict=True):
        np.testing.assert_allclose(given, computed, rtol=1e-5, atol=1e-6)


def test_every_call_can_be_sent_to_another_process(measure_traffic):
    for call in measure_traffic.CALLS.values():
        function = pickle.loads(pickle.dumps(call.function))
        assert getattr(function, "func", function) is getattr(call.function, "func", call.function)


# -- the record of an H200 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", LAUNCHES, ids=lambda row: f"{row['contestant']}: {row['kernel']}")
def test_what_is_counted_is_what_an_h200_measured(row):
    """Requests and sectors of global memory to the last one; the rest but for what the table explains."""
    counted, measured = row["counted"], row["measured"]
    assert row["fault"] is None
    for exact in ("load_requests", "store_requests", "store_sectors", "store_bytes", "shared_load_conflicts"):
        assert counted[exact] == measured[exact], exact
    assert measured["load_sectors"] - counted["load_sectors"] == 2 * measured["copy_requests"]
    if row["kernel"] in SAME_NUMBERS:
        assert measured["load_bytes"] < counted["load_bytes"]
    else:
        assert measured["load_bytes"] == counted["load_bytes"]
    if row["kernel"] in FEWER_SHARED_LOADS or "causal" in row["contestant"]:
        assert measured["shared_load_wavefronts"] <= counted["shared_load_wavefronts"]
    else:
        assert measured["shared_load_wavefronts"] == counted["shared_load_wavefronts"]
    copies = measured["copy_requests"] > 0
    for name in ("shared_store_wavefronts", "shared_store_conflicts"):
        assert measured[name] <= counted[name] if copies else measured[name] == counted[name], name
    if "matmul" in row["kernel"]:
        assert counted["flops"] == measured["flops"]


@pytest.mark.parametrize("row", LAUNCHES, ids=lambda row: f"{row['contestant']}: {row['kernel']}")
def test_occupancy_is_what_an_h200_says(row):
    measured = row["measured"]
    found = occupancy(math.prod(row["block"]), 0, registers=measured["registers"])
    most = measured["blocks_by_blocks"]
    assert found.blocks_by["blocks"] == most
    for what, name in (("threads", "blocks_by_warps"), ("registers", "blocks_by_registers")):
        assert min(most, found.blocks_by[what]) == min(most, measured[name])


def test_the_table_is_that_of_the_record(measure_traffic):
    assert RECORDED.with_suffix(".md").read_text(encoding="utf-8") == measure_traffic.document(RECORD)


@simulator_only
@pytest.mark.parametrize("name", ["softmax, row in registers", "flash, 4x4 register tiles, N = 64, d = 16"])
def test_the_record_counts_as_the_simulator_does(measure_traffic, name):
    call = measure_traffic.CALLS[name]
    (launch,) = fa_numba.trace(call.function, *call.inputs()).launches
    (row,) = (row for row in LAUNCHES if row["contestant"] == name)
    assert measure_traffic.counted(launch) == row["counted"]
