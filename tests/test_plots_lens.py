"""The figures of what the lens saw show what it counted."""

import matplotlib

matplotlib.use("Agg")

import itertools
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import plots, work
from fa_numba.plots import style

LANES = np.arange(32)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def line(starts, size=4):
    """A line of a trace, as far as the figures read it."""
    lanes = tuple(None if start is None else int(start) for start in starts)
    count = sum(start is not None for start in lanes)
    return SimpleNamespace(lanes=lanes, accesses=count, nbytes=size * count)


def array(reads, writes):
    return SimpleNamespace(reads=np.array(reads), writes=np.array(writes))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def title(axes):
    return axes.get_title(loc="left")


def test_lane_sectors_show_what_is_fetched_and_what_is_used():
    figure = plots.lane_sectors({"rows": line(1024 * LANES), "neighbours": line(4 * LANES)}, "title")
    used = [axes.collections[0].get_array().reshape(-1, 8) for axes in figure.axes[:2]]
    assert [words.shape[0] for words in used] == [32, 4]
    assert [words.count() for words in used] == [32, 32]  # each lane once
    np.testing.assert_array_equal(used[0][:, 0], LANES)
    np.testing.assert_array_equal(used[1].ravel(), LANES)
    assert [title(axes) for axes in figure.axes[:2]] == [
        "rows:\n32 sectors,\n128 of 1,024 bytes used",
        "neighbours:\n4 sectors,\n128 of 128 bytes used",
    ]


def test_a_lane_that_reads_four_numbers_has_half_a_sector():
    axes = plots.lane_sectors({"fours": line(16 * LANES, size=16)}, "title").axes[0]
    np.testing.assert_array_equal(axes.collections[0].get_array().ravel(), LANES.repeat(4))
    assert title(axes) == "fours:\n16 sectors,\n512 of 512 bytes used"


def test_a_lane_that_sits_out_uses_nothing():
    axes = plots.lane_sectors({"half": line([4 * lane if lane % 2 else None for lane in LANES])}, "title").axes[0]
    words = axes.collections[0].get_array()
    np.testing.assert_array_equal(words.compressed(), LANES[1::2])
    assert title(axes) == "half:\n4 sectors,\n64 of 128 bytes used"


