"""Where the runs of a sweep are executed: one process per run on this machine, or an executor, such as one of dask."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, wait
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from typing import Any

from ucl.config import Config
from ucl.machine.terminal import show_note
from ucl.sweeps.one_run import Outcome, failed, measure

_LOST = "the dask scheduler no longer answers; start it and its workers, and sweep again"


def measured(
    configs: Iterable[Config], executor: Executor | None, jobs: int, **how: Any
) -> Iterator[tuple[Config, Outcome]]:
    """Measure runs on an executor, or without one in a process per run, `jobs` at a time, or in this process.

    Yields:
        Each run when it has ended, with its outcome; for `how` see `measure`.
    """
    if executor is not None:
        return on_executor(configs, executor, **how)
    if jobs > 1:
        return in_child_processes(configs, jobs, **how)
    return ((config, measure(config, **how)) for config in configs)


def in_child_processes(configs: Iterable[Config], jobs: int, **how: Any) -> Iterator[tuple[Config, Outcome]]:
    """Measure each run in its own process, which ends at the latest with this generator and with this process.

    A pool would lose all its runs with one process that is killed, for example because it takes too much memory.
    """
    context, waiting = multiprocessing.get_context("spawn"), iter(configs)
    running: dict[Any, tuple[Config, Any]] = {}  # run and process by the connection from the process

    def start_next() -> None:
        if (config := next(waiting, None)) is not None:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_outcome, args=(sender, config, how))
            process.start()
            running[receiver] = config, process
            sender.close()

    try:
        for _ in range(jobs):
            start_next()
        while running:
            ready: list[Any] = wait_for_any(list(running))
            for receiver in ready:
                config, process = running.pop(receiver)
                try:
                    outcome = receiver.recv()
                except EOFError:
                    outcome = None
                process.join()
                start_next()
                yield config, outcome or Outcome("failed", _why_ended(process.exitcode))
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _send_outcome(sender: Connection, config: Config, how: dict[str, Any]) -> None:
    """What the process of a run does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # On Ctrl-C, the sweep ends this process.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = show_note
    sender.send(measure(config, **how))


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def _why_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; was there too little memory?" if code == -signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{hint}"


def on_executor(configs: Iterable[Config], executor: Executor, **how: Any) -> Iterator[tuple[Config, Outcome]]:
    """Measure the runs on an executor; for `how` see `measure`."""
    running = {executor.submit(measure, config, call=uuid.uuid4().hex, **how): config for config in configs}
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
