"""The base class of methods, and one step of SGD."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.machine.checkpoints import State
from ucl.machine.cuda_graphs import Graphed
from ucl.machine.states import attributes, restore_attributes
from ucl.models import Network, OwnNetwork
from ucl.streams import Batch


class Method(ABC):
    """Trains a model batch by batch, by SGD without momentum or weight decay. A subclass defines one step in `update`.

    A method of your own, for example replay with smoothed labels (``method="mine:Smoothed"``):

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
        draw: numpy's generator for the draws from the memory; a checkpoint keeps its state.
    """

    _graphs = False
    _functions = ("augment", "augment_memory")  # names of attributes; of these, a checkpoint has at most the `state`

    def __init__(
        self, model: Network, lr: float = 0.1, replay_seed: int = 0, updates: int = 1, graphs: bool = False
    ) -> None:
        of_subclass = set(vars(self))
        self._graphs = graphs
        self.lr = lr
        self.draw = np.random.default_rng(replay_seed)
        self._updates = updates
        # attributes that `state` has or that never change
        self._saved = {*vars(self), *self._functions, "_saved"} - of_subclass

    @property
    def lr(self) -> float:
        """The learning rate of the next steps; a subclass with a schedule sets it."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = lr
        self._step = Graphed(partial(self.step, lr), self._graphs)

    @property
    def graphs_in_use(self) -> bool:
        """Whether steps are repeated from a CUDA graph."""
        return self._step.in_use

    def learn(self, model: Network, batch: Batch, buffer: Buffer | None = None) -> None:
        """Update the model with a batch: `updates` training steps, each with its own augmentation.

        Args:
            model: the network.
            batch: the batch.
            buffer: the memory; None without one.
        """
        for _ in range(self._updates):
            # Layers of the user's own may have modes of their own. For a built-in network, this would take 0.2 ms.
            if not model.training or isinstance(model, OwnNetwork):
                model.train()
            self.update(model, dataclasses.replace(batch, images=self.augment(batch.images)), buffer)

    def augment(self, images_NCHW: Tensor) -> Tensor:
        """Augment the images of a batch (N, C, H, W), uint8, before a training step; by default they stay unchanged.

        A function may be assigned instead. If it has random numbers of its own, it has `state` and `restore`, like
        `RandAugment`.
        """
        return images_NCHW

    def augment_memory(self, images_NCHW: Tensor) -> Tensor:
        """The same for memory samples, which `drawn` augments; by default by `augment`.

        With random numbers of its own, the batches are augmented alike with and without replay.
        """
        return self.augment(images_NCHW)

    def state(self) -> State:
        """All that `restore` needs, without the model; includes attributes of a user's subclass like `Buffer.state`."""
        return {
            "lr": self.lr,
            "draw": self.draw.bit_generator.state,
            "augment": _state_of(self.augment),
            "augment_memory": _state_of(self.augment_memory),
            "added": attributes(self, self._saved),
        }

    def restore(self, state: State) -> None:
        """Restore a new method to a state that `state` returned."""
        self.lr = state["lr"]
        self.draw.bit_generator.state = state["draw"]
        for name in self._functions:
            if hasattr(function := getattr(self, name), "restore"):
                function.restore(state[name])
        restore_attributes(self, state["added"])

    @abstractmethod
    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        """Make one training step.

        Args:
            model: the network, in training mode; ``model(images)`` returns the logits of uint8 images. Only passes by
                such calls, with a gradient, count as training steps in the readings.
            batch: the batch.
            buffer: the memory; None without one.
        """

    def replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor] | None:
        """As many memory samples as the batch has images, drawn at random and augmented.

        If the batch has a task number, they are of earlier tasks; otherwise they are drawn from the whole memory.

        Returns:
            Images (N, C, H, W), uint8, and labels (N,), fewer if fewer are stored; None if none are.
        """
        return self.drawn(len(batch), batch.task, buffer)

    def drawn(self, n: int, exclude_task: int | None, buffer: Buffer | None) -> tuple[Tensor, Tensor] | None:
        """Memory samples, drawn at random and augmented; see `Buffer.sample`. None without a memory."""
        found = None if buffer is None else buffer.sample(n, exclude_task, self.draw)
        return None if found is None else (self.augment_memory(found[0]), found[1])

    def with_replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor]:
        """Images and labels of a batch, followed by those of `replay`."""
        replay = self.replay(batch, buffer)
        if replay is None:
            return batch.images, batch.labels
        return torch.cat([batch.images, replay[0]]), torch.cat([batch.labels, replay[1]])

    def descend(self, model: Network, loss: Tensor) -> None:
        """Update all weights by one step of SGD along the gradient of a loss, a tensor without dimensions."""
        model.zero_grad()
        loss.backward()
        descend(model, gradients_of(model), self.lr)

    @staticmethod
    def step(lr: float, model: Network, images: Tensor, labels: Tensor) -> None:
        """Descend along the gradient of the mean cross-entropy of images (N, C, H, W) and labels (N,)."""
        descend(model, gradient_of(model, images, labels), lr)


def _state_of(augmentation: object) -> State:
    """The state of an augmentation; empty if it has none."""
    return augmentation.state() if hasattr(augmentation, "state") else {}


def gradient_of(model: Network, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Gradient of the mean cross-entropy in training mode: one tensor per weight, with the weight's shape.

    Args:
        model: the network; the running statistics of its BatchNorm layers change.
        images: (N, C, H, W).
        labels: (N,).
    """
    if not model.training:
        model.train()
    model.zero_grad()  # The next call makes new tensors, so the gradients returned here do not change.
    F.cross_entropy(model(images), labels).backward()
    return gradients_of(model)


def gradients_of(model: Network) -> list[Tensor]:
    """The gradient of each weight; zeros for a weight that the pass did not use, in a network of the user's own."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]


def descend(model: Network, gradient: list[Tensor], lr: float) -> None:
    """Make one step of SGD."""
    # torch.optim.SGD does the same, but it first loads torch's compiler, which takes over a second in every process.
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), gradient, alpha=-lr)
