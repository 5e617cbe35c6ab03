"""The PyTorch function against PyTorch's own attention and its autograd."""

import pytest

torch = pytest.importorskip("torch")

import fa_numba.torch  # noqa: E402 (only if PyTorch is there)
from fa_numba import device  # noqa: E402
from fa_numba.torch import flash_attention  # noqa: E402

# PyTorch says so where the first matrix product of a process is one of a backward pass.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")

PLACE = "cpu" if device.SIMULATED else "cuda"


def tensors(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(shape, generator=generator, dtype=dtype).to(PLACE) for shape in shapes]
    return [tensor.requires_grad_() for tensor in made]


@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_are_pytorch_s(causal):
    q, k, v = tensors((2, 3, 9, 4), (2, 3, 9, 4), (2, 3, 9, 4))
    ours = flash_attention(q, k, v, causal=causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(ours, theirs)
    do = torch.randn_like(theirs)
    for mine, right in zip(torch.autograd.grad(ours, (q, k, v), do), torch.autograd.grad(theirs, (q, k, v), do)):
        torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(scale=-0.7)], ids=str)
def test_gradcheck(options):
    q, k, v = tensors((2, 2, 3), (1, 3, 3), (1, 3, 2))  # two query heads share a key head
    assert torch.autograd.gradcheck(lambda *inputs: flash_attention(*inputs, **options), (q, k, v))


def test_strided_tensors_and_expanded_gradients():
    q, k, v = tensors((5, 2, 4), (5, 2, 4), (5, 2, 4))
    strided = [x.transpose(0, 1) for x in (q, k, v)]
    o = flash_attention(*strided)
    torch.testing.assert_close(o, flash_attention(*(x.contiguous() for x in strided)))
    o.sum().backward()  # the gradient of a sum is one number, expanded
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_only_the_gradients_that_are_asked_for():
    q, k, v = tensors((3, 2), (3, 2), (3, 2))
    flash_attention(q, k.detach(), v.detach()).sum().backward()
    assert q.grad is not None and k.grad is None


