"""Executed notebooks: HTML pages by nbconvert, an index of these, and the outputs that lessons are committed with.

`python -m ucl.reproduction.pages FOLDER NOTEBOOK...` puts the outputs of the executed copies in FOLDER into notebooks.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucl.reproduction import colab

_WIDGET = "application/vnd.jupyter.widget-view+json"
_COMMITTED_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./figures/([^)]*)\.png\)\n*")
_NOTEBOOK_LINK = re.compile(r"\]\((\w+)\.ipynb")


@dataclass(frozen=True)
class Outcome:
    """The result of executing a notebook: its name without folder and suffix, the time, and the executed copy.

    If it was executed completely, `error` is ""; otherwise it is the error in one line.
    """

    name: str
    seconds: float
    error: str
    executed: Path


def write_page(outcome: Outcome) -> None:
    """Write the executed notebook as <name>.html; its links lead to the pages of other notebooks."""
    import nbformat
    from nbconvert import HTMLExporter

    notebook = readable(nbformat.read(outcome.executed, as_version=4))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _NOTEBOOK_LINK.sub(r"](\1.html", cell.source)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("[All notebooks](index.html)"))
    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    page = outcome.executed.with_name(f"{outcome.name}.html")
    page.write_text(exporter.from_notebook_node(notebook, {"metadata": {"name": page.stem}})[0], encoding="utf-8")


def readable(notebook: Any) -> Any:
    """The notebook changed for a page: what needs Colab or a kernel is removed.

    A committed picture is removed if a cell has drawn it.
    """
    notebook.metadata.pop("widgets", None)
    notebook.cells = [cell for cell in notebook.cells if not colab.is_setup(cell)]
    drawn = ""  # the code that shows pictures
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _shown(cell.outputs)
            drawn += cell.source if any("image/png" in output.get("data", {}) for output in cell.outputs) else ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _COMMITTED_PICTURE.sub(lambda it: "" if f'"{it[1]}"' in drawn else it[0], cell.source)
    return notebook


def _shown(outputs: Sequence[Any]) -> list[Any]:
    """The outputs that are no widgets, such as progress bars, which need a kernel."""
    return [output for output in outputs if _WIDGET not in output.get("data", {})]


def with_outputs(notebook: Any, executed: Any) -> Any:
    """The notebook with the outputs of its executed copy, without progress bars and warnings.

    Its metadata get `outputs_of`, the `code_hash` of the code that the outputs are of.
    """
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    for count, cell in enumerate(_code_cells(notebook), 1):
        cell.execution_count = count
        cell.outputs = [output for output in _shown(outputs[cell.id]) if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _small_png(output.data["image/png"])
    notebook.metadata.outputs_of = code_hash(notebook)
    return notebook


def code_hash(notebook: Any) -> str:
    """A hash of a notebook's code, without the set-up cell for Colab."""
    code = "\n\n".join(cell.source for cell in _code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and not colab.is_setup(cell)]


def _small_png(png: str) -> str:
    """A picture with at most 256 colours, which takes a third of the space."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def write_index(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write index.html: a link to each page, with its time or its error."""
    lines = ["<!DOCTYPE html><meta charset='utf-8'><title>Notebooks</title><h1>Notebooks</h1>"]
    for outcome in outcomes:
        name = html.escape(outcome.name)
        link = f'<a href="{name}.html">{name}</a>' if outcome.executed.exists() else name
        state = f"<strong>failed: {html.escape(outcome.error)}</strong>" if outcome.error else "executed completely"
        lines.append(f"<p>{link}: {state}, {outcome.seconds:.0f} s</p>")
    (folder / "index.html").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    import nbformat

    for path in map(Path, sys.argv[2:]):
        notebook, done = (nbformat.read(file, as_version=4) for file in (path, Path(sys.argv[1]) / path.name))
        nbformat.write(with_outputs(notebook, done), path)
