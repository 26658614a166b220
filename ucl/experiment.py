"""One run: the online loop, evaluation, timing and progress.

The loop in `run` is the paper's Algorithm 1: `method.learn` is its Train, with the samples from the memory, and
`buffer.update` its UpdateMemory.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl import scorers, user_objects
from ucl.assembly import Parts, assemble, find_own
from ucl.buffers import Buffer
from ucl.config import Config
from ucl.errors import InputError, exits_are_failures
from ucl.evaluation.run_tests import Curves, RunTests
from ucl.listeners import Checkpoint, Divergence, Progress, StopRun
from ucl.machine import footprint
from ucl.machine.clock import Clock
from ucl.machine.determinism import GlobalGenerators, repeatable, seed_for
from ucl.machine.hardware import commit, environment, package_hash, resolve_device, scoring_dtype
from ucl.machine.terminal import progress_bar
from ucl.models import Network
from ucl.records import Record
from ucl.scorers import ScoringPasses
from ucl.streams import datasets


@exits_are_failures()
def run(
    config: Config,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    graphs: bool = False,
    checkpoint: str | Path | None = None,
    curves: str | Path | None = None,
) -> Record:
    """Learn a stream once and measure what is remembered.

    Args:
        config: the experiment.
        device: "cpu", "cuda", "cuda:1" and so on; "auto" uses a GPU if there is one.
        root: folder of the data sets; see `ucl.datasets.load`.
        progress: whether to show a progress bar; None shows one in a terminal or notebook.
        graphs: whether a GPU repeats training steps from CUDA graphs, see `ucl.machine.cuda_graphs`. Results are equal
            unless a network or method of the user's own uses Python values that change from step to step, such as
            `random.random()` or a counter: a graph repeats the first ones.
        checkpoint: a file for the state of the run, written after each task except the last. If the file exists and has
            the same run, data, code (all files of this package, and the user's own objects) and machine, the run
            continues from it, and its result is bit for bit that of an uninterrupted run. Otherwise the file is ignored
            with a warning. The caller deletes it after storing the record. If an object of the user's own has state and
            no `state_dict` and `load_state_dict`, no file is written, with a warning. The state of a network is that of
            `nn.Module.state_dict`: what changes in it belongs into buffers or `get_extra_state`.
        curves: a CSV file with one row per task learnt, written after each task, see `ucl.records.curves`.

    Returns:
        The record. It is not stored: see `ucl.RecordStore` and `ucl.sweep`. If the network diverges, the run ends after
        that task with a warning, and `Record.diverged_after` is the number of the task.

    Raises:
        InputError: (a ValueError) the data, the device or a field of the configuration can't be used.
        UserExit: (a RuntimeError) the user's own code, such as a score, tried to end the program.
    """
    if not isinstance(config, Config):
        raise InputError("config", config, "give a ucl.Config")
    inputs = _prepare(config, device, root)
    with repeatable(config.seed, inputs.device):
        parts = stream, model, buffer, method = assemble(config, inputs.dataset, inputs.device, graphs)
        clock, generators = Clock(inputs.device), GlobalGenerators(inputs.device)
        learn = _measured(method.learn, clock("training"), config, "method", "population", "model")
        if buffer is not None:
            update = _measured(buffer.update, clock("memory"), config, "population", "method")
            end_task = _measured(buffer.end_of_task, clock("memory"), config, "population", "method")
        tests = RunTests(config, model, stream, buffer, clock, inputs.dtype)
        state = dict(model=model, buffer=buffer, method=method, tests=tests, generators=generators, clock=clock)
        saved = Checkpoint(checkpoint, inputs.identity(), state, stream, inputs.device)
        n_learnt = saved.load()
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            bar.update(tests.batches)
            listeners = [Progress(bar), Divergence(model, buffer), tests, saved]
            if curves is not None:
                listeners.insert(-1, Curves(curves, tests.evaluation, config.balanced_accuracy))
            with suppress(StopRun):
                for task in stream.tasks[n_learnt:]:
                    for batch in task:
                        learn(model, batch, buffer)
                        if buffer is not None:
                            update(model, batch)
                        for listener in listeners:
                            listener.after_batch(task)
                    if buffer is not None:
                        end_task(model, task)
                    for listener in listeners:
                        listener.after_task(task)
        results = {name: value for listener in listeners for name, value in listener.finish().items()}
        record = _record(inputs, parts, results)
    if record.diverged_after is not None:
        warnings.warn(record.warning, stacklevel=2)
    return record


def _measured(
    function: Callable[..., None], clock: ContextDecorator, config: Config, *fields: str
) -> Callable[..., None]:
    """The function, with its seconds on the clock, and its errors attributed to a user's object.

    That is the object that the first of these fields gives.
    """
    field = next((field for field in fields if field in config.own), "")
    return clock(user_objects.attribute_errors_to(field, config.own.get(field, ""))(function))


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

    def identity(self) -> dict[str, str]:
        """What must be equal for a continued run to give the result of an uninterrupted one.

        The commit need not be: it also changes when records are committed, and `package_hash` covers the code.
        """
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
    for field, path in config.own.items():
        find_own(field, path)  # before the data are downloaded
    datasets.check_tasks(config.dataset, config.n_tasks, root)  # before the data are downloaded
    dataset = datasets.load(config.dataset, root, config.image_size)
    if chosen.type == "cpu":
        shape = dataset.n_images, dataset.image_size, dataset.channels, dataset.n_classes
        needed = footprint.bytes_needed(config, *shape, torch.get_num_threads(), dataset.is_lazy)
        footprint.check(needed, dataset.n_images, dataset.image_size)
    return _RunInputs(config, dataset, chosen, dtype, user_objects.source_hash(config.own.values()))


def _record(inputs: _RunInputs, parts: Parts, results: dict[str, Any]) -> Record:
    """The record of a run that has ended, with the results of its listeners."""
    config, dataset = inputs.config, inputs.dataset
    return Record(
        config=config,
        **results,
        classes=list(dataset.classes),
        class_order=list(parts.stream.class_order),
        memory=_memory_contents(config, parts.model, parts.buffer) if parts.buffer is not None else {},
        environment=inputs.environment() | {"graphs": parts.method.graphs_in_use},
        data={
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "training_images": len(dataset.train_labels),
        },
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def _memory_contents(config: Config, model: Network, buffer: Buffer) -> dict[str, list]:
    """The memory at the end, with the final model's uncertainty of each image by the same views for every method."""
    n = buffer.n_stored
    if not n:
        return {}
    draw = torch.Generator().manual_seed(seed_for(config.seed, "final views"))
    logits_PNC = ScoringPasses(draw).logits(model, [buffer.images[:n]])
    return {
        "position": buffer.positions[:n].tolist(),
        "label": buffer.labels[:n].tolist(),
        "score": [_short(score) if config.uses_scores else None for score in buffer.scores[:n].tolist()],
        "confidence": [_short(1 - score) for score in scorers.least_confidence(logits_PNC).tolist()],
        "bregman_information": [_short(score) for score in scorers.bregman_information(logits_PNC).tolist()],
    }


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
