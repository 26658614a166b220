"""HTML pages of executed notebooks, by nbconvert, and their index."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucl.reproduction import colab

_WIDGET = "application/vnd.jupyter.widget-view+json"
_COMMITTED_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./figures/[^)]*\)\n*")
_NOTEBOOK_LINK = re.compile(r"\[([^\]]*)\]\((\w+)\.ipynb(#[^)]*)?\)")


@dataclass(frozen=True)
class Outcome:
    """The result of executing a notebook: its name without folder and suffix, the time, and the executed copy.

    If it was executed completely, `error` is ""; otherwise it is the failed cell and its error in one line.
    """

    name: str
    seconds: float
    error: str
    executed: Path


def write_page(outcome: Outcome, pages: Collection[str] = ()) -> Path | None:
    """Write the executed notebook as <name>.html; None if there is no executed copy.

    Links to notebooks that are not in `pages`, the names of those with a page in the same folder, become plain text.
    """
    import nbformat
    from nbconvert import HTMLExporter

    from ucl.reproduction.session import PROFILES  # it imports torch, which the site does without

    if not outcome.executed.exists():
        return None
    notebook = readable(nbformat.read(outcome.executed, as_version=4))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _NOTEBOOK_LINK.sub(
                lambda link: f"[{link[1]}]({link[2]}.html{link[3] or ''})" if link[2] in pages else link[1], cell.source
            )
    smoke = notebook.metadata.get("papermill", {}).get("parameters", {}).get("profile") == "smoke"
    warning = f"\n\n> **These numbers are not results.** Profile `smoke`: {PROFILES['smoke']}." if smoke else ""
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(f"[All notebooks](index.html){warning}"))
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    page = outcome.executed.with_name(f"{outcome.name}.html")
    page.write_text(exporter.from_notebook_node(notebook, {"metadata": {"name": page.stem}})[0], encoding="utf-8")
    return page


def readable(notebook: Any) -> Any:
    """The notebook changed for a page: what needs Colab or a kernel is removed.

    Committed pictures are removed too, because the page has those of this execution.
    """
    notebook.metadata.pop("widgets", None)
    notebook.cells = [cell for cell in notebook.cells if colab.TAG not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        cell.source = colab.with_badge(cell.source)  # removes the badge
        if cell.cell_type == "markdown":
            cell.source = _COMMITTED_PICTURE.sub("", cell.source)
        if cell.cell_type == "code":  # Progress bars are widgets.
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook


def write_index(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write index.html: a link to each page, with its time or its error."""
    lines = ["<!DOCTYPE html><meta charset='utf-8'><title>Notebooks</title><h1>Notebooks</h1>"]
    for outcome in outcomes:
        name = html.escape(outcome.name)
        link = f'<a href="{name}.html">{name}</a>' if outcome.executed.exists() else name
        state = f"<strong>failed: {html.escape(outcome.error)}</strong>" if outcome.error else "executed completely"
        lines.append(f"<p>{link}: {state}, {outcome.seconds:.0f} s</p>")
    index = folder / "index.html"
    index.write_text("\n".join(lines), encoding="utf-8")
    return index
