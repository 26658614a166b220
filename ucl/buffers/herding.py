"""Memories that keep typical samples of a class: by herding, or those closest to the mean of the features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.buffer import by_class
from ucl.buffers.selection import bottom_k
from ucl.buffers.task_end import TaskEndBuffer, features_of_task
from ucl.buffers.uncertainty import UncertaintyBuffer
from ucl.models import Network
from ucl.models.passes import features_of
from ucl.streams import Task


def closest_to_mean(features_ND: Tensor) -> Tensor:
    """Euclidean distance (N,) of the features of a class's candidates from their mean (Chaudhry et al., 2019)."""
    return (features_ND - features_ND.mean(0)).norm(dim=1)


def herding(features_ND: Tensor, k: int | None = None) -> Tensor:
    """The rank (N,), 0 to N - 1, of each of a class's candidates in herding (iCaRL: Rebuffi et al., 2017, algorithm 4).

    Samples are picked one after another. Each step picks the sample that brings the mean of the picked samples closest
    to the mean of all. Features and means are scaled to length 1, as in the paper, so the closest mean is the one with
    the largest cosine. Equally good samples keep their order. The authors' code (`srebuffi/iCaRL`) scales the features
    only, not their means, and may pick a sample again, which then counts twice.

    With k, only the first k samples are picked, and all others have the rank N.
    """
    features_ND = F.normalize(features_ND, dim=1)
    mean_D = F.normalize(features_ND.mean(0), dim=0)
    n = len(features_ND)
    ranks_N = features_ND.new_full((n,), n)  # n until the sample is picked
    sum_D = torch.zeros_like(mean_D)
    for rank in range(n if k is None else min(k, n)):  # No step waits for the device.
        cosines_N = F.normalize(sum_D + features_ND, dim=1) @ mean_D
        best = cosines_N.masked_fill(ranks_N < n, -torch.inf).argmax(keepdim=True)
        ranks_N.index_fill_(0, best, rank)
        sum_D = sum_D + features_ND[best].squeeze(0)
    return ranks_N


class FeatureBuffer(UncertaintyBuffer):
    """Class-balanced memory in which each class keeps the samples with the lowest numbers, by a rule of the features.

    Each image is seen once: at each batch, the candidates of its classes are the stored samples and those in the batch.
    A class whose quota shrinks keeps the samples with the lowest stored numbers. The cost is one forward pass per
    candidate.

    Herding applied in this way is not iCaRL, see `ICaRLBuffer`: a sample's rank hardly depends on how long it has been
    stored, so every batch evicts almost as a random redraw does, and the memory holds mostly recent samples. Chaudhry
    et al. measure the distance to a running mean over all of a class's images; here it is to the mean of the
    candidates.

    Args:
        *arguments, **named: those of `Buffer`.
        rule: `herding`, `closest_to_mean`, or another function of the features (N, D) of a class's candidates.
    """

    def __init__(self, *arguments: Any, rule: Callable[[Tensor], Tensor], **named: Any) -> None:
        super().__init__(*arguments, scorer=self._numbers, selection=bottom_k, **named)
        self._rule = rule

    def _numbers(self, model: Network, images: Tensor, positions: Tensor, sizes: Mapping[int, int]) -> Tensor:
        """The rule's numbers (N,) of the candidates, from the features in evaluation mode."""
        features_ND = features_of(model, images).double()
        return torch.cat([self._rule(of_class_ND) for of_class_ND in features_ND.split(list(sizes.values()))])


herding_buffer = partial(FeatureBuffer, rule=herding)
closest_to_mean_buffer = partial(FeatureBuffer, rule=closest_to_mean)


class ICaRLBuffer(TaskEndBuffer):
    """The exemplars of iCaRL: herding at a task's end, over all images of the task (Rebuffi et al., 2017).

    The images of each class in the task are ordered by `herding` of their features in evaluation mode, as in algorithm
    4. Each class fills its quota, see `TaskEndBuffer`, from the beginning of its order, and a quota that shrinks leaves
    the first samples, as in algorithm 5. If a class comes again in a later task, the two orders are merged by rank. The
    distillation and the nearest-mean classifier of the paper are not included. The cost is one forward pass per image
    of the task.
    """

    def candidate_scores(self, model: Network, task: Task, n: int) -> Tensor:
        """The ranks of the task's images within their classes; stored images keep theirs."""
        features_ND = features_of_task(model, task, n).double()
        ranks_N = features_ND.new_empty(n)
        for indices in by_class(task.host_labels[:n]).values():
            rows = self._on_device(indices)
            ranks_N[rows] = herding(features_ND[rows], self.size)  # A class keeps at most `size` samples.
        return torch.cat([self.scores[: self.n_stored], ranks_N]).cpu()
