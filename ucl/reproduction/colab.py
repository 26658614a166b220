"""Google Colab: the set-up cell of the notebooks, and the badges that open them on Colab if the project has an address.

After publishing the project, run `make badges REPOSITORY=owner/name` once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ucl.errors import InputError

TAG = "colab"
_SETUP = """\
# On Google Colab: fetch the project and install it beside Colab's own torch. Elsewhere this cell does nothing.
import sys

REPOSITORY = ""  # GitHub owner/name; if empty, upload ucl.zip, made by: git archive --format=zip -o ucl.zip HEAD
if "google.colab" in sys.modules:
    import io, os, pathlib, subprocess, zipfile
    from importlib.metadata import version
    from google.colab import files

    project, pins = pathlib.Path("/content/ucl"), pathlib.Path("/content/pins.txt")
    if REPOSITORY and not project.exists():
        subprocess.run(["git", "clone", "--depth", "1", f"https://github.com/{REPOSITORY}", str(project)], check=True)
    elif not project.exists():
        archive = io.BytesIO(b"".join(files.upload().values()))
        if not zipfile.is_zipfile(archive) or "ucl/__init__.py" not in zipfile.ZipFile(archive).namelist():
            raise ValueError("no archive of the project; make it by: git archive --format=zip -o ucl.zip HEAD")
        zipfile.ZipFile(archive).extractall(project)
    kept = ("torch", "torchvision", "numpy", "jupyter-server")
    pins.write_text("\\n".join(f"{name}=={version(name)}" for name in kept))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-c", str(pins), "-e", str(project)], check=True)
    sys.path.insert(0, str(project))  # a kernel that runs already does not see what pip links
    os.chdir(project / "notebooks")"""
_BADGE = re.compile(r"^\[!\[Open in Colab\].*\n\n", re.MULTILINE)


def setup_source(repository: str = "") -> str:
    """The code of the set-up cell: on Colab it clones `repository`, or asks for an archive if `repository` is ""."""
    return _SETUP.replace('REPOSITORY = ""', f'REPOSITORY = "{repository}"')


def with_badge(text: str, repository: str = "", notebook: str = "00_quickstart") -> str:
    """Markdown with a badge under its title that opens the notebook on Colab; no badge if `repository` is ""."""
    text = _BADGE.sub("", text)
    if not repository:
        return text
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    link = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{notebook}.ipynb"
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n[![Open in Colab]({image})]({link})\n\n{rest}"


def with_setup(notebook: Mapping[str, Any], name: str, repository: str = "") -> dict[str, Any]:
    """A notebook's JSON with the set-up cell before its other code and, if `repository` is given, the badge."""
    first, *rest = [cell for cell in notebook["cells"] if TAG not in cell["metadata"].get("tags", [])]
    first = {**first, "source": with_badge("".join(first["source"]), repository, name).splitlines(keepends=True)}
    setup = {
        "cell_type": "code",
        "id": "colab-setup",
        "execution_count": None,
        "metadata": {"tags": [TAG]},
        "outputs": [],
        "source": setup_source(repository).splitlines(keepends=True),
    }
    return {**notebook, "cells": [first, setup, *rest]}


def write(checkout: str | Path, repository: str = "") -> None:
    """Update the set-up cells and badges in the notebooks and the README of a checkout.

    Args:
        checkout: folder with README.md and notebooks.
        repository: owner/name on GitHub; "" if the project has no address, for no badges.

    Raises:
        InputError: the repository is not of the form owner/name.
    """
    if repository and not re.fullmatch(r"[\w-]+/[\w.-]+", repository, re.ASCII):
        raise InputError("repository", repository, "give owner/name, as in the address on GitHub")
    for path in (Path(checkout) / "notebooks").glob("*.ipynb"):
        notebook = with_setup(json.loads(path.read_text(encoding="utf-8")), path.stem, repository)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    readme = Path(checkout) / "README.md"
    readme.write_text(with_badge(readme.read_text(encoding="utf-8"), repository), encoding="utf-8")


if __name__ == "__main__":
    try:
        write(Path(__file__).resolve().parents[2], "".join(sys.argv[1:]))
    except InputError as error:
        raise SystemExit(str(error)) from None
