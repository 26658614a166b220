"""The base class of methods, and one step of SGD."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.machine.cuda_graphs import Graphed
from ucl.models import Network, OwnNetwork
from ucl.streams import Batch
from ucl.streams.augmentation import RandAugment


class Method(ABC):
    """Trains a model batch by batch, by SGD without momentum or weight decay. A subclass defines one step in `update`.

    Your own method, for example replay with smoothed labels (``method="mine:Smoothed"``):

        class Smoothed(Method):
            def update(self, model, batch, buffer):
                images, labels = self.with_replay(batch, buffer)
                self.descend(model, F.cross_entropy(model(images), labels, label_smoothing=0.1))

    Values that the memory should keep with the samples, such as logits, go into `Batch.values`.

    Args:
        model: the network; its weights are updated in place.
        lr: learning rate.
        replay_seed: seed of the draws from the memory.
        updates: training steps per batch. Each uses the whole batch and its own memory samples; this is repeated
            rehearsal (Zhang et al., 2022).
        graphs: whether a GPU repeats `step` from a CUDA graph, see `ucl.machine.cuda_graphs.Graphed`.

    Attributes:
        draw: numpy's generator for the draws from the memory.
        augmentations: those of `Config.augmentation`, of the images of the "batch" and the "memory"; empty without.
    """

    def __init__(
        self, model: Network, lr: float = 0.1, replay_seed: int = 0, updates: int = 1, graphs: bool = False
    ) -> None:
        self._graphs = graphs
        self.augmentations: dict[str, RandAugment] = {}
        self.lr = lr
        self.draw = np.random.default_rng(replay_seed)
        self._updates = updates

    @property
    def lr(self) -> float:
        """The learning rate of the next steps; a schedule may set it."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = lr
        self._step = Graphed(self.step, self._graphs)  # a graph has the number of the rate in it

    @property
    def graphs_in_use(self) -> bool:
        """Whether steps are repeated from a CUDA graph."""
        return self._step.in_use

    def learn(self, model: Network, batch: Batch, buffer: Buffer | None = None) -> None:
        """Update the model with a batch: `updates` training steps, each with its own augmentation."""
        for _ in range(self._updates):
            # Layers of a user's network may have different modes. For a built-in network, this would take 0.2 ms.
            if not model.training or isinstance(model, OwnNetwork):
                model.train()
            # The memory and the stream go on with the batch itself, which a user's code may change in place.
            images, labels = self.augmented(batch.images.clone(), "batch"), batch.labels.clone()
            changed = dict(images=images, labels=labels, host_labels=batch.host_labels.copy())
            self.update(model, dataclasses.replace(batch, **changed), buffer)

    def augment(self, images_NCHW: Tensor) -> Tensor:
        """Augment images (N, C, H, W), uint8, of the batch or the memory before a training step, by default not at all.

        `Config.augmentation` comes before.
        """
        return images_NCHW

    def augmented(self, images_NCHW: Tensor, source: str) -> Tensor:
        """Images of the "batch" or the "memory", augmented."""
        if self.augmentations:
            images_NCHW = self.augmentations[source](images_NCHW)
        return self.augment(images_NCHW)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, without the model; a subclass with state extends both, see `Buffer`."""
        augmentations = {name: augmentation.state_dict() for name, augmentation in self.augmentations.items()}
        return {"lr": self.lr, "draw": self.draw.bit_generator.state, "augmentations": augmentations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring a new method to the state that `state_dict` returned."""
        self.lr = state["lr"]
        self.draw.bit_generator.state = state["draw"]
        for name, augmentation_state in state["augmentations"].items():
            self.augmentations[name].load_state_dict(augmentation_state)

    @abstractmethod
    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        """Make one training step of a network in training mode.

        ``model(images)`` returns the logits of images, uint8 or float in [0, 1]. Those of the batch and the memory are
        uint8: before arithmetic, make them ``images.float() / 255``. Only passes by such calls, with a gradient, count
        as training steps in the readings. `buffer` is None without a memory.
        """

    def drawn(self, n: int, exclude_task: int | None, buffer: Buffer | None) -> tuple[Tensor, ...]:
        """Images and labels of memory samples, drawn by `Buffer.drawn_slots` and augmented; () if there are none.

        A method that needs the slots, too, uses `Buffer.drawn_slots`, `Buffer.samples_at` and `augmented` itself.
        """
        if buffer is None or not len(slots := buffer.drawn_slots(n, exclude_task, self.draw)):
            return ()
        images, labels = buffer.samples_at(slots)
        return self.augmented(images, "memory"), labels

    def with_replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor]:
        """Images and labels of a batch, followed by as many memory samples.

        If the batch has a task number, these are of earlier tasks.
        """
        return joined(batch.images, batch.labels, *self.drawn(len(batch), batch.task, buffer))

    def descend(self, model: Network, loss: Tensor) -> None:
        """Update all weights by one step of SGD along the gradient of a loss, a tensor without dimensions."""
        descend(model, gradient_of(model, loss), self.lr)

    def step(self, model: Network, images: Tensor, labels: Tensor) -> Tensor | None:
        """Descend along the gradient of the mean cross-entropy of images (N, C, H, W) and labels (N,)."""
        self.descend(model, F.cross_entropy(model(images), labels))
        return None


def joined(images: Tensor, labels: Tensor, *replay: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels, followed by the images and labels of a memory batch; `replay` may be empty."""
    if not replay:
        return images, labels
    return torch.cat([images, replay[0]]), torch.cat([labels, replay[1]])


def gradient_of(model: Network, loss: Tensor) -> list[Tensor]:
    """Gradient of a loss: one tensor per weight; zeros for a weight of a user's network that the loss does not use."""
    model.zero_grad()  # The next call makes new tensors, so the gradients returned here do not change.
    loss.backward()
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]


def descend(model: Network, gradient: list[Tensor], lr: float) -> None:
    """Make one step of SGD."""
    # torch.optim.SGD does the same, but it first loads torch's compiler, which takes over a second in every process.
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), gradient, alpha=-lr)
