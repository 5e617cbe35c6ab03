"""The figures show the numbers they claim to show."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import plots


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


def test_a_shown_figure_has_a_text_and_is_closed(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", shown.append)
    plots.show(plots.lane_sectors({"one": np.arange(32) * 4}, "title"), "what it shows")
    assert shown[0].alt == "what it shows"
    assert shown[0].data.startswith(b"\x89PNG")
    assert plt.get_fignums() == []
