"""Records of measurements: written, read, searched, and refused when they are something else."""

import json
import subprocess
from datetime import datetime, timedelta, timezone

import pytest
from conftest import ROOT

from fa_numba import recorded

TITLED = {"device": "GPU", "driver": "1", "numba": "2", "date": "2026-01-02"}

TOLD = {
    "device": "NVIDIA H200",
    "compute_capability": "9.0",
    "memory": 1,
    "driver": "580.95.05",
    "cuda": "13.0",
    "numba": "0.68.0",
    "date": "2026-11-29T12:00:00+00:00",
}
ROWS = [
    {"section": "forward", "n": 64, "contestant": "flash_forward", "ms": 1.5, "fault": None},
    {"section": "forward", "n": 64, "contestant": "standard_attention", "fault": "wrong: off by 1"},
    {"section": "forward", "n": 128, "contestant": "flash_forward", "ms": 6.0, "fault": None},
]


@pytest.fixture
def record():
    return recorded.Record(TOLD, ROWS)


def test_a_record_is_read_as_it_was_written(record, tmp_path):
    path = tmp_path / "deep" / "bench.json"
    record.save(path)
    record.save(path)  # over the first
    assert recorded.load(path) == record
    assert recorded.load(str(path)) == record
    assert [each.name for each in path.parent.iterdir()] == ["bench.json"]


def test_rows_are_found_by_their_entries(record):
    assert record.select(section="forward") == [ROWS[0], ROWS[2]]
    assert record.select(n=128) == [ROWS[2]]
    assert record.select(section="backward") == record.select(heads=1) == []
    assert record.one(contestant="flash_forward", n=64)["ms"] == 1.5
    assert record.faults() == [ROWS[1]]


@pytest.mark.parametrize(("wanted", "count"), [({"n": 1}, 0), ({"section": "forward"}, 2)])
def test_one_row_is_one(record, wanted, count):
    with pytest.raises(LookupError, match=f"{count} rows of the measurements have"):
        record.one(**wanted)


def test_the_title_names_device_versions_and_day(record):
    assert record.title() == "NVIDIA H200, driver 580.95.05, numba 0.68.0, 2026-11-29"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "bench.json cannot be read: No such file or directory; `fa-numba bench` writes"),
        ("{", "bench.json is not JSON"),
        ("[]", "bench.json holds no measurements"),
        ('{"rows": []}', "bench.json holds no measurements"),
        ('{"schema": 99, "rows": []}', "bench.json has schema 99; this fa_numba reads 1. Measure again."),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(recorded.BadRecord, match=message):
        recorded.load(path)


def test_provenance(monkeypatch):
    monkeypatch.setattr(recorded, "_device", lambda: {name: TOLD[name] for name in list(TOLD)[:5]})
    told = recorded.provenance("fa-numba bench --quick")
    versions = {"python", "fa_numba", "numba", "numba-cuda", "numpy", "torch"}
    assert set(told) == {*TOLD, *versions, "commit", "dirty", "command"}
    assert told["command"] == "fa-numba bench --quick"
    assert told["numpy"].count(".") == 2
    age = datetime.now(timezone.utc) - datetime.fromisoformat(told["date"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert json.loads(json.dumps(told)) == told


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def test_the_commit_of_the_clone():
    if not git("ls-files", "fa_numba/recorded.py").stdout:
        assert recorded._commit() == ("unknown", None)
    else:
        dirty = bool(git("status", "--porcelain").stdout)
        assert recorded._commit() == (git("rev-parse", "HEAD").stdout.strip(), dirty)


def test_an_installed_package_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.delenv("FA_NUMBA_COMMIT", raising=False)
    monkeypatch.setattr(recorded, "__file__", str(tmp_path / "recorded.py"))
    assert recorded._commit() == ("unknown", None)


def test_without_git_and_the_driver_s_tool(monkeypatch):
    monkeypatch.delenv("FA_NUMBA_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert recorded._commit() == ("unknown", None)
    assert recorded._driver() == "unknown"


def test_a_package_that_is_not_installed():
    assert recorded._version("no-such-package-here") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": 1}', "its provenance needs device, driver, numba, date"),
        ('{"schema": 1, "provenance": {}, "rows": []}', "its provenance needs device"),
        (json.dumps({"schema": 1, "provenance": TITLED, "rows": [1]}), "rows without contestant, fault, section"),
        (json.dumps({"schema": 1, "provenance": TITLED, "rows": [{}]}), "rows without contestant, fault, section"),
        ('{"schema": "1"}', "has schema '1'; this fa_numba reads 1"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_files_that_hold_something_else(tmp_path, content, message):
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(recorded.BadRecord, match=message):
        recorded.load(tmp_path / "file.json")


def test_the_softmaxes_of_a_size_are_those_of_both_sections():
    def row(section, contestant, **more):
        return {"section": section, "rows": 8, "n": 4, "contestant": contestant, "fault": None, **more}

    ours = {"ratios": {}}
    rungs = [row("rungs", name, step="softmax", **ours) for name in ("two passes", "row in registers")]
    rungs.append(row("rungs", "copy", step="softmax"))
    rows = [row("softmax", name, **ours) for name in ("naive_softmax", "two passes")] + [row("softmax", "copy")]
    softmaxes = recorded.Record(TOLD, rungs + rows).softmaxes(8, 4)
    assert list(softmaxes) == ["naive_softmax", "two passes", "row in registers", "copy"]
    assert softmaxes["copy"]["section"] == softmaxes["two passes"]["section"] == "softmax"
    assert list(recorded.Record(TOLD, rows).softmaxes(8, 4)) == ["naive_softmax", "two passes", "copy"]
    assert recorded.Record(TOLD, rows).softmaxes(8, 5) == {}
