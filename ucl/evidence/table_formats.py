"""Tables of texts in Markdown and LaTeX, for `ucl.tables.save`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_~|[]"} | {"&": "&amp;", "<": "&lt;", "\n": "<br>"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "—": "---", "…": r"\ldots{}"}
)


def markdown(heads: Sequence[tuple], rows: Sequence[Sequence[str]], note: str) -> str:
    """A table in GitHub's Markdown, below its note.

    Args:
        heads: for each column its titles, one per level.
        rows: the cells; special characters are escaped.
        note: "" for none.
    """

    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(text.translate(_MARKDOWN) for text in texts)} |"

    titles = [" ".join(str(part) for part in head if part != "") for head in heads]
    lines = [line(titles), "|" + " --- |" * len(titles), *map(line, rows)]
    if note:
        lines = [note, "", *lines]
    return "\n".join(lines) + "\n"


def latex(heads: Sequence[tuple], rows: Sequence[Sequence[str]], note: str) -> str:
    """A LaTeX table with booktabs: a floating table with the note as caption, or only a tabular without a note.

    Args:
        heads, rows, note: see `markdown`; heads whose last level is "random" span the selections to their right.
    """

    def cell(text: str) -> str:
        first, *others = text.translate(_LATEX).split("\n")
        lines = [first, *(line.removeprefix("published ") for line in others)]  # The caption says what the second is.
        text = r"\\".join(lines)
        return rf"\begin{{tabular}}[c]{{@{{}}c@{{}}}}{text}\end{{tabular}}" if len(lines) > 1 else text

    # A method without a selection spans top, step and bottom, as in the paper; a column of its own would be too wide.
    # By the index of each column "random": the number of columns that its cells span.
    spans = {
        i: sum(h[:-1] == head[:-1] for h in heads) - 1
        for i, head in enumerate(heads)
        if len(head) > 1 and head[-1] == "random"
    }

    def line(row: Sequence[str]) -> str:
        cells = list(map(cell, row))
        for i, n in sorted(spans.items(), reverse=True):
            if cells[i]:
                cells[i : i + n + 1] = [_span(n, cells[i])]
            else:
                del cells[i]
        return " & ".join(cells) + r" \\"

    shown = [i for i in range(len(heads)) if i not in spans]
    header = []
    for level in range(len(heads[0])):
        equal = itertools.groupby(heads[i][: level + 1] for i in shown)
        titles = [(title[-1], len(list(same))) for title, same in equal]
        header.append(" & ".join(_span(n, str(title).translate(_LATEX)) for title, n in titles) + r" \\")
    columns = "".join("p{0.35\\linewidth}" if any(len(row[i]) > 60 for row in rows) else "l" for i in shown)
    tabular = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *header,
        r"\midrule",
        *map(line, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if not note:
        return "\n".join(tabular) + "\n"
    opening = [r"\begin{table}", r"\centering", r"\scriptsize", r"\setlength{\tabcolsep}{3pt}"]
    return "\n".join([*opening, rf"\caption{{{note.translate(_LATEX)}}}", *tabular, r"\end{table}"]) + "\n"


def _span(n: int, text: str) -> str:
    return text if n == 1 else rf"\multicolumn{{{n}}}{{c}}{{{text}}}"
