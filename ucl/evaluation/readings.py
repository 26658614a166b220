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
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ucl.buffers import Buffer
from ucl.catalogue import STATISTICS
from ucl.evaluation.accuracy import DROPOUT_PASSES, most_probable
from ucl.evaluation.running_statistics import Statistics, load_statistics
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network, to_unit
from ucl.models.network import norms_of
from ucl.models.passes import in_training_mode
from ucl.scorers import ScoringPasses, views
from ucl.streams import Task

BATCHES = 25  # batches per estimate
BATCH_SIZE = 20  # images per batch, as in a training step with ten stream images and ten memory samples
LAST_BATCHES = 10  # the last batches of a task that an estimate uses, few enough for a method to store them
PUBLISHED_BATCH = 10  # test images that the published test normalises together


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
        model, buffer, seed: those of the run; batches and views are drawn by the seed.
        trained: the statistics after the training steps alone, see `statistics_of` and `TrainingStatistics`.
        seen: the tasks so far; the last one has just been learnt.
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
            displace(probe, task, buffer, draw, dtype)
        elif name != "training":
            estimate(probe, batches_of(name, model, seen, buffer, draw))
    return probe


def displace(model: Network, task: Task, buffer: Buffer | None, draw: np.random.Generator, dtype: torch.dtype) -> None:
    """Apply the training-mode scoring passes of the reading "displaced", which change the running statistics only."""
    sources = [_last_batches(task)]
    if buffer is not None:
        sources.insert(0, (buffer.images[: buffer.n_stored], buffer.labels[: buffer.n_stored]))
    candidates = [
        torch.cat([images[torch.from_numpy(np.flatnonzero(labels == c))] for images, labels in sources])
        for c in task.classes
    ]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    published = ScoringPasses(generator, batchnorm="train", view_draws="batch", view_space="normalized", dtype=dtype)
    if scored := sorted((images for images in candidates if len(images)), key=len):  # none: possible in blurry tasks
        published.logits(model, torch.cat(scored), sizes=[len(images) for images in scored])


def estimate(model: Network, batches: Iterator[Tensor]) -> None:
    """Set the running statistics to the mean of the statistics of batches.

    Args:
        model: the network; it remains in training mode. In each pass, every layer normalises by the batch itself.
        batches: images (B, C, H, W), uint8 or float in [0, 1].
    """
    model.train()
    for number, images_NCHW in enumerate(batches):
        for norm in norms_of(model):
            norm.momentum = 1 / (number + 1)
        model(images_NCHW)


def batches_of(
    name: str, model: Network, seen: Sequence[Task], buffer: Buffer | None, draw: np.random.Generator
) -> Iterator[Tensor]:
    """Draw the batches of an estimate, see `with_statistics`; "balanced" needs no memory.

    Yields:
        Images (B, C, H, W): float in [0, 1] for "views", otherwise uint8.
    """
    if name == "balanced":
        classes = [(task, np.flatnonzero(task.host_labels == c)) for task in seen for c in task.classes]
        # A blurry class may have no images in one of its tasks.
        classes = [(task, indices) for task, indices in classes if len(indices)]
        for _ in range(BATCHES):
            chosen = [classes[i] for i in draw.integers(len(classes), size=BATCH_SIZE)]
            yield torch.stack([task.images[int(draw.choice(indices))] for task, indices in chosen])
        return
    assert buffer is not None
    stored = buffer.images[: buffer.n_stored]
    recent, _ = _last_batches(seen[-1])
    half = BATCH_SIZE // 2
    shares = [(stored, half), (recent, half)] if name == "memory+stream" else [(stored, BATCH_SIZE)]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    for _ in range(BATCHES):
        drawn = [
            images[torch.from_numpy(draw.choice(len(images), min(n, len(images)), replace=False))]
            for images, n in shares
        ]
        images_NCHW = torch.cat(drawn)
        if name == "views":
            views_PNCHW = views.perturb(to_unit(images_NCHW), generator, model.mean.flatten())
            view_N = torch.from_numpy(draw.integers(len(views_PNCHW), size=len(images_NCHW)))
            images_NCHW = views_PNCHW[view_N, torch.arange(len(view_N))]
        yield images_NCHW


def _last_batches(task: Task) -> tuple[Tensor, np.ndarray]:
    end = task.n_learnt
    last = slice(max(0, end - LAST_BATCHES * task.batch_size), end)
    return task.images[last], task.host_labels[last]


@torch.no_grad()
def published_test(model: Network, task: Task, seed: int) -> np.ndarray:
    """The predictions (N,), labels or `NO_CLASS`, of the reading "published test" for a task's test images, in order.

    The seed of the run decides how the images are shuffled, and the dropout masks; the network does not change.
    """
    network, device = in_training_mode(copy.deepcopy(model)), model.mean.device
    draw = np.random.default_rng(seed_for(seed, f"published test of task {task.number}"))
    order = torch.from_numpy(draw.permutation(len(task.test_labels))).to(device)
    predicted = torch.empty_like(task.test_labels)
    with seeded_draws(seed_for(seed, f"masks of the published test of task {task.number}"), device):
        for batch in order.split(PUBLISHED_BATCH):
            x_NCHW: Tensor = model.normalize(task.test_images[batch])
            logits_PNC = network.logits(x_NCHW.expand(DROPOUT_PASSES, -1, -1, -1, -1))
            predicted[batch] = most_probable(logits_PNC.mean(0))
    return predicted.cpu().numpy()
