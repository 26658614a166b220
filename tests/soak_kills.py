"""The kills of `soak.py`: a process is killed at a random moment; nothing may be lost, damaged or left running."""

import atexit
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean

import nbformat
import numpy as np
import psutil
import torch

from ucl import Config
from ucl.cli.main import main
from ucl.records import Record

PATIENCE = 60  # The seconds that ending a process, or cleaning up after it, may take on a busy machine.
SIGNALS = [signal.SIGKILL] * 8 + [signal.SIGTERM, signal.SIGINT]
MANY = 24  # The number of runs in a sweep whose workers are killed.

_METHODS = [
    dict(score="BI"),
    dict(score="MC"),
    dict(method="agem"),
    dict(population="class-balanced"),
    dict(score="EN", selection="top", refresh=2),
    dict(population="reservoir", dropout=0.2),
]


def configs(work: Path) -> list[Config]:
    """The runs, of three tasks with two batches: one of each method, then more seeds of the first."""
    base = dict(dataset=str(work / "some.npz"), n_tasks=3, memory_size=6, batch_size=4, validation=0.0)
    return [Config(**base, **method) for method in _METHODS] + [Config(**base, seed=s) for s in range(1, MANY)]


def prepare(work: Path, measured: str) -> None:
    """Write the data, the lists of runs and a notebook, and measure the runs of one list undisturbed."""
    from sklearn.datasets import load_digits

    images, labels = np.rint(load_digits().images * 15).astype(np.uint8), load_digits().target
    images = images.repeat(4, axis=1).repeat(4, axis=2)[:, 3:-4, 3:-4]  # The smallest allowed size is 25 pixels.
    arrays = {}
    for split, start, n in (("train", 0, 4), ("test", 100, 2)):
        chosen = np.concatenate([np.flatnonzero(labels == c)[start : start + n] for c in range(6)])
        arrays |= {f"{split}_images": images[chosen], f"{split}_labels": labels[chosen]}
    np.savez(work / "some.npz", **arrays)
    runs = [json.loads(config.to_json()) for config in configs(work)]
    for name, some in (("all", runs), ("methods", runs[: len(_METHODS)]), ("many", runs[len(_METHODS) :])):
        (work / f"{name}.json").write_text(json.dumps(some))
    for i, run in enumerate(runs):
        (work / f"{i}.json").write_text(json.dumps(run))
    cells = ["x = 1", "import time\ntime.sleep(2)", "print(x)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, work / "short.ipynb")
    torch.set_num_threads(1)
    assert main(["sweep", "--config", str(work / f"{measured}.json"), "--store", str(work / "undisturbed")]) == 0


def fork(work: Callable[[], object]) -> int:
    """Call `work` in a new process that ends when this one ends, for any reason; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)
    return pid


class Case:
    """A store on which processes are started and ended; it is checked after each end.

    Attributes:
        seconds: the duration of a run on this machine.
        failures: the errors found, one line each.
        kills: the number of processes that were killed before they finished.
    """

    def __init__(self, draw: random.Random, folder: Path, work: Path) -> None:
        self.draw, self.folder, self.work = draw, folder, work
        self.store = folder / "runs"
        self.failures: list[str] = []
        self.kills = 0
        self._n = 0
        undisturbed = (Record.from_json(p.read_text()) for p in (work / "undisturbed").glob("*.json"))
        self._undisturbed = {record.config.key: record for record in undisturbed}
        self.seconds = fmean(record.timing["total"] for record in self._undisturbed.values())

    def require(self, fine: bool, what: str) -> None:
        if not fine:
            self.failures.append(f"kill {self.kills}: {what}")

    def start(self, *arguments: object) -> int:
        """Start `ucl ...` in a new process, with its output in a file."""
        self._n += 1
        printed = self.folder / f"printed-{self._n}"
        printed.touch()  # The process may be killed before it opens the file.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Block the signal until `_command` can handle it.
        try:
            return fork(lambda: _command([str(a) for a in arguments], self.folder, printed))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def ended(self, pid: int, by: int | None = None) -> bool:
        """Send a signal or wait for the end, then check what is left; returns whether the signal ended the process."""
        before = os.waitpid(pid, os.WNOHANG) if by is not None else (0, 0)
        if by is not None and not before[0]:
            os.kill(pid, by)
        status = before[1] if before[0] else self._wait(pid, PATIENCE if by else 10 * PATIENCE)
        name = signal.Signals(by).name if by else "no signal"
        printed = (self.folder / f"printed-{self._n}").read_text(errors="replace")
        if status is None:
            self.require(False, f"{name}: still running, it waited in vain: {printed[-300:]!r}")
            os.kill(pid, signal.SIGKILL)
            status = self._wait(pid)
        code = os.waitstatus_to_exitcode(status or 0)
        killed = code < 0 or code > 128
        allowed = {0} if by is None or before[0] else {0, -by} if by == signal.SIGKILL else {0, -by, 128 + by}
        self.kills += killed and by is not None
        self.require(code in allowed, f"{name}: exit code {code}: {printed[-400:]!r}")
        self.require("Traceback" not in printed, f"{name}: {printed[-600:]!r}")
        self._nothing_is_left(name)
        self.records_are_right()
        return killed

    def _wait(self, pid: int, seconds: float = PATIENCE) -> int | None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.005)
        return None

    def _nothing_is_left(self, after: str) -> None:
        end = time.monotonic() + PATIENCE
        while left := living(psutil.Process()):
            if time.monotonic() > end:
                commands = [" ".join(p.cmdline())[:150] for p in left if p.is_running()]
                self.require(False, f"{after}: left running after {PATIENCE} s: {commands}")
                for process in left:
                    with suppress(psutil.Error):
                        process.kill()
                return
            time.sleep(0.01)

    def records_are_right(self) -> list[Record]:
        """Check that each visible record is complete and equals the undisturbed one; returns the correct records."""
        found = []
        for path in self.store.glob("*.json"):
            try:
                record = Record.from_json(path.read_text())
            except ValueError as error:
                self.require(False, f"{path.name}: damaged: {error}")
                continue
            same = record.results == self._undisturbed[record.config.key].results
            self.require(same, f"{path.name}: other results than the undisturbed run's")
            found.append(record)
        return found

    def completes(self, file: str, *arguments: object) -> tuple[int, list[str]]:
        """Start again without kills, and check that at the end all runs of the list are there, and nothing else.

        A file that a killed process was writing is removed only when it is old, so its time is set back here.
        """
        for part in self.store.glob(".*.part"):
            os.utime(part, (0, 0))
        name = "run" if isinstance(json.loads((self.work / file).read_text()), dict) else "sweep"
        self.ended(self.start(name, "--config", self.work / file, "--store", self.store, *arguments))
        runs = json.loads((self.work / file).read_text())
        wanted = {Config(**run).key for run in (runs if isinstance(runs, list) else [runs])}
        found = {record.config.key for record in self.records_are_right()}
        self.require(found == wanted, f"{len(wanted - found)} of {len(wanted)} records are not there at the end")
        beside = [p.name for p in self.store.rglob("*") if p.is_file() and not p.name.endswith((".json", ".lock"))]
        self.require(not beside, f"left in the store at the end: {beside[:5]}")
        return self.kills, self.failures


def _command(arguments: list[str], folder: Path, printed: Path) -> object:
    os.setsid()
    os.chdir(folder)
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for own, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, file), (2, file)):
        os.dup2(to, own)
    # The default handler ends the process. That is allowed before and after the command, which sets its own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    atexit._clear()
    torch.set_num_threads(1)
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code
    finally:  # The interpreter does the same at its end.
        threading._shutdown()
        atexit._run_exitfuncs()


def living(process: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a process that still run; reaps ended children of this process."""
    with suppress(psutil.Error):
        found = []
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
                elif child.ppid() == os.getpid():
                    with suppress(ChildProcessError):
                        os.waitpid(child.pid, os.WNOHANG)
        return found
    return []


# The kinds


def run(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill `ucl run` up to five times; it continues from its checkpoints and ends with the same record."""
    case, file = Case(draw, folder, work), f"{draw.randrange(len(_METHODS))}.json"
    for _ in range(draw.randint(2, 5)):
        pid = case.start("run", "--config", work / file, "--store", case.store)
        time.sleep(draw.uniform(0, 1.5 * case.seconds))
        if not case.ended(pid, draw.choice(SIGNALS)):
            break
    return case.completes(file)


def sweep(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill a sweep in one process repeatedly until it finishes."""
    case = Case(draw, folder, work)
    for _ in range(12):
        pid = case.start("sweep", "--config", work / "methods.json", "--store", case.store)
        time.sleep(draw.uniform(0, 3 * case.seconds))
        if not case.ended(pid, draw.choice(SIGNALS)):
            break
    return case.completes("methods.json")


def parent(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill a sweep with two worker processes; the workers must end with it."""
    case = Case(draw, folder, work)
    for _ in range(5):
        pid = case.start("sweep", "--config", work / "methods.json", "--store", case.store, "--jobs", 2)
        _wait_until(lambda sweep=pid: living(psutil.Process(sweep)))
        time.sleep(draw.uniform(0, 6))
        if not case.ended(pid, draw.choice(SIGNALS)):
            break
    return case.completes("methods.json", "--jobs", 2)


def worker(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill the workers of a sweep; it names runs that were killed too often, and the next sweep completes them."""
    case = Case(draw, folder, work)
    pid = case.start("sweep", "--config", work / "many.json", "--store", case.store, "--jobs", 2)
    _kill_descendants(case, pid, pid, MANY)
    _ended_by_itself(case, pid, "died twice")
    return case.completes("many.json", "--jobs", 2)


def dask(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill workers of a dask scheduler that have begun to work; their nannies replace them."""
    case = Case(draw, folder, work)
    with _cluster(folder) as (cluster, address):
        pid = case.start("sweep", "--config", work / "many.json", "--store", case.store, "--scheduler", address)
        _kill_descendants(case, pid, cluster, MANY, at_work=True)
        _ended_by_itself(case, pid, "KilledWorker", look=False)
    return case.completes("many.json", "--jobs", 2)


def reproduce(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
    """Kill `ucl reproduce`; papermill and its kernels must end with it, without a half-written page or notebook."""
    case = Case(draw, folder, work)
    for _ in range(3):
        pid = case.start("reproduce", work / "short.ipynb", "--output", folder / "pages")
        time.sleep(draw.uniform(0, 10))
        killed = case.ended(pid, draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        if killed and (folder / "pages" / "short.ipynb").exists():
            nbformat.read(folder / "pages" / "short.ipynb", as_version=4)
    case.ended(case.start("reproduce", work / "short.ipynb", "--output", folder / "pages"))
    pages = sorted(p.name for p in (folder / "pages").iterdir() if not p.name.startswith("."))
    case.require(pages == ["index.html", "short.html", "short.ipynb"], f"at the end there are {pages}")
    return case.kills, case.failures


def _wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def _kill_descendants(case: Case, sweep_pid: int, of: int, times: int, at_work: bool = False) -> None:
    """Kill worker processes of `of` while the sweep runs: mostly after a new record, otherwise at once.

    With `at_work`, always kill the oldest worker, after a record: a dask nanny gives up if its worker dies early.
    """
    while case.kills < times:
        n, begin = len(list(case.store.glob("*.json"))), time.monotonic()
        patience = PATIENCE if at_work or case.draw.random() < 0.8 else 0
        while len(list(case.store.glob("*.json"))) == n and not _is_over(sweep_pid):
            if time.monotonic() - begin > patience:
                break
            time.sleep(0.05)
        time.sleep(case.draw.uniform(0, min(0.5, case.seconds)))
        if _is_over(sweep_pid):
            return
        if at_work and len(list(case.store.glob("*.json"))) == n:
            continue
        with suppress(psutil.Error):
            workers = [p for p in living(psutil.Process(of)) if "resource_tracker" not in " ".join(p.cmdline())]
            if workers := [p for p in workers if p.pid != sweep_pid]:
                (min(workers, key=psutil.Process.create_time) if at_work else case.draw.choice(workers)).kill()
                case.kills += 1
        case.records_are_right()


def _is_over(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _ended_by_itself(case: Case, pid: int, why: str, look: bool = True) -> None:
    """Wait for a sweep that lost workers; all records must be there, or each failed run is named with the reason."""
    end = time.monotonic() + 10 * PATIENCE
    while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    printed = (case.folder / f"printed-{case._n}").read_text(errors="replace")
    if not found[0]:
        case.require(False, f"still running {10 * PATIENCE} s after the last kill: {printed[-300:]!r}")
        os.kill(pid, signal.SIGKILL)
        found = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(found[1])
    case.require(code == 0 or (code == 1 and why in printed), f"exit code {code}: {printed[-400:]!r}")
    case.require("Traceback" not in printed, f"{printed[-600:]!r}")
    if look:
        case._nothing_is_left("the sweep's end")
    case.records_are_right()


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[int, str]]:
    """Start a dask scheduler with two worker processes; yields the process id of their ancestor, and the address."""
    address = folder / "address"

    def cluster() -> None:
        # By default, a cluster gives up a worker that is not replaced within 15 seconds; a busy machine may need more.
        os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "10 minutes"
        from distributed import LocalCluster

        os.setsid()
        os.dup2(os.open(folder / "cluster", os.O_WRONLY | os.O_CREAT), 2)
        how = dict(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", silence_logs=50)
        (folder / "part").write_text(LocalCluster(processes=True, **how).scheduler_address)
        (folder / "part").rename(address)
        signal.pause()

    pid = fork(cluster)
    try:
        _wait_until(address.exists)
        yield pid, address.read_text()
    finally:
        for process in [*living(psutil.Process(pid)), psutil.Process(pid)]:
            with suppress(psutil.Error):
                process.kill()
        os.waitpid(pid, 0)
        _wait_until(lambda: not living(psutil.Process()))


CASES = {"run": run, "sweep": sweep, "worker": worker, "parent": parent, "dask": dask, "reproduce": reproduce}
