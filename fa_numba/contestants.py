"""Who takes part in the measurements: our steps and their rungs, a plain copy, PyTorch's own softmax and attention."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba import cuda

import fa_numba
from fa_numba import step2_online_softmax, step3_standard_attention, step4_flash_forward, step5_flash_backward
from fa_numba.ledger import ledger

COPY = "copy"
TORCH_SOFTMAX = "torch.softmax"
EFFICIENT, MATH, MATH_TF32 = "torch EFFICIENT", "torch MATH", "torch MATH TF32"
PEERS = (COPY, TORCH_SOFTMAX, EFFICIENT, MATH, MATH_TF32)
WITH_TF32 = (8, 0)  # the first compute capability whose tensor cores take it
TOLERANCE, TOLERANCE_TF32 = 1e-3, 2e-2  # of the largest value: loose, as only a wrong kernel is to be found

STEPS = {  # whose rungs are measured, and which part of attention they compute
    "softmax": (step2_online_softmax, "softmax"),
    "standard": (step3_standard_attention, "forward"),
    "forward": (step4_flash_forward, "forward"),
    "backward": (step5_flash_backward, "backward"),
}

PASSES = {name: step2_online_softmax.RUNGS[name] for name in ("three passes", "two passes")}

Call = Callable[[], tuple]


@dataclass(frozen=True)
class Contestant:
    """One that is measured.

    Attributes
    ----------
    name : str
        In the record.
    prepare : callable
        Does what is not timed, such as the forward pass before a backward, and returns the call that is.
    outputs : tuple of str
        What the call returns, by name.
    peak : callable
        Given ``prepare``: the bytes at the peak of a call, with its inputs and outputs.
    label : str
        In tables; the name if empty.
    needs_matrices : bool
        Whether it keeps matrices of n² scores.
    tolerance : float
        The error, over the largest value, up to which it counts as right.
    """

    name: str
    prepare: Callable[[], Call]
    outputs: tuple[str, ...]
    peak: Callable[[Callable[[], Call]], int]
    label: str = ""
    needs_matrices: bool = False
    tolerance: float = TOLERANCE


def find_torch() -> Any:
    """Return PyTorch if it is installed and sees the GPU, else None."""
    try:
        import torch
        import torch.nn.attention
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def in_float32(torch: Any) -> contextlib.AbstractContextManager:
    """Keep PyTorch's matrix products in float32, not TF32; None does nothing."""
    return contextlib.nullcontext() if torch is None else _precision(torch, "highest")


