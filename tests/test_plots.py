"""The figures show the numbers they claim to show."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import memory, plots, recorded, reference
from fa_numba.plots import measured, style
from fa_numba.walk import FlashStep


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


def test_butterfly_doubles_the_lanes_that_know_the_maximum():
    values = np.random.default_rng(0).permutation(32)
    (axes,) = plots.butterfly(values).axes
    others, holders = (points.get_offsets() for points in axes.collections)
    assert [np.sum(holders[:, 1] == rounds) for rounds in range(6)] == [1, 2, 4, 8, 16, 32]
    assert holders[holders[:, 1] == 0][0, 0] == values.argmax()
    assert len(others) + len(holders) == 6 * 32
    assert {abs(int(np.diff(line.get_xdata())[0])) for line in axes.lines} == {0, 16, 8, 4, 2, 1}


def test_running_softmax_marks_each_new_maximum():
    row, m = [0.5, 2, 1, 3, 3, -1, 4], [0.5, 2, 2, 3, 3, 3, 4]
    l = [1, 1.25, 1.5, 1.25, 2.25, 2.5, 1.75]
    above, below = plots.running_softmax(row, m, l).axes
    for line, numbers in zip((*above.lines[:2], below.lines[0]), (row, m, l)):
        np.testing.assert_array_equal(line.get_ydata(), numbers)
    for axes in (above, below):
        np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [1, 3, 6])  # a tie repairs nothing
    np.testing.assert_array_equal(below.lines[-1].get_ydata(), [1.25, 1.25, 1.75])
    assert above.get_title(loc="left") == "7 elements, 3 repairs of the sum"


def test_running_softmax_takes_a_row_without_a_repair():
    below = plots.running_softmax([1.0, 0.0], [1.0, 1.0], [1.0, 1.4]).axes[1]
    assert len(below.lines[-1].get_xdata()) == 0


def test_thread_hierarchy_opens_a_grid_a_block_and_a_warp():
    (axes,) = plots.thread_hierarchy(4, 256).axes
    rows = {}
    for box in axes.patches:
        rows.setdefault(box.get_y(), []).append(box.get_width())
    assert [len(widths) for widths in rows.values()] == [4, 8, 32]
    assert all(sum(widths) == pytest.approx(1) for widths in rows.values())
    assert {"grid", "block 0", "block 3", "warp 0", "warp 7", "31"} <= texts(axes)
    assert axes.get_title(loc="left") == "1,024 threads: 4 blocks of 8 warps of 32 lanes"


def test_busy_multiprocessors_have_a_block():
    figure = plots.busy_multiprocessors({"few": 4, "many": 1000}, 132)
    blue = matplotlib.colors.to_rgba(style.BLUE)
    busy = [sum(box.get_facecolor() == blue for box in axes.patches) for axes in figure.axes]
    assert busy == [4, 132]
    assert [len(axes.patches) for axes in figure.axes] == [132, 132]
    assert figure.axes[1].get_title(loc="left") == "many: 132 of 132 have work"
    assert figure.get_suptitle() == "128 of 132 multiprocessors have nothing to do"


def test_merge_tree_ends_at_the_pair_of_the_row():
    row = np.array([0.3, 1.2, 2.1, 0.4, -0.5, 1.0, 1.5, 2.9])
    (axes,) = plots.merge_tree(row).axes
    pairs = [text.get_text() for text in axes.texts if "$m$" in text.get_text()]
    assert len(pairs) == 4 + 2 + 1
    assert pairs[0] == f"$m$ = 1.20\n$l$ = {1 + np.exp(-0.9):.2f}"
    assert pairs[-1] == f"$m$ = 2.90\n$l$ = {np.exp(row - 2.9).sum():.2f}"
    factors = [text.get_text() for text in axes.texts if text.get_text().startswith("×")]
    assert factors == [f"× {np.exp(-0.9):.2g}", "× 1", f"× {np.exp(-1.9):.2g}", "× 1", f"× {np.exp(-0.8):.2g}", "× 1"]
    assert len(axes.lines) == 6
    assert {"0.3  1.2", "1.5  2.9"} <= texts(axes)


def test_errors_by_scale_mark_where_a_result_is_lost():
    scales = np.array([1.0, 10, 100, 1000])
    errors = {"safe": np.array([1e-8, 2e-8, 3e-8, 4e-8]), "unsafe": np.array([1e-8, 1e-8, np.nan, np.nan])}
    (axes,) = plots.errors_by_scale(scales, errors, "title", "error").axes
    lines = {line.get_label(): line for line in axes.lines}
    for name, error in errors.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), scales)
        np.testing.assert_array_equal(lines[name].get_ydata(), error)
    (span,) = axes.patches
    assert (span.get_x(), span.get_width()) == (100, 900)
    assert "unsafe: NaN" in texts(axes)
    assert lines["unsafe"].get_color() == style.ORANGE


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
    plots.show(plots.causal_tiles(32, 16), "what it shows")
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


def test_streaming_tiles_show_what_is_where_and_the_numbers_of_one_step():
    before = FlashStep(np.zeros(2), 1.0, 0.0, np.ones(2), 2.0, np.array([3.0]))
    after = FlashStep(np.zeros(2), 2.0, 0.5, np.ones(2), 4.0, np.array([5.5]))
    axes = plots.streaming_tiles([before, after, after], at=1, blocks=4, own=2).axes[0]
    written = [text.get_text() for text in axes.texts]
    assert "m:  1.0 → 2.0" in written
    assert "l:  0.50 · 2.00 + 3.00 = 4.00" in written
    assert "acc:  0.50 · 3.00 + 4.00 = 5.50" in written
    by_colour = {}
    for patch in axes.patches[:-4]:  # the last four explain the others
        by_colour.setdefault(patch.get_facecolor(), []).append(patch)
    shared, registers = (by_colour[matplotlib.colors.to_rgba(colour)] for colour in (style.ORANGE, style.FLASH))
    assert (len(shared), len(registers)) == (4, 2)  # q, k, v, p; s, acc
    assert len(by_colour[matplotlib.colors.to_rgba("white")]) == 4 * 3


def test_error_growth_marks_where_the_naive_formula_ends():
    logits = np.array([1.0, 10.0, 100.0, 1000.0])
    errors = {
        "naive": np.array([1e-7, 1e-6, np.nan, np.nan]),
        "standard": np.array([1e-7, 2e-6, 1e-5, 1e-4]),
        "flash": np.array([2e-7, 1e-6, 2e-5, 1e-4]),
    }
    axes = plots.error_growth(logits, errors).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for name, values in errors.items():
        np.testing.assert_array_equal(lines[name].get_ydata(), values)
    end = axes.lines[-1]
    assert (end.get_xdata()[0], end.get_ydata()[0]) == (10.0, 1e-6)
    assert "naive: NaN beyond 88.7" in texts(axes)
    np.testing.assert_allclose(axes.lines[0].get_ydata()[0], 2.0**-24)  # half the step of float32 at 1


def test_requested_traffic_lies_between_its_bounds():
    axes = plots.requested_traffic({8: 2_000_000_000, 16: 1_000_000_000}, 4_000_000, 500_000_000, "title").axes[0]
    requested, scores, footprint = axes.lines
    np.testing.assert_array_equal(requested.get_ydata(), [2000, 1000])
    assert (scores.get_ydata()[0], footprint.get_ydata()[0]) == (500, 4)
    assert {"2,000 MB", "1,000 MB", "footprint of flash: 4.0 MB"} <= texts(axes)


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


def rectangles(axes, colour):
    return {
        patch.get_bbox().bounds for patch in axes.patches if patch.get_facecolor() == matplotlib.colors.to_rgba(colour)
    }


def test_attention_shapes_are_to_scale():
    figure = plots.attention_shapes(512, 64)
    (axes,) = figure.axes
    squares, thin = rectangles(axes, style.STANDARD), rectangles(axes, style.BLUE)
    np.testing.assert_allclose([bounds[2:] for bounds in squares], np.ones((2, 2)))
    np.testing.assert_allclose(sorted(bounds[2:] for bounds in thin), [(1 / 8, 1)] * 3 + [(1, 1 / 8)])
    assert "S = QKᵀ · scale\n1.05 MB" in texts(axes)
    assert any("131 kB each" in text for text in texts(axes))


def test_product_steps_pair_the_tiles_that_are_multiplied():
    (axes,) = plots.product_steps((3, 2), 4, (2, 1), ("A", "B", "C = A B")).axes
    assert rectangles(axes, style.STANDARD) == {(1, 2, 1, 1)}
    for step in range(4):
        places = [text.get_position() for text in axes.texts if text.get_text() == str(step + 1)]
        colours = {
            patch.get_facecolor()
            for patch in axes.patches
            for x, y in places
            if patch.contains_point(axes.transData.transform((x, y)))
        }
        assert len(places) == 2
        assert places[0][1] == 2.5  # the block's row of A
        assert places[1][0] == 1.5  # and its column of B
        assert len(colours - {matplotlib.colors.to_rgba("#EEEEEE")}) == 1
    assert axes.get_title(loc="left") == "A block adds up its tile of C in 4 steps along k"


def test_register_tile_marks_the_rows_that_a_thread_owns():
    (axes,) = plots.register_tile(16, 8, 4, (1, 2)).axes
    a_tile, b_tile, c_tile = (
        mesh.get_array().reshape(shape) for mesh, shape in zip(axes.collections, ((16, 8), (8, 16), (16, 16)))
    )
    assert set(a_tile.any(axis=1).nonzero()[0]) == {2, 6, 10, 14}
    assert set(b_tile.any(axis=0).nonzero()[0]) == {1, 5, 9, 13}
    assert (a_tile == 2).sum() == (b_tile == 2).sum() == 16
    np.testing.assert_array_equal(c_tile > 0, np.outer(a_tile.any(axis=1), b_tile.any(axis=0)))
    assert "64 products" in texts(axes)


def test_softmax_jacobian_shows_the_derivative():
    p = np.array([0.5, 0.3, 0.2])
    (axes,) = plots.softmax_jacobian(p).axes
    shown = axes.collections[0].get_array().reshape(3, 3)
    np.testing.assert_allclose(shown, [[0.25, -0.15, -0.1], [-0.15, 0.21, -0.06], [-0.1, -0.06, 0.16]])
    assert {"+0.250", "−0.150"} <= texts(axes)


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
    ends = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"}
    assert ends == {nbytes: memory.longest("standard", passes[-1], int(nbytes), 8) for nbytes in cards}


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
    assert figure.get_suptitle() == "online_softmax: 90% of a copy's bandwidth\n(8 rows of 16 float32)"
    assert axes.get_title(loc="left") == "NVIDIA Made-up, driver 1.2, numba 0.1, 2026-01-02"


def test_softmax_bandwidth_can_be_about_any_of_them(record):
    figure = plots.softmax_bandwidth(record, 8, 16, about="naive_softmax")
    assert figure.get_suptitle().startswith("naive_softmax: ")


@pytest.fixture
def climbed(record):
    """Return a record with rungs of two steps and their peers."""
    softmax = {"step": "softmax", "rows": 8, "n": 16}
    standard = {"step": "standard", "heads": 2, "n": 64, "d": 8, "causal": False}
    rows = [
        {**softmax, "contestant": "three passes", "order": 0, "ms": 3.0, "gbs": 1000, "share": 0.5},
        {**softmax, "contestant": "row in registers", "order": 1, "ms": 2.0, "gbs": 1500, "share": 0.75, "gain": 1.5},
        {**softmax, "contestant": "torch.softmax", "ms": 2.5, "gbs": 1200, "share": 0.6},
        {**softmax, "contestant": "copy", "ms": 1.5, "gbs": 2000},
        {**standard, "contestant": "4x4 register tiles", "order": 0, "ms": 4.0, "tflops": 10.04},
        {**standard, "contestant": "torch MATH", "ms": 2.0, "tflops": 20.0, "share": 0.3},
    ]
    return recorded.Record(record.provenance, [{"section": "rungs", "fault": None, **row} for row in rows])


def test_a_kernel_with_two_names_has_one_bar(record):
    """Where the row in registers is a rung, online_softmax launches it."""
    case = {"section": "rungs", "step": "softmax", "rows": 8, "n": 16, "gbs": 1810, "fault": None}
    rungs = [{**case, "contestant": "row in registers"}]
    figure = plots.softmax_bandwidth(recorded.Record(record.provenance, record.rows + rungs), 8, 16)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(names) == ["copy", "naive_softmax", "row in registers", "torch.softmax"]


def test_rungs_stand_beside_their_peers(climbed):
    figure = plots.rungs(climbed, "softmax")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [1000, 1500, 1200, 2000]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["three passes", "row in registers", "torch.softmax", "copy"]
    assert texts(axes) == {"1,000 (50%)", "1,500 (75%)", "1,200 (60%)", "2,000"}
    assert axes.get_xlabel() == "GB/s (share of the copy)"
    assert figure.get_suptitle() == "row in registers: 1.50 times as fast as three passes\n(8 rows of 16, float32)"
    assert axes.get_title(loc="left") == "NVIDIA Made-up, driver 1.2, numba 0.1, 2026-01-02"
    assert len({bar.get_facecolor() for bar in axes.patches[:2]}) == 1
    assert axes.patches[0].get_facecolor() != axes.patches[2].get_facecolor()


def test_a_single_rung_is_a_figure_and_none_is_an_error(climbed, record):
    figure = plots.rungs(climbed, "standard", live=climbed)
    assert len(figure.axes) == 2
    assert texts(figure.axes[0]) == {"10.0", "20.0 (30%)"}
    assert figure.axes[0].get_xlabel() == "TFLOP/s (share of the peak)"
    assert figure.get_suptitle() == "One rung: 4x4 register tiles\n(2 heads, N = 64, d = 8, float32)"
    with pytest.raises(LookupError, match="no rungs of 'softmax'"):
        plots.rungs(record, "softmax")


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


def test_attention_rates_stand_against_the_ceiling(record):
    for row in record.rows:
        if row["section"] == "forward":
            row["tflops"] = 10.0 * row["heads"]
    causal = [{**row, "causal": True} for row in record.select(section="forward", heads=4)]
    figure = plots.attention_rates(recorded.Record(record.provenance, record.rows + causal), 4, 16, 8)
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    once = ["standard_attention", "flash_forward", "torch MATH"]
    assert names == once + [f"{name}, causal" for name in once]
    assert [bar.get_width() for bar in axes.patches] == [40.0] * 6
    assert axes.lines[0].get_xdata()[0] == measured.CUDA_CORES
    assert figure.get_suptitle().startswith("flash reaches 60% of what CUDA cores could\n(forward, 4 heads, N = 16")


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
