"""Memories exchanged in one frozen state: the effect of a memory policy, without the noise of separate trainings.

A network learns a stream. At the end of each task except the last it is copied, and the copies differ only in the
memory:

    pool      all training images of the tasks so far
    for each memory policy:
        memory    an empty memory that takes the whole pool as a task of one batch, by the copy of the network
        network   the copy learns the next task; what it replays comes from this memory, which no longer changes
        tested    on the tasks so far and on the new one

All copies start from the same weights, see the same batches and draw the replayed slots with equal generators. So two
policies differ only in the contents of their memories. A real run fills its memory batch by batch, with a network that
changes. Here the memories are those that a policy would keep if it could see all images at once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from ucl import naming
from ucl.assembly import assemble, build_buffer, build_method
from ucl.catalogue import POLICY_FIELDS
from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation import Evaluation
from ucl.evidence.effects import PAIR, differences, effects_by
from ucl.machine.determinism import repeatable, seed_for, seeded_draws
from ucl.machine.hardware import resolve_device
from ucl.machine.terminal import progress_bar
from ucl.models import Network
from ucl.streams import ClassIncrementalStream, Task, datasets


def memory_swap(policies: Sequence[Config], device: str = "auto", progress: bool | None = None) -> pd.DataFrame:
    """Compare memory policies from the same network states, after each task of one run except the last.

    The run of the first policy gives the network states.

    Args:
        policies: runs that differ only in what the memory keeps: `population`, `class_balancing`, `reservoir_index`,
            `score`, `selection` and the other fields of scoring.
        device, progress: see `ucl.run`.

    Returns:
        One row per policy and frozen state: dataset, memory_size, seed, method (the label, then the fields of the
        memory that differ from the defaults, such as "BI bottom, n_draws=5"), task (the task learnt, from 2), and the
        accuracies (or with `balanced_accuracy` the class recalls) in per cent: before (on the earlier tasks in the
        frozen state), retained (the same after the task), last (on the task) and A (on all of them).

    Raises:
        InputError: a policy has a memory that a pool cannot fill or fewer slots than classes, or two policies differ in
            more than the memory.
    """
    config, chosen = _checked(policies), resolve_device(device)
    data = datasets.load(config.dataset, image_size=config.image_size)
    rows: list[dict[str, Any]] = []
    named = {"dataset": config.dataset_name, "memory_size": config.memory_size, "seed": config.seed}
    with repeatable(config.seed, chosen):
        stream, model, *_ = parts = assemble(config, data, chosen)
        with progress_bar((len(stream) - 1) * (1 + len(policies)), "memory swap", progress) as bar:
            for task, following in zip(stream, stream.tasks[1:]):
                for _ in parts.steps(task):
                    pass
                bar.update()
                images = pool(stream.tasks[: following.number])
                for policy in policies:
                    # Dropout draws from the global generator. All copies get the same masks, and those of the run do
                    # not change.
                    with seeded_draws(seed_for(config.seed, f"memory swap after task {task.number}"), chosen):
                        row = _swapped(policy, data, stream, copy.deepcopy(model), images, following)
                    rows.append({**named, "method": _name(policy), **row})
                    bar.update()
    return pd.DataFrame(rows)


def pool(tasks: Sequence[Task]) -> Task:
    """All training images of these tasks as one task of one batch; its other attributes are those of the last task."""
    parts = [(task.images[:], task.labels, task.positions) for task in tasks]
    images, labels, positions = (torch.cat(part) for part in zip(*parts, strict=True))
    host_labels = np.concatenate([task.host_labels for task in tasks])
    return dataclasses.replace(
        tasks[-1], images=images, labels=labels, positions=positions, host_labels=host_labels, batch_size=len(labels)
    )


def _swapped(
    policy: Config,
    data: datasets.ImageDataset,
    stream: ClassIncrementalStream,
    network: Network,
    images: Task,
    task: Task,
) -> dict[str, float]:
    """Fill a memory of this policy with these images, learn a task with it, and test the network before and after."""
    device = network.mean.device
    buffer, method = build_buffer(policy, data, device), build_method(policy, network)
    assert buffer is not None
    tests, earlier = Evaluation(stream, policy.seed), stream.tasks[: task.number]
    tests.add(network, task.number - 1)
    for batch in images:
        buffer.update(network, batch)
    buffer.end_of_task(network, images)
    for batch in task:
        method.learn(network, batch, buffer)
    tests.add(network, task.number)

    def accuracy(after: int, tasks: Sequence[Task]) -> float:
        if policy.balanced_accuracy:
            return 100 * float(np.nanmean(tests.class_recall[after, [c for task in tasks for c in task.classes]]))
        return 100 * float(tests.accuracy[after, [task.number for task in tasks]].mean())

    return {
        "task": task.number + 1,
        "before": accuracy(task.number - 1, earlier),
        "retained": accuracy(task.number, earlier),
        "last": accuracy(task.number, [task]),
        "A": accuracy(task.number, [*earlier, task]),
    }


def against(table: pd.DataFrame, comparator: str, measures: Sequence[str] = ("retained", "last", "A")) -> pd.DataFrame:
    """Paired differences between each other policy and one of them, over the seeds.

    Args:
        table: see `memory_swap`, or `ucl.studies.memory_autopsy.kept_traits`; several rows of one seed are averaged.
        comparator: the method to compare with, as the table names it.
        measures: columns of the table.

    Returns:
        One row per stream, policy and measure, in its unit, see `ucl.evidence.effects.effects_by`.
    """
    measures = list(measures)
    means = table.groupby(["dataset", "memory_size", "seed", "method"], sort=False)[measures].mean().reset_index()
    is_other = means["method"] == comparator
    pairs = differences(means[~is_other], means[is_other].drop(columns="method"), measures, [*PAIR, "method"])
    return effects_by(pairs, ["dataset", "memory_size", "method"], measures, "measure")


_MEMORY_FIELDS = ("population", *POLICY_FIELDS)
_OF_BATCHES = {"derpp", "gss", "coreset"}  # These use the batches of the stream, and a pool is one batch.


def _name(policy: Config) -> str:
    """The name of a policy by the fields of its memory, see `ucl.naming.name_of`."""
    fields = {*naming.DECIDED, *_MEMORY_FIELDS}
    return naming.name_of(Config(**{name: getattr(policy, name) for name in fields}))


def _checked(policies: Sequence[Config]) -> Config:
    """The first policy, after the checks of `memory_swap`."""
    first = policies[0]
    for policy in policies:
        if _OF_BATCHES & {policy.method, policy.population}:
            raise InputError("policies", policy.label, "needs the batches of the stream; leave it out")
        same = policy.replace(**{name: getattr(first, name) for name in _MEMORY_FIELDS}, dropout=policy.dropout)
        if same.key != first.key:
            reason = f"differs from {first.label} in more than the memory policy; give all other fields the same values"
            raise InputError("policies", policy.label, reason)
    return first
