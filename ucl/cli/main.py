"""The command `ucl`: from its arguments to its exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ucl.cli.parser import parser
from ucl.cli.printing import refuse
from ucl.errors import InputError
from ucl.machine.terminal import show_note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 or 143 interrupted or ended."""
    program = "ucl"
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # The terminal's encoding may not have all characters.
    try:
        signal.signal(signal.SIGTERM, _end)
        options, unknown = parser().parse_known_args(arguments)
        if unknown:
            options.verb.error(f"unknown: {' '.join(unknown)}")
        program, warnings.showwarning = options.verb.prog, show_note
        code: int = options.command(options)
        print(end="", flush=True)  # Python would do this at exit, where an error is not handled as below.
        return code
    except InputError as error:
        return refuse(options.verb, error)
    except KeyboardInterrupt as error:
        how, number = ("ended by SIGTERM", signal.SIGTERM) if error.args else ("interrupted", signal.SIGINT)
        print(f"{program}: {how}; finished results are kept", file=sys.stderr)
        return 128 + number
    except OSError as error:
        closed = isinstance(error, BrokenPipeError)  # The reader of the output has closed it, as `head` does.
        if not closed:
            print(f"{program}: {error}", file=sys.stderr)
        try:
            print(end="", flush=True)
        except OSError:  # Python would try to write the rest of the output again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if closed else 1


def _end(number: int, _: Any) -> None:
    """Raise a KeyboardInterrupt on SIGTERM, which ends a cancelled job, so that cleanup is executed as after Ctrl-C."""
    signal.signal(number, signal.SIG_IGN)  # Some schedulers send several.
    raise KeyboardInterrupt(number)
