"""MIR: maximally interfered retrieval."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.fields import check_field
from ucl.machine.cuda_graphs import restore
from ucl.methods.method import descend, gradient_of, joined
from ucl.methods.replay import ExperienceReplay
from ucl.models import Network
from ucl.models.passes import losses_of
from ucl.streams import Batch


class MIR(ExperienceReplay):
    """Experience replay of the memory samples that the batch interferes with most (Aljundi et al., 2019).

    Of 50 memory samples drawn at random, as many are replayed as the batch has images: those whose loss would rise most
    after a training step on the batch alone. This virtual step is undone, including the statistics of BatchNorm. The
    training step is that of `ExperienceReplay`, so the two methods differ in the replayed samples only. The authors'
    code instead adds the mean losses of two passes, one over the batch and one over the replayed samples.

    In addition to experience replay, each step costs the gradient of the batch and two forward passes of 50 samples.

    Args:
        *arguments, **named: those of `Method`.
        scoring_batchnorm: "eval": the losses are computed in evaluation mode, and the running statistics do not change.
            "train": in training mode, as in the authors' code (`optimass/Maximally_Interfered_Retrieval`) and in
            libraries; the pass before the virtual step moves the running statistics. A network without them computes
            its losses in evaluation mode.
    """

    n_candidates = 50

    def __init__(self, *arguments: Any, scoring_batchnorm: str = "eval", **named: Any) -> None:
        check_field("scoring_batchnorm", scoring_batchnorm)
        super().__init__(*arguments, **named)
        self._in_training_mode = scoring_batchnorm == "train"

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels, *self.drawn(self.n_candidates, batch.task, buffer))

    def step(self, model: Network, images: Tensor, labels: Tensor, *candidates: Tensor) -> Tensor | None:
        """Make a step of `ExperienceReplay`; `candidates` are images and labels of memory samples, or empty."""
        if candidates:
            increase = self.loss_increase(model, images, labels, *candidates)
            chosen = increase.topk(min(len(labels), len(increase))).indices
            images, labels = joined(images, labels, *(part[chosen] for part in candidates))
        return super().step(model, images, labels)

    def loss_increase(
        self, model: Network, batch_images: Tensor, batch_labels: Tensor, images: Tensor, labels: Tensor
    ) -> Tensor:
        """How much the loss of each of these images (N, C, H, W) would rise after a step on the batch alone: (N,)."""
        before = self._losses(model, images, labels)
        buffers = [statistic.clone() for statistic in model.buffers()]
        # Not by calling the network: hooks follow its training passes, and this one is undone.
        gradient = gradient_of(model, F.cross_entropy(model.forward(batch_images), batch_labels))
        weights = [weight.detach().clone() for weight in model.parameters()]
        restore(model.buffers(), buffers)
        descend(model, gradient, self.lr)
        after = self._losses(model, images, labels)
        restore(model.buffers(), buffers)
        restore(model.parameters(), weights)
        return after - before

    def _losses(self, model: Network, images: Tensor, labels: Tensor) -> Tensor:
        if not (self._in_training_mode and model.has_running_statistics):
            return losses_of(model, images, labels)
        with torch.no_grad():
            return F.cross_entropy(model(images), labels, reduction="none")
