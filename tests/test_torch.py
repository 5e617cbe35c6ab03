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
    q, k, v = tensors((2, 3, 2), (1, 4, 2), (1, 4, 3))  # two query heads share a key head
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


def test_what_is_not_taken():
    x = torch.zeros(2, 2)
    with pytest.raises(TypeError, match="q is a list; it must be a tensor on"):
        flash_attention([1.0], x, x)
    with pytest.raises(TypeError, match="dtypes given: q float16"):
        flash_attention(*[x.to(PLACE, torch.float16)] * 3)


def test_the_package_does_not_import_pytorch():
    from conftest import run_python

    finished = run_python("import sys, fa_numba; print('torch' in sys.modules)")
    assert finished.stdout == "False\n"
    assert fa_numba.torch.flash_attention is flash_attention
