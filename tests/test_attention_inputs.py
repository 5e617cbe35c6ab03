"""What every attention function takes, and how it refuses the rest: layouts, places, dtypes, shapes, scales."""

import math
import re

import numpy as np
import pytest
from attention import BAD_BLOCKS, DEVICE_VIEWS, DTYPES, GROUPED, LAYOUTS, assert_same, inputs
from conftest import simulator_only
from numba import cuda

from fa_numba import (
    device,
    flash_attention,
    flash_backward,
    flash_forward,
    reference,
    standard_attention,
    standard_attention_backward,
)

TAKES = {
    standard_attention: ("q", "k", "v"),
    standard_attention_backward: ("do", "q", "k", "v", "p"),
    flash_forward: ("q", "k", "v"),
    flash_backward: ("do", "q", "k", "v", "o", "m", "l"),
    flash_attention: ("q", "k", "v"),
}
PLACES = [(function, name) for function, names in TAKES.items() for name in names]


@pytest.fixture(params=TAKES, ids=lambda function: function.__name__)
def function(request):
    return request.param


def arguments(function, q, k, v, do):
    """Return what a function takes, by name."""
    saved = reference.attention(q, k, v)._asdict()
    arrays = {"q": q, "k": k, "v": v, "do": do} | {name: x.astype(q.dtype) for name, x in saved.items()}
    return {name: arrays[name] for name in TAKES[function]}


def random_arguments(function, rng, dtype=np.float32):
    return arguments(function, *inputs(rng, GROUPED, dtype))


def zeros(function, q=(2, 2), k=None, v=None, dtype=np.float32):
    """Return arrays of zeros, with o, m, l and p of shapes that would go with q, k and v."""
    k, v = k or q, v or k or q
    shapes = {"q": q, "k": k, "v": v, "do": (*q[:-1], *v[-1:]), "m": q[:-1], "p": (*q[:-1], *k[-2:-1])}
    shapes |= {"o": shapes["do"], "l": shapes["m"]}
    return {name: np.zeros(shapes[name], dtype) for name in TAKES[function]}


def call(function, arrays, **options):
    """Return all that a function returns, as a tuple; with the tile that is fastest on the simulator."""
    if function in (flash_forward, flash_backward):
        options |= {"block_q": 8, "block_k": 8}
    result = function(*arrays.values(), **options)
    return result if isinstance(result, tuple) else (result,)


def results(function, arrays, **options):
    """Return the same as NumPy arrays."""
    return [x if isinstance(x, np.ndarray) else x.copy_to_host() for x in call(function, arrays, **options)]


# -- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides(rng, function, layout):
    """CASES A11, A12, C16, C18: values, not memory order, define the result; layouts may differ."""
    arrays = random_arguments(function, rng)
    expected = results(function, arrays)
    strided = {name: layout(x) for name, x in arrays.items()}
    assert not any(x.flags.c_contiguous for x in strided.values())
    assert_same(results(function, strided), expected)
    arrays["q"] = strided["q"]
    arrays["v"] = np.asfortranarray(arrays["v"])
    assert_same(results(function, arrays), expected)


@pytest.mark.parametrize("view", DEVICE_VIEWS.values(), ids=DEVICE_VIEWS)
def test_device_arrays(rng, function, view):
    """CASES C16, C18, C28, C62: the same numbers, on the device, in an array of their own order."""
    arrays = random_arguments(function, rng)
    result = call(function, {name: view(x) for name, x in arrays.items()})
    assert all(x.__cuda_ndarray__ and x.is_c_contiguous() for x in result)
    assert_same([x.copy_to_host() for x in result], results(function, arrays))


def test_numpy_in_numpy_out(rng, function):
    """CASES C20, C28: and read-only arrays are read."""
    arrays = random_arguments(function, rng)
    expected = results(function, arrays)
    before = [x.copy() for x in arrays.values()]
    for x in arrays.values():
        x.flags.writeable = False
    result = call(function, arrays)
    assert {type(x) for x in result} == {np.ndarray}
    assert all(x.flags.writeable and x.flags.c_contiguous for x in result)
    assert_same(result, expected)
    assert_same(list(arrays.values()), before)


