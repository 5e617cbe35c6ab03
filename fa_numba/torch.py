"""Flash attention as a PyTorch function with gradients; the package itself never imports PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from fa_numba.device import SIMULATED
from fa_numba.step4_flash_forward import flash_forward
from fa_numba.step5_flash_backward import flash_backward


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Return attention's output, differentiable once with respect to q, k and v.

    Parameters
    ----------
    q, k, v : torch.Tensor
        float32 or float64, of the shapes of :func:`fa_numba.flash_forward`: CUDA tensors on a GPU, whose current stream
        is used, CPU tensors on the simulator.
    causal, scale
        As for :func:`fa_numba.flash_forward`.

    Returns
    -------
    torch.Tensor of shape (..., n_q, d_v)

    Raises
    ------
    TypeError
        For tensors in the wrong place, and for what :func:`fa_numba.flash_forward` refuses.
    ValueError
        For shapes and scales that do not fit.
    """
    return _FlashAttention.apply(q, k, v, causal, scale)


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, causal: Any, scale: Any) -> torch.Tensor:
        given = {"q": q, "k": k, "v": v}
        for name, tensor in given.items():
            _require_place(name, tensor)
        if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in given.values()):
            dtypes = ", ".join(f"{name} {str(tensor.dtype).removeprefix('torch.')}" for name, tensor in given.items())
            raise TypeError(f"dtypes given: {dtypes}; taken: float32 or float64 for all")
        arrays = [_as_array(name, tensor) for name, tensor in given.items()]
        o, m, l = (_as_tensor(array, q) for array in flash_forward(*arrays, causal=causal, scale=scale))
        ctx.save_for_backward(q, k, v, o, m, l)
        ctx.options = {"causal": causal, "scale": scale}
        return o

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple:
        return (*_FlashGradients.apply(do, *ctx.saved_tensors, ctx.options), None, None)


class _FlashGradients(torch.autograd.Function):
    """The gradients: a function of its own, so that a second derivative is refused and not taken for 0."""

    @staticmethod
    def forward(ctx: Any, do: Any, q: Any, k: Any, v: Any, o: Any, m: Any, l: Any, options: dict) -> tuple:
        named = zip(("do", "q", "k", "v", "o", "m", "l"), (do, q, k, v, o, m, l))
        gradients = flash_backward(*(_as_array(name, tensor) for name, tensor in named), **options)
        return tuple(_as_tensor(gradient, do) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple:
        raise RuntimeError("flash_attention can be differentiated once, not twice")


def _require_place(name: str, tensor: Any) -> None:
    wanted = "cpu" if SIMULATED else "cuda"
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != wanted:
        given = f"on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        raise TypeError(f"{name} is {given}; it must be a tensor on {wanted}, where the kernels run")


def _as_array(name: str, tensor: Any) -> Any:
    """Return what our functions take: NumPy on the simulator, the tensor itself on a GPU."""
    _require_place(name, tensor)
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}; it must be a dense (strided) tensor")
    tensor = tensor.detach().resolve_neg()  # a view of an imaginary part may be stored with the other sign
    return tensor.numpy() if SIMULATED else tensor


def _as_tensor(array: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(array, device=like.device)
