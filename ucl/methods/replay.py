"""The baselines: plain finetuning, experience replay and A-GEM."""

from __future__ import annotations

import torch
from torch import Tensor

from ucl.buffers import Buffer
from ucl.methods.method import Method, descend, gradient_of
from ucl.models import Network
from ucl.streams import Batch


class Finetune(Method):
    """Plain SGD on the stream, without a memory."""

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels)


class ExperienceReplay(Method):
    """Experience replay: the mean cross-entropy of one pass over batch and memory samples (Chaudhry et al., 2019)."""

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, *self.with_replay(batch, buffer))


class AGEM(Method):
    """A-GEM: the batch gradient, projected on the half-space of a memory batch's gradient (Chaudhry et al., 2019).

    If the two gradients oppose each other, the component of the batch gradient along the memory gradient is removed.
    """

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels, *(self.replay(batch, buffer) or ()))

    @staticmethod
    def step(lr: float, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the projected gradient; `replay` has the images and labels of a memory batch, or is empty."""
        reference = gradient_of(model, *replay) if replay else None
        gradient = gradient_of(model, images, labels)
        if reference is not None:
            project(gradient, reference)
        descend(model, gradient, lr)


def project(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Remove from a gradient, in place, the component that opposes a reference gradient: g - min(g.r, 0) / r.r * r."""
    dot = torch.stack([product.sum() for product in torch._foreach_mul(gradient, reference)]).sum()
    square = torch.stack([product.sum() for product in torch._foreach_mul(reference, reference)]).sum()
    share = dot.clamp_max(0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    torch._foreach_sub_(gradient, torch._foreach_mul(reference, share))
