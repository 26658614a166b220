"""One run: the loop in `_learn` is the paper's Algorithm 1, and all else follows it as listeners."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ucl import user_objects
from ucl.assembly import Parts, assemble, find_user_object
from ucl.checkpoints import Checkpoint
from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation import AnytimeEvaluation
from ucl.evaluation.run_files import RunFiles
from ucl.evaluation.run_tests import FinalMemory, Progress, RunTests
from ucl.listeners import Diverged, Listeners
from ucl.machine.clock import Clock
from ucl.machine.determinism import GlobalGenerators, default_modes, repeatable
from ucl.machine.hardware import commit, environment, package_hash, resolve_device, scoring_dtype
from ucl.machine.terminal import progress_bar
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
            If a user's object has state and no `state_dict` and `load_state_dict`, no file is written, with
            a warning. What changes in a network belongs into buffers or `get_extra_state`.
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
    if not isinstance(config, Config):
        raise InputError("config", config, "give a ucl.Config")
    inputs = _prepare(config, device, root)
    with repeatable(config.seed, inputs.device):
        parts = stream, model, buffer, method = assemble(config, inputs.dataset, inputs.device, graphs)
        clock, generators = Clock(inputs.device), GlobalGenerators(inputs.device)
        tests = RunTests(config, model, stream, buffer, clock, inputs.dtype)
        anytime = AnytimeEvaluation(config, model, stream, clock)
        folders = {"weights": weights, "predictions": predictions}
        files = RunFiles(config, inputs.dataset, inputs.source, tests, clock, **folders)
        # A run continues with the same files only, so that they have all tasks.
        identity = inputs.identity() | {kind: str(path) for kind, path in files.paths.items()}
        state: dict[str, Any] = dict(model=model, buffer=buffer, method=method, generators=generators)
        state |= dict(tests=tests, anytime=anytime, clock=clock)
        saved = Checkpoint(checkpoint, identity, state, stream, inputs.device)
        n_learnt = saved.load()
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            bar.update(sum(map(len, stream.tasks[:n_learnt])))
            shown = Progress(bar, tests.evaluation, config.balanced_accuracy)
            listeners = Listeners([anytime, tests, shown, files, saved, FinalMemory(config, model, buffer)])
            diverged_after = None
            try:
                _learn(config, parts, n_learnt, listeners, clock)
            except Diverged as stop:
                diverged_after = stop.task.number
        learnt = stream.tasks if diverged_after is None else stream.tasks[: diverged_after + 1]
        timing = clock.seconds(batches=sum(map(len, learnt)))
        facts = {**listeners.finish(), **inputs.entries(parts), "timing": timing, "diverged_after": diverged_after}
        record = Record(config=config, **facts)
    if record.diverged_after is not None:
        warnings.warn(record.warning, stacklevel=2)
    return record


def _learn(config: Config, parts: Parts, n_learnt: int, listeners: Listeners, clock: Clock) -> None:
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
            listeners.after_batch(task)
        if buffer is not None:
            with memory():
                buffer.end_of_task(model, task)
        listeners.after_task(task)


@contextmanager
def _measured(config: Config, clock: Clock, part: str, *fields: str) -> Iterator[None]:
    """Within the block, the clock runs for this part, and errors name the user's object of the first of the fields."""
    field = next((field for field in fields if field in config.user_objects), "")
    with clock(part), user_objects.attribute_errors_to(field, config.user_objects.get(field, "")):
        yield


@dataclass
class _RunInputs:
    """The inputs of a run, and its device and arithmetic."""

    config: Config
    dataset: datasets.ImageDataset
    device: torch.device
    dtype: torch.dtype
    source: str  # hash of the sources of the user's objects

    def environment(self) -> dict[str, Any]:
        """The environment entry of the record, see `Record`."""
        source = {"source": self.source} if self.source else {}
        return {**environment(self.device, self.dtype), **source}

    def entries(self, parts: Parts) -> dict[str, Any]:
        """The entries of the record that do not come from listeners, at the end of the run."""
        data = self.dataset
        return {
            "classes": list(data.classes),
            "class_order": list(parts.stream.class_order),
            "environment": self.environment() | {"graphs": parts.method.graphs_in_use},
            "data": dict(name=data.name, fingerprint=data.fingerprint, training_images=len(data.train_labels)),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }

    def identity(self) -> dict[str, str]:
        """What must be equal for a continued run to give the result of an uninterrupted one."""
        # The commit need not be: it also changes when records are committed, and `package_hash` covers the code.
        facts = {"experiment": self.config.key, "data": self.dataset.fingerprint, "source of ucl": package_hash()}
        facts |= self.environment()
        return {name: str(value) for name, value in facts.items() if name not in ("peak_memory_mib", "commit")}


def _prepare(config: Config, device: str, root: str | Path | None) -> _RunInputs:
    """Load the data and choose the device; raise an InputError if the run is not possible."""
    commit()  # read now, as the commit and the files may change during the run
    package_hash()
    chosen = resolve_device(device)
    dtype = scoring_dtype(config, chosen)
    if chosen.type == "cuda":
        torch.cuda.init()  # before that there are no memory statistics
        torch.cuda.reset_peak_memory_stats(chosen)
    for field, path in config.user_objects.items():
        find_user_object(field, path)  # before the data are downloaded
    dataset = datasets.load(config.dataset, root, config.image_size)
    return _RunInputs(config, dataset, chosen, dtype, user_objects.source_hash(config.user_objects.values()))
