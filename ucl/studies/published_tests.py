"""Tests as the published implementation does them, from the networks and answers of a run of ours."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from ucl.evaluation import DROPOUT_PASSES
from ucl.machine.determinism import own_draws, seed_for
from ucl.models import SlimResNet18
from ucl.models.passes import TrainingModeNetwork
from ucl.streams import ClassIncrementalStream, Task, long_tailed_counts

BATCH = 10


@torch.no_grad()
def mc_test_as_published(model: SlimResNet18, task: Task, seed: int) -> np.ndarray:
    """The answers of a network with dropout in training mode, by the mean of the logits of 20 passes.

    Test images come in batches of ten of one task, mixed, and BatchNorm normalises each pass by its batch: unlike
    `ucl.evaluation.answers`, which reads running statistics and averages probabilities.

    Args:
        model: the network; it stays as it is.
        task: its test images are answered.
        seed: mixes the images and draws the dropout masks.

    Returns:
        (N,), the label given to each test image of the task, in their order.
    """
    network, place = TrainingModeNetwork(copy.deepcopy(model)), model.mean.device
    mixed = np.random.default_rng(seed_for(seed, "published test")).permutation(len(task.test_labels))
    order = torch.from_numpy(mixed).to(place)
    given = torch.empty_like(task.test_labels)
    with own_draws(seed_for(seed, "published test masks"), place):
        for batch in order.split(BATCH):
            x_NCHW: Tensor = model.normalize(task.test_images[batch])
            given[batch] = network.logits(x_NCHW.expand(DROPOUT_PASSES, -1, -1, -1, -1)).mean(0).argmax(-1)
    return given.cpu().numpy()


def thinned_tests(stream: ClassIncrementalStream, imbalance: float) -> list[np.ndarray]:
    """Which test images of a stream its long-tailed test keeps: the answers to these give the thinned accuracy.

    Args:
        stream: with whole test classes.
        imbalance: of the training classes, see `ucl.streams.long_tailed_counts`.

    Returns:
        For each task (N,), True for the test images that `Config.long_tailed_test` would keep.
    """
    truth = [task.test_labels.cpu().numpy() for task in stream]
    n_max = int(np.bincount(np.concatenate(truth)).max())
    counts = long_tailed_counts(n_max, len(stream.class_order), imbalance)
    size = dict(zip(stream.class_order, counts, strict=True))
    kept = []
    for labels in truth:
        rank_N = np.zeros(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rank_N[labels == label] = np.arange((labels == label).sum())
        kept.append(rank_N < np.array([size[label] for label in labels.tolist()]))
    return kept
