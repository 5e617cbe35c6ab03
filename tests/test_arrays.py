"""Intake and output of arrays: kinds, dtypes, strides, streams. naive_softmax stands for every function."""

import gc

import numpy as np
import pytest
from conftest import gpu_only, simulator_only
from numba import cuda

from fa_numba import block_softmax, flash_forward, naive_softmax, online_softmax
from fa_numba.arrays import Call, copy_kernel
from fa_numba.device import SIMULATED, launch


def softmax(x):
    """Return the result for a contiguous copy on the host."""
    return naive_softmax(np.ascontiguousarray(x))


@pytest.fixture
def x(rng):
    return rng.standard_normal((6, 4, 10)).astype(np.float32)


VIEWS = {
    "transposed": lambda x: x.swapaxes(0, 1),
    "last axis strided": lambda x: x[..., ::2],
    "rows strided": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "reversed rows": lambda x: x[..., ::-1],
    "Fortran order": np.asfortranarray,
    "inner slice": lambda x: x[1:5, 1:3, 3:8],
    "broadcast": lambda x: np.broadcast_to(x[:1, :1], (3, 4, 10)),
    "scalar broadcast": lambda x: np.broadcast_to(x[0, 0, 0], (2, 5)),
    "one row": lambda x: x[2, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_strides_on_the_host(x, view):
    """CASES A11, A12, C16, C18: values, not memory order, define the result."""
    strided = view(x)
    before = x.copy()
    result = naive_softmax(strided)
    np.testing.assert_array_equal(result, softmax(strided))
    assert result.flags.c_contiguous
    assert result.flags.writeable
    np.testing.assert_array_equal(x, before)


DEVICE_VIEWS = {
    "last axis strided": lambda d: d[:, :, ::2],
    "rows strided": lambda d: d[::2],
    "inner slice": lambda d: d[1:5, 1:3, 3:8],
    "one row": lambda d: d[2, 1],
    "reversed": lambda d: d[::-1],
    "empty": lambda d: d[3:3],
}


@pytest.mark.parametrize("view", DEVICE_VIEWS.values(), ids=DEVICE_VIEWS)
def test_any_strides_on_the_device(x, view):
    """CASES C18, C62."""
    result = naive_softmax(view(cuda.to_device(x)))
    np.testing.assert_array_equal(result.copy_to_host(), softmax(view(x)))


def test_fortran_order_on_the_device(x):
    result = naive_softmax(cuda.to_device(np.asfortranarray(x)))
    np.testing.assert_array_equal(result.copy_to_host(), softmax(x))


def test_numpy_in_numpy_out_and_device_in_device_out(x):
    """CASES C28."""
    host = naive_softmax(x)
    assert type(host) is np.ndarray
    on_device = naive_softmax(cuda.to_device(x))
    assert on_device.__cuda_ndarray__
    assert tuple(on_device.shape) == x.shape
    assert on_device.dtype == x.dtype
    np.testing.assert_array_equal(on_device.copy_to_host(), host)


def test_read_only_inputs(x):
    """CASES C20."""
    expected = softmax(x)
    x.flags.writeable = False
    np.testing.assert_array_equal(naive_softmax(x), expected)


def test_mixed_places(x):
    with pytest.raises(TypeError, match="host and device arrays are mixed: q, v on the host, k on the device"):
        Call(q=x, k=cuda.to_device(x), v=x)


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ((np.float32, np.float16, np.float16), "q float32, k float16, v float16; taken: float32 or float64 for all"),
        ((np.float32, np.float64, np.float32), "q float32, k float64, v float32"),
        ((np.int64, np.int64, np.int64), "q int64, k int64, v int64"),
        ((bool, bool, bool), "q bool, k bool, v bool"),
        ((np.complex64,) * 3, "q complex64"),
        ((">f4",) * 3, "q >f4"),
    ],
)
def test_dtypes(dtypes, message):
    """CASES A23: named, never reinterpreted."""
    arrays = {name: np.ones((2, 2)).astype(dtype) for name, dtype in zip("qkv", dtypes)}
    with pytest.raises(TypeError, match=f"dtypes given: .*{message}"):
        Call(**arrays)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "x is a list; it must be a NumPy array"),
        (1.0, "x is a float; it must be"),
        (None, "x is a NoneType"),
        ("softmax", "x is a str"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "x is a masked array, whose mask would be ignored"),
        (np.array([1.0, "a"], dtype=object), "dtypes given: x object"),
    ],
)
def test_other_kinds_of_input(value, message):
    with pytest.raises(TypeError, match=message):
        naive_softmax(value)


