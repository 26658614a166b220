"""The look of all figures: one style, and one colour and line per method."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib import font_manager, rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from ucl.catalogue import SCORES, SHOWN, method_and_selection

# Load the backend now. A notebook's backend asks for figures to be shown when it is loaded; if that happened inside
# rc_context, the end of the context would undo it.
plt.switch_backend(plt.get_backend())

COLORS = {label: to_rgb(row.colour) for label, row in SHOWN.items() if row.colour} | {"CBR redraw": (0.0, 0.3, 0.35)}
"""The RGB colours of methods and scores, in [0, 1]."""
_USER_COLORS = sns.color_palette("dark")  # ten
_taken: dict[str, int] = {}  # the colours that this process has given to names of user objects
SHADE = {"bottom": 0.0, "step": 0.2, "top": 0.4}  # how far towards black: thin lines of pale colours are hard to see
DASH = {"bottom": "-", "step": "--", "top": ":"}
# the dot of a seed on a bar
SEED: dict[str, Any] = {"marker": "o", "ls": "", "color": "black", "ms": 3.5, "mec": "white", "mew": 0.5, "alpha": 0.7}
WIDTH = 5.5  # inches: of a page; texts have 7 points or more at this width
# Chinese, Japanese and Korean characters, which names of the user's classes may have, on Linux, Windows and macOS
_ASIAN_FONTS = ["Noto Sans CJK SC", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"]
_ASIAN_FONTS += ["PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo"]
_INSTALLED = set(font_manager.get_font_names())

STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif", *(name for name in _ASIAN_FONTS if name in _INSTALLED)],
    "font.size": 8.5,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "figure.figsize": (WIDTH, 2.6),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "legend.frameon": False,
    "legend.handlelength": 1.7,
    "legend.columnspacing": 1.2,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,  # in notebooks
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}
styled = rc_context(STYLE)  # decorates the functions that draw


def color(label: str) -> tuple[float, float, float]:
    """The RGB colour of a method, such as "ER" or "BI top", in [0, 1].

    The selections of a score share its hue: bottom has its colour, step is darker, top is darkest. A user object
    has one of ten dark colours: that of its name or, if another name of this process has it, the next free one. From
    the eleventh name on, colours repeat.
    """
    name, selection = (label, "") if label in COLORS else method_and_selection(label)
    base = np.array(COLORS[name] if name in COLORS else _USER_COLORS[_user_color(name)])
    dark = base * (1 - SHADE.get(selection, 0.0))
    return tuple(float(c) for c in dark)  # type: ignore[return-value]


def _user_color(name: str) -> int:
    """The index in `_USER_COLORS` of a name's colour."""
    if name not in _taken:
        first, n = zlib.crc32(name.encode()), len(_USER_COLORS)
        used = Counter(_taken.values())
        _taken[name] = min(((first + i) % n for i in range(n)), key=lambda index: used[index])
    return _taken[name]


def dash(label: str) -> Any:
    """The dash of a method's line, in matplotlib's notation; scores differ by selection."""
    name, selection = method_and_selection(label)
    return SHOWN[name].dash if name in SHOWN and name not in SCORES else DASH.get(selection, "-")


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], title: str | None = None) -> None:
    """Draw a legend of `plain` names above the axes; of more than 30 names only its title.

    The figure becomes higher by the legend, so that the axes keep their size.
    """
    names = list(names) if len(names) <= 30 else []
    most_columns = max(1, int(figure.get_figwidth() / (0.45 + 1.05 * widest(names, STYLE["legend.fontsize"]))))
    columns = math.ceil(len(names) / max(1, math.ceil(len(names) / most_columns)))  # in rows of equal length
    if names or title:
        where: dict[str, Any] = dict(loc="outside upper center", ncols=max(1, columns))
        drawn = figure.legend(handles[: len(names)], names, title=title, **where)
        figure.set_figheight(figure.get_figheight() + drawn.get_window_extent().height / figure.dpi)


def plain(text: str) -> str:
    """A text of the user, such as a class name, for a figure: matplotlib would draw a formula between two $."""
    return text.replace("$", r"\$")


def shortened(names: Sequence[str], length: int = 22) -> list[str]:
    """The names of one figure, each in at most `length` characters; different names stay different.

    A longer name is cut and ends in an ellipsis. Names that would be cut to the same text show their beginning and end:
    "squam…l differentiated". If two texts are still the same, they end in the number of the name among the different
    names: "squamous cell car… (3)".

    Args:
        names: (N,); the same name may come several times.
        length: at least 10.

    Returns:
        (N,), `plain`.
    """
    distinct = list(dict.fromkeys(names))

    def cut(name: str, ending: str = "") -> str:
        return name if len(name) <= length else f"{name[: length - 1 - len(ending)].rstrip()}…{ending}"

    texts = {name: cut(name) for name in distinct}
    ends = {name: name[-(3 * length // 4) :] for name in distinct}
    numbers = {name: f" ({number})" for number, name in enumerate(distinct, 1)}
    for endings in (ends, numbers):
        n_names = Counter(texts.values())
        texts |= {name: cut(name, endings[name]) for name in distinct if n_names[texts[name]] > 1}
    return [plain(texts[name]) for name in names]


def widest(texts: Iterable[str], size: float) -> float:
    """The width in inches of the widest line of some texts, at a font size in points; screens may draw it 5 % wider.

    The fonts are those of `STYLE`, also outside its `rc_context`.
    """
    lines = {line for text in texts for line in text.split("\n")}
    fonts = font_manager.FontProperties(family=STYLE["font.family"])
    return max((TextPath((0, 0), line, size, fonts).get_extents().width / 72 for line in lines), default=0.0)


def save(figure: Figure, path: str | Path) -> Path:
    """Save a figure as <path>.png and <path>.pdf, and return the path of the PNG.

    If the path ends in a format of matplotlib, such as .svg, only that file is written, and its path is returned.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    without_date: dict[str, Any] = {".pdf": {"CreationDate": None}, ".png": {"Software": None}, ".svg": {"Date": None}}
    is_format = path.suffix[1:].lower() in figure.canvas.get_supported_filetypes()
    paths = [path] if is_format else [Path(f"{path}.pdf"), Path(f"{path}.png")]
    with plt.rc_context({**{name: STYLE[name] for name in ("savefig.dpi", "pdf.fonttype")}, "svg.hashsalt": "ucl"}):
        for file in paths:
            figure.savefig(file, metadata=without_date.get(file.suffix.lower()))
    return paths[-1]
