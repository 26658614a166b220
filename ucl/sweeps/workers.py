"""Workers: the processes that execute the runs of a sweep, and the function that they call."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from ucl.config import Config
from ucl.errors import InputError, UserExit, one_line, one_line_with_type
from ucl.machine.terminal import duration, show_warning
from ucl.records import NotStored, RecordStore
from ucl.sweeps.one_run import measure_once

# In seconds: the time between two requests to a dask scheduler, the time without an answer after which the scheduler
# counts as lost, and the time without any worker after which the workers count as lost. A dask nanny replaces a lost
# worker within seconds, a queue of jobs within minutes.
ASK_EVERY = 10.0
SCHEDULER_LOST_AFTER = 60.0
WORKERS_LOST_AFTER = 600.0

_one_at_a_time = threading.Lock()  # A run uses torch's global generator, so a process can execute only one at a time.


class Outcome(NamedTuple):
    """What a worker returns; the record itself is in the store.

    Attributes:
        state: "measured", "there" (it has a record already), "elsewhere" (another sweep is running it) or "failed".
        seconds: time of the run, if it was measured.
        error: why it failed, in one line.
        last_accuracy, last_forgetting, failure: results of the run, if it was measured; see `ucl.Record`.
    """

    state: str
    seconds: float = 0.0
    error: str = ""
    last_accuracy: float = nan
    last_forgetting: float = nan
    failure: str = ""


def measure(
    store: RecordStore,
    device: str,
    root: str | None,
    threads: int | None,
    graphs: bool,
    config: Config,
    name: str,
    curves: str | None = None,
) -> Outcome:
    """Run one experiment and store its record, unless it has one already or another sweep is running it.

    Args:
        store: store of the records; its folder is an absolute path.
        device, root, threads, graphs, config: see `ucl.sweep`.
        name: a unique name of this call, because dask merges equal calls.
        curves: folder of the curves, an absolute path.
    """
    with _one_at_a_time:
        before = torch.get_num_threads()
        try:
            if threads:
                torch.set_num_threads(threads)
            how: dict[str, Any] = dict(device=device, root=root, progress=False, graphs=graphs)
            found, record = measure_once(store, config, curves, **how)
            if record is None:
                return Outcome("there" if found.there else "elsewhere")
            result = record.last_accuracy, record.last_forgetting, record.failure
            return Outcome("measured", record.timing["total"], "", *result)
        except Exception as error:
            return Outcome("failed", error=cause_of(error, with_origin=True))
        finally:
            torch.set_num_threads(before)


def cause_of(error: BaseException, with_origin: bool = False) -> str:
    """Why a run failed, in one line; `with_origin` adds the file and line, but not for errors of the user."""
    if isinstance(error, (InputError, NotStored, UserExit)):
        return one_line(error, most=None)
    frames = traceback.extract_tb(error.__traceback__)[-1:] if with_origin else []
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames)
    return one_line_with_type(error, 300) + where


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
        reason = f"no dask scheduler answers there ({cause_of(error)}); give its address tcp://host:port"
        raise InputError("scheduler", address, reason) from None
    with client:
        yield client.get_executor(pure=False)


class Watch:
    """Checks whether a dask scheduler and its workers are still alive, and whether the GPU of this process has failed.

    Without these checks, a sweep would wait forever for runs that no worker executes, or begin runs that can only fail.
    Other executors are not checked.

    Args:
        executor: the executor of the runs.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._client: Any = getattr(executor, "_client", None)  # distributed's ClientExecutor has this attribute.
        self._address = self._client.scheduler.address if self._client is not None else ""
        self._asked = self._answered = self._seen = time.monotonic()

    @property
    def is_dask(self) -> bool:
        """Whether the executor is one of dask."""
        return self._client is not None

    def lost(self) -> str:
        """Why no more results can be expected, in one line; "" as long as results can be expected."""
        if isinstance(self._executor, ThisProcess) and self._executor.gpu_has_failed:
            advice = "give 2 jobs, where a worker process whose GPU has failed is replaced, or sweep in a new process"
            return f"not measured here, because the GPU failed in an earlier run of this process; {advice}"
        if not self.is_dask:
            return ""
        if time.monotonic() - self._asked > ASK_EVERY:
            self._asked = time.monotonic()
            with suppress(Exception):  # Any error means that there was no answer.
                workers = self._client.sync(self._client.scheduler.ncores, callback_timeout=ASK_EVERY)
                self._answered = time.monotonic()
                if workers:
                    self._seen = self._answered
        who, now = f"the dask scheduler at {self._address}", time.monotonic()
        if self._client.status == "closed" or now - self._answered > SCHEDULER_LOST_AFTER:
            return f"{who} no longer answers; start it and its workers, and sweep again"
        if self._answered - self._seen > WORKERS_LOST_AFTER:
            return f"{who} has had no worker for {duration(now - self._seen)}; start workers, and sweep again"
        return ""


