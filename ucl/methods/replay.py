"""The baselines: plain finetuning, experience replay and A-GEM."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.fields import check_field
from ucl.methods.method import Method, descend, gradient_of, joined
from ucl.models import Network
from ucl.streams import Batch


class Finetune(Method):
    """Plain SGD on the stream, without a memory."""

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels)


class ExperienceReplay(Method):
    """Experience replay: the mean cross-entropy of one pass over batch and memory samples (Chaudhry et al., 2019).

    The code of repeated augmented rehearsal (`YaqianZhang/RepeatedAugmentedRehearsal`) adds the mean of the batch to
    that of the memory samples instead, so that its steps are twice as long for as many samples of each.
    """

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, *self.with_replay(batch, buffer))


class AGEM(Method):
    """A-GEM: the batch gradient, projected on the half-space of a memory batch's gradient (Chaudhry et al., 2019).

    If the two gradients oppose each other, the component of the batch gradient along the memory gradient is removed.

    Args:
        *arguments, **named: those of `Method`.
        reference_batch: number of memory samples whose gradient is the reference, or all of earlier tasks if these are
            fewer; 0 is as many as the batch has images. The authors' code (`facebookresearch/agem`) takes 256.
        projected: the gradient that is projected: that of the "batch", or of "replay", where the memory samples are
            learnt with the batch as in `ExperienceReplay`. Their own gradient, of a separate pass, remains the
            reference. Replay is our reading of the paper's A-GEM rows, which are close to those of ER; the paper does
            not describe it.
    """

    def __init__(self, *arguments: Any, reference_batch: int = 0, projected: str = "batch", **named: Any) -> None:
        check_field("reference_batch", reference_batch)
        check_field("projected", projected)
        super().__init__(*arguments, **named)
        self._reference_batch = reference_batch
        self._projected = projected

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        replay = self.drawn(self._reference_batch or len(batch), batch.task, buffer)
        learnt = joined(batch.images, batch.labels, *(replay if self._projected == "replay" else ()))
        self._step(model, *learnt, *replay)

    def step(self, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the projected gradient; `replay` has the images and labels of a memory batch, or is empty."""
        if not replay:
            super().step(model, images, labels)
            return
        memory_images, memory_labels = replay
        reference = gradient_of(model, F.cross_entropy(model(memory_images), memory_labels))
        gradient = gradient_of(model, F.cross_entropy(model(images), labels))
        project(gradient, reference)
        descend(model, gradient, self.lr)


def project(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Remove from a gradient, in place, the component that opposes a reference gradient: g - min(g.r, 0) / r.r * r."""
    dot = torch.stack([product.sum() for product in torch._foreach_mul(gradient, reference)]).sum()
    square = torch.stack([product.sum() for product in torch._foreach_mul(reference, reference)]).sum()
    share = dot.clamp_max(0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    torch._foreach_sub_(gradient, torch._foreach_mul(reference, share))
