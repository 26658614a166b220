"""Google Colab: the set-up cell of the notebooks and what it calls, and the badges that open the notebooks on Colab.

After publishing the project, run `make badges REPOSITORY=owner/name` once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlretrieve

from ucl.errors import InputError

TAG = "colab"
PINNED = ("torch", "torchvision", "numpy", "jupyter-server")
_SETUP = """\
# @title Only Google Colab needs this cell: give the repository's address on GitHub, or nothing and upload ucl.zip.
import sys
from glob import glob

SOURCE = "{address}"  # @param {{type:"string"}}
if "google.colab" in sys.modules:
    from google.colab import files
    SOURCE = SOURCE or next(iter(glob("/content/ucl*.zip") or files.upload()))
    SOURCE += "" if SOURCE.endswith(".zip") else "/archive/HEAD.zip"
    %pip install -q --no-deps {{SOURCE}}
    from ucl.reproduction.colab import set_up
    set_up(SOURCE)"""
_HIDDEN = {"tags": [TAG], "cellView": "form", "jupyter": {"source_hidden": True}}  # folded on Colab and in JupyterLab
_BADGE = re.compile(r"^\[!\[Open in Colab\].*\n\n", re.MULTILINE)


def setup_source(repository: str = "") -> str:
    """The code of the set-up cell: its `SOURCE` is the address of `repository` on GitHub, or empty if that is ""."""
    return _SETUP.format(address=f"https://github.com/{repository}" if repository else "")


def set_up(source: str, folder: str | Path = "/content") -> None:
    """Put the whole project into `folder`/ucl, install missing packages, and change to its folder of notebooks.

    The set-up cell has installed only the package; the notebooks need the records of the project as well. Colab's own
    `PINNED` packages are not changed, because pip would replace torch with another build of several gigabytes.

    Args:
        source: path or address of a zip archive of the project.
        folder: a project that is already in `folder`/ucl is used as it is; a printed line says so.

    Raises:
        InputError: the archive is of something else than the project.
    """
    folder = Path(folder)
    project = folder / "ucl"
    if project.exists():
        print(f"{project} is used as it is; delete it to make it from {source} again")
    else:
        _unpack(source, project)
    pins = folder / "pins.txt"
    pins.write_text("\n".join(f"{name}=={version(name)}" for name in PINNED))
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-c", str(pins), "-e", str(project)], check=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ucl"]:
        del sys.modules[name]  # The next import finds the project instead of the package that the cell installed.
    sys.path.insert(0, str(project))  # A running kernel does not see an editable installation.
    os.chdir(project / "notebooks")


def _unpack(source: str, project: Path) -> None:
    """Unpack an archive of the project, with or without a folder around it, as GitHub and `git archive` make them."""
    with tempfile.TemporaryDirectory(dir=project.parent) as whole:
        shutil.unpack_archive(urlretrieve(source)[0] if "://" in source else source, whole, "zip")
        roots = [root for root in (Path(whole), *Path(whole).iterdir()) if (root / "ucl" / "__init__.py").is_file()]
        if not roots:
            raise InputError("source", source, "no archive of the project; make it by: git archive -o ucl.zip HEAD")
        shutil.copytree(roots[0], project)


def with_badge(text: str, repository: str = "", notebook: str = "00_quickstart") -> str:
    """Markdown with a badge under its title that opens the notebook on Colab; no badge if `repository` is ""."""
    text = _BADGE.sub("", text)
    if not repository:
        return text
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    link = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{notebook}.ipynb"
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n[![Open in Colab]({image})]({link})\n\n{rest}"


def with_setup(notebook: Any, name: str, repository: str = "") -> Any:
    """The notebook with the set-up cell before its other code and, if `repository` is given, the badge."""
    from nbformat.v4 import new_code_cell

    first, *rest = [cell for cell in notebook.cells if not is_setup(cell)]
    first.source = with_badge(first.source, repository, name)
    setup = new_code_cell(setup_source(repository), id="colab-setup", metadata=_HIDDEN)
    notebook.cells = [first, setup, *rest]
    return notebook


def is_setup(cell: Mapping[str, Any]) -> bool:
    """Whether a cell of a notebook is the set-up cell."""
    return TAG in cell["metadata"].get("tags", [])


def write(checkout: str | Path, repository: str = "") -> None:
    """Update the set-up cells and badges in the notebooks and the README of a checkout.

    Args:
        checkout: folder with README.md and notebooks.
        repository: owner/name on GitHub; "" for no address and no badges.
    """
    import nbformat

    for path in (Path(checkout) / "notebooks").glob("*.ipynb"):
        notebook = with_setup(nbformat.read(path, as_version=4), path.stem, repository)
        nbformat.write(notebook, path)
    readme = Path(checkout) / "README.md"
    readme.write_text(with_badge(readme.read_text(encoding="utf-8"), repository), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2], "".join(sys.argv[1:]))
