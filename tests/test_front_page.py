"""README, its picture and its table, CONTRIBUTING and the glossary, held to what they speak of."""

import importlib.util
import re
import shutil

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import nbformat
import pytest
import yaml
from conftest import ROOT
from packaging.specifiers import SpecifierSet
from PIL import Image

import fa_numba
from fa_numba import memory, plots, recorded
from fa_numba.contestants import EFFICIENT, MATH
from fa_numba.plots import style
from fa_numba.plots.front import ATTENTION, SOFTMAX

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
GLOSSARY = ROOT / "notebooks" / "glossary.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", GLOSSARY]
TERMS = """
shared-memory register-tile online-softmax grid thread-block warp lane barrier shuffle coalesced sector occupancy
multiprocessor kernel thread simulator ledger footprint traffic causal-mask head query-key-value tile accumulator lse
delta race atomic float32 bandwidth trace bank-conflict arithmetic-intensity roofline
"""


def read(path):
    return path.read_text(encoding="utf-8")


README = read(ROOT / "README.md")


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def links(text):
    """Yield (file, anchor) for the links of a page that stay in the repository."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if not re.match(r"\w+:", link):
            yield link.partition("#")[::2]


def markdown(path):
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def glossary_entries():
    """Return the text of every entry by its anchor."""
    _, *entries = re.split(r"^### ", read(GLOSSARY), flags=re.MULTILINE)
    return {anchors(f"### {entry}")[0]: entry.partition("\n")[2].strip() for entry in entries}


# The picture and the table.


@pytest.fixture(scope="module")
def front_page():
    spec = importlib.util.spec_from_file_location("front_page", ROOT / "docs" / "front_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def record(front_page):
    return recorded.load(front_page.RECORD)


def test_readme_has_the_picture_and_the_figures_of_the_record(front_page, record):
    assert front_page.with_front(README, record) == README, "`make figure` brings them up to date"
    assert front_page.ladder(record) in README
    assert front_page.picture_line(record) in README.splitlines()


def test_the_picture_was_made_from_the_record(front_page, record):
    assert front_page.PICTURE.stat().st_size < 150_000
    with Image.open(front_page.PICTURE) as picture:
        assert picture.text["Description"] == plots.front_page_text(record), "`make figure` remakes it"


def test_the_picture_of_the_lens_is_what_a_trace_shows(front_page):
    assert f"![{front_page.LENS_TEXT}](docs/{front_page.LENS.name})" in README.splitlines()
    assert front_page.LENS.stat().st_size < 150_000
    with Image.open(front_page.LENS) as picture:
        assert picture.text["Description"] == front_page.LENS_TEXT
    figure = front_page.lens()
    titles = [axes.get_title(loc="left") for axes in figure.axes[:2]]
    assert "32 sectors,\n128 of 1,024 bytes used" in titles[0] and "4 sectors,\n128 of 128 bytes used" in titles[1]
    plt.close(figure)


def test_another_record_changes_picture_line_and_table(front_page, record):
    rows = [{**row, "gbs": 2 * row["gbs"]} if row["section"] == "softmax" else row for row in record.rows]
    other = recorded.Record({**record.provenance, "device": "NVIDIA Made-up"}, rows)
    changed = front_page.with_front(README, other)
    naive = 2 * record.one(**SOFTMAX, contestant="naive_softmax")["gbs"]
    assert f"| {naive:,.0f} GB/s |" in changed
    assert changed.count("NVIDIA Made-up") == 2
    assert front_page.with_front(changed, record) == README


def test_what_readme_says_of_pytorch_is_so(record):
    def speed(section, contestant):
        return record.one(section=section, **ATTENTION, contestant=contestant)["tflops"]

    told = " ".join(README.split())
    assert "At the size of this table our flash forward is ahead of PyTorch's EFFICIENT attention" in told
    assert speed("forward", "flash_forward") > speed("forward", EFFICIENT)
    assert "with heads of 128 it is a few per cent behind, and so is our flash backward at either width" in told
    wider = {**ATTENTION, "d": 128}
    for behind in (
        {**wider, "section": "forward", "contestant": "flash_forward"},
        {**wider, "section": "backward", "contestant": "flash_backward"},
        {**ATTENTION, "section": "backward", "contestant": "flash_backward"},
    ):
        assert 0.9 < record.one(**behind)["ratios"][EFFICIENT] < 1
    assert "our flash forward is faster, our flash backward slower" in " ".join(README.split())
    assert speed("forward", "flash_forward") > speed("forward", MATH)
    assert speed("backward", "flash_backward") < speed("backward", MATH)
    assert "A call from Python costs the host more time" in " ".join(README.split())
    calls = {row["contestant"]: row["us"] for row in record.select(section="overhead")}
    assert calls["flash_forward"] > calls[EFFICIENT]
    assert calls["online_softmax"] > calls["torch.softmax"]


def test_the_picture_draws_what_was_measured(record):
    figure = plots.front_page(record)
    softmax, attention, peak = figure.axes
    widths = [bar.get_width() for bar in softmax.patches]
    measured = record.softmaxes(SOFTMAX["rows"], SOFTMAX["n"])
    drawn = ("naive_softmax", "three passes", "two passes", "row in registers", "copy")
    assert widths == [measured[name]["gbs"] for name in drawn]
    labels = [label.get_text() for label in softmax.get_yticklabels()]
    assert labels == ["1 naive", "2 block", "2 online", "2 registers", "copy"]
    contestants = [
        ("forward", "standard_attention"),
        ("forward", "flash_forward"),
        ("forward", EFFICIENT),
        ("backward", "standard_attention_backward"),
        ("backward", "flash_backward"),
        ("backward", EFFICIENT),
    ]
    expected = [record.one(section=section, **ATTENTION, contestant=name)["tflops"] for section, name in contestants]
    assert [bar.get_width() for bar in attention.patches] == expected
    texts = [text.get_text() for text in attention.texts]
    assert texts == ["forward", "backward", *(f"{tflops:.1f}" for tflops in expected)]
    lines = {line.get_label(): line for line in peak.lines}
    for method, colour in zip(memory.METHODS, (style.STANDARD, style.FLASH)):
        assert lines[method].get_color() == colour
        formula = [
            memory.computed_bytes(method, "forward+backward", n, 64, heads=32)
            for n in lines[method].get_xdata().tolist()
        ]
        assert list(lines[method].get_ydata()) == formula
    dots = {line.get_ydata()[0] for line in peak.lines if line.get_marker() == "o"}
    both = [record.one(section="forward+backward", **ATTENTION, contestant=name) for name in memory.METHODS]
    assert dots == {row["peak_bytes"] for row in both}
    smaller, faster = both[0]["peak_bytes"] / both[1]["peak_bytes"], both[0]["ms"] / both[1]["ms"]
    assert f"1/{smaller:.0f} of standard's memory, {faster:.1f} times as fast" in figure.get_suptitle()
    plt.close(figure)


def test_a_faster_row_in_registers_is_our_fastest(front_page, record):
    softmaxes = record.softmaxes(SOFTMAX["rows"], SOFTMAX["n"])
    softmaxes["row in registers"] = {**softmaxes["row in registers"], **SOFTMAX, "gbs": 4321.0}
    rows = [row for row in record.rows if row["section"] not in ("softmax", "rungs")]
    newer = recorded.Record(record.provenance, rows + list(softmaxes.values()))
    assert "| 2 row in registers | the row is read once |" in front_page.ladder(newer)
    assert "our fastest 4,321, a copy" in plots.front_page_text(newer)


# README's code.


CODE = dict(zip(("plots", "numpy", "torch"), re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)))


@pytest.mark.parametrize("what", CODE)
def test_readme_s_code_runs(what, monkeypatch, tmp_path):
    if what == "torch":
        pytest.importorskip("torch")
    shutil.copytree(ROOT / "notebooks" / "recorded", tmp_path / "notebooks" / "recorded")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(CODE[what], names)
    if what == "plots":
        assert (tmp_path / "attention.png").stat().st_size > 0
        plt.close("all")
    elif what == "numpy":
        assert [names[name].shape for name in ("o", "dq", "dk", "dv")] == [(1, 2, 32, 16)] * 4
    else:
        assert all(names[name].grad.shape == (1, 2, 32, 16) for name in "qkv")


def test_readme_has_three_pieces_of_code():
    assert len(re.findall(r"^```python$", README, re.MULTILINE)) == len(CODE) == 3
    assert "flash_backward" in CODE["numpy"] and "import torch" in CODE["torch"]


def test_readme_names_every_public_function():
    functions = [name for name in fa_numba.__all__ if callable(getattr(fa_numba, name))]
    assert [name for name in functions if name not in README] == []


def test_the_citation_is_of_this_version():
    assert f"version = {{{fa_numba.__version__}}}" in README
    (year,) = re.findall(r"Copyright \(c\) (\d+)", read(ROOT / "LICENSE"))
    assert f"year    = {{{year}}}" in README


def test_the_address_of_the_repository_is_left_to_the_reader():
    for page in PAGES:
        assert not re.search(r"git(?:hub|lab)\.com/", read(page))
    assert README.count("<URL of this repository>") == 2


# Links, and the glossary.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    found = list(links(read(page)))
    assert found
    for file, anchor in found:
        target = page.parent / file if file else page
        assert target.exists(), file
        if anchor:
            assert anchor in anchors(read(target)), f"{file}#{anchor}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path):
    for file, anchor in links(markdown(path)):
        if file.endswith((".md", ".ipynb")):
            assert (path.parent / file).exists(), file
        if file == GLOSSARY.name and anchor:
            assert anchor in glossary_entries(), f"{GLOSSARY.name}#{anchor}"


def test_the_glossary_has_the_series_words_in_order():
    text = read(GLOSSARY)
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert headings == sorted(headings)
    assert set(TERMS.split()) <= set(glossary_entries())
    # Spaces to hyphens is all that JupyterLab and nbconvert do: the anchors must be the same there.
    assert [heading.replace(" ", "-") for heading in headings] == list(glossary_entries())


def test_every_entry_is_short_and_names_its_first_notebook():
    titles = {path.name: markdown(path).partition("\n")[0].removeprefix("# ") for path in NOTEBOOKS}
    for term, entry in glossary_entries().items():
        explanation, _, first = entry.rpartition("\nFirst in ")
        assert 2 <= len(re.findall(r"[.](?=[\s)]|$)", explanation)) <= 4, term
        title, file = re.fullmatch(r"\[(.+)\]\((.+)\)\.", first).groups()
        assert titles[file] == title, term


def test_no_notebook_links_to_a_word_before_the_glossary_s_first():
    for term, entry in glossary_entries().items():
        (first,) = re.findall(r"^First in \[.+\]\((.+)\)\.$", entry, re.MULTILINE)
        for path in NOTEBOOKS:
            if (GLOSSARY.name, term) in links(markdown(path)):
                assert first <= path.name, term


# CONTRIBUTING and the workflow.


def test_contributing_lists_every_module():
    package = ROOT / "fa_numba"
    modules = {path.name for path in package.glob("*.py")}
    modules |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    listed = re.findall(r"^\| `([\w./]+)` \|", read(ROOT / "CONTRIBUTING.md"), re.MULTILINE)
    assert sorted(listed) == sorted(modules)


def test_contributing_names_files_and_targets_that_exist():
    text = read(ROOT / "CONTRIBUTING.md")
    for name in set(re.findall(r"`((?:tests|docs|notebooks|fa_numba|\.github)/[\w./]+)`", text)):
        assert (ROOT / name).exists(), name
    makefile = read(ROOT / "Makefile")
    for target in set(re.findall(r"`make (\w+)`", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load(read(ROOT / ".github" / "workflows" / "notebooks.yml"))


def test_the_workflow_checks_the_notebooks_as_make_test_does(workflow):
    (job,) = workflow["jobs"].values()
    (command,) = [step["run"] for step in job["steps"] if "--nbval" in step.get("run", "")]
    (line,) = [line for line in read(ROOT / "Makefile").splitlines() if "--nbval " in line]
    assert command.partition("--dist")[2] == line.partition("--dist")[2]
    assert job["env"] == {"FA_NUMBA_DEVICE": "simulator"}
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML 1.1 takes the key `on` for true


def test_the_workflow_s_python_is_supported(workflow):
    (job,) = workflow["jobs"].values()
    (version,) = [step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})]
    (supported,) = re.findall(r'requires-python = "(.+)"', read(ROOT / "pyproject.toml"))
    assert version in SpecifierSet(supported)
