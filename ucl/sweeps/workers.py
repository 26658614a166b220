"""Where the runs of a sweep are executed: one process per run on this machine, or an executor, such as one of dask."""

from __future__ import annotations

import itertools
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
import uuid
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, wait
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

from ucl.config import Config
from ucl.errors import InputError, one_line_with_type
from ucl.machine.terminal import show_warning
from ucl.sweeps.one_run import Options, Outcome, failed, measure

_LOST = "the dask scheduler no longer answers; start it and its workers, and sweep again"
IN_A_CHILD = "UCL_CHILD_OF_A_SWEEP"  # an environment variable that the processes of runs have


def in_child_processes(
    configs: Iterable[Config], options: Options, jobs: int, main: str | None
) -> Iterator[tuple[Config, Outcome]]:
    """Measure each run in its own process, which ends at the latest with this generator and with this process.

    Args:
        configs, options, jobs: see `ucl.sweep`.
        main: the file that the processes execute for the objects of the main module, or None.
    """
    waiting = iter(configs)
    running: dict[Any, tuple[Any, Config]] = {}  # process and run by the process's standard output

    code = f"import sys; sys.path = {[str(folder) for folder in sys.path]}; from ucl.sweeps import workers"
    command, env = [sys.executable, "-c", f"{code}; workers.serve()"], {**os.environ, IN_A_CHILD: "1"}
    pipe = subprocess.PIPE

    def start_next() -> None:
        for config in itertools.islice(waiting, 1):  # Signals of a terminal do not reach a new session.
            child: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True)
            running[child.stdout] = child, config
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps([options, config.to_json(), main]) + "\n")
                child.stdin.flush()

    try:
        for _ in range(jobs):
            start_next()
        while running:
            for output in connection.wait(list(running)):
                child, config = running.pop(output)
                with child:
                    line = child.stdout.readline()
                outcome = Outcome(*json.loads(line)) if line else Outcome("failed", _why_ended(child.returncode))
                start_next()
                yield config, outcome
    finally:
        for child, _ in running.values():
            child.kill()
            child.wait()


def _why_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; was there too little memory?" if code == -signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{hint}"


def serve() -> None:
    """Measure the run that the first line of standard input describes, and print its outcome as a line of JSON.

    When standard input ends, the sweep has ended, and so does this process.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the user's code prints goes to standard error.
    warnings.showwarning = show_warning
    options, config, main = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    try:
        if main:  # as multiprocessing does: under another name, so that its main block is not executed
            module = types.ModuleType("__mp_main__")
            vars(module).update(runpy.run_path(main, run_name="__mp_main__"))
            sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        outcome = measure(Options(*options), Config.from_json(config))
    except Exception as error:
        outcome = failed(error)
    print(json.dumps(outcome), file=results, flush=True)


def _end_with_standard_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def on_executor(configs: Iterable[Config], options: Options, executor: Executor) -> Iterator[tuple[Config, Outcome]]:
    """Measure the runs on an executor."""
    running = {executor.submit(measure, options, config, uuid.uuid4().hex): config for config in configs}
    client = getattr(executor, "_client", None)  # distributed's ClientExecutor has this attribute.
    try:
        while running:
            for future in wait(running, 1.0, FIRST_COMPLETED).done:
                config = running.pop(future)
                try:
                    yield config, future.result()
                except CancelledError:
                    yield config, Outcome("failed", _LOST)
                except Exception as error:  # The executor failed; errors of the run itself are part of the outcome.
                    yield config, failed(error)
            if client is not None and client.status == "closed":  # Its futures would never end.
                yield from ((config, Outcome("failed", _LOST)) for config in running.values())
                return
    finally:
        for future in running:
            future.cancel()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler, as an executor for `ucl.sweep`.

    Raises:
        InputError: dask.distributed is not installed, or no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError:
        reason = "needs dask.distributed: python -m pip install distributed"
        raise InputError("scheduler", address, reason) from None

    class OurClient(Client):
        def start(self, **how: Any) -> None:
            try:
                super().start(**how)
            except BaseException:
                # A client that failed to connect would block at exit, and then print a traceback.
                self.status = "closed"
                raise

    # dask prints tracebacks if the scheduler is lost; the sweep reports it in one line instead.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL + 1)
    try:
        client = OurClient(address, timeout=10, set_as_default=False)
    except Exception as error:  # For example a TypeError, if tls:// is given without certificates.
        reason = f"no dask scheduler answers there ({one_line_with_type(error)}); give its address tcp://host:port"
        raise InputError("scheduler", address, reason) from None
    with client:
        yield client.get_executor(pure=False)