def test_subclasses_of_numpy_arrays_are_read_as_arrays(x):
    class Subclass(np.ndarray):
        pass

    result = naive_softmax(x[0].view(Subclass))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, softmax(x[0]))


def test_temporaries_may_be_dropped_at_once(x):
    """CASES C47."""
    expected = softmax(x[:, :, ::2])
    results = [naive_softmax(cuda.to_device(x)[:, :, ::2]) for _ in range(50 if SIMULATED else 200)]
    gc.collect()
    for result in results:
        np.testing.assert_array_equal(result.copy_to_host(), expected)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (2, 1, 3, 2)])
def test_the_copy_kernel_reads_any_strides(rng, shape):
    base = rng.standard_normal(tuple(2 * n for n in shape))
    strided = cuda.to_device(base)[tuple(slice(None, None, 2) for _ in shape)]
    y = cuda.device_array(int(np.prod(shape)), base.dtype)
    launch(copy_kernel, 1, 64, strided, y)
    np.testing.assert_array_equal(y.copy_to_host(), base[tuple(slice(None, None, 2) for _ in shape)].ravel())


@simulator_only
def test_the_simulator_poisons_what_a_call_allocates():
    with Call(x=np.ones(3, np.float32)) as call:
        assert np.isnan(call.empty("y", (3,)).copy_to_host()).all()


# -- the CUDA array interface (GPU only: simulated device arrays have none) ----------------------------------------


class Interface:
    """A device array as another library shows it."""

    def __init__(self, array, strides=None, stream=None):
        self.owner = array
        self.__cuda_array_interface__ = {
            "shape": tuple(array.shape),
            "strides": strides,
            "typestr": array.dtype.str,
            "data": (array.__cuda_array_interface__["data"][0], False),
            "stream": stream,
            "version": 3,
        }


@gpu_only
def test_interfaces_with_and_without_strides(x):
    """CASES C24."""
    array = cuda.to_device(x)
    for strides in (None, array.strides):
        np.testing.assert_array_equal(naive_softmax(Interface(array, strides)).copy_to_host(), softmax(x))


@gpu_only
def test_mixed_dtypes_through_the_interface(x):
    with pytest.raises(TypeError, match="q float32, k float64"):
        Call(q=Interface(cuda.to_device(x)), k=Interface(cuda.to_device(x.astype(np.float64))))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@gpu_only
def test_pytorch_tensors(torch, x):
    tensor = torch.from_numpy(x).cuda()
    np.testing.assert_array_equal(naive_softmax(tensor).copy_to_host(), softmax(x))
    np.testing.assert_array_equal(naive_softmax(tensor.transpose(0, 2)).copy_to_host(), softmax(x.swapaxes(0, 2)))
    expanded = tensor[:1].expand(3, -1, -1)
    np.testing.assert_array_equal(naive_softmax(expanded).copy_to_host(), softmax(np.repeat(x[:1], 3, axis=0)))


@gpu_only
def test_more_than_2_to_the_31_elements(torch):
    """CASES A20: offsets are 64 bits wide, in the softmax and in the copy of a strided input."""
    rows, n = 2**31 // 32 + 1, 32
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of device memory")
    for x in (torch.zeros(rows, n, device="cuda"), torch.zeros(n, rows, device="cuda").T):
        x[-1, 0] = np.log(n + 1)
        y = torch.as_tensor(naive_softmax(x), device="cuda")
        assert torch.allclose(y[-1, :2].cpu(), torch.tensor([(n + 1) / (2 * n), 1 / (2 * n)]))
        assert (y[:-1] == 1 / n).all()


