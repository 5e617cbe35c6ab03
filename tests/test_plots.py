"""The figures show the numbers they claim to show."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import memory, plots, recorded, reference
from fa_numba.plots import measured, style


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_exp_overflow_is_finite_up_to_the_marked_point():
    with np.errstate(over="ignore"):
        figure = plots.exp_overflow()  # without a warning of its own: see the filter in pyproject.toml
        line, point = figure.axes[0].lines[:2]
        assert np.isfinite(line.get_ydata()).all()
        (x,) = point.get_xdata()
        assert np.isfinite(np.exp(np.float32(x)))
        assert np.isinf(np.exp(np.float32(x + 0.02)))
    assert abs(x - 88.72) < 0.02


def test_lane_sectors_show_what_is_fetched_and_what_is_used():
    lanes = np.arange(32)
    figure = plots.lane_sectors({"rows": 1024 * lanes, "neighbours": 4 * lanes}, "title")
    used = [axes.collections[0].get_array().reshape(-1, 8) for axes in figure.axes[:2]]
    assert [words.shape[0] for words in used] == [32, 4]
    assert [words.count() for words in used] == [32, 32]  # each lane once
    np.testing.assert_array_equal(used[0][:, 0], lanes)
    np.testing.assert_array_equal(used[1].ravel(), lanes)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == [
        "rows:\n32 sectors, 1,024 bytes",
        "neighbours:\n4 sectors, 128 bytes",
    ]


def test_butterfly_doubles_the_lanes_that_know_the_maximum():
    values = np.random.default_rng(0).permutation(32)
    (axes,) = plots.butterfly(values).axes
    others, holders = (points.get_offsets() for points in axes.collections)
    assert [np.sum(holders[:, 1] == rounds) for rounds in range(6)] == [1, 2, 4, 8, 16, 32]
    assert holders[holders[:, 1] == 0][0, 0] == values.argmax()
    assert len(others) + len(holders) == 6 * 32
    assert {abs(int(np.diff(line.get_xdata())[0])) for line in axes.lines} == {0, 16, 8, 4, 2, 1}


def test_running_softmax_ends_at_the_softmax_of_the_row_and_marks_each_new_maximum():
    row = np.array([0.5, 2, 1, 3, 3, -1, 4], np.float32)
    figure = plots.running_softmax(row)
    above, below = figure.axes
    scores, m = above.lines[:2]
    np.testing.assert_array_equal(scores.get_ydata(), row)
    np.testing.assert_array_equal(m.get_ydata(), [0.5, 2, 2, 3, 3, 3, 4])
    assert below.lines[0].get_ydata()[-1] == pytest.approx(np.exp(row.astype(np.float64) - 4).sum())
    for axes in (above, below):
        np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [1, 3, 6])  # a tie repairs nothing
    assert above.get_title(loc="left") == "7 elements, 3 repairs of the sum"


def test_running_softmax_takes_a_row_without_a_repair():
    below = plots.running_softmax(np.array([1.0, 0.0])).axes[1]
    assert len(below.lines[-1].get_xdata()) == 0


def test_mask_shows_query_0_on_top():
    see = np.array([[True, False, False], [True, True, False]])
    figure = plots.mask({"two queries, three keys": see}, "title")
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.collections[0].get_array().reshape(2, 3), see)
    assert axes.get_ylim() == (2, 0)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]


def test_a_shown_figure_has_a_text_and_is_closed(monkeypatch):
    shown = []
    monkeypatch.setattr(style, "display", shown.append)
    plots.show(plots.lane_sectors({"one": np.arange(32) * 4}, "title"), "what it shows")
    assert shown[0].alt == "what it shows"
    assert shown[0].data.startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def test_the_online_walk_shows_what_is_kept_and_what_is_new():
    scores = np.array([[1.0, 0.0], [2.0, -1.0], [0.5, 0.5]])
    m = np.array([1.0, 2.0, 2.0])
    alpha = np.array([0.0, np.exp(-1), 1.0])
    l, acc = np.array([1.4, 1.6, 2.0]), np.array([3.0, 2.0, 4.0])
    top, *panels = plots.online_walk(scores, m, l, alpha, acc).axes
    np.testing.assert_allclose([bar.get_height() for bar in top.patches], scores.ravel())
    np.testing.assert_array_equal([line.get_ydata()[0] for line in top.lines[:3]], m)
    for axes, value in zip(panels, (l, acc)):
        new, *bars = [bar.get_height() for bar in axes.patches]
        assert new == value[0]
        before, kept, added = np.reshape(bars, (2, 3)).T
        np.testing.assert_allclose(before, value[:2])
        np.testing.assert_allclose(kept, value[:2] * alpha[1:])
        np.testing.assert_allclose(kept + added, value[1:])
        assert f"{value[2]:.2f}" in [text.get_text() for text in axes.texts]


def test_causal_tiles_are_those_with_a_visible_key():
    axes = plots.causal_tiles(64, 16).axes[0]
    see = reference.visible(64, 64, causal=True).reshape(4, 16, 4, 16).sum(axis=(1, 3))
    whole, masked, skipped = ((see == 256).sum(), ((see > 0) & (see < 256)).sum(), (see == 0).sum())
    labels = [text.get_text().split("\n")[0] for text in axes.texts]
    assert labels == [f"{whole} tiles", f"{masked} tiles", f"{skipped} tiles"]
    assert axes.get_title(loc="left") == f"Causal: {whole + masked} of 16 tiles are computed"
    tiles = [patch for patch in axes.patches if patch.get_width() == 16]
    hatched = [patch.get_xy() for patch in tiles if patch.get_hatch()]
    assert len(tiles) == 16
    assert hatched == [(16 * t, 16 * t) for t in range(4)]


def test_backward_sweeps_visit_a_column_and_a_row():
    left, right = plots.backward_sweeps(tiles=3).axes
    flash = matplotlib.colors.to_rgba(style.FLASH)
    for axes, owned in ((left, {(1, 0), (1, 1), (1, 2)}), (right, {(0, 1), (1, 1), (2, 1)})):
        assert {patch.get_xy() for patch in axes.patches if patch.get_facecolor() == flash} == owned
        numbers = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
        assert [numbers[n] for n in "123"] == [(x + 0.5, y + 0.5) for x, y in sorted(owned)]


@pytest.mark.parametrize("passes", [("forward",), memory.PASSES])
def test_memory_lengths_plots_the_formula_and_the_counted_dots(passes):
    counted = {("flash", passes[-1], 16): 1234, ("standard", passes[-1], 32): 5678}
    axes = plots.memory_lengths(passes, counted, d=8).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for method in memory.METHODS:
        for each in passes:
            line = lines[f"{method} {each}"]
            assert line.get_xdata()[-1] == plots.LONGEST
            formula = [memory.computed_bytes(method, each, n, 8) for n in line.get_xdata().tolist()]
            assert list(line.get_ydata()) == formula
    dots = {(*line.get_xdata(), *line.get_ydata()) for line in axes.lines if line.get_marker() == "o"}
    assert dots == {(16, 1234), (32, 5678)}
    cards = {line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"}
    assert cards == {16e9, 80e9, 141e9}


@pytest.fixture
def record():
    rows = []
    for name, gbs in (("naive_softmax", 90), ("online_softmax", 1800), ("torch.softmax", 1500), ("copy", 2000)):
        rows.append({"section": "softmax", "rows": 8, "n": 16, "contestant": name, "gbs": gbs})
    for section, names in (
        ("forward", ("standard_attention", "flash_forward", "flash_attention", "torch MATH")),
        ("backward", ("standard_attention_backward", "flash_backward")),
    ):
        for factor, name in enumerate(names, 1):
            for heads, n in ((1, 64), (1, 32), (4, 16), (2, 32)):
                size = {"heads": heads, "n": n, "d": 8, "causal": False}
                rows.append({"section": section, **size, "contestant": name, "ms": heads * n * n / factor})
    for what, ms in (("S = Q Kᵀ", 1.0), ("P = softmax(S)", 0.5), ("O = P V", 2.5)):
        size = {"heads": 1, "n": 64, "d": 8, "causal": False}
        rows.append({"section": "kernels", **size, "contestant": "standard_attention", "what": what, "ms": ms})
    told = {"device": "NVIDIA Made-up", "driver": "1.2", "numba": "0.1", "date": "2026-01-02T03:04:05+00:00"}
    return recorded.Record(told, [{**row, "fault": None} for row in rows])


def texts(axes):
    return {text.get_text() for text in axes.texts}


def test_softmax_bandwidth_holds_every_softmax_against_a_copy(record):
    figure = plots.softmax_bandwidth(record, 8, 16)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [90, 1800, 1500, 2000]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "copy"
    assert texts(axes) == {"90 (4%)", "1,800 (90%)", "1,500 (75%)", "2,000 (100%)"}
    assert figure.get_suptitle() == "online_softmax reaches 90% of a copy's bandwidth\n(8 rows of 16 float32)"
    assert axes.get_title(loc="left") == "NVIDIA Made-up, driver 1.2, numba 0.1, 2026-01-02"


def test_live_measurements_have_a_panel_of_their_own(record):
    live = recorded.Record({**record.provenance, "device": "Here"}, record.rows)
    figures = (
        plots.softmax_bandwidth(record, 8, 16, live=live),
        plots.attention_times(record, heads=1, d=8, live=live),
        plots.kernel_times(record, "standard_attention", 1, 64, 8, live=live),
    )
    for figure in figures:
        titles = [axes.get_title(loc="left").split(",")[0] for axes in figure.axes]
        assert titles == ["NVIDIA Made-up", "Here"]


def test_attention_times_of_one_head(record):
    figure = plots.attention_times(record, heads=1, d=8)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["standard_attention", "flash_forward", "torch MATH"]
    assert list(lines["flash_forward"].get_xdata()) == [32, 64]
    assert list(lines["flash_forward"].get_ydata()) == [512, 2048]
    colours = [lines[name].get_color() for name in ("standard_attention", "flash_forward", "torch MATH")]
    assert colours == [style.STANDARD, style.FLASH, measured.PEERS["torch MATH"]]
    assert texts(axes) == set(lines)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert figure.get_suptitle().startswith("At N = 64, flash is 2.0 times as fast as standard\n(forward, 1 head, ")


def test_attention_times_at_the_same_number_of_tokens(record):
    figure = plots.attention_times(record, "backward", tokens=64, d=8)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["flash_backward"].get_xdata()) == [16, 32, 64]
    assert list(lines["flash_backward"].get_ydata()) == [512, 1024, 2048]
    assert "(backward, heads · N = 64, d = 8, float32)" in figure.get_suptitle()


def test_the_title_says_when_standard_attention_is_faster(record):
    for row in record.rows:
        if row["contestant"] == "flash_forward":
            row["ms"] *= 8
    title = plots.attention_times(record, heads=1, d=8).get_suptitle()
    assert title.startswith("At N = 64, standard is 4.0 times as fast as flash")


def test_names_at_the_ends_of_lines_keep_apart(record):
    axes = plots.attention_times(record, heads=1, d=8).axes[0]
    heights = sorted(np.log10(text.get_position()[1]) for text in axes.texts)
    low, high = np.log10(axes.get_ylim())
    assert min(np.diff(heights)) > 0.05 * (high - low)


def test_kernel_times_show_shares(record):
    figure = plots.kernel_times(record, "standard_attention", 1, 64, 8)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [1.0, 0.5, 2.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["S = Q Kᵀ", "P = softmax(S)", "O = P V"]
    assert texts(axes) == {"1 ms, 25%", "0.5 ms, 12%", "2.5 ms, 62%"}
    assert figure.get_suptitle().startswith("O = P V: 62% of the 4 ms of standard_attention\n(1 head, N = 64, d = 8")
