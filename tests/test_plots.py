"""The figures show the numbers they claim to show."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import memory, plots, reference


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
    monkeypatch.setattr(plots, "display", shown.append)
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
    flash = matplotlib.colors.to_rgba(plots.FLASH)
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
