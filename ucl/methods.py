"""Methods: plain finetuning, experience replay and A-GEM, each by SGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.machine.checkpoints import State
from ucl.machine.cuda_graphs import Graphed
from ucl.models import SlimResNet18
from ucl.streams import Batch


class Method(ABC):
    """Trains a model batch by batch, by SGD without momentum or weight decay.

    Args:
        model: the network; its weights are updated in place.
        lr: learning rate.
        replay_seed: seed of the draws from the memory.
        updates: training steps per batch. Each uses the whole batch and its own memory samples: repeated rehearsal
            (Zhang et al., 2022).
        graphs: whether a GPU repeats the step from a CUDA graph, see `ucl.machine.cuda_graphs.Graphed`.
    """

    def __init__(
        self, model: SlimResNet18, lr: float = 0.1, replay_seed: int = 0, updates: int = 1, graphs: bool = False
    ) -> None:
        self._updates = updates
        self._draw = np.random.default_rng(replay_seed)
        self._step = Graphed(partial(self.step, lr), graphs)

    @property
    def graphs_in_use(self) -> bool:
        """Whether steps are repeated from a CUDA graph."""
        return self._step.in_use

    def learn(self, model: SlimResNet18, batch: Batch, buffer: Buffer | None = None) -> None:
        """Update the model; the batch is joined by as many memory samples as it has images, if there are so many.

        Where the batch tells its task, they are of earlier tasks; otherwise they are drawn from the whole memory.
        """
        for _ in range(self._updates):
            self._update(model, batch, buffer)

    def state(self) -> State:
        return {"draw": self._draw.bit_generator.state}

    def restore(self, state: State) -> None:
        self._draw.bit_generator.state = state["draw"]

    @abstractmethod
    def _update(self, model: SlimResNet18, batch: Batch, buffer: Buffer | None) -> None:
        """Make one training step."""

    @staticmethod
    def step(lr: float, model: SlimResNet18, images: Tensor, labels: Tensor) -> None:
        """Descend along the gradient of the mean cross-entropy of images (N, C, H, W) and labels (N,)."""
        _descend(model, gradient_of(model, images, labels), lr)

    def _replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor] | None:
        return None if buffer is None else buffer.sample(len(batch), batch.task, self._draw)


class Finetune(Method):
    """Plain SGD on the stream, without a memory."""

    def _update(self, model: SlimResNet18, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels)


class ExperienceReplay(Method):
    """Experience replay: the mean cross-entropy of one pass over batch and memory samples (Chaudhry et al., 2019)."""

    def _update(self, model: SlimResNet18, batch: Batch, buffer: Buffer | None) -> None:
        images, labels = batch.images, batch.labels
        replay = self._replay(batch, buffer)
        if replay is not None:
            images, labels = torch.cat([images, replay[0]]), torch.cat([labels, replay[1]])
        self._step(model, images, labels)


class AGEM(Method):
    """A-GEM: the batch gradient, projected on the half-space of a memory batch's gradient (Chaudhry et al., 2019).

    Where the two gradients oppose each other, the part of the batch gradient along the memory gradient is removed.
    """

    def _update(self, model: SlimResNet18, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels, *(self._replay(batch, buffer) or ()))

    @staticmethod
    def step(lr: float, model: SlimResNet18, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the projected gradient; `replay` is the images and labels of a memory batch, or empty."""
        reference = gradient_of(model, *replay) if replay else None
        gradient = gradient_of(model, images, labels)
        if reference is not None:
            project(gradient, reference)
        _descend(model, gradient, lr)


def gradient_of(model: SlimResNet18, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Gradient of the mean cross-entropy in training mode: one tensor for each weight, with the weight's shape.

    Args:
        model: the network; the running statistics of its BatchNorm change.
        images: (N, C, H, W).
        labels: (N,).
    """
    model.train()
    model.zero_grad()  # The next call makes new tensors, so the gradients returned here do not change.
    F.cross_entropy(model(images), labels).backward()
    return [weight.grad for weight in model.parameters()]  # type: ignore[misc]


def _descend(model: SlimResNet18, gradient: list[Tensor], lr: float) -> None:
    # torch.optim.SGD does the same, but it first loads torch's compiler, which takes over a second in every process.
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), gradient, alpha=-lr)


def project(gradient: list[Tensor], reference: list[Tensor]) -> None:
    """Remove from a gradient, in place, the part that opposes a reference gradient: g - min(g.r, 0) / r.r * r.

    Args:
        gradient, reference: one tensor for each weight, with the same shapes. A reference of zero changes nothing.
    """
    dot = torch.stack([product.sum() for product in torch._foreach_mul(gradient, reference)]).sum()
    square = torch.stack([product.sum() for product in torch._foreach_mul(reference, reference)]).sum()
    share = dot.clamp_max(0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    torch._foreach_sub_(gradient, torch._foreach_mul(reference, share))


METHODS: dict[str, type[Method]] = {"er": ExperienceReplay, "agem": AGEM, "finetune": Finetune}
"""The methods by the names that `Config.method` takes."""