def test_one_array_in_several_places(rng, function):
    """CASES C21: on the host and on the device."""
    x = rng.standard_normal((5, 4)).astype(np.float32)
    arrays = arguments(function, x, x, x, x)
    expected = results(function, {name: y.copy() for name, y in arrays.items()})
    assert_same(results(function, arrays), expected)
    shared = cuda.to_device(x)
    arrays = {name: shared if y is x else cuda.to_device(y) for name, y in arrays.items()}
    assert_same(results(function, arrays), expected)
    np.testing.assert_array_equal(shared.copy_to_host(), x)


# -- what is refused, before anything is launched -------------------------------------------------------------------


def refused(error, message, function, arrays, launches, **options):
    """Hold a call to an error with a message that holds the given text, and to no launch."""
    with pytest.raises(error, match=message):
        function(*arrays.values(), **options)
    assert launches == []


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.int64, bool, np.complex64], ids=lambda x: x.__name__)
def test_dtypes_that_are_not_taken(function, launches, dtype):
    """CASES A23: all are named."""
    given = ", ".join(f"{name} {np.dtype(dtype)}" for name in TAKES[function])
    message = f"dtypes given: {given}; taken: float32 or float64 for all"
    refused(TypeError, message, function, zeros(function, dtype=dtype), launches)


@pytest.mark.parametrize("other", [np.float16, np.float64])
@pytest.mark.parametrize(("function", "name"), PLACES)
def test_mixed_dtypes(function, name, launches, other):
    """CASES A23."""
    arrays = zeros(function)
    arrays[name] = arrays[name].astype(other)
    given = ", ".join(f"{each} {x.dtype}" for each, x in arrays.items())
    message = f"dtypes given: {given}; taken: float32 or float64 for all"
    refused(TypeError, message, function, arrays, launches)


@pytest.mark.parametrize(("function", "name"), PLACES)
def test_host_and_device_arrays_are_not_mixed(function, name, launches):
    """CASES C28."""
    arrays = zeros(function)
    arrays[name] = cuda.to_device(arrays[name])
    host = ", ".join(each for each in arrays if each != name)
    message = f"host and device arrays are mixed: {host} on the host, {name} on the device"
    refused(TypeError, message, function, arrays, launches)


@pytest.mark.parametrize(
    ("value", "kind"),
    [([[1.0]], "list"), (None, "NoneType"), (1.0, "float"), (np.ma.masked_array([[1.0]], [[1]]), "masked array")],
    ids=["list", "None", "number", "masked array"],
)
@pytest.mark.parametrize(("function", "name"), PLACES)
def test_what_is_not_an_array(function, name, launches, value, kind):
    refused(TypeError, f"^{name} is a {kind}", function, zeros(function) | {name: value}, launches)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((4,), (4,), (4,), "q, k and v must be (length, dim), (heads, length, dim) or (batch, heads, length, dim)"),
        ((1,) * 5, (1,) * 5, (1,) * 5, "q, k and v must be (length, dim), (heads, length, dim) or"),
        ((1, 3, 4), (5, 4), (5, 2), "all alike"),
        ((3, 4), (5, 4), (6, 2), "k and v must agree in all but their last axis"),
        ((3, 4), (5, 3), (5, 4), "q and k must have the same head dim"),
        ((3, 0), (5, 0), (5, 4), "the head dim of q and k must be from 1 to 256, not 0"),
        ((3, 4), (5, 4), (5, 257), "the head dim of v must be from 1 to 256, not 257"),
        ((2, 4, 3, 4), (1, 4, 5, 4), (1, 4, 5, 2), "q, k and v must have the same batch"),
        ((4, 3, 4), (3, 5, 4), (3, 5, 2), "the heads of k and v must divide those of q"),
        ((2, 3, 4), (4, 5, 4), (4, 5, 2), "the heads of k and v must divide those of q"),
    ],
    ids=str,
)
def test_wrong_shapes(function, launches, q, k, v, message):
    message = re.escape(message) + ".*" + re.escape(f"; q has shape {q}, k {k}, v {v}")
    refused(ValueError, message, function, zeros(function, q, k, v), launches)


