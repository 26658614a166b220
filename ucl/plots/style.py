"""The look of all figures: one style, and one colour and line per method."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ucl.evidence.order import RIVALS, method_and_selection

# Load the backend now. A notebook's backend asks for figures to be shown when it is loaded; if that happened inside
# rc_context, the end of the context would undo it.
plt.switch_backend(plt.get_backend())

# The colour-blind safe palette of seaborn, in an order that gives the paper's method its green.
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BROWN, _PINK, _GREY, _YELLOW, _SKY = sns.color_palette("colorblind", 10)
COLORS = {
    "ER": _BLUE,
    "CBR": _SKY,
    "A-GEM": _PURPLE,
    "Finetune": _GREY,
    "LC": _YELLOW,
    "MS": _ORANGE,
    "RC": _BROWN,
    "EN": _RED,
    "RM": _PINK,
    "MC": (0.25, 0.25, 0.25),
    "BI": _GREEN,
}
# Rivals and baselines have colours that are far apart, also for colour-blind readers. A rival and a score can have
# similar colours; the dash of the rival's line distinguishes them.
COLORS |= {
    "Joint": (0.0, 0.0, 0.0),
    "ER-ACE": (1.0, 0.29, 0.0),
    "DER++": (0.43, 0.0, 0.86),
    "MIR": (0.43, 0.14, 0.0),
    "LARS": (0.57, 0.86, 0.29),
    "MoF": (0.0, 0.0, 0.43),
    "Herding": (0.29, 0.0, 0.29),
    "GSS": (0.71, 0.0, 0.5),
    "MOE": (0.86, 0.43, 0.29),
    "Rainbow": (0.71, 0.43, 1.0),
    "OCS": (0.86, 0.71, 0.57),
}
_OWN = (  # dark; CBR with `redraw` has a further one, see `readings`
    (0.45, 0.35, 0.05),
    (0.35, 0.05, 0.15),
    (0.25, 0.2, 0.55),
    (0.1, 0.3, 0.05),
    (0.5, 0.15, 0.0),
    (0.05, 0.2, 0.45),
    (0.4, 0.1, 0.4),
)
_taken: dict[str, int] = {}  # the colours that this process has given to names of the user's own objects
SHADE = {"bottom": 0.0, "step": 0.2, "top": 0.4}  # how far towards black: thin lines of pale colours are hard to see
DASH = {"bottom": "-", "step": "--", "top": ":"}
# Looks that several figures share: the dot of a seed on a bar, a hatched bar, and bands with the end of a task.
SEED: dict[str, Any] = {"marker": "o", "ls": "", "color": "black", "ms": 3.5, "mec": "white", "mew": 0.5, "alpha": 0.7}
HATCH: dict[str, Any] = {"edgecolor": "white", "lw": 0}
EDGE: dict[str, Any] = {"edgecolor": "white", "lw": 0.6}
TASK_END: dict[str, Any] = {"color": "black", "gapcolor": "white", "ls": "--", "lw": 1.5}  # visible on every shade
_ASIAN_FONTS = (  # on Linux, Windows and macOS
    "Noto Sans CJK SC",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
)


def font_families(further: Sequence[str] = _ASIAN_FONTS) -> list[str]:
    """The families of all texts: the default one, and those installed that have characters which the default lacks.

    The default has no Chinese, Japanese or Korean characters, which names of the user's classes may have.
    """
    installed = set(font_manager.get_font_names())
    return ["sans-serif", *(name for name in further if name in installed)]


STYLE: dict[Any, Any] = {
    "font.family": font_families(),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


def color(label: str) -> tuple[float, float, float]:
    """The RGB colour of a method, such as "ER" or "BI top", in [0, 1].

    The selections of a score share its hue: bottom has its colour, step is darker, top is darkest. An object of the
    user's own has one of seven dark colours. Its name chooses the colour, or the next one if another name of this
    process has it; only from the eighth name on do two have the same.
    """
    name, selection = method_and_selection(label)
    base = np.array(COLORS[name] if name in COLORS else _OWN[_own_color(name)])
    dark = base * (1 - SHADE.get(selection, 0.0))
    return tuple(float(c) for c in dark)  # type: ignore[return-value]


def _own_color(name: str) -> int:
    """The index in `_OWN` of a name's colour."""
    if name not in _taken:
        first, n = zlib.crc32(name.encode()), len(_OWN)
        used = Counter(_taken.values())
        _taken[name] = min(((first + i) % n for i in range(n)), key=lambda index: used[index])
    return _taken[name]


def dash(label: str) -> Any:
    """The dash of a method's line, in matplotlib's notation; scores differ by selection, rivals are dash-dotted.

    Finetune's line has wide gaps: A-GEM's line is often just below it.
    """
    if label in RIVALS:
        return "-."
    return (0, (2, 3)) if label == "Finetune" else DASH.get(method_and_selection(label)[1], "-")


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], title: str | None = None) -> None:
    """Draw a legend to the right of the axes, in at most three columns; none if there are too many entries.

    The figure is widened by the columns after the first, so that the axes keep their size.
    """
    rows, names = max(1, int(4 * figure.get_figheight()) - 2), [plain(name) for name in names]
    columns = math.ceil(len(names) / rows)
    if 0 < columns <= 3:
        figure.set_figwidth(figure.get_figwidth() + 1.7 * (columns - 1))
        figure.legend(handles, names, loc="outside right center", ncols=columns, title=title)


def legend_of_bands(figure: Figure, ax: Axes, title: str) -> None:
    """Draw a `legend` of stacked areas in their order, from the uppermost."""
    handles, names = ax.get_legend_handles_labels()
    legend(figure, handles[::-1], names[::-1], title)


def plain(text: str) -> str:
    """A text of the user's, such as a class name, for a figure: matplotlib would draw a formula between two $."""
    return text.replace("$", r"\$")


def shortened(name: str, length: int = 22) -> str:
    """A name of at most `length` characters for a figure; a longer one is cut and ends in an ellipsis."""
    return plain(name if len(name) <= length else f"{name[: length - 1].rstrip()}…")


def save(figure: Figure, path: str | Path) -> Path:
    """Save a figure as <path>.png and <path>.pdf, and return the path of the PNG.

    If the path ends in .png, .pdf or .svg, only that file is written, and its path is returned.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    without_date: dict[str, dict[str, Any]] = {
        ".pdf": {"CreationDate": None},
        ".png": {"Software": None},
        ".svg": {"Date": None},
    }
    one_file = path.suffix in without_date
    with plt.rc_context({**{name: STYLE[name] for name in ("savefig.dpi", "pdf.fonttype")}, "svg.hashsalt": "ucl"}):
        for ending in [path.suffix] if one_file else [".pdf", ".png"]:
            figure.savefig(path if one_file else f"{path}{ending}", metadata=without_date[ending])
    return path if one_file else Path(f"{path}.png")