@contextlib.contextmanager
def _precision(torch: Any, precision: str) -> Iterator[None]:
    """Set how PyTorch multiplies float32 matrices: "highest", or "high" for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def softmax(x: Any, torch: Any) -> list[Contestant]:
    """Return who computes the softmax of a device array, and a copy, which moves the same bytes.

    block_softmax is not among them: it is online_softmax where a row fits in registers, and three passes elsewhere.
    """
    functions = {
        "naive_softmax": fa_numba.naive_softmax,
        **PASSES,
        "online_softmax": fa_numba.online_softmax,
    }
    ours = [Contestant(name, lambda f=f: lambda: (f(x),), ("y",), ledger_peak) for name, f in functions.items()]
    copy = Contestant(COPY, lambda: _copy_of(x), ("x",), lambda _: 2 * x.nbytes, "copy of the array")
    if torch is None:
        return [*ours, copy]
    tensor = torch.as_tensor(x, device="cuda")
    peak = torch_peak(torch, x.nbytes)
    theirs = Contestant(TORCH_SOFTMAX, lambda: lambda: (torch.softmax(tensor, -1),), ("y",), peak)
    return [*ours, theirs, copy]


def _copy_of(x: Any) -> Call:
    y = cuda.device_array_like(x)

    def call() -> tuple:
        y.copy_to_device(x)
        return (y,)

    return call


def rungs(step: str, inputs: dict[str, Any], torch: Any) -> list[Contestant]:
    """Return the rungs of a step in order, and its peers.

    Parameters
    ----------
    step : str
        ``"softmax"``, ``"standard"``, ``"forward"`` or ``"backward"``.
    inputs : dict of device array
        ``x``, or ``q``, ``k``, ``v`` and ``do``.
    torch
        PyTorch, or None.
    """
    module, part = STEPS[step]
    rivals = softmax(inputs["x"], torch) if step == "softmax" else attention(part, inputs, False, torch)
    peers = [each for each in rivals if each.name in PEERS]
    return [*(_rung(step, name, function, inputs) for name, function in module.RUNGS.items()), *peers]


def _rung(step: str, name: str, function: Callable[..., Any], inputs: dict[str, Any]) -> Contestant:
    if step == "softmax":
        return Contestant(name, lambda: lambda: (function(inputs["x"]),), ("y",), ledger_peak)
    do, q, k, v = (inputs[name] for name in ("do", "q", "k", "v"))

    def forward() -> tuple:
        return (function(q, k, v, causal=False, scale=None).o,)

    def backward() -> Call:
        saved = fa_numba.flash_forward(q, k, v)
        return lambda: function(do, q, k, v, *saved, causal=False, scale=None)

    if step == "backward":
        return Contestant(name, backward, ("dq", "dk", "dv"), ledger_peak)
    return Contestant(name, lambda: forward, ("o",), ledger_peak, needs_matrices=step == "standard")


def decode(inputs: dict[str, Any], torch: Any) -> list[Contestant]:
    """Return who computes the forward pass of one query a head, and a copy, which moves as many bytes as are read."""
    k = inputs["k"]
    copy = Contestant(COPY, lambda: _copy_of(k), ("k",), lambda _: 2 * k.nbytes, "copy of K, read and written")
    return [*attention("forward", inputs, False, torch), copy]


def attention(section: str, inputs: dict[str, Any], causal: bool, torch: Any) -> list[Contestant]:
    """Return who computes a section's part of attention.

    Parameters
    ----------
    section : str
        ``"forward"``, ``"backward"`` or ``"forward+backward"``.
    inputs : dict of device array
        ``q``, ``k``, ``v`` and ``do``, of shape (heads, n, d).
    causal : bool
        Whether the mask is causal.
    torch
        PyTorch, or None.
    """
    ours = {"forward": _our_forward, "backward": _our_backward, "forward+backward": _our_both}[section]
    theirs = _torch_attention(section, inputs, causal, torch) if torch else []
    return [*ours(**inputs, causal=causal), *theirs]


def _our_forward(q: Any, k: Any, v: Any, do: Any, causal: bool) -> list[Contestant]:
    def standard() -> Call:
        return lambda: (fa_numba.standard_attention(q, k, v, causal=causal).o,)

    def flash() -> Call:
        return lambda: (fa_numba.flash_forward(q, k, v, causal=causal).o,)

    def fastest() -> Call:
        return lambda: (fa_numba.flash_attention(q, k, v, causal=causal),)

    return [
        Contestant("standard_attention", standard, ("o",), ledger_peak, needs_matrices=True),
        Contestant("flash_forward", flash, ("o",), ledger_peak),
        Contestant("flash_attention", fastest, ("o",), ledger_peak),
    ]


def _our_backward(q: Any, k: Any, v: Any, do: Any, causal: bool) -> list[Contestant]:
    def standard() -> Call:
        p = fa_numba.standard_attention(q, k, v, causal=causal).p
        return lambda: fa_numba.standard_attention_backward(do, q, k, v, p, causal=causal)

    def flash() -> Call:
        o, m, l = fa_numba.flash_forward(q, k, v, causal=causal)
        return lambda: fa_numba.flash_backward(do, q, k, v, o, m, l, causal=causal)

    gradients = ("dq", "dk", "dv")
    return [
        Contestant("standard_attention_backward", standard, gradients, ledger_peak, needs_matrices=True),
        Contestant("flash_backward", flash, gradients, ledger_peak),
    ]


def _our_both(q: Any, k: Any, v: Any, do: Any, causal: bool) -> list[Contestant]:
    def standard() -> tuple:
        o, p = fa_numba.standard_attention(q, k, v, causal=causal)
        return o, *fa_numba.standard_attention_backward(do, q, k, v, p, causal=causal)

    def flash() -> tuple:
        o, m, l = fa_numba.flash_forward(q, k, v, causal=causal)
        return o, *fa_numba.flash_backward(do, q, k, v, o, m, l, causal=causal)

    outputs = ("o", "dq", "dk", "dv")
    return [
        Contestant("standard", lambda: standard, outputs, ledger_peak, "standard attention", needs_matrices=True),
        Contestant("flash", lambda: flash, outputs, ledger_peak, "flash attention"),
    ]


def _torch_attention(section: str, inputs: dict[str, Any], causal: bool, torch: Any) -> list[Contestant]:
    """Return PyTorch's attention by each of its two backends that take float32, the one of matrices also in TF32."""
    backends = torch.nn.attention.SDPBackend
    tensor_cores = torch.cuda.get_device_capability() >= WITH_TF32
    outputs = {"forward": ("o",), "backward": ("dq", "dk", "dv"), "forward+backward": ("o", "dq", "dk", "dv")}[section]
    peak = torch_peak(
        torch, sum(array.nbytes for name, array in inputs.items() if section != "forward" or name != "do")
    )
    tensors = {name: torch.as_tensor(array, device="cuda")[None] for name, array in inputs.items()}

    def by(backend: Any) -> _TorchAttention:
        return _TorchAttention(torch, backend, causal, tensors, section)

    label = f"{EFFICIENT} (fp32{', 3xTF32 tensor cores' if tensor_cores else ''})"
    math = by(backends.MATH)
    peers = [
        Contestant(EFFICIENT, by(backends.EFFICIENT_ATTENTION), outputs, peak, label),
        Contestant(MATH, math, outputs, peak, f"{MATH} (fp32, no TF32)", needs_matrices=True),
    ]
    if tensor_cores:
        prepare, label = _in_tf32(torch, math), f"{MATH_TF32} (tensor cores)"
        peers.append(Contestant(MATH_TF32, prepare, outputs, peak, label, True, TOLERANCE_TF32))
    return peers


