"""`fa-numba bench`: conventions, checks before times, the record, and how it ends. Times here are made up."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from conftest import gpu_only, is_bundled, run_python, simulator_only
from measuring import FakeGpu
from numba import cuda

from fa_numba import bench, contestants, overhead, recorded, reference, step2_online_softmax, stopwatch, tables, timing
from fa_numba.__main__ import main
from fa_numba.bench import Attention, AttentionForward, Decode, Softmax
from fa_numba.contestants import Contestant

ATTENTION = Attention(2, 4, 3)
SOFTMAX = Softmax(4, 8)


class Ticking(FakeGpu):
    """Gives every call half a millisecond more."""

    TICK = 0.5

    def mark(self):
        self.time += self.TICK
        return self.time


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.mark.parametrize(
    ("case", "section", "ms", "rate"),
    [
        (Attention(2, 1000, 50), "forward", 1.0, 0.4),  # 4 · 2 · 1000² · 50 operations in a thousandth of a second
        (Attention(2, 1000, 50, causal=True), "forward", 1.0, 0.2),
        (Attention(2, 1000, 50), "backward", 2.0, 0.5),
        (Attention(2, 1000, 50), "forward+backward", 0.5, 2.8),
        (Attention(2, 1000, 50, causal=True), "forward+backward", 0.5, 1.4),
    ],
)
def test_operations_by_convention(case, section, ms, rate):
    assert case.rate(section, ms) == {"tflops": pytest.approx(rate)}


def test_bytes_by_convention():
    assert Softmax(1000, 500).rate("softmax", 2.0) == {"gbs": pytest.approx(2.0)}  # 4 MB in 2 ms
    assert Decode(5, 1000, 100).rate("decode", 2.0) == {"gbs": pytest.approx(2.0)}  # K and V, 2 MB each, in 2 ms


def test_the_default_cases():
    assert bench.CASES[0] == Softmax(1024, 512)
    assert {case.heads * case.n for case in bench.CASES[4:10]} == {2**17}
    assert Attention(32, 4096, 64) in bench.CASES  # of the sweep
    assert len(set(bench.CASES)) == len(bench.CASES)
    assert set(bench.CASES_BY_KERNEL) <= set(bench.CASES)
    assert set(bench.QUICK_CASES) <= set(bench.CASES)
    assert set(bench.RUNGS_BY_CASE) <= set(bench.CASES)
    assert {step for steps in bench.RUNGS_BY_CASE.values() for step in steps} == set(contestants.STEPS)
    attention = [case for case in bench.CASES if isinstance(case, Attention)]
    assert {case.d for case in attention if (case.heads, case.n) == (32, 1024)} == {40, 80, 96, 160, 256}
    assert {(case.heads, case.n_k) for case in bench.CASES if isinstance(case, Decode)} == {(32, 40_000)}


def test_a_head_dim_of_the_forward_alone():
    assert AttentionForward(1, 4, 3).sections == ("forward",)
    assert Attention(1, 4, 3).sections == ("forward", "backward", "forward+backward")


def test_truth_of_decoding_is_the_last_head_s_and_what_a_copy_gives():
    case = Decode(2, 8, 4)
    inputs = case.inputs()
    assert {name: array.shape for name, array in inputs.items()} == {
        "q": (2, 1, 4),
        "k": (2, 8, 4),
        "v": (2, 8, 4),
        "do": (2, 1, 4),
    }
    truth = case.truth(inputs)
    np.testing.assert_allclose(truth["o"], reference.attention(*(inputs[name][1] for name in "qkv")).o)
    assert (case.sample("k", inputs["k"]) == truth["k"]).all()
    assert case.matrix_bytes("decode") == 2 * 2 * 8 * 4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [3, 4, 10])
def test_the_truth_is_the_reference_s(monkeypatch, n, causal):
    """In chunks, and past LONG queries for the last of them, without dk and dv."""
    monkeypatch.setattr(bench, "CHUNK", 4)
    monkeypatch.setattr(bench, "LONG", 9)
    case = Attention(2, n, 3, causal)
    inputs = case.inputs()
    q, k, v, do = (inputs[name][-1] for name in ("q", "k", "v", "do"))
    expected = {"o": reference.attention(q, k, v, causal=causal).o}
    expected |= zip(("dq", "dk", "dv"), reference.attention_backward(do, q, k, v, causal=causal))
    found = case.truth(inputs)
    assert set(found) == ({"o", "dq"} if n > 9 else {"o", "dq", "dk", "dv"})
    for name, value in found.items():
        both = np.stack([np.zeros_like(expected[name]), expected[name]])  # of two heads, the last is checked
        np.testing.assert_allclose(value, case.sample(name, both), atol=1e-12)


def test_truth_of_a_softmax_is_a_sample_with_the_first_and_the_last_row():
    case = Softmax(1000, 8)
    x = case.inputs()["x"]
    sample = case.sample("x", x)
    assert sample.shape == (bench.SAMPLE, 8)
    assert (sample[0] == x[0]).all() and (sample[-1] == x[-1]).all()
    np.testing.assert_allclose(case.truth({"x": x})["y"], reference.softmax(sample))


@pytest.mark.parametrize(
    ("result", "error"), [([1.0, -4.0], 0.0), ([1.0, -3.0], 0.25), ([0.0, 0.0], 1.0), ([np.nan, -4.0], np.nan)]
)
def test_errors_are_relative_to_the_largest_value(result, error):
    found = bench.relative_error(np.array(result), np.array([1.0, -4.0]))
    np.testing.assert_equal(found, error)


def entrant(gpu, name, ms, outputs, peak=7):
    """Return a contestant with made-up outputs."""
    run = gpu.call(ms)

    def call():
        run()
        return tuple(outputs.values())

    return Contestant(name, lambda: call, tuple(outputs), lambda prepare: peak)


def forward_section(gpu, *entrants):
    return bench.measure_section(ATTENTION, "forward", list(entrants), {"o": np.ones((4, 3))}, gpu)


RIGHT = {"o": np.ones((2, 4, 3))}


def test_rows_hold_times_rates_and_ratios(gpu):
    entrants = (entrant(gpu, "flash_forward", 2.0, RIGHT), entrant(gpu, contestants.MATH, 3.0, RIGHT, peak=9))
    ours, peer = forward_section(gpu, *entrants)
    size = {"section": "forward", "heads": 2, "n": 4, "d": 3, "causal": False}
    times = {"ms": 2.0, "ms_low": 2.0, "ms_high": 2.0, "calls": bench.MOST, "ahead": True}
    names = {"contestant": "flash_forward", "label": "flash_forward"}
    rate = {"tflops": 4 * 2 * 4 * 4 * 3 / 2.0 * 1e-9}
    share = {"share": pytest.approx(rate["tflops"] / gpu.fp32_tflops)}
    expected = {**size, **names, **times, **rate, **share, "peak_bytes": 7, "error": 0.0, "fault": None}
    assert ours == {**expected, "ratios": {contestants.MATH: 1.5}}
    assert peer["ms"] == 3.0 and peer["peak_bytes"] == 9 and "ratios" not in peer


def test_without_a_known_peak_there_is_no_share(gpu):
    gpu.fp32_tflops = None
    (row,) = forward_section(gpu, entrant(gpu, "flash_forward", 2.0, RIGHT))
    assert "share" not in row
    assert "×" not in tables.contest("forward", [row])


def test_bandwidths_have_their_share_of_the_copy_s(gpu):
    case = Decode(2, 8, 4)
    inputs = case.inputs()
    truth = case.truth(inputs)
    ours = entrant(gpu, "flash_forward", 4.0, {"o": np.stack([truth["o"]] * 2)})
    copy = entrant(gpu, contestants.COPY, 3.0, {"k": inputs["k"]})
    rows = bench.measure_section(case, "decode", [ours, copy], truth, gpu)
    assert [row["share"] for row in rows] == [0.75, 1.0]
    assert rows[0]["ratios"] == {contestants.COPY: 0.75}
    text = tables.contest("decode", rows)
    assert "GB/s" in text and "of copy" in text and "75%" in text


def test_some_may_be_less_exact(gpu):
    far = {"o": 1.01 * RIGHT["o"]}
    tf32 = replace(entrant(gpu, "tf32", 1.0, far), tolerance=contestants.TOLERANCE_TF32)
    rows = forward_section(gpu, entrant(gpu, "float32", 1.0, far), tf32)
    assert [row["fault"] is None for row in rows] == [False, True]


def rungs_of_softmax(monkeypatch, **made):
    """Return the rows of made-up rungs, each so many milliseconds long, or refusing."""
    gpu = Ticking()

    def rung(ms):
        run = gpu.call(ms and ms - gpu.TICK)

        def function(x):
            if ms is None:
                raise ValueError("too wide")
            run()
            return reference.softmax(x.copy_to_host())

        return function

    monkeypatch.setattr(step2_online_softmax, "RUNGS", {name: rung(ms) for name, ms in made.items()})
    inputs = SOFTMAX.inputs()
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    return bench.measure_rungs(SOFTMAX, "softmax", there, SOFTMAX.truth(inputs), gpu, None)


@simulator_only
def test_rungs_are_compared_with_the_one_before(monkeypatch):
    *rungs, copy = rows = rungs_of_softmax(monkeypatch, first=8.0, second=4.0, third=5.0)
    assert [row["contestant"] for row in rungs] == ["first", "second", "third"]
    assert [row["order"] for row in rungs] == [0, 1, 2]
    assert [row.get("gain") for row in rungs] == [None, 2.0, 0.8]
    assert all(row["section"] == "rungs" and row["step"] == "softmax" for row in rows)
    assert rungs[0]["gbs"] == SOFTMAX.rate("softmax", 8.0)["gbs"]
    assert copy["contestant"] == contestants.COPY and "gain" not in copy and "order" not in copy
    text = tables.contest("rungs", rows)
    assert "vs rung before" in text and "2.00×" in text and "0.80×" in text


@simulator_only
def test_a_rung_that_refuses_is_a_row_with_a_fault(monkeypatch):
    first, second, third, _ = rows = rungs_of_softmax(monkeypatch, first=8.0, second=None, third=4.0)
    assert second["fault"] == "ValueError: too wide" and second["order"] == 1
    assert first["fault"] is None and third["fault"] is None
    assert not any("gain" in row for row in rows)
    text = tables.contest("rungs", rows)
    assert "FAILED" in text and "  second: ValueError: too wide" in text


@pytest.mark.parametrize("wrong", [1.002, np.nan])
def test_a_wrong_contestant_is_reported_and_not_timed(gpu, wrong):
    bad = {"o": RIGHT["o"].copy()}
    bad["o"][-1, 2, 1] = wrong
    rows = forward_section(gpu, entrant(gpu, "bad", 1.0, bad), entrant(gpu, "good", 1.0, RIGHT))
    assert rows[0]["fault"].startswith("wrong: off by ") and "ms" not in rows[0]
    assert rows[1]["fault"] is None and rows[1]["calls"] == bench.MOST
    text = tables.contest("forward", rows)
    assert "FAILED" in text and "  bad: wrong: off by " in text


def test_a_contestant_that_raises_is_reported(gpu):
    def prepare():
        raise MemoryError("out of memory")

    broken = Contestant("broken", prepare, ("o",), lambda prepare: 0)
    rows = forward_section(gpu, broken, entrant(gpu, "good", 1.0, RIGHT))
    assert [row["fault"] for row in rows] == ["MemoryError: out of memory", None]


def test_outputs_must_be_as_many_as_their_names(gpu):
    short = Contestant("short", lambda: lambda: (), ("o",), lambda prepare: 0)
    (row,) = forward_section(gpu, short)
    assert row["fault"].startswith("ValueError: zip()")


def test_what_float64_does_not_cover_the_first_contestant_settles(gpu):
    def outputs(dk):
        return {"dq": RIGHT["o"], "dk": np.full((2, 4, 3), dk)}

    named = zip("abc", (outputs(5.0), outputs(5.0), outputs(6.0)))
    entrants = [entrant(gpu, name, 1.0, made) for name, made in named]
    rows = bench.measure_section(ATTENTION, "backward", entrants, {"dq": np.ones((4, 3))}, gpu)
    assert [row["fault"] is None for row in rows] == [True, True, False]


def test_a_peer_that_failed_has_no_ratio(gpu):
    wrong = {"o": 2 * RIGHT["o"]}
    ours, _ = forward_section(gpu, entrant(gpu, "ours", 1.0, RIGHT), entrant(gpu, contestants.MATH, 1.0, wrong))
    assert ours["ratios"] == {}


def test_matrices_take_a_quarter_of_the_memory_at_most(gpu):
    case = Attention(1, 1000, 8)  # s and p, forward: 8 MB, and a little more
    standard = Contestant("standard", None, ("o",), None, needs_matrices=True)
    flash = Contestant("flash", None, ("o",), None)
    for memory, fits in ((33e6, True), (31e6, False)):
        gpu.memory = memory
        assert bench._fits(standard, case, "forward", gpu) == fits
        assert bench._fits(flash, case, "forward", gpu)
        assert not bench._fits(standard, case, "backward", gpu)


def test_times_that_include_the_host_have_a_mark(gpu):
    slow = entrant(gpu, "slow", 1.0, RIGHT)
    rows = forward_section(gpu, slow)
    assert "*" not in tables.contest("forward", rows)
    rows[0]["ahead"] = False
    assert "1*" in tables.contest("forward", rows)


@pytest.fixture
def small(monkeypatch):
    """A bench of two small cases; on the simulator the times of kernels and the device are made up too."""
    cases = (SOFTMAX, Attention(1, 8, 4), Decode(1, 8, 4))
    settings = {"CASES": cases, "QUICK_CASES": cases, "CASES_BY_KERNEL": cases[1:2], "FEWEST": 1, "MOST": 1}
    rungs = {cases[0]: ("softmax",), cases[1]: ("standard", "forward", "backward")}
    for name, value in {**settings, "ROUNDS_BY_KERNEL": 1, "RUNGS_BY_CASE": rungs}.items():
        monkeypatch.setattr(bench, name, value)
    for name, value in {"N": 4, "CALLS": 1, "BATCHES": 1}.items():
        monkeypatch.setattr(overhead, name, value)
    monkeypatch.setattr(stopwatch, "WARM_UPS", 0)
    if not timing._TIMED:
        monkeypatch.setattr(timing, "_milliseconds", lambda start, end: 0.5)
        told = {"device": "Made-up", "compute_capability": "9.0", "memory": 1, "driver": "1", "cuda": "13.0"}
        monkeypatch.setattr(recorded, "_device", lambda: told)


def check_record(record, names):
    """Check what a record of the small cases holds, whoever made the times."""
    assert record.faults() == []
    found = {(row["section"], row["contestant"]) for row in record.rows}
    assert names <= found
    case = {"heads": 1, "n": 8, "d": 4, "causal": False}
    for section in ("forward", "backward", "forward+backward"):
        assert all(row["tflops"] > 0 and row["error"] < 1e-3 for row in record.select(section=section, **case))
    kernels = record.select(section="kernels", contestant="standard_attention", **case)
    assert [(row["order"], row["what"], row["kernel"]) for row in kernels] == [
        (0, "S = Q Kᵀ", "matmul_kernel"),
        (1, "P = softmax(S)", "row_softmax_kernel"),
        (2, "O = P V", "matmul_kernel"),
    ]
    backward = record.select(section="kernels", contestant="flash_backward")
    assert all(row["what"] == row["kernel"] and row["ms"] > 0 for row in backward)
    assert "ratios" in record.one(section="softmax", contestant="online_softmax")
    assert all(row["us"] > 0 for row in record.select(section="overhead"))


OURS = {
    *(("softmax", name) for name in ("naive_softmax", "three passes", "two passes", "online_softmax", "copy")),
    *(("forward", name) for name in ("standard_attention", "flash_forward", "flash_attention")),
    *(("backward", name) for name in ("standard_attention_backward", "flash_backward")),
    *(("forward+backward", name) for name in ("standard", "flash")),
    *(("kernels", name) for name in ("standard_attention", "standard_attention_backward", "flash_backward")),
    *(("decode", name) for name in ("standard_attention", "flash_forward", "flash_attention", "copy")),
    *(("overhead", name) for name in ("naive_softmax", "flash_forward", "flash_backward", "bare launch, 2 arrays")),
}
RUNGS = {("rungs", name) for module, _ in contestants.STEPS.values() for name in module.RUNGS}


@simulator_only
def test_a_whole_bench_with_made_up_times(small, tmp_path):
    printed = []
    record = bench.measure(gpu=Ticking(), report=printed.append)
    check_record(record, OURS | RUNGS)
    assert record.provenance["command"] == "fa-numba bench"
    record.save(tmp_path / "bench.json")
    assert recorded.load(tmp_path / "bench.json") == record
    titles = [table.strip().split("\n")[0] for table in printed]
    assert titles[0].startswith("Made-up, driver 1, numba ")
    assert titles[1:4] == [
        "softmax: 4 rows of 8",
        "rungs, softmax: 4 rows of 8",
        "forward: 1 head, N = 8, d = 4",
    ]
    assert "decode: 1 head, 1 query, 8 keys, d = 4" in titles
    assert "Shares: of the float32 peak of its CUDA cores (60.0 TFLOP/s)" in printed[0]
    assert titles[-1].startswith("overhead: a call of a tiny problem (4×4)")
    assert "PyTorch with CUDA is not installed: our functions are measured alone." in printed[0]


@simulator_only
def test_an_interruption_leaves_what_was_measured(small, monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    path, kept = tmp_path / "bench.json", tmp_path / "bench.json.partial"
    measure = functools.partial(bench.measure, gpu=Ticking(), cases=[SOFTMAX])
    monkeypatch.setattr(bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(bench, "measure", lambda **options: measure(**options))
    monkeypatch.setattr(bench, "_measure_overhead", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.run(path)
    assert {row["section"] for row in recorded.load(kept).rows} == {"softmax", "rungs"}
    monkeypatch.setattr(bench, "_measure_overhead", lambda *_: [])
    assert bench.run(path) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["bench.json"]


@simulator_only
def test_a_quick_bench_leaves_the_rungs_out(small):
    record = bench.measure(gpu=Ticking(), quick=True, cases=[SOFTMAX])
    assert {row["section"] for row in record.rows} == {"softmax", "overhead"}
    assert record.provenance["command"] == "fa-numba bench --quick"


@pytest.mark.parametrize(("fault", "status"), [(None, 0), ("wrong: off by 1", 1)])
def test_the_exit_status_and_the_file(monkeypatch, tmp_path, capsys, fault, status):
    told = {"device": "GPU", "driver": "1", "numba": "2", "date": "2026-01-02T"}
    record = recorded.Record(told, [{"section": "softmax", "contestant": "us", "fault": fault}])
    monkeypatch.setattr(bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(bench, "measure", lambda **options: options["report"]("a table") or record)
    path = tmp_path / "deep" / "bench.json"
    assert main(["bench", "--output", str(path)]) == status
    assert capsys.readouterr().out == f"a table\nGPU, driver 1, numba 2, 2026-01-02: 1 rows in {path}\n"
    assert recorded.load(path) == record


@simulator_only
def test_the_simulator_is_not_timed(tmp_path, capsys):
    assert main(["bench", "--output", str(tmp_path / "bench.json")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fa-numba bench: there is nothing to measure: ")
    assert "The simulator's times say nothing about a GPU." in printed.err
    assert not list(tmp_path.iterdir())
    with pytest.raises(bench.CannotRun):
        bench.measure()


@pytest.mark.skipif(is_bundled(), reason="the target inside numba has no GPU mode here")
def test_without_the_gpu_that_was_asked_for():
    source = "from fa_numba.__main__ import main; raise SystemExit(main(['bench']))"
    finished = run_python(source, FA_NUMBA_DEVICE="gpu", CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 2
    assert finished.stderr.startswith("fa-numba bench: FA_NUMBA_DEVICE=gpu asks for the GPU, but no GPU can be used")
    assert "Traceback" not in finished.stderr


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "_require_gpu", lambda: None)
    monkeypatch.setattr(bench, "measure", lambda **options: pytest.fail("measured"))
    (tmp_path / "file").write_text("kept")
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "file" / "bench.json", "cannot be written")):
        assert main(["bench", "--output", str(path)]) == 2
        assert f"fa-numba bench: {path} {message}" in capsys.readouterr().err


@gpu_only
def test_a_bench_on_a_gpu(small, tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "forward: 1 head, N = 8, d = 4" in printed
    record = recorded.load(path)
    check_record(record, OURS)
    assert all(0 < row["ms"] < 100 for row in record.rows if row["section"] != "overhead")
    if contestants.find_torch():
        row = record.one(section="backward", contestant="flash_backward")
        assert {contestants.EFFICIENT, contestants.MATH} <= set(row["ratios"])
        assert record.select(section="overhead", contestant="flash_forward, torch tensors")
