"""Who is measured: each computes what it says, by its own means, and its peak is counted."""

import numpy as np
import pytest
from conftest import gpu_only, simulator_only
from numba import cuda

from fa_numba import contestants, device, memory, reference

SECTIONS = {"forward": ("o",), "backward": ("dq", "dk", "dv"), "forward+backward": ("o", "dq", "dk", "dv")}


@pytest.fixture
def inputs(rng):
    return {name: rng.standard_normal((2, 16, 8), np.float32) for name in ("q", "k", "v", "do")}


def truth(inputs, causal):
    q, k, v, do = (inputs[name] for name in ("q", "k", "v", "do"))
    gradients = reference.attention_backward(do, q, k, v, causal=causal)
    return {"o": reference.attention(q, k, v, causal=causal).o, **dict(zip(("dq", "dk", "dv"), gradients))}


def on_host(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else array.detach().cpu().numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("section", SECTIONS)
def test_our_attention(inputs, section, causal):
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    entrants = contestants.attention(section, there, causal, None)
    assert {each.name.partition("_")[0] for each in entrants} == {"standard", "flash"}
    for each in entrants:
        assert each.outputs == SECTIONS[section]
        assert each.needs_matrices == each.name.startswith("standard")
        for name, result in zip(each.outputs, each.prepare()(), strict=True):
            np.testing.assert_allclose(on_host(result), truth(inputs, causal)[name], atol=1e-5)


@pytest.mark.parametrize("passes", memory.PASSES)
def test_the_peak_of_ours_is_the_formula_s(inputs, passes):
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    peaks = {each.name: each.peak(each.prepare) for each in contestants.attention(passes, there, False, None)}
    for name, peak in peaks.items():
        assert peak == memory.computed_bytes(name.partition("_")[0], passes, 16, 8, heads=2)


SOFTMAXES = ["naive_softmax", "three passes", "two passes", "online_softmax"]


def test_softmax_and_a_copy(rng):
    x = rng.standard_normal((4, 8), np.float32)
    entrants = contestants.softmax(cuda.to_device(x), None)
    assert [each.name for each in entrants] == [*SOFTMAXES, "copy"]
    for each in entrants:
        (result,) = each.prepare()()
        expected = {"y": reference.softmax(x), "x": x}[each.outputs[0]]
        np.testing.assert_allclose(on_host(result), expected, atol=1e-6)
        assert each.peak(each.prepare) == 2 * x.nbytes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("section", SECTIONS)
def test_pytorch_s_attention(inputs, section, causal):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array)[None] for name, array in inputs.items()}
    backend = torch.nn.attention.SDPBackend.MATH
    call = contestants._TorchAttention(torch, backend, causal, tensors, section)()
    for results in (call(), call()):  # and again
        for name, result in zip(SECTIONS[section], results, strict=True):
            np.testing.assert_allclose(on_host(result), truth(inputs, causal)[name], atol=1e-5)


@simulator_only
@pytest.mark.parametrize("tensor_cores", [False, True])
def test_peers_say_which_cores_they_use(inputs, monkeypatch, tensor_cores):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0) if tensor_cores else (7, 5))
    monkeypatch.setattr(torch, "as_tensor", lambda array, device: torch.from_numpy(array.copy_to_host()))
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    peers = {each.name: each for each in contestants.attention("backward", there, True, torch)[2:]}
    labels = ["torch EFFICIENT (fp32)", "torch MATH (fp32, no TF32)"]
    if tensor_cores:
        labels = ["torch EFFICIENT (fp32, 3xTF32 tensor cores)", labels[1], "torch MATH TF32 (tensor cores)"]
    assert [each.label for each in peers.values()] == labels
    assert set(peers) <= set(contestants.PEERS)
    for name in set(peers) - {contestants.EFFICIENT}:  # which the CPU does not have
        assert peers[name].needs_matrices
        assert peers[name].tolerance == (1e-3 if name == contestants.MATH else contestants.TOLERANCE_TF32)
        for gradient, result in zip(("dq", "dk", "dv"), peers[name].prepare()(), strict=True):
            np.testing.assert_allclose(on_host(result), truth(inputs, True)[gradient], atol=1e-4)


def test_products_stay_in_float32():
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with contestants.in_float32(torch):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_products_in_tf32_and_the_setting_restored():
    torch = pytest.importorskip("torch")
    seen = []

    def prepare():
        seen.append(torch.get_float32_matmul_precision())
        return lambda: seen.append(torch.get_float32_matmul_precision()) or (1,)

    with contestants.in_float32(torch):
        call = contestants._in_tf32(torch, prepare)()
        assert torch.get_float32_matmul_precision() == "highest"
        assert call() == (1,)
        assert torch.get_float32_matmul_precision() == "highest"
    assert seen == ["high", "high"]


def test_the_setting_is_restored_after_an_error():
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError):
        contestants._in_tf32(torch, lambda: 1 / 0)()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("step", ["standard", "forward", "backward"])
def test_rungs_of_a_step_compute_its_part(inputs, step):
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    module, section = contestants.STEPS[step]
    entrants = contestants.rungs(step, there, None)
    assert [each.name for each in entrants] == list(module.RUNGS)
    for each in entrants:
        assert each.outputs == SECTIONS[section]
        assert each.needs_matrices == (step == "standard")
        for name, result in zip(each.outputs, each.prepare()(), strict=True):
            np.testing.assert_allclose(on_host(result), truth(inputs, False)[name], atol=1e-5)


def test_rungs_of_softmax_and_the_copy(rng):
    x = rng.standard_normal((4, 8), np.float32)
    entrants = contestants.rungs("softmax", {"x": cuda.to_device(x)}, None)
    assert [each.name for each in entrants] == [*contestants.STEPS["softmax"][0].RUNGS, "copy"]
    for each in entrants[:-1]:
        np.testing.assert_allclose(on_host(each.prepare()()[0]), reference.softmax(x), atol=1e-6)


def test_decoding_and_a_copy_of_as_many_bytes(rng):
    there = {
        name: cuda.to_device(rng.standard_normal((2, n, 4), np.float32))
        for name, n in zip(("q", "k", "v", "do"), (1, 8, 8, 1))
    }
    entrants = contestants.decode(there, None)
    assert [each.name for each in entrants] == ["standard_attention", "flash_forward", "flash_attention", "copy"]
    (copied,) = entrants[-1].prepare()()
    assert (on_host(copied) == on_host(there["k"])).all()
    assert entrants[-1].peak(None) == there["k"].nbytes + there["v"].nbytes


def test_without_pytorch_on_a_gpu():
    if device.SIMULATED:
        assert contestants.find_torch() is None
    with contestants.in_float32(None):
        pass


@gpu_only
@pytest.mark.parametrize("section", SECTIONS)
def test_peers_on_a_gpu(inputs, section):
    torch = contestants.find_torch() or pytest.skip("needs PyTorch with CUDA")
    there = {name: cuda.to_device(array) for name, array in inputs.items()}
    peers = [each for each in contestants.attention(section, there, True, torch) if each.name in contestants.PEERS]
    in_tf32 = [contestants.MATH_TF32] if torch.cuda.get_device_capability() >= contestants.WITH_TF32 else []
    assert [each.name for each in peers] == [contestants.EFFICIENT, contestants.MATH, *in_tf32]
    for each in peers:
        for name, result in zip(each.outputs, each.prepare()(), strict=True):
            np.testing.assert_allclose(on_host(result), truth(inputs, True)[name], atol=each.tolerance)
        arrays = len(each.outputs) + (3 if section == "forward" else 4)
        assert each.peak(each.prepare) >= arrays * inputs["q"].nbytes
