"""The tables that `fa-numba bench` prints: rows of the record as lines of text."""

from typing import Any

from fa_numba.contestants import PEERS

Row = dict[str, Any]


def contest(title: str, rows: list[Row]) -> str:
    """Return the rows of one case: times, rates, their share of the device's peak or of a copy, ratios to peers."""
    peers = [row["contestant"] for row in rows if row["contestant"] in PEERS and row["fault"] is None]
    bytes_count = any("gbs" in row for row in rows)
    unit, whole = ("GB/s", "of copy") if bytes_count else ("TFLOP/s", "of peak")
    gain = ["vs rung before"] if any("gain" in row for row in rows) else []
    head = ["", "ms", "quartiles", unit, whole, "peak MB", *gain, *(f"vs {peer}" for peer in peers)]
    cells = [_cells(row, bool(gain), peers) for row in rows]
    faults = [f"  {row['label']}: {row['fault']}" for row in rows if row["fault"]]
    late = ["  * the host could not queue these calls ahead: times include its work"]
    lines = [*_aligned([head, *cells]), *faults, *(late if any(not row.get("ahead", True) for row in rows) else [])]
    return "\n".join(["", title, *lines])


def _cells(row: Row, gains: bool, peers: list[str]) -> list[str]:
    if row["fault"]:
        return [row["label"], "FAILED", "", "", "", "", *([""] if gains else []), *("" for _ in peers)]
    time = f"{row['ms']:.4g}{'' if row['ahead'] else '*'}"
    spread = f"{row['ms_low']:.4g}–{row['ms_high']:.4g}"
    rate = f"{row['gbs'] if 'gbs' in row else row['tflops']:.4g}"
    share = f"{row['share']:.0%}" if "share" in row else ""
    gain = [f"{row['gain']:.2f}×" if "gain" in row else ""] if gains else []
    ratios = [f"{row['ratios'][peer]:.2f}×" if "ratios" in row else "" for peer in peers]
    return [row["label"], time, spread, rate, share, f"{row['peak_bytes'] / 1e6:,.1f}", *gain, *ratios]


def kernels(title: str, rows: list[Row]) -> str:
    """Return the times of the kernels that calls launch."""
    cells = [["", "computes", "kernel", "ms", "share"]]
    for row in rows:
        total = sum(each["ms"] for each in rows if each["contestant"] == row["contestant"])
        cells.append(
            [f"{row['contestant']}: {row['what']}", row["kernel"], f"{row['ms']:.4g}", f"{row['ms'] / total:.0%}"]
        )
    return "\n".join(["", title, *_aligned(cells)])


def overhead(title: str, rows: list[Row]) -> str:
    """Return the times of tiny calls, beside those of bare launches of as many arrays."""
    cells = [["", "µs", "quartiles", "launches", "µs a launch", "bare µs"]]
    for row in rows:
        if row["fault"]:
            cells.append([row["label"], "FAILED", row["fault"], "", "", ""])
        else:
            spread = f"{row['us_low']:.1f}–{row['us_high']:.1f}"
            cells.append([row["label"], f"{row['us']:.1f}", spread, *_launch_cells(row)])
    note = "  bare: Numba's own launches of an empty kernel, as many and with as many array arguments"
    return "\n".join(["", title, *_aligned(cells), note])


def _launch_cells(row: Row) -> list[str]:
    if "launches" not in row:
        return ["", "", ""]
    return [str(row["launches"]), f"{row['us_launch']:.1f}", f"{row['bare_us']:.1f}"]


def _aligned(cells: list[list[str]]) -> list[str]:
    """Return lines with columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        "  "
        + "  ".join(text.rjust(width) if i else text.ljust(width) for i, (text, width) in enumerate(zip(line, widths)))
        for line in cells
    ]
