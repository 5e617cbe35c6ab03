"""The figures of the backward pass show the numbers they claim to show."""

import inspect

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fa_numba import plots, recorded, step5_flash_backward
from fa_numba.plots import backward, style


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_backward_tile_shows_four_matrices_with_query_0_on_top():
    s, dp, ds = (np.random.default_rng(seed).uniform(-1, 1, (4, 4)) for seed in range(3))
    figure = plots.backward_tile(s, np.exp(s), dp, ds)
    panels = figure.axes[:4]
    for axes, values in zip(panels, (s, np.exp(s), dp, ds)):
        mesh = axes.collections[0]
        np.testing.assert_array_equal(mesh.get_array().reshape(4, 4), values)
        assert axes.get_ylim() == (4, 0)
        low, high = mesh.get_clim()
        assert high == np.abs(values).max()
        assert low == (-high if values.min() < 0 else 0)  # white is zero
        assert texts_of_ticks(mesh.colorbar.ax)[-1] == f"{high:.2g}"


def texts_of_ticks(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def test_sum_orders_counts_each_result():
    step = np.spacing(np.float32(1))
    sums = np.float32([1, 1, 1, 1 + step, 1 - step / 2])
    (axes,) = plots.sum_orders(sums, 1.0, terms=7).axes
    assert [bar.get_height() for bar in axes.patches] == [1, 3, 1]
    np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in axes.patches], [-0.5, 0, 1], atol=1e-12)
    assert axes.get_title(loc="left") == "The same 7 terms in 5 orders: 3 different sums"


def test_difference_errors_name_the_best_step():
    steps = np.array([1e-6, 1e-4, 1e-2])
    errors = {"float32": np.array([1.0, 1e-2, 1e-3]), "float64": np.array([1e-9, 1e-8, 1e-3])}
    (axes,) = plots.difference_errors(steps, errors).axes
    for line, (name, error) in zip(axes.lines, errors.items()):
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_ydata(), error)
    assert {"float32\n1e-03", "float64\n1e-09"} <= set(texts(axes))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_barriers_are_numbered_and_stand_where_the_kernels_have_them():
    makers = (step5_flash_backward.make_flash_backward_dk_dv, step5_flash_backward.make_flash_backward_dq)
    number = 1
    for axes, maker, (phases, tiles) in zip(plots.barriers().axes, makers, backward.BARRIERS.values()):
        source = inspect.getsource(maker)
        assert len(phases) == source.count("cuda.syncthreads()")
        assert all(f"{tile}, " in source for tile in tiles)
        numbers = [text for text in texts(axes) if text.isdigit()]
        assert numbers == [*map(str, range(number, number + len(phases))), str(number)]
        uses = "".join(tiles.values()).replace(" ", "")
        assert len(axes.patches) == len(uses)
        number += len(phases)


def test_the_kernels_compute_as_many_products_as_the_figure_says():
    source = inspect.getsource(step5_flash_backward.small_tiles)
    products = source.count(" add_dots(") + source.count(" add_products(")
    assert products == backward.PRODUCTS["flash_backward"]
    source = inspect.getsource(step5_flash_backward.wide_tiles.make_wide_flash_backward)
    calls = (" add_wide_dots(", " add_wide_products(", " add_dq(acc_q")
    assert sum(source.count(call) for call in calls) == backward.COUNTED_PRODUCTS


def test_one_kernel_computes_no_product_more_than_counts(record):
    case = {"section": "kernels", "contestant": "flash_backward", "heads": 2, "n": 1024, "d": 64, "causal": False}
    kernel = {**case, "kernel": "wide_flash_backward_kernel", "ms": 4.0, "fault": None}
    figure = plots.backward_rates(recorded.Record(record.provenance, [*record.rows, kernel]), 2, 1024)
    (axes,) = figure.axes
    assert not any(bar.get_hatch() for bar in axes.patches)
    assert texts(axes)[1] == "15.0 TFLOP/s, 4.0 ms\ncomputes 5 products: 15.0"


@pytest.fixture
def record():
    rates = {"standard_attention_backward": 10.0, "flash_backward": 15.0, "torch EFFICIENT": 30.0}
    size = {"section": "backward", "heads": 2, "n": 1024, "d": 64, "causal": False, "fault": None}
    rows = [{**size, "contestant": name, "tflops": rate, "ms": 60 / rate} for name, rate in rates.items()]
    told = {"device": "NVIDIA Made-up", "driver": "1.2", "numba": "0.1", "date": "2026-01-02T03:04:05+00:00"}
    return recorded.Record(told, rows)


def test_backward_rates_show_what_is_computed_beside_what_counts(record):
    figure = plots.backward_rates(record, 2, 1024)
    (axes,) = figure.axes
    flash = matplotlib.colors.to_rgba(style.FLASH)
    whole = [bar for bar in axes.patches if not bar.get_hatch()]
    (extra,) = [bar for bar in axes.patches if bar.get_hatch()]
    assert [bar.get_width() for bar in whole] == [10, 15, 30]
    assert (extra.get_x(), extra.get_width(), extra.get_edgecolor()) == (15, pytest.approx(6), flash)
    assert texts(axes) == [
        "10.0 TFLOP/s, 6.0 ms\ncomputes 4 products: 8.0",
        "15.0 TFLOP/s, 4.0 ms\ncomputes 7 products: 21.0",
        "30.0 TFLOP/s, 2.0 ms",
    ]
    assert figure.get_suptitle().startswith("flash_backward reaches 50% of EFFICIENT's rate\n(backward, 2 heads, ")


def test_live_rates_have_a_panel_of_their_own_even_if_pytorch_is_missing(record):
    live = recorded.Record({**record.provenance, "device": "Here"}, record.rows[:2])
    figure = plots.backward_rates(record, 2, 1024, live=live)
    assert [axes.get_title(loc="left").split(",")[0] for axes in figure.axes] == ["NVIDIA Made-up", "Here"]
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == [row["contestant"] for row in live.rows]


def test_wrong_elements_are_framed_and_counted():
    right = np.arange(6, dtype=np.float64).reshape(2, 3)
    result = np.add(right, [[0, 1e-7, 0], [0.5, 0, np.nan]])
    figure = plots.wrong_elements(right, result, "dV", "Without barrier 4")
    as_it_should_be, as_it_is, _ = figure.axes
    np.testing.assert_array_equal(as_it_should_be.collections[0].get_array(), right)
    assert not as_it_should_be.patches
    frames = [(int(frame.get_y()), int(frame.get_x())) for frame in as_it_is.patches]
    assert frames == [(1, 0), (1, 2)]
    assert figure.get_suptitle() == "Without barrier 4\n2 of 6 numbers of dV are wrong (framed)"