def _is_of_failed_gpu(done: object) -> bool:
    """Whether a call returned the outcome of a run whose GPU failed: all later runs of its process would fail too.

    After a lack of memory they would not.
    """
    error = done.error if isinstance(done, Outcome) else ""
    lacks_memory = any(words in error for words in ("out of memory", "ALLOC_FAILED", "NOT_INITIALIZED"))
    return not lacks_memory and any(words in error for words in ("CUDA error", "cuDNN error"))


class ThisProcess(Executor):
    """An executor that executes each call at once in this process.

    Attributes:
        gpu_has_failed: whether the GPU failed in a run.
    """

    def __init__(self) -> None:
        self.gpu_has_failed = False

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        done = function(*arguments, **named)
        self.gpu_has_failed |= _is_of_failed_gpu(done)
        future.set_result(done)
        return future


class WorkerProcesses(ThreadPoolExecutor):
    """Worker processes that fail independently: a killed one is replaced, and its call is executed once more.

    A process whose GPU has failed is replaced too. One thread per process waits for its results. The processes end with
    the ``with`` block (at once if the block raises), and with this process, however it ends.

    Measured alternatives: in joblib's loky, as in a `ProcessPoolExecutor`, all workers end if one is killed. dask's
    `LocalCluster` takes several seconds longer to start, to replace a worker and to end.

    Args:
        jobs: number of processes.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._own = threading.local()
        self._starting = threading.Lock()
        self._stopped = False
        self._all: list[Worker] = []

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        return super().submit(self._in_a_process, partial(function, *arguments, **named))

    def _in_a_process(self, task: partial) -> Any:
        for _ in range(2):
            worker = self._worker()
            try:
                worker.pipe.send(task)
                done = worker.pipe.recv()
            except (EOFError, OSError):
                worker.end()
                self._own.worker = None
                continue
            if _is_of_failed_gpu(done):
                worker.end()
                self._own.worker = None
            return done
        raise RuntimeError(
            f"its worker process died twice, exit code {worker.process.exitcode}: was there too little memory, "
            "or no if __name__ == '__main__' in the script?"
        )

    def _worker(self) -> Worker:
        if getattr(self._own, "worker", None) is None:
            with self._starting:
                if self._stopped:
                    raise RuntimeError("the sweep was stopped")
                self._own.worker = Worker()
                self._all.append(self._own.worker)
        return self._own.worker

    def __exit__(self, error: Any, *_: object) -> None:
        if error is None:
            self.shutdown()
        with self._starting:
            self._stopped = True
            for worker in self._all:
                worker.end()
        self.shutdown(cancel_futures=True)


class Worker:
    """A process that executes one call after another, and this process's end of the pipe to it."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()  # Otherwise the pipe would stay open when the process dies.

    def end(self) -> None:
        """Kill the process at once."""
        self.process.kill()
        self.process.join()


def _serve(pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the sweep handles it.
    warnings.showwarning = show_warning
    tqdm.set_lock(threading.RLock())  # The default is a system semaphore, which a killed worker would leak.
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with suppress(EOFError):
        while True:
            done = pipe.recv()()
            sys.stdout.flush()  # The process may be killed as soon as the result has arrived.
            sys.stderr.flush()
            pipe.send(done)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
