"""Workers: where the runs of a sweep go, and what is done with one there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from ucl import locks
from ucl.config import Config
from ucl.errors import InputError
from ucl.experiment import run
from ucl.records import RecordStore

_one_at_a_time = threading.Lock()  # a run uses torch's global generator: one a process, whatever the executor


class Outcome(NamedTuple):
    """What comes back from a worker; the record itself is in the store.

    Attributes:
        state: measured, there (already), elsewhere (another sweep is running it) or failed.
        seconds: what the run took, where it was measured.
        error: why it failed, in one line.
    """

    state: str
    seconds: float = 0.0
    error: str = ""


def measure(
    store: RecordStore, device: str, root: str | None, threads: int | None, graphs: bool, config: Config, name: str
) -> Outcome:
    """Run and store one experiment, unless it is there or another sweep runs it.

    Args:
        store: of the records; its folder is an absolute path.
        device, root, threads, graphs, config: see `ucl.sweep`.
        name: of this call, unlike that of any other.
    """
    with _one_at_a_time:
        before = torch.get_num_threads()
        try:
            with locks.held(locks.path_of(store.folder, config), name) as ours:
                if config in store:
                    return Outcome("there")
                if not ours:
                    return Outcome("elsewhere")
                if threads:
                    torch.set_num_threads(threads)
                record = run(config, device, root, progress=False, graphs=graphs)
                store.save(record)
                return Outcome("measured", record.timing["total"])
        except Exception as error:
            return Outcome("failed", error=in_one_line(error, tell_where=True))
        finally:
            torch.set_num_threads(before)


def in_one_line(error: BaseException, tell_where: bool = False) -> str:
    """An error as a line for people, with the file and line it comes from where they help."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, InputError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1:] if tell_where else []
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


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
                # A client that could not even ask for the scheduler waits, as the process ends, for what never began,
                # and then prints a traceback.
                self.status = "closed"
                raise

    try:
        client = OurClient(address, timeout=10, set_as_default=False)
    except Exception as error:  # such as TypeError, where tls:// has no certificates
        reason = f"no dask scheduler answers there ({in_one_line(error)}); give tcp://host:port as it printed it"
        raise InputError("scheduler", address, reason) from None
    with client:
        yield client.get_executor(pure=False)


class ThisProcess(Executor):
    """Runs at once, where it is called."""

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **named))
        return future


class WorkerProcesses(ThreadPoolExecutor):
    """Worker processes that die alone: one that is killed is replaced, and what it was running runs once more.

    One whose GPU has failed is replaced as well.

    In one `ProcessPoolExecutor`, all workers end with the first that is killed; so here each has a pool to itself, and
    a thread that looks after it. They end when the block that uses them does, by an error at once, whatever they are
    doing; and when this process does, however it ends.

    Args:
        jobs: how many.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._pools: list[tuple[ProcessPoolExecutor, Any]] = []

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> Future:
        return super().submit(self._in_a_process, function, *arguments, **named)

    def _in_a_process(self, function: Callable, *arguments: Any, **named: Any) -> Any:
        for _ in range(2):
            try:
                done = self._pool().submit(function, *arguments, **named).result()
                if isinstance(done, Outcome) and "CUDA error" in done.error:  # all that came after would fail, too
                    self._own.pool.shutdown(wait=False)
                    self._own.pool = None
                return done
            except BrokenProcessPool:
                self._own.pool = None
        raise BrokenProcessPool(
            "its worker process died twice: was there too little memory, or no if __name__ == '__main__' in the script?"
        )

    def _pool(self) -> ProcessPoolExecutor:
        if getattr(self._own, "pool", None) is None:
            spawn = multiprocessing.get_context("spawn")
            with self._lock:
                if self._closed:
                    raise RuntimeError("the sweep was stopped")
                theirs, ours = spawn.Pipe(duplex=False)
                self._own.pool = ProcessPoolExecutor(1, spawn, _begin_worker, (theirs,))
                self._pools.append((self._own.pool, ours))
        return self._own.pool

    def __exit__(self, error: Any, *_: object) -> None:
        if error is not None:
            with self._lock:
                self._closed = True
            self._cut_lifelines()
        self.shutdown(cancel_futures=error is not None)
        for pool, _ in self._pools:
            pool.shutdown()
        self._cut_lifelines()

    def _cut_lifelines(self) -> None:
        for _, lifeline in self._pools:
            lifeline.close()


def _begin_worker(lifeline: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the sweep answers it
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a worker that is stopped would leak
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Any) -> None:
    lifeline.poll(None)  # nothing is ever sent: this returns when the other end is closed
    os._exit(1)
