"""The loop of a sweep: it submits runs, waits for them and for those of other sweeps, and collects why runs failed."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress

from ucl.config import Config
from ucl.records import RecordStore, versions
from ucl.streams import datasets
from ucl.sweeps import locks
from ucl.sweeps.progress import SweepProgress
from ucl.sweeps.workers import Outcome, Watch, cause_of

LOOK_EVERY = 1.0  # seconds between two checks of the runs of another sweep


def run_all(
    missing: list[Config],
    records: RecordStore,
    submit: Callable[..., Future],
    watch: Watch,
    names: dict[str, str],
    progress: bool | None,
) -> dict[str, str]:
    """Run all experiments, and wait for those of other sweeps; returns the errors of failed runs by record name.

    If a function of the user's own returns other images at each call, no more of its runs begin.
    """
    failures: dict[str, str] = {}
    unsteady: dict[str, str] = {}  # why no record of a data set would count
    to_submit, running, elsewhere = deque(missing), dict[Future, Config](), list[Config]()

    def ended(config: Config, outcome: Outcome) -> None:
        why = unsteady.get(config.dataset, "")
        with suppress(OSError):  # While the file server does not answer, the outcome of the run itself counts.
            if outcome.state == "failed" and config in records:  # The record was stored before the worker was lost.
                outcome = Outcome("there")
            if not why and outcome.state != "failed" and "dataset" in config.own:
                why = other_images(config, records.lookup(config), records)
        if why:
            unsteady[config.dataset], outcome = why, Outcome("failed", error=why)
        if outcome.state == "failed":
            failures[records.path(config).stem] = outcome.error
        shown.finished(config, outcome)

    with SweepProgress(missing, names, progress) as shown:
        try:
            while to_submit or running or elsewhere:
                if lost := watch.lost():
                    for config in [*running.values(), *to_submit, *elsewhere]:
                        ended(config, Outcome("failed", error=lost))
                    break
                while to_submit:
                    config = to_submit.popleft()
                    if config.dataset in unsteady:
                        ended(config, Outcome("failed", error=unsteady[config.dataset]))
                        continue
                    future = _submitted(submit, config)
                    running[future] = config
                    if future.done():
                        break
                if elsewhere and not running:
                    time.sleep(LOOK_EVERY)
                for future in wait(running, LOOK_EVERY, FIRST_COMPLETED).done:
                    config, outcome = running.pop(future), _outcome(future)
                    if outcome.state == "elsewhere":
                        elsewhere.append(config)
                    elif future.cancelled() and watch.is_dask:  # The scheduler was lost, but it may be restarted.
                        to_submit.append(config)
                    else:
                        ended(config, outcome)
                for future, config in list(running.items()):
                    if config.dataset in unsteady and future.cancel():
                        del running[future]
                        to_submit.append(config)
                for config in elsewhere[:]:
                    if config.dataset in unsteady or locks.is_free(locks.path_of(records.folder, config)):
                        elsewhere.remove(config)
                        to_submit.append(config)
                shown.report(len(elsewhere))
        finally:
            for future in running:
                future.cancel()
    return failures


def _submitted(submit: Callable[..., Future], config: Config) -> Future:
    try:
        return submit(config, uuid.uuid4().hex)
    except Exception as error:  # The executor failed, for example because it is broken.
        future: Future = Future()
        future.set_exception(error)
        return future


def _outcome(future: Future) -> Outcome:
    try:
        return future.result()
    except Exception as error:  # The executor failed; errors of the run itself are part of the outcome.
        return Outcome("failed", error=cause_of(error))


def other_images(config: Config, one: versions.Found, store: RecordStore) -> str:
    """Why the record of an experiment does not count, if the user's own function now returns other images; or ""."""
    if one.other is not None and "dataset" in config.own:
        then, now = one.other.version.images, versions.here(config, store.root)[0].images
        if now not in ("", then):
            found = f"{config.dataset} returned other images than in the run (fingerprint {now} instead of {then})"
            return f"{found}, so the stored record does not count; {datasets.STEADY}"
    return ""