def test_shared_banks_count_the_turns():
    """32 lanes down a column of a matrix of 32 floats a row, with and without a float of padding; and all on a word."""
    panels = {"column": 128 * LANES, "padded": 132 * LANES, "same": 0 * LANES, "pairs": 4 * (LANES // 2)}
    figure = plots.shared_banks(panels, 4, "title")
    column, padded, same, pairs = (axes.collections[0].get_array().reshape(-1, 32) for axes in figure.axes)
    np.testing.assert_array_equal(column[:, 0], LANES)
    assert column.count() == 32
    np.testing.assert_array_equal(padded, [LANES])
    assert same.count() == 1 and same[0, 0] == 0  # a broadcast
    np.testing.assert_array_equal(pairs.compressed(), LANES[::2])
    assert [title(axes) for axes in figure.axes] == [
        "column: 32 turns",
        "padded: 1 turn",
        "same: 1 turn",
        "pairs: 1 turn",
    ]


def test_shared_banks_serve_wide_requests_in_quarters():
    """Rows of 16 floats: every second row begins in the same bank; with four more, eight rows have all banks."""
    figure = plots.shared_banks({"plain": 64 * LANES, "padded": 80 * LANES}, 16, "title")
    plain, padded = (axes.collections[0].get_array().reshape(-1, 32) for axes in figure.axes)
    np.testing.assert_array_equal(plain[:, 0], [0, 2, 4, 6])
    np.testing.assert_array_equal(plain[:, 16], [1, 3, 5, 7])
    assert plain.count() == padded.count() == 32
    np.testing.assert_array_equal(padded[0, ::4], [0, 5, 2, 7, 4, 1, 6, 3])
    assert texts(figure.axes[1]) == [f"lane {lane}" for lane in (0, 5, 2, 7, 4, 1, 6, 3)]


def test_access_maps_add_up_launches_and_outline_what_is_not_there():
    ones, zeros = np.ones((1, 4, 4), int), np.zeros((1, 4, 4), int)
    thin = np.arange(1, 5).reshape(1, 4, 1)
    methods = {
        "standard": {"K": [array(thin, 0 * thin)], "S": [array(zeros, ones), array(3 * ones, zeros)]},
        "flash": {"K": [array(0 * thin + 2, 0 * thin)]},
    }
    axes = plots.access_maps(methods, "title").axes
    k, s, flash_k, missing = axes[:4]
    np.testing.assert_array_equal(k.collections[0].get_array().ravel(), [1, 2, 3, 4])
    np.testing.assert_array_equal(s.collections[0].get_array(), np.full((4, 4), 4))
    np.testing.assert_array_equal(flash_k.collections[0].get_array().ravel(), [2, 2, 2, 2])
    assert [texts(each) for each in axes[:4]] == [
        ["read 1 to 4×"],
        ["read 3×\nwritten 1×"],
        ["read 2×"],
        ["never\nwritten"],
    ]
    assert not missing.collections
    assert [axes[0].get_ylabel(), axes[2].get_ylabel()] == ["standard", "flash"]
    scale = axes[-1]
    assert [label.get_text() for label in scale.get_yticklabels()] == ["0", "1", "2", "3", "4"]


def test_traffic_bars_hold_requested_footprint_and_minimum():
    (axes,) = plots.traffic_bars({"standard": (9000, 5000), "flash": (4000, 2000)}, 1500, "title").axes
    assert [bar.get_width() for bar in axes.patches] == [9, 5, 4, 2]
    standard, _, flash, _ = (bar.get_facecolor()[:3] for bar in axes.patches)
    assert standard == matplotlib.colors.to_rgb(style.STANDARD)
    assert flash == matplotlib.colors.to_rgb(style.FLASH)
    assert axes.lines[0].get_xdata()[0] == 1.5
    assert {" 9 kB", " 4 kB", "inputs and outputs\nonce: 1.5 kB"} <= set(texts(axes))


def test_the_roofline_has_each_step_between_its_intensities():
    steps = {
        "naive_softmax": (work.Work(4_000_000, 16_000_000, 8_000_000), 0.1),
        "flash forward": (work.Work(10**12, 10**10, 10**9), 40.0),
    }
    (axes,) = plots.roofline(steps, peak=60, bandwidth=4, title="title", of="a made-up GPU").axes
    roof, *lines = axes.lines
    assert list(roof.get_ydata()[1:]) == [60, 60]
    assert roof.get_xdata()[1] == 15
    assert roof.get_ydata()[0] == 4 * roof.get_xdata()[0]
    flash, requested, footprint, naive = lines[:4]
    np.testing.assert_allclose([*flash.get_xdata(), *flash.get_ydata()], [100, 1000, 25, 25])
    assert (*requested.get_xdata(), *footprint.get_xdata()) == (100, 1000)
    np.testing.assert_allclose([*naive.get_xdata(), *naive.get_ydata()], [0.25, 0.5, 0.04, 0.04])
    assert (flash.get_color(), naive.get_color()) == (style.FLASH, style.BLUE)
    assert set(texts(axes)) == {"4 TB/s", "60 TFLOP/s", "flash forward", "naive_softmax"}
    assert title(axes) == "a made-up GPU"


def test_names_on_the_roofline_stand_apart():
    steps = {name: (work.Work(10**9, 10**9, 10**8), 1.0) for name in ("standard", "flash", "third")}
    (axes,) = plots.roofline(steps, peak=60, bandwidth=4, title="title", of="a made-up GPU").axes
    places = sorted(text.get_position()[1] for text in axes.texts if text.get_text() in steps)
    assert all(above / below > 1.3 for below, above in itertools.pairwise(places))