@pytest.mark.parametrize(
    ("function", "name", "shape", "expected"),
    [
        *(
            (function, name, shape, (2, 3, 5))
            for function, name in PLACES
            if name in ("do", "o")
            for shape in ((2, 3, 4), (2, 3, 6), (3, 5), (1, 3, 5), (2, 5, 3))
        ),
        *(
            (flash_backward, name, shape, (2, 3))
            for name in ("m", "l")
            for shape in ((2, 3, 1), (2, 4), (3, 2), (6,), ())
        ),
        *((standard_attention_backward, "p", shape, (2, 3, 4)) for shape in ((2, 4, 3), (2, 3, 5), (3, 4), ())),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_shapes_that_do_not_go_with_the_others(function, launches, name, shape, expected):
    arrays = zeros(function, (2, 3, 6), (1, 4, 6), (1, 4, 5)) | {name: np.zeros(shape, np.float32)}
    message = f"{name} has shape {shape}; with these q, k and v it must be {expected}"
    refused(ValueError, f"^{re.escape(message)}$", function, arrays, launches)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (True, TypeError, "scale is True, a bool; it must be a real number or None"),
        (np.False_, TypeError, "it must be a real number or None"),
        (1j, TypeError, "scale is 1j, a complex; it must be a real number or None"),
        ("1", TypeError, "scale is '1', a str; it must be a real number or None"),
        (np.ones(1), TypeError, "it must be a real number or None"),
        (math.nan, ValueError, "scale is nan; it must be finite"),
        (-math.inf, ValueError, "scale is -inf; it must be finite"),
        (1e39, ValueError, "scale is larger than a float32 can be"),
        (-1e39, ValueError, "scale is larger than a float32 can be"),
        (10**400, ValueError, "scale is larger than a float32 can be"),
    ],
    ids=lambda x: getattr(x, "__name__", repr(x))[:12],
)
def test_bad_scales(function, launches, scale, error, message):
    refused(error, re.escape(message), function, zeros(function), launches, scale=scale)


def test_a_scale_that_only_float64_can_hold(function):
    arrays = zeros(function, dtype=np.float64)
    assert all(np.isfinite(x).all() for x in results(function, arrays, scale=1e39))


@pytest.mark.parametrize("causal", [1, None, "yes"])
def test_causal_is_true_or_false(function, launches, causal):
    message = f"causal is {causal!r}; it must be True or False"
    refused(TypeError, message, function, zeros(function), launches, causal=causal)


@pytest.mark.parametrize("block", BAD_BLOCKS)
@pytest.mark.parametrize("name", ["block_q", "block_k"])
@pytest.mark.parametrize("function", [flash_forward, flash_backward])
def test_bad_tiles(function, launches, name, block):
    message = rf"{name}={block!r}.* do not fit; \(block_q, block_k\) can be \[\(8, 8\), "
    refused(ValueError, message, function, zeros(function), launches, **{name: block})


@pytest.mark.parametrize("function", [flash_forward, flash_backward])
def test_bad_tiles_of_nothing(function, launches):
    """There is no query, and still the tile is wrong."""
    refused(ValueError, "block_q=7.* do not fit", function, zeros(function, (0, 3)), launches, block_q=7)


@simulator_only
@pytest.mark.parametrize("function", [flash_forward, flash_backward])
def test_a_tile_that_does_not_fit_the_device_is_refused(function, launches, monkeypatch):
    monkeypatch.setenv("FA_NUMBA_SIMULATED_CC", "7.5")
    message = r"block_q=64, block_k=64 do not fit; .* can be \[\(8, 8\), (?!.*64, 64)"
    refused(ValueError, message, function, zeros(function, (1, 128)), launches, block_q=64, block_k=64)


@simulator_only
def test_a_call_that_would_take_minutes_warns_first(function, launches):
    name = "flash_forward" if function is flash_attention else function.__name__
    arrays = {each: np.broadcast_to(np.float32(0), x.shape) for each, x in zeros(function, (4096, 64)).items()}
    with pytest.warns(device.SlowSimulation, match=rf"^{name} will take about \d+ minutes on the simulator"):
        function(*arrays.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leading", [(), (2,), (1, 2)], ids=str)
def test_results_have_the_inputs_dtype_and_form(function, dtype, leading):
    arrays = zeros(function, (*leading, 2, 3), (*leading, 4, 3), (*leading, 4, 5), dtype)
    shapes = {"o": (2, 5), "p": (2, 4), "m": (2,), "l": (2,), "dq": (2, 3), "dk": (4, 3), "dv": (4, 5)}
    names = {standard_attention: "o p", flash_forward: "o m l", flash_attention: "o"}.get(function, "dq dk dv")
    result = results(function, arrays)
    assert [x.shape for x in result] == [(*leading, *shapes[name]) for name in names.split()]
    assert {x.dtype for x in result} == {np.dtype(dtype)}
