"""The one style of the series' figures: sizes, palette, and how a notebook shows a figure."""

import io

import matplotlib.pyplot as plt
import PIL.Image
from IPython.display import Image, display
from matplotlib.figure import Figure

WIDTH = 6.4  # inches
DOTS_PER_INCH = 144
STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "lines.linewidth": 2,
}
# Okabe & Ito's palette, told apart with any colour vision. Each step keeps its colour in every figure.
BLUE, GREY, ORANGE = "#0072B2", "#BBBBBB", "#E69F00"
STANDARD, FLASH = "#D55E00", "#009E73"
LANES = "viridis"  # perceptually uniform: the lanes of a warp


def show(figure: Figure, alt: str) -> None:
    """Put a finished figure into the notebook, with a text for those who do not see it, and close it."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
    plt.close(figure)
    # 256 colours do, and make a third of the size: notebooks stay below 1 MB.
    PIL.Image.open(drawn).convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE).save(small, "png", optimize=True)
    display(Image(small.getvalue(), width=int(WIDTH * 100), alt=alt))
