"""Memories that keep typical samples of a class: by herding, or those closest to the mean of the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.selection import bottom_k
from ucl.buffers.uncertainty import UncertaintyBuffer
from ucl.models import Network
from ucl.models.passes import features_of


def closest_to_mean(features_ND: Tensor) -> Tensor:
    """Euclidean distance (N,) of the features of a class's candidates from their mean (Chaudhry et al., 2019)."""
    return (features_ND - features_ND.mean(0)).norm(dim=1)


def herding(features_ND: Tensor) -> Tensor:
    """The rank (N,), 0 to N - 1, of each of a class's candidates in herding (iCaRL: Rebuffi et al., 2017, algorithm 4).

    Samples are picked one after another. Each step picks the sample that brings the mean of the picked samples closest
    to the mean of all. Features and means are scaled to length 1, as in the paper, so the closest mean is the one with
    the largest cosine. Equally good samples keep their order.
    """
    features_ND = F.normalize(features_ND, dim=1)
    mean_D = F.normalize(features_ND.mean(0), dim=0)
    ranks_N = features_ND.new_full((len(features_ND),), -1)  # -1 until the sample is picked
    sum_D = torch.zeros_like(mean_D)
    for rank in range(len(features_ND)):  # No step waits for the device.
        cosines_N = F.normalize(sum_D + features_ND, dim=1) @ mean_D
        best = cosines_N.masked_fill(ranks_N >= 0, -torch.inf).argmax(keepdim=True)
        ranks_N.index_fill_(0, best, rank)
        sum_D = sum_D + features_ND[best].squeeze(0)
    return ranks_N


class FeatureBuffer(UncertaintyBuffer):
    """Class-balanced memory in which each class keeps the samples with the lowest numbers, by a rule of the features.

    iCaRL picks once, at a task's end, among all images of a class. Here each image is seen once: at each batch, the
    candidates of its classes are the stored samples and those in the batch. A class whose quota shrinks later keeps the
    samples with the lowest stored numbers, as in iCaRL's algorithm 5. Chaudhry et al. measure the distance to a running
    mean over all of a class's images; here it is to the mean of the candidates. The cost is one forward pass per
    candidate.

    Args:
        size, image_shape, device, seed: see `Buffer`.
        rule: `herding`, `closest_to_mean`, or another function of the features (N, D) of a class's candidates.
    """

    _rule: Callable[[Tensor], Tensor]

    def __init__(
        self,
        size: int,
        image_shape: Sequence[int],
        device: torch.device | str = "cpu",
        seed: int = 0,
        *,
        rule: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(size, image_shape, device, self._numbers, bottom_k, seed=seed)
        self._rule = rule

    def _numbers(self, model: Network, candidates: Sequence[Tensor], *_: object) -> list[Tensor]:
        """The rule's numbers (N,) of each class's candidates, from the features in evaluation mode."""
        features_ND = features_of(model, torch.cat(list(candidates))).double()
        return [self._rule(part_ND) for part_ND in features_ND.split([len(images) for images in candidates])]


herding_buffer = partial(FeatureBuffer, rule=herding)
closest_to_mean_buffer = partial(FeatureBuffer, rule=closest_to_mean)
