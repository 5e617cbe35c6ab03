"""What a call costs the host: tiny problems on device arrays, beside bare launches of an empty kernel by Numba."""

from collections.abc import Callable
from typing import Any

from numba import cuda

import fa_numba
from fa_numba import contestants, stopwatch, timing
from fa_numba.contestants import Contestant

Row = dict[str, Any]

N = 16  # rows and columns of the problem
CALLS, BATCHES = 50, 20
BARE_THREADS = 32


def measure(inputs: dict[str, Any], gpu: Any, torch: Any) -> list[Row]:
    """Time calls of a problem so small that only the host's work counts.

    Parameters
    ----------
    inputs : dict of device array
        ``q``, ``k``, ``v`` and ``do`` of shape (1, N, N).
    gpu : stopwatch.Gpu
        Or what stands in for it.
    torch
        PyTorch, or None.

    Returns
    -------
    list of dict
        One row for each call, in the form that :mod:`fa_numba.recorded` describes.
    """
    rows = [_row(each, gpu) for each in _entrants(inputs, torch)]
    bare = {
        count: _bare(inputs["q"], count, gpu) for count in sorted({n for row in rows for n in row.get("arrays", ())})
    }
    for row in rows:
        if row["fault"] is None and "arrays" in row:
            row["bare_us"] = sum(bare[count]["us"] for count in row["arrays"])
    return [*rows, *bare.values()]


def _entrants(inputs: dict[str, Any], torch: Any) -> list[Contestant]:
    """Return what is called: all that compute a softmax or a forward pass, and ours on tensors of PyTorch."""
    x = inputs["q"][0]
    entrants = [*contestants.softmax(x, torch), *contestants.attention("forward", inputs, False, torch)]
    entrants += [each for each in _ours(inputs, "") if each.name == "flash_backward"]
    if torch is None:
        return entrants
    tensors = {name: torch.as_tensor(array, device="cuda") for name, array in inputs.items()}
    return [*entrants, *_ours(tensors, ", torch tensors")]


def _ours(inputs: dict[str, Any], suffix: str) -> list[Contestant]:
    q, k, v, do = (inputs[name] for name in ("q", "k", "v", "do"))

    def backward() -> contestants.Call:
        saved = fa_numba.flash_forward(q, k, v)
        return lambda: fa_numba.flash_backward(do, q, k, v, *saved)

    prepared = {
        "naive_softmax": lambda: lambda: (fa_numba.naive_softmax(q[0]),),
        "flash_forward": lambda: lambda: fa_numba.flash_forward(q, k, v),
        "flash_backward": backward,
    }
    return [Contestant(f"{name}{suffix}", prepare, (), contestants.ledger_peak) for name, prepare in prepared.items()]


def _row(entrant: Contestant, gpu: Any) -> Row:
    row = {"section": "overhead", "n": N, "contestant": entrant.name, "label": entrant.label or entrant.name}
    try:
        call = entrant.prepare()
        with timing.observe() as launches:
            call()
        found = stopwatch.per_call(call, gpu, calls=CALLS, batches=BATCHES)
    except Exception as problem:  # of a compiler, a driver or PyTorch: the others are still worth measuring
        return {**row, "fault": stopwatch.told(problem)}
    row |= {"fault": None, **stopwatch.summary("us", found)}
    if not launches:  # a copy, or PyTorch's own
        return row
    counts = {"launches": len(launches), "arrays": [launch.arrays for launch in launches]}
    return {**row, **counts, "us_launch": row["us"] / len(launches)}


def _bare(array: Any, count: int, gpu: Any) -> Row:
    """Time a launch, as Numba does it, of an empty kernel of so many array arguments."""
    configured = _empty_kernel(count)[1, BARE_THREADS]
    arrays = [array] * count
    name = f"bare launch, {count} arrays"
    row = {"section": "overhead", "n": N, "contestant": name, "label": f"{name} (empty kernel)", "fault": None}
    found = stopwatch.summary("us", stopwatch.per_call(lambda: configured(*arrays), gpu, calls=CALLS, batches=BATCHES))
    return {**row, **found, "launches": 1, "arrays": [count], "us_launch": found["us"], "bare_us": found["us"]}


def _empty_kernel(count: int) -> Callable[..., Any]:
    """Return a kernel of so many parameters that does nothing; Numba takes no ``*args`` of a kernel."""
    names: dict[str, Any] = {}
    exec(f"def empty_kernel({', '.join(f'x{i}' for i in range(count))}): pass", names)
    return cuda.jit(names["empty_kernel"])
