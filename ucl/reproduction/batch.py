"""Batch execution of notebooks with papermill, one process each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from ucl.errors import MOST_AT_ONCE, InputError, one_line_with_type, one_of, whole_number
from ucl.reproduction.pages import Outcome, write_index, write_page

_FOLDERS = ("store", "output")  # parameters of notebooks
# papermill in a process that ends, and kills its kernel, when its standard input is closed. Otherwise a kernel would
# notice the end of papermill within a second, but not during a long call.
_STOPPED = 75
_PAPERMILL = f"""
import sys
sys.path[:] = filter(None, sys.path)  # not the working folder, where a random.py would replace Python's own
import os, threading

def end_with_input():
    os.read(0, 1)
    import psutil
    for process in psutil.Process().children(recursive=True):
        process.kill()
    if os.path.exists(sys.argv[2]):
        os.remove(sys.argv[2])
    os._exit({_STOPPED})

threading.Thread(target=end_with_input, daemon=True).start()
from papermill.__main__ import papermill
papermill(prog_name="papermill")
"""


def notebooks_folder() -> Path:
    """The folder `notebooks` of this checkout, or of the working folder if the package does not run from a checkout."""
    here = Path(__file__).resolve().parents[2] / "notebooks"
    return here if here.is_dir() else Path("notebooks").resolve()


def find_notebooks(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks with the given names or paths, each once; without names, all of `notebooks_folder`.

    Raises:
        InputError: there is no such notebook.
    """
    by_name = {path.stem: path for path in sorted(notebooks_folder().glob("*.ipynb"))}
    if not by_name and not (names and all(str(name).endswith(".ipynb") for name in names)):
        folder = str(notebooks_folder())
        raise InputError("notebook", folder, "no notebooks there; run this in a checkout of the project")
    selected = []
    for name in names:
        path = Path(name).resolve()
        if path.suffix != ".ipynb" or not path.is_file():
            plain = str(name).removesuffix(".ipynb")
            one_of("notebook", plain, by_name)
            path = by_name[plain]
        selected.append(path)
    return list(dict.fromkeys(selected)) or list(by_name.values())


def reproduce(
    names: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    output: str | Path = "reproduced",
    jobs: int = 1,
) -> list[Outcome]:
    """Execute notebooks and write executed copies, HTML pages and an index; one that fails does not stop the others.

    Args:
        names: names or paths of notebooks; empty for all.
        parameters: values for the notebooks' parameter cell; the folders `store` and `output` are relative to the
            working folder of the caller.
        output: folder for <name>.ipynb (or <name>.failed.ipynb), <name>.html and index.html.
        jobs: notebooks at a time; they share this process's threads.

    Returns:
        One outcome per notebook, in the same order.

    Raises:
        InputError: a notebook does not exist or cannot be read, or it has no parameter of a given name.
    """
    import papermill

    whole_number("jobs", jobs, 1, MOST_AT_ONCE)
    paths = find_notebooks(names)
    parameters = dict(parameters or {})
    for path in paths:
        try:
            declared = papermill.inspect_notebook(str(path))
        except Exception as error:  # nbformat and papermill raise many kinds.
            reason = f"can't be read as a notebook ({one_line_with_type(error)})"
            raise InputError("notebook", str(path), reason) from None
        for name in parameters:  # papermill itself would only warn
            one_of("parameter", name, declared, f"parameter of {path.stem}")
    parameters |= {name: str(Path(parameters[name]).absolute()) for name in _FOLDERS if parameters.get(name)}
    folder = Path(output).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, torch.get_num_threads() // jobs)
    with ThreadPoolExecutor(max_workers=jobs) as pool, _shared_input() as stdin:
        execute = partial(_execute, parameters=parameters, folder=folder, threads=threads, stdin=stdin)
        outcomes = list(pool.map(execute, paths))
    pages = {outcome.name: outcome for outcome in outcomes if outcome.executed.exists()}
    for outcome in pages.values():
        write_page(outcome, pages)
    write_index(outcomes, folder)
    return outcomes


@contextmanager
def _shared_input() -> Iterator[int]:
    """A standard input for child processes; it is closed after this block, and when this process ends in any way."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(write_end)
        os.close(read_end)


def _execute(path: Path, parameters: Mapping[str, Any], folder: Path, threads: int, stdin: int) -> Outcome:
    import yaml

    part = folder / f".{path.stem}.{os.getpid()}.part.ipynb"
    done, failed = folder / f"{path.stem}.ipynb", folder / f"{path.stem}.failed.ipynb"
    # One process per notebook, because papermill's working folder is that of its process.
    command = [sys.executable, "-c", _PAPERMILL, str(path), str(part), "--cwd", str(path.parent), "--no-progress-bar"]
    command += ["--kernel", "python3", "--parameters_yaml", yaml.safe_dump(dict(parameters))]
    # With more threads than cores, threads use the cores while they wait for each other, and all notebooks become many
    # times slower.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    with TemporaryFile() as stderr:  # A file instead of a pipe: a kernel may keep a pipe open after papermill's end.
        how: dict[str, Any] = dict(stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        # In a new session: a signal of the terminal would end it without the end of its kernel and of its files.
        status = subprocess.run(command, **how, start_new_session=True).returncode
        stderr.seek(0)
        printed = stderr.read().decode(errors="replace").split("\n")
    seconds = time.perf_counter() - begin
    if status == _STOPPED:
        return Outcome(path.stem, seconds, "stopped", done)
    last_line = next((line for line in reversed(printed) if line.strip()), "failed without an error message")
    error = "" if status == 0 else _error_of(part) or last_line
    done.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    target = failed if error else done
    if part.exists():  # A file with its final name is complete.
        part.replace(target)
    return Outcome(path.stem, seconds, error, target)


def _error_of(executed: Path) -> str:
    """The error of the failed cell of an executed copy; "" if it has none, or if there is no copy."""
    import nbformat

    for cell in nbformat.read(executed, as_version=4).cells if executed.exists() else ():
        for output in cell.get("outputs", []):
            if output.output_type == "error":  # The number is that of the page: papermill inserts further cells.
                return f"cell [{cell.execution_count}]: {output.ename}: {' '.join(output.evalue.split())}"
    return ""
