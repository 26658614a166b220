"""HTML pages of executed notebooks, without anything that executes or downloads, and their index."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucl.reproduction import colab

_WIDGET = "application/vnd.jupyter.widget-view+json"

# Tags and attributes that a page may have. All others are removed: scripts, forms, frames, event handlers, and
# everything that would be downloaded.
# fmt: off
_TAGS = [
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div",
    "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li",
    "ol", "p", "pre", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td",
    "tfoot", "th", "thead", "tr", "u", "ul", "var",
]
_ATTRIBUTES = [
    "align", "alt", "border", "class", "colspan", "height", "id", "lang", "open", "rowspan", "scope", "start",
    "title", "valign", "width",
]
# fmt: on
_LINK = re.compile(r"https?://|mailto:|#|[\w.-][\w./-]*(#|$)")
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]")
_COMMITTED_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./figures/[^)]*\)\n*")
_COMMITTED_FILE = re.compile(r"\[([^\]]*)\]\((\.\./figures/[^)]*)\)")
_NOTEBOOK_LINK = re.compile(r"\[([^\]]*)\]\((\w+)\.ipynb(#[^)]*)?\)")
_STYLE_OR_SCRIPT = re.compile(r"<(style|script)\b[^>]*>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE)
# nbconvert's style breaks the lines of a cell, also within numbers such as 1.2 ± 0.3, and hides the ends of long lines
# of code. Here only sentences break, and the rest scrolls.
_STYLE = """
.jp-RenderedHTMLCommon table { table-layout: auto; width: max-content }
.anchor-link { display: none }
.jp-RenderedHTMLCommon :is(td, th) { max-width: 30rem }
:is(.jp-RenderedMarkdown, .jp-InputArea-editor) { overflow-x: auto }
"""
_MORE_THAN_STYLE = re.compile(r"[<@\\(]")  # These start an import, a function such as url(), or another element.


@dataclass(frozen=True)
class Outcome:
    """The result of executing a notebook.

    Attributes:
        name: name of the notebook, without folder and suffix.
        seconds: time of the execution.
        error: "" if it was executed completely, otherwise the failed cell and its error in one line.
        executed: the executed copy; for a failed notebook up to the failed cell.
    """

    name: str
    seconds: float
    error: str
    executed: Path


def write_page(outcome: Outcome, pages: Collection[str] = ()) -> Path | None:
    """Write the executed notebook as <name>.html: one file without scripts and downloads; None if not executed.

    Args:
        outcome: the executed notebook.
        pages: names of the notebooks with pages in the same folder. Links to other notebooks become plain text, and so
            do links to committed files that are not where they point.
    """
    import nbformat

    if not outcome.executed.exists():
        return None
    notebook, folder = readable(nbformat.read(outcome.executed, as_version=4)), outcome.executed.parent
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _NOTEBOOK_LINK.sub(
                lambda link: f"[{link[1]}]({link[2]}.html{link[3] or ''})" if link[2] in pages else link[1], cell.source
            )
            cell.source = _COMMITTED_FILE.sub(
                lambda link: link[0] if (folder / link[2]).exists() else link[1], cell.source
            )
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(f"[All notebooks](index.html)\n\n{origin(notebook)}"))
    return _write_html(notebook, folder / f"{outcome.name}.html")


def readable(notebook: Any) -> Any:
    """The notebook changed for a page: what needs Colab, the network or scripts is removed.

    Committed pictures are removed too, because the page has those of this execution.
    """
    notebook.metadata.pop("widgets", None)
    notebook.cells = [cell for cell in notebook.cells if colab.TAG not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        cell.source = colab.with_badge(cell.source)  # Remove the badge, whose picture would be downloaded.
        if cell.cell_type == "markdown":
            cell.source = _COMMITTED_PICTURE.sub("", cell.source)
        if cell.cell_type == "code":  # Remove progress bars: they are widgets, which need scripts.
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook


def origin(notebook: Any) -> str:
    """A sentence in Markdown that says with which profile a notebook was executed; "" if it has no profile."""
    from ucl.reproduction.session import PROFILES

    given = notebook.metadata.get("papermill", {}).get("parameters", {}).get("profile")
    sources = [cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    default = re.search(r"^profile = (\".*?\"|'.*?')", "\n".join(sources), re.MULTILINE)
    profile = given or (ast.literal_eval(default[1]) if default else "")
    if profile == "smoke":
        return f"> **These numbers are not results.** Profile `smoke`: {PROFILES[profile]}."
    return f"> Profile `{profile}`: {PROFILES[profile]}." if profile in PROFILES else ""


def _write_html(notebook: Any, page: Path) -> Path:
    """Write a notebook with the head of nbconvert's own page, without its scripts, and a sanitized body."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    text, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": page.stem}})
    head, _, body = text.partition("</head>")
    head = _SCRIPT.sub("", head)
    body, styles = sanitized(body)
    page.write_text(
        f'{head}<link rel="icon" href="data:,"><style>{_STYLE}{styles}</style></head>\n'
        f'<body class="jp-Notebook"><main>{body}</main></body></html>\n',
        encoding="utf-8",
    )
    return page


def sanitized(body: str) -> tuple[str, str]:
    """HTML without anything that executes or downloads, and the text of its plain style sheets.

    Tables, embedded pictures, highlighted code and formulas do not change.
    """
    import bleach

    styles = [text for kind, text in _STYLE_OR_SCRIPT.findall(body) if kind.lower() == "style"]
    body = bleach.clean(
        _STYLE_OR_SCRIPT.sub("", body),  # bleach would remove the tags, but keep their text.
        tags=_TAGS,
        attributes=_is_harmless,
        protocols=["http", "https", "mailto", "data"],
        strip=True,
    )
    return body, "".join(text for text in styles if not _MORE_THAN_STYLE.search(text))


def _is_harmless(tag: str, name: str, value: str) -> bool:
    if (tag, name) == ("a", "href"):
        return _LINK.match(value) is not None
    if (tag, name) == ("img", "src"):
        return _PICTURE.match(value) is not None
    return name in _ATTRIBUTES


def write_index(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write index.html: a link to each page, with its time or its error."""
    import nbformat

    lines = ["# Notebooks"]
    for outcome in outcomes:
        name = html.escape(outcome.name)
        link = f'<a href="{name}.html">{name}</a>' if outcome.executed.exists() else name
        state = f"<strong>failed: {html.escape(outcome.error)}</strong>" if outcome.error else "executed completely"
        lines.append(f"<p>{link}: {state}, {outcome.seconds:.0f} s</p>")
    cell = nbformat.v4.new_markdown_cell("\n\n".join(lines))
    return _write_html(nbformat.v4.new_notebook(cells=[cell]), folder / "index.html")