@gpu_only
def test_cupy_arrays(x):
    cupy = pytest.importorskip("cupy")
    for array, host in ((cupy.asarray(x), x), (cupy.asarray(x)[::-1, :, ::-2], x[::-1, :, ::-2])):
        np.testing.assert_array_equal(naive_softmax(array).copy_to_host(), softmax(host))


@gpu_only
def test_pytorch_tensors_that_cannot_be_taken(torch, x):
    with pytest.raises(TypeError, match=r"x cannot be read as a device array: .*requires grad"):
        naive_softmax(torch.from_numpy(x).cuda().requires_grad_())
    with pytest.raises(TypeError, match=r"x is a torch.Tensor; it must be"):
        naive_softmax(torch.from_numpy(x))


@gpu_only
def test_pytorch_s_current_stream_is_taken(torch):
    """CASES C25, C26: the input is written on a side stream, behind 100 ms of other work."""
    n = 1 << 20
    truth = torch.softmax(torch.arange(8.0, device="cuda").repeat(n // 8, 1), -1)
    x = torch.full((n // 8, 8), float("nan"), device="cuda")
    source = torch.arange(8.0, device="cuda").repeat(n // 8, 1)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.copy_(source)
        y = naive_softmax(x)
        assert int(y.stream) == side.cuda_stream
    side.synchronize()
    assert torch.allclose(torch.as_tensor(y, device="cuda"), truth, atol=1e-6)


@gpu_only
def test_the_stream_of_the_interface_is_taken(torch):
    n = 1 << 20
    source = torch.arange(8.0, device="cuda").repeat(n // 8, 1)
    x = torch.full((n // 8, 8), float("nan"), device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.copy_(source)
    shown = Interface(cuda.as_cuda_array(x), stream=side.cuda_stream)
    y = naive_softmax(shown)
    assert int(y.stream) == side.cuda_stream
    assert y.__cuda_array_interface__["stream"] == side.cuda_stream
    np.testing.assert_allclose(
        y.copy_to_host(), np.tile(softmax(np.arange(8, dtype=np.float32)), (n // 8, 1)), atol=1e-6
    )


@gpu_only
def test_a_call_waits_for_the_streams_of_all_its_inputs(torch):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a = torch.zeros(4, device="cuda")
    b = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        torch.cuda._sleep(200_000_000)
        b.fill_(1)
    shown = [Interface(cuda.as_cuda_array(t), stream=s.cuda_stream) for t, s in ((a, first), (b, second))]
    with Call(a=shown[0], b=shown[1]) as call:
        assert int(call.stream) == first.cuda_stream
        arrived = cuda.as_cuda_array(b, sync=False).copy_to_host(stream=call.stream)
        np.testing.assert_array_equal(arrived, np.ones(4))


@gpu_only
def test_inputs_on_a_second_gpu(x):
    """CASES C27."""
    if len(cuda.gpus) < 2:
        pytest.skip("needs two GPUs")
    with cuda.gpus[1]:
        second = cuda.to_device(x)
    first = cuda.to_device(x)
    np.testing.assert_array_equal(naive_softmax(second).copy_to_host(), softmax(x))
    with pytest.raises(ValueError, match="the inputs are on different devices: q on device 0, k on device 1"):
        Call(q=first, k=second).__enter__()


def test_a_view_that_starts_between_multiples_of_16_bytes(rng):
    """Kernels load four elements at once only where that is allowed."""
    flat = cuda.to_device(rng.standard_normal(1 + 3 * 8 * 4).astype(np.float32))
    x = flat[1:].reshape(3, 8, 4)
    for function in (block_softmax, online_softmax):
        np.testing.assert_array_equal(function(x).copy_to_host(), function(x.copy_to_host()))
    o = flash_forward(x, x, x, block_q=8, block_k=8).o.copy_to_host()
    host = x.copy_to_host()
    np.testing.assert_array_equal(o, flash_forward(host, host, host, block_q=8, block_k=8).o)