def _in_tf32(torch: Any, prepare: Callable[[], Call]) -> Callable[[], Call]:
    """Return what prepares and calls the same with matrix products in TF32; the setting is restored after each."""

    def prepare_in_tf32() -> Call:
        with _precision(torch, "high"):
            call = prepare()

        def call_in_tf32() -> tuple:
            with _precision(torch, "high"):
                return call()

        return call_in_tf32

    return prepare_in_tf32


@dataclass(frozen=True)
class _TorchAttention:
    """Prepares a section's part of scaled_dot_product_attention with one backend."""

    torch: Any
    backend: Any
    causal: bool
    tensors: dict[str, Any]  # of shape (1, heads, n, d), as the fused kernels want four axes
    section: str

    def __call__(self) -> Call:
        leaves = [self.tensors[name].detach() for name in "qkv"]
        if self.section == "forward":
            return lambda: (self._forward(*leaves)[0],)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        if self.section == "forward+backward":
            return lambda: self._both(leaves)
        o = self._forward(*leaves)
        return lambda: self._gradients(o, leaves, again=True)

    def _forward(self, *leaves: Any) -> Any:
        with self.torch.nn.attention.sdpa_kernel(self.backend):
            return self.torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=self.causal)

    def _gradients(self, o: Any, leaves: list[Any], again: bool) -> tuple:
        made = self.torch.autograd.grad(o, leaves, self.tensors["do"], retain_graph=again)
        return tuple(gradient[0] for gradient in made)

    def _both(self, leaves: list[Any]) -> tuple:
        o = self._forward(*leaves)
        return o[0].detach(), *self._gradients(o, leaves, again=False)


def ledger_peak(prepare: Callable[[], Call]) -> int:
    """Return what our ledger counts during a call."""
    call = prepare()
    with ledger() as memory:
        outputs = call()
        del outputs  # held until here
    return memory.peak


def torch_peak(torch: Any, input_bytes: int) -> Callable[[Callable[[], Call]], int]:
    """Return how to count what PyTorch allocates from ``prepare`` on; the inputs, which are Numba's, are added."""

    def peak(prepare: Callable[[], Call]) -> int:
        prepare()()  # libraries keep the working memory of their first call
        before = torch.cuda.memory_allocated()
        call = prepare()
        torch.cuda.reset_peak_memory_stats()
        outputs = call()
        del outputs
        return input_bytes + torch.cuda.max_memory_allocated() - before

    return peak
