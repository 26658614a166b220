"""Memory outlier elimination: the memory keeps samples whose nearest neighbours are mostly of their class."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.task_end import CHUNK, TaskEndBuffer, features_of_task
from ucl.models import Network
from ucl.streams import Task

N_NEIGHBOURS, N_REJECTED, REJECTION = 5, 20, 0.6


class HomogeneousBuffer(TaskEndBuffer):
    """Memory population by label homogeneity, MOE (Hurtado et al., 2023).

    At a task's end, the homogeneity of an image is the share of its 5 nearest neighbours among the task's images that
    have its label. Images are kept in descending order of homogeneity. For variety, each kept image rejects images of
    its class among its 20 nearest neighbours, each with probability 0.6. If a class then has fewer images than its
    quota, see `TaskEndBuffer`, rejected images are kept, too. When a quota shrinks, a class keeps its first images. The
    cost is one forward pass per image of the task.

    Neighbours are the nearest by the cosine of the features, in evaluation mode. Features are the input of the current
    network's last linear layer; the authors' code (`JuliousHurtado/MOE`) takes them from the current network or from a
    ResNet-50 trained on ImageNet. The numbers 5, 20 and 0.6 are those of that code, whose slice takes 19 of the 20. It
    scales only one of the two feature vectors to length 1, so an image with long feature vectors is near to all others.
    By default it draws at random among the images that are not rejected; here the order decides.
    """

    def candidate_scores(self, model: Network, task: Task, n: int) -> Tensor:
        """The ranks of the task's images; stored images keep theirs."""
        neighbours_NK = nearest(features_of_task(model, task, n), N_REJECTED).cpu().numpy()
        ranks_N = homogeneity_ranks(neighbours_NK, task.host_labels[:n], self.draw)
        return torch.cat([self.scores[: self.n_stored].cpu(), torch.from_numpy(ranks_N).double()])


def nearest(features_ND: Tensor, k: int) -> Tensor:
    """Indices (N, k) of the k other samples, or of all, with the largest cosines of the features; nearest first."""
    features_ND = F.normalize(features_ND, dim=1)
    neighbours = []
    for start in range(0, len(features_ND), CHUNK):
        cosines = features_ND[start : start + CHUNK] @ features_ND.T
        cosines.diagonal(start).fill_(-torch.inf)  # An image is no neighbour of itself.
        neighbours.append(cosines.topk(min(k, len(features_ND) - 1)).indices)
    return torch.cat(neighbours)


def homogeneity_ranks(neighbours_NK: np.ndarray, labels_N: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The ranks (N,), 0 to N - 1, in which samples are kept; rejected samples come last. Neighbours: see `nearest`."""
    homogeneity_N = (labels_N[neighbours_NK[:, :N_NEIGHBOURS]] == labels_N[:, None]).mean(1)
    order = np.argsort(-homogeneity_N, kind="stable")
    is_rejected_N = np.zeros(len(order), dtype=bool)
    accepted = []
    for i in order:
        if is_rejected_N[i]:
            continue
        accepted.append(i)
        near = neighbours_NK[i]
        rejects = (labels_N[near] == labels_N[i]) & (draw.random(len(near)) < REJECTION)
        is_rejected_N[near[rejects]] = True
    rejected = order[~np.isin(order, accepted)]
    return np.argsort(np.concatenate([accepted, rejected]))  # the inverse of this order
