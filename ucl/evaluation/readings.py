"""Readings: one network, tested several times, mostly with different BatchNorm statistics.

Training steps and training-mode scores normalise by the batch and do not depend on BatchNorm's running statistics. So
one network can be tested with several sets of statistics, and the difference between two readings has no training
noise. After each task:

    S           the running statistics after the training steps alone
    training    S
    displaced   S, then for each class c of the task, classes with fewer candidates first:
                    candidates = memory samples of c + samples of c in the task's last batches
                    for each of the 12 views: one training-mode pass over that view of all candidates
                (like the scoring passes of the reference implementation, but over all classes of the task and its last
                batches, and independent of what the run itself does)
    memory      mean over 25 batches of the statistics of 20 samples drawn from the memory
    memory+stream   the same, each batch half from the memory and half from the task's last batches
    views       like memory, each sample replaced by one of its 12 views
    balanced    like memory, drawn from the training images of all classes so far, each class equally likely; for
                comparison only, because a method that learns from a stream does not keep all images

Two more readings keep the run's statistics and change the test, as the reference implementation does:

    published test  only for networks with dropout. The test images of each task, shuffled, in batches of ten:
                        20 training-mode passes over the batch, each normalised by the batch itself
                        prediction = argmax of the mean of the 20 logits
    thinned         only for long-tailed streams with a complete test set. The run's predictions for the first n_c
                    images of each test class; the n_c have the same long tail as the training classes

In a training-mode pass, each BatchNorm normalises by the batch and sets its running statistics to
(1 - m) * running + m * batch with m = 0.1. The weights, the memory and the run's statistics do not change. A
network without running statistics has no readings.

The passes of `displaced` are computed in the arithmetic of the run's scoring (`Record.arithmetic`), and in float32
for a run without scores. Older versions always computed them in float32: a record's environment names the commit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch

from ucl.buffers import Buffer
from ucl.catalogue import STATISTICS
from ucl.evaluation.running_statistics import (
    Statistics,
    batches_for_estimate,
    displace_statistics,
    estimate_statistics,
    load_statistics,
)
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.streams import Task


def with_statistics(
    name: str,
    model: Network,
    trained: Statistics,
    seen: Sequence[Task],
    buffer: Buffer | None,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Network | None:
    """A copy of the network with the statistics of a reading.

    Args:
        name: a name in `ucl.catalogue.STATISTICS`.
        model: the network at the end of a task; it does not change.
        trained: the statistics after the training steps alone, see `statistics_of` and `TrainingStatistics`.
        seen: the tasks so far; the last one has just been learnt.
        buffer: the memory, if there is one.
        seed: seed of the run, for drawing batches and views.
        dtype: arithmetic of the scoring passes of `displaced`.

    Returns:
        The copy; None if the reading needs a memory and there is none, or it is empty.
    """
    if (buffer is None or not buffer.n_stored) and STATISTICS[name].needs_memory:
        return None
    probe = copy.deepcopy(model)
    probe._forward_pre_hooks.clear()  # The hook of `TrainingStatistics` is for the original only.
    task, draw = seen[-1], np.random.default_rng(seed_for(seed, f"reading {name} after task {len(seen) - 1}"))
    with torch.no_grad(), seeded_draws(int(draw.integers(2**62)), model.mean.device):
        load_statistics(probe, trained)
        if name == "displaced":
            displace_statistics(probe, task, buffer, draw, dtype)
        elif name != "training":
            estimate_statistics(probe, batches_for_estimate(name, model, seen, buffer, draw))
    return probe
