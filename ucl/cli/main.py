"""The command `ucl`: from its arguments to its exit code."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ucl.cli.arguments import as_typed, refuse
from ucl.cli.verbs import parser
from ucl.errors import InputError, Stopped, UserExit, exits_are_failures, one_line_with_type
from ucl.machine.terminal import show_warning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 or 143 interrupted or ended."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    who, absent = "ucl", []
    try:
        with _stopped_by_signals():
            _print_any_text()
            options = parser(arguments[0] if arguments else "").parse_args(arguments)
            warnings.showwarning = show_warning
            who = options.verb.prog
            _expand_paths(options)
            absent = _absent_folders(options)
            with exits_are_failures():
                code: int = options.command(options)
            print(end="", flush=True)  # Python would do this when it ends, where an error is not answered as below.
            return code
    except (InputError, UserExit) as error:
        for folder in absent:
            with suppress(OSError, ValueError):  # It was not created, is in use, or its name is not valid.
                folder.rmdir()
        typed = as_typed(error, options.verb) + error.reason if isinstance(error, InputError) else str(error)
        return refuse(who, typed)
    except Stopped as stop:
        how = "interrupted" if stop.signal == signal.SIGINT else "ended by SIGTERM"
        print(f"{who}: {how}; finished results are kept", file=sys.stderr)
        return 128 + stop.signal
    except BrokenPipeError:  # The reader of the output has closed it, as `head` does.
        _discard_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print(f"{who}: out of memory: {one_line_with_type(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{who}: {error}", file=sys.stderr)
        try:
            print(end="", flush=True)
        except OSError:
            _discard_output()
        return 1


def _discard_output() -> None:
    """Discard output that could not be written, because Python would try to write it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether memory was too small: that of Python or numpy, a GPU's, or this machine's by torch's words."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in words)


def _print_any_text() -> None:
    """Print characters that the terminal's encoding does not have as escapes, such as those of a class's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` on Ctrl-C and on SIGTERM, which ends a cancelled job, so that all cleanup code is executed."""

    def stop(number: int, _: Any) -> None:
        # A second Ctrl-C ends the process at once. A second SIGTERM is ignored, because some schedulers send several.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers in the main thread only.
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _expand_paths(options: argparse.Namespace) -> None:
    """Replace ~ by the home folder in all paths of a verb, because a shell does not in `--data=~/images`."""
    for name in ("config", "store", "data", "root", "curves", "output"):
        value = getattr(options, name, None)
        if value is not None:
            paths = [_expanded(name, path) for path in ([value] if isinstance(value, str) else value)]
            setattr(options, name, paths[0] if isinstance(value, str) else paths)


def _expanded(name: str, path: str) -> str:
    """A path with the home folder in place of ~.

    Raises:
        InputError: the path is empty (it would act on the working folder, or count as not given), or of an unknown
            user.
    """
    if not path:
        raise InputError(name, "''", "is empty, as an unset shell variable is; give a path, or leave it out")
    if (expanded := os.path.expanduser(path)).startswith("~"):
        raise InputError(name, path, f"no such home folder; give the whole path, or ./{path} for a folder of this name")
    return expanded


def _absent_folders(options: argparse.Namespace) -> list[Path]:
    """Output folders of a verb that do not exist yet, the innermost first; they are removed again after wrong input."""
    outputs = [Path(getattr(options, name)).absolute() for name in ("store", "output") if getattr(options, name, None)]
    return [folder for output in outputs for folder in (output, *output.parents) if not os.path.exists(folder)]
