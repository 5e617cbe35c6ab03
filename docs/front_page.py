"""`make figure`: remake the pictures of the README, and its table of the ladder, from a GPU's record and a trace."""

import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fa_numba
from fa_numba import memory, plots, recorded
from fa_numba.contestants import COPY, EFFICIENT, MATH
from fa_numba.plots.front import ATTENTION, SOFTMAX
from fa_numba.step2_online_softmax import RUNGS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "front.png"
LENS = ROOT / "docs" / "lens.png"
LENS_TEXT = (
    "Who reads which address at one instant. With a thread a row, the 32 lanes of a warp fetch 32 sectors of 32 bytes, "
    "and use 4 bytes of each. With a block a row they fetch 4 sectors, and use every byte."
)
RECORD = ROOT / "notebooks" / "recorded" / "h200.json"
START, END = "<!-- ladder: made by `make figure` -->\n", "<!-- end of ladder -->\n"
LADDER = (  # step, idea, notebook, section, contestant
    ("1 naive softmax", "a thread a row", "01", "softmax", "naive_softmax"),
    ("2 block softmax", "a block a row: shuffles, shared memory", "02", "softmax", "three passes"),
    ("2 online softmax", "maximum and sum in one pass", "02", "softmax", "two passes"),
    ("2 row in registers", "the row is read once", "02", "softmax", "row in registers"),
    ("3 standard attention", "three kernels; S and P in memory", "03", "forward", "standard_attention"),
    ("3 its backward", "five kernels; P, dP and dS in memory", "03", "backward", "standard_attention_backward"),
    ("4 flash forward", "one kernel; no score is written", "04", "forward", "flash_forward"),
    ("5 flash backward", "P again from m and l, tile by tile", "05", "backward", "flash_backward"),
    ("beside it", "a copy of the softmax's array", "", "softmax", COPY),
    ("", "PyTorch's EFFICIENT, forward", "", "forward", EFFICIENT),
    ("", "PyTorch's EFFICIENT, backward", "", "backward", EFFICIENT),
    ("", "PyTorch's MATH, forward", "", "forward", MATH),
    ("", "PyTorch's MATH, backward", "", "backward", MATH),
)


def ladder(record: recorded.Record) -> str:
    """Return the table of the steps: what each is about, and its speed and memory as measured."""
    lines = ["| step | idea | notebook | time | speed | memory |", "| --- | --- | --- | ---: | ---: | ---: |"]
    softmaxes = record.softmaxes(SOFTMAX["rows"], SOFTMAX["n"])
    for step, idea, number, section, contestant in LADDER:
        if section == "softmax":
            row = softmaxes.get(contestant)
        else:
            row = record.one(section=section, **ATTENTION, contestant=contestant)
        if row is None:  # an older record, from before rows stayed in registers
            continue
        link = "".join(f"[{number}](notebooks/{path.name})" for path in RECORD.parent.parent.glob(f"{number}_*.ipynb"))
        speed = f"{row['gbs']:,.0f} GB/s" if section == "softmax" else f"{row['tflops']:.1f} TFLOP/s"
        size = memory.readable(row["peak_bytes"])
        lines.append(f"| {step} | {idea} | {link} | {row['ms']:.3g} ms | {speed} | {size} |")
    told = (
        f"Measured on {record.title()}, float32. Softmax: {SOFTMAX['rows']:,} rows of {SOFTMAX['n']:,}. Attention: "
        f"{ATTENTION['heads']} heads of N = {ATTENTION['n']:,}, d = {ATTENTION['d']}, not causal. Memory: the most "
        f"that is held at one time, inputs and outputs included."
    )
    return "\n".join([*lines, "", told, ""])


def picture_line(record: recorded.Record) -> str:
    """Return the line of the README that shows the picture."""
    return f"![{plots.front_page_text(record)}](docs/{PICTURE.name})"


def with_front(readme: str, record: recorded.Record) -> str:
    """Return the README with picture and table as the record has them."""
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    before = re.sub(r"^!\[.*\]\(docs/front\.png\)$", lambda _: picture_line(record), before, flags=re.MULTILINE)
    return f"{before}{START}\n{ladder(record)}\n{END}{after}"


def lens() -> Figure:
    """Draw which addresses the lanes of a warp read in the naive softmax and in the block softmax, as traced."""
    traced = {
        "a thread a row": fa_numba.trace(fa_numba.naive_softmax, np.zeros((32, 256), np.float32)),
        "a block a row": fa_numba.trace(RUNGS["three passes"], np.zeros((1, 255), np.float32)),
    }
    lines = {name: report.launches[0].select("x", "load")[0] for name, report in traced.items()}
    return plots.lane_sectors(lines, "At one instant, naive softmax fetches eight times what it uses")


def main() -> None:
    """Write the pictures and the README."""
    record = recorded.load(RECORD)
    text = plots.front_page_text(record)
    plots.front_page(record).savefig(PICTURE, dpi=plots.DOTS_PER_INCH, metadata={"Description": text})
    lens().savefig(LENS, dpi=plots.DOTS_PER_INCH, metadata={"Description": LENS_TEXT})
    README.write_text(with_front(README.read_text(encoding="utf-8"), record), encoding="utf-8")
    print(f"Wrote {PICTURE.relative_to(ROOT)}, {LENS.relative_to(ROOT)} and the table of {README.name}")


if __name__ == "__main__":
    main()