@pytest.mark.parametrize(("n_q", "n_k"), [(3, 5), (5, 3)])
def test_more_keys_or_more_queries(n_q, n_k):
    """The last query sees the last key: PyTorch gets that mask, and only the queries that see a key."""
    q, k, v = tensors((2, n_q, 4), (1, n_k, 4), (1, n_k, 2))
    seen = max(0, n_q - n_k)
    ours = flash_attention(q, k, v, causal=True)
    mask = torch.ones(n_q, n_k, dtype=torch.bool, device=PLACE).tril(n_k - n_q)[seen:]
    theirs = torch.nn.functional.scaled_dot_product_attention(q[:, seen:], k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(ours[:, seen:], theirs)
    assert not ours[:, :seen].any()
    do = torch.randn_like(ours)
    right = torch.autograd.grad(theirs, (q, k, v), do[:, seen:])
    for mine, gradient in zip(torch.autograd.grad(ours, (q, k, v), do), right):
        torch.testing.assert_close(mine, gradient)


@pytest.mark.parametrize(("n_q", "n_k"), [(3, 0), (0, 3)])
def test_empty_tensors(n_q, n_k):
    """CASES A7, C8."""
    q, k, v = tensors((n_q, 4), (n_k, 4), (n_k, 2))
    o = flash_attention(q, k, v)
    torch.testing.assert_close(o, torch.zeros_like(o))
    assert o.shape == (n_q, 2)
    for x, gradient in zip((q, k, v), torch.autograd.grad(o, (q, k, v), torch.ones_like(o))):
        torch.testing.assert_close(gradient, torch.zeros_like(x))


def test_inputs_are_not_written_to():
    q, k, v = tensors((4, 3), (5, 3), (5, 2), dtype=torch.float32)
    before = [x.detach().clone() for x in (q, k, v)]
    flash_attention(q, k, v).sum().backward()
    for x, old in zip((q, k, v), before):
        assert torch.equal(x, old)
        assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
def test_a_second_derivative_is_refused(name):
    """Not taken for 0: a penalty on the gradient would be lost in silence."""
    x = dict(zip(("q", "k", "v", "do"), (tensor.detach() for tensor in tensors(*[(2, 2)] * 4))))
    first = "v" if name == "do" else name
    x[first].requires_grad_()
    x["do"].requires_grad_(name == "do")
    o = flash_attention(x["q"], x["k"], x["v"])
    (gradient,) = torch.autograd.grad(o, x[first], x["do"], create_graph=True)
    with pytest.raises(RuntimeError, match="flash_attention can be differentiated once, not twice"):
        (o.sum() + gradient.square().sum()).backward()


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_not_a_tensor_where_the_kernels_run(name):
    arrays = {each: torch.zeros(2, 2, device=PLACE) for each in "qkv"}
    message = f"it must be a tensor on {PLACE}, where the kernels run"
    with pytest.raises(TypeError, match=f"^{name} is a list; {message}"):
        flash_attention(**arrays | {name: [1.0]})
    with pytest.raises(TypeError, match=f"^{name} is a ndarray; {message}"):
        flash_attention(**arrays | {name: arrays[name].cpu().numpy()})
    with pytest.raises(TypeError, match=f"^{name} is on meta; {message}"):
        flash_attention(**arrays | {name: torch.zeros(2, 2, device="meta")})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_dtypes_that_are_not_taken(dtype):
    """CASES A23."""
    x, other = torch.zeros(2, 2, device=PLACE), torch.zeros(2, 2, device=PLACE, dtype=dtype)
    word = str(dtype).removeprefix("torch.")
    with pytest.raises(
        TypeError, match=f"dtypes given: q {word}, k {word}, v {word}; taken: float32 or float64 for all"
    ):
        flash_attention(other, other, other)
    with pytest.raises(TypeError, match=f"dtypes given: q float32, k {word}, v {word}; taken: float32 or float64"):
        flash_attention(x, other, other)


def test_shapes_scales_and_masks_that_do_not_fit():
    x = torch.zeros(2, 2, device=PLACE)
    with pytest.raises(ValueError, match=r"the same head dim; q has shape \(2, 2\), k \(2, 1\), v \(2, 2\)"):
        flash_attention(x, x[:, :1], x)
    with pytest.raises(ValueError, match=r"the head dim of q and k must be from 1 to 256, not 0"):
        flash_attention(x[:, :0], x[:, :0], x)
    with pytest.raises(ValueError, match="scale is nan; it must be finite"):
        flash_attention(x, x, x, scale=float("nan"))
    with pytest.raises(TypeError, match="scale is True, a bool; it must be a real number or None"):
        flash_attention(x, x, x, scale=True)
    with pytest.raises(TypeError, match="causal is 1; it must be True or False"):
        flash_attention(x, x, x, causal=1)


def test_the_package_does_not_import_pytorch():
    from conftest import run_python

    finished = run_python("import sys, fa_numba; print('torch' in sys.modules)")
    assert finished.stdout == "False\n"
    assert fa_numba.torch.flash_attention is flash_attention


def test_a_tensor_stored_with_the_other_sign():
    """The imaginary part of a conjugate is a view that PyTorch negates when it is read."""
    q, k, v = (x.detach() for x in tensors((3, 2), (4, 2), (4, 2)))
    negated = torch.complex(q, -q).conj().imag
    torch.testing.assert_close(flash_attention(negated, k, v), flash_attention(q, k, v))


def test_a_sparse_tensor_is_refused():
    x = torch.zeros(2, 2, device=PLACE)
    with pytest.raises(TypeError, match=r"q has layout torch\.sparse_coo; it must be a dense"):
        flash_attention(x.to_sparse(), x, x)
