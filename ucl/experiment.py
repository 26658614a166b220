"""One run: the loop in `_learn` is the paper's Algorithm 1, and all else follows it as listeners."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ucl import user_objects
from ucl.assembly import Parts, assemble
from ucl.checkpoints import Checkpoint
from ucl.config import Config
from ucl.evaluation import AnytimeEvaluation
from ucl.evaluation.run_files import RunFiles
from ucl.evaluation.run_tests import Progress, RunTests, final_memory
from ucl.listeners import Diverged, Listener
from ucl.machine.clock import Clock
from ucl.machine.determinism import GlobalGenerators, default_modes, repeatable
from ucl.machine.hardware import environment, package_hash, peak_memory_mib, resolve_device, scoring_dtype
from ucl.machine.terminal import progress_bar
from ucl.naming import no_effect, score_is_unused
from ucl.records import Record
from ucl.streams import datasets


@default_modes()
def run(
    config: Config,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    graphs: bool | None = None,
    checkpoint: str | Path | None = None,
    weights: str | Path | None = None,
    predictions: str | Path | None = None,
) -> Record:
    """Learn a stream once and measure what is remembered.

    Args:
        config: the experiment.
        device: "cpu", "cuda", "cuda:1" and so on; "auto" uses a GPU if there is one.
        root: folder of the data sets; see `ucl.datasets.load`.
        progress: whether to show a progress bar, with A after each task; None shows one in a terminal or notebook.
        graphs: whether a GPU repeats training steps and scoring passes from CUDA graphs, see
            `ucl.machine.cuda_graphs`; None: unless the network or the method is a user's. Results are equal unless
            these use Python values that change from step to step, such as a counter: a graph repeats the first ones.
        checkpoint: a file for the state of the run, written after each task except the last. If it exists and has the
            same run, data, code and machine, the run continues from it, and its result is bit for bit that of an
            uninterrupted run; otherwise it is ignored with a warning. The caller deletes it after storing the record.
            No file is written, and this is logged, if the class of a user's memory or method does not define both
            `state_dict` and `load_state_dict`, or if a score may have state and lacks them. What changes in a network
            belongs into buffers or `get_extra_state`.
        weights: a folder; the run writes the network after each task to a folder in it, see `ucl.models.load`.
        predictions: a folder; the run writes a file to it, with the predicted class of each test image after each task,
            see `ucl.records.predictions`.

    Returns:
        The record. It is not stored: see `ucl.RecordStore` and `ucl.sweep`. If the network diverges, the run ends after
        that task with a warning, and `Record.diverged_after` is the number of the task. The caller's modes and global
        generators neither enter the run nor change. In a process, a run waits for the end of one in another thread.

    Raises:
        InputError: (a ValueError) the data, the device, a field of the configuration or a user object can't be used.
    """
    if score_is_unused(config):
        warnings.warn(f"{config.label}: {no_effect(config, 'score')}", stacklevel=3)
    chosen = resolve_device(device)
    facts = _facts(config, chosen)  # before the data are downloaded
    data = datasets.load(config.dataset, root, config.image_size)
    with repeatable(config.seed, chosen):
        parts = stream, model, buffer, method = assemble(config, data, chosen, graphs)
        clock, generators = Clock(chosen), GlobalGenerators(chosen)
        tests = RunTests(config, model, stream, buffer, clock)
        anytime = AnytimeEvaluation(config, model, stream, clock)
        files = RunFiles(config, data, facts.get("source", ""), tests, clock, weights=weights, predictions=predictions)
        # What must be equal for a continued run to give the result and the files of an uninterrupted one.
        # The commit also changes when records are committed, and `package_hash` covers the code.
        identity = {"experiment": config.key, "data": data.fingerprint, "source of ucl": package_hash(), **facts}
        identity = {k: str(v) for k, v in {**identity, **files.paths}.items() if k not in ("peak_memory_mib", "commit")}
        state: dict[str, Any] = dict(model=model, buffer=buffer, method=method, generators=generators)
        state |= dict(tests=tests, anytime=anytime, clock=clock)
        saved = Checkpoint(checkpoint, identity, state, stream, chosen)
        n_learnt = saved.load()
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            bar.update(sum(map(len, stream.tasks[:n_learnt])))
            shown = Progress(bar, tests.evaluation, config.balanced_accuracy)
            listeners = [anytime, tests, shown, files, saved]
            diverged_after = None
            try:
                _learn(config, parts, n_learnt, listeners, clock)
            except Diverged as stop:
                diverged_after = stop.task.number
        learnt = stream.tasks if diverged_after is None else stream.tasks[: diverged_after + 1]
        timing = clock.seconds(batches=sum(map(len, learnt)))
        results = {name: value for listener in listeners for name, value in listener.finish().items()}
        record = Record(
            config=config,
            classes=list(data.classes),
            class_order=list(stream.class_order),
            memory=final_memory(config, model, buffer),
            timing=timing,
            environment=facts | {"peak_memory_mib": peak_memory_mib(chosen), "graphs": method.graphs_in_use},
            data=dict(name=data.name, fingerprint=data.fingerprint, training_images=len(data.train_labels)),
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            diverged_after=diverged_after,
            **results,
        )
    if record.diverged_after is not None:
        warnings.warn(record.warning, stacklevel=3)
    elif buffer is not None and not (buffer.n_stored and buffer.n_seen):
        reason = "the memory is empty at the end of the run"
        if buffer.n_stored:
            reason = "the memory's `update` did not add to n_seen"
        warnings.warn(f"{config.label}: {reason}", stacklevel=3)
    return record


def _learn(config: Config, parts: Parts, n_learnt: int, listeners: list[Listener], clock: Clock) -> None:
    """Algorithm 1, from task `n_learnt` on, counted from 0."""
    stream, model, buffer, method = parts
    training = partial(_measured, config, clock, "training", "method", "population", "model")
    memory = partial(_measured, config, clock, "memory", "population", "method")
    for task in stream.tasks[n_learnt:]:
        for batch in task:
            with training():
                method.learn(model, batch, buffer)
            if buffer is not None:
                with memory():
                    buffer.update(model, batch)
            for listener in listeners:
                listener.after_batch(task)
        if buffer is not None:
            with memory():
                buffer.end_of_task(model, task)
        for listener in listeners:
            listener.after_task(task)


@contextmanager
def _measured(config: Config, clock: Clock, part: str, *fields: str) -> Iterator[None]:
    """Within the block, the clock runs for this part, and an error names the first user's object in these fields."""
    field = next((field for field in fields if field in config.user_objects), "")
    with clock(part), user_objects.attribute_errors_to(field, config.user_objects.get(field, "")):
        yield


def _facts(config: Config, device: torch.device) -> dict[str, Any]:
    """What a record says about the machine and the user's code; an InputError if an object of the user is not there."""
    if device.type == "cuda":
        torch.cuda.init()  # before that there are no memory statistics
        torch.cuda.reset_peak_memory_stats(device)
    facts = environment(device, scoring_dtype(config, device))
    for field, path in config.user_objects.items():
        user_objects.find(field, path)
    objects = config.user_objects.values()
    if source := user_objects.source_hash(objects):
        facts["source"] = source
        facts["sources"] = {path: user_objects.source_hash([path]) for path in objects}  # see `changed_objects`
    return facts
