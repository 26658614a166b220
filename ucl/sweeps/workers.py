"""Where the runs of a sweep are executed: one process per run on this machine, or the workers of a dask scheduler."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from ucl.config import Config
from ucl.errors import InputError, one_line_with_type
from ucl.machine.terminal import duration
from ucl.sweeps.one_run import Options, Outcome

# In seconds: the time between two requests to a dask scheduler, and the time without any worker after which the workers
# count as lost. A dask nanny replaces a lost worker within seconds, a queue of jobs within minutes.
ASK_EVERY = 10.0
LOST_AFTER = 600.0
IN_A_CHILD = "UCL_CHILD_OF_A_SWEEP"  # an environment variable that the processes of runs have


class ChildProcesses:
    """Processes that measure one run each; those that have not ended end with the ``with`` block, or this process.

    Args:
        jobs: number of processes at a time.
    """

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._lock, self._stopped = threading.Lock(), False
        self._running: set[subprocess.Popen[str]] = set()

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            for child in self._running:
                child.kill()
        self._threads.shutdown(cancel_futures=True)

    def submit(self, options: Options, config: Config) -> Future[Outcome]:
        """Measure a run in a process of its own."""
        return self._threads.submit(self._measure, options, config)

    def _measure(self, options: Options, config: Config) -> Outcome:
        with self._lock:
            if self._stopped:
                return Outcome("failed", error="the sweep was stopped")
            child = _started()
            self._running.add(child)
        with child:
            assert child.stdin and child.stdout
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps([options, config.to_json()]) + "\n")
                child.stdin.flush()
            line = child.stdout.readline()
        self._running.discard(child)
        return Outcome(*json.loads(line)) if line else Outcome("failed", error=_why_ended(child.returncode))


def _started() -> subprocess.Popen[str]:
    """A process that serves one run, with the modules of this process; the signals of a terminal do not reach it."""
    code = f"import sys; sys.path = {[str(folder) for folder in sys.path]}; from ucl.sweeps import one_run"
    command, env = [sys.executable, "-c", f"{code}; one_run.serve()"], {**os.environ, IN_A_CHILD: "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True)


def _why_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    hint = "; was there too little memory?" if code == -signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-code).name}{hint}"


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


class Watch:
    """Checks whether a dask scheduler and its workers are alive: without it, a sweep would wait for them forever.

    Args:
        executor: the executor of the runs; one that is not of dask is not checked.
    """

    def __init__(self, executor: object) -> None:
        self._client: Any = getattr(executor, "_client", None)  # distributed's ClientExecutor has this attribute.
        self._asked = self._seen = time.monotonic()

    def lost(self) -> str:
        """Why no more results can be expected, in one line; "" as long as results can be expected."""
        if self._client is None:
            return ""
        if self._client.status == "closed":
            return "the dask scheduler no longer answers; start it and its workers, and sweep again"
        if time.monotonic() - self._asked > ASK_EVERY:
            self._asked = time.monotonic()
            with suppress(Exception):  # Any error means that there was no answer.
                if self._client.sync(self._client.scheduler.ncores, callback_timeout=ASK_EVERY):
                    self._seen = time.monotonic()
        silent = time.monotonic() - self._seen
        if silent > LOST_AFTER:
            return f"dask has had no worker for {duration(silent)}; start workers, and sweep again"
        return ""
