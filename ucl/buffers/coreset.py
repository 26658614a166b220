"""Online coreset selection: samples with typical gradients that differ from each other and agree with the memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.selection import top_k
from ucl.buffers.uncertainty import UncertaintyBuffer
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode
from ucl.streams import Batch

TAU = 1000.0  # weight of the agreement with the memory; the authors' value for balanced CIFAR-100


class CoresetBuffer(UncertaintyBuffer):
    """The selection of online coreset selection, OCS (Yoon et al., 2022).

    At each batch, the candidates are its samples and the stored samples of its classes. The measure of a candidate is
    the cosine of its gradient with the mean gradient of all candidates, minus the mean of its cosines with their
    gradients, plus tau times the cosine with the mean gradient of the stored samples of earlier tasks. Each class fills
    its quota with the highest measures.

    Gradients are those of the last layer, which need no backward pass, in evaluation mode. The authors' code
    (`jaehong31/OCS`) uses the gradients of all weights. It also trains only on the selected half of each batch, and
    draws the memory at a task's end at random from the selected samples. Here every sample is learnt, and the measure
    decides which samples are kept. Tau is 1000, as in their runs on balanced CIFAR-100; on imbalanced CIFAR they use
    10. With 1000, the measure is in effect the agreement with the memory: the other two terms, in [-2, 2] together,
    only decide between candidates whose cosines with the memory differ by less than 0.004. The cost is one forward pass
    per candidate and per stored sample of earlier tasks.
    """

    _task: int | None = None  # the task of the current batch

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, scorer=self._measures, selection=top_k, **named)

    def update(self, model: Network, batch: Batch) -> None:
        self._task = batch.task
        super().update(model, batch)

    def _measures(self, model: Network, images: Tensor, positions: Tensor, sizes: Mapping[int, int]) -> Tensor:
        gradients = last_layer_gradients(model, images, self._on_device(np.repeat([*sizes], [*sizes.values()])))
        earlier = np.flatnonzero(self.tasks[: self.n_stored] != self._task)  # all without task numbers
        reference = last_layer_gradients(model, *self.samples_at(earlier)) if len(earlier) else None
        return coreset_measure(gradients, reference)


def last_layer_gradients(model: Network, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the cross-entropy of each image for the last layer, in evaluation mode, as errors and inputs.

    The gradient of image n is the outer product of its error (C,), the probabilities minus the one-hot label, and its
    input (D + 1,), the features and a one for the bias.
    """
    features_ND, logits_NC = in_evaluation_mode(model).features_and_logits(model.normalize(images))
    errors_NC = logits_NC.double().softmax(1)
    errors_NC.scatter_add_(1, labels[:, None], -torch.ones_like(errors_NC[:, :1]))
    return errors_NC, F.pad(features_ND.double(), (0, 1), value=1.0)


def coreset_measure(candidates: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor] | None) -> Tensor:
    """OCS's measure (N,) of candidates: similarity with the batch, minus similarity among each other, plus affinity.

    Takes the `last_layer_gradients` of the candidates, and of the stored samples of earlier tasks, None without any.
    """
    errors_NC, inputs_NF = candidates
    products_NN = (errors_NC @ errors_NC.T) * (inputs_NF @ inputs_NF.T)
    lengths_N = products_NN.diagonal().sqrt().clamp_min(1e-12)
    mean_length = products_NN.mean().clamp_min(0).sqrt().clamp_min(1e-12)
    similarity_N = products_NN.mean(1) / (lengths_N * mean_length)
    mutual_N = (products_NN / (lengths_N[:, None] * lengths_N)).mean(1)
    if reference is None:
        return similarity_N - mutual_N
    mean_CF = reference[0].T @ reference[1] / len(reference[0])
    affinity_N = ((errors_NC @ mean_CF) * inputs_NF).sum(1) / (lengths_N * mean_CF.norm().clamp_min(1e-12))
    return similarity_N - mutual_N + TAU * affinity_N
