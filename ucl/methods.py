"""Methods: how a batch is learnt, each by SGD, and the base class for your own.

Plain finetuning, experience replay, A-GEM, ER-ACE, DER++ and MIR.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.machine.checkpoints import State, attributes, restore_attributes
from ucl.machine.cuda_graphs import Graphed
from ucl.models import Network
from ucl.streams import Batch


class Method(ABC):
    """Trains a model batch by batch, by SGD without momentum or weight decay. A subclass defines one step in `update`.

    A method of your own, for example replay with smoothed labels (``method="mine:Smoothed"``):

        class Smoothed(Method):
            def update(self, model, batch, buffer):
                images, labels = self.with_replay(batch, buffer)
                self.descend(model, F.cross_entropy(model(images), labels, label_smoothing=0.1))

    Values of the samples that the memory is to keep with them, such as logits, go into `Batch.values`.

    Args:
        model: the network; its weights are updated in place.
        lr: learning rate.
        replay_seed: seed of the draws from the memory.
        updates: training steps per batch. Each uses the whole batch and its own memory samples: repeated rehearsal
            (Zhang et al., 2022).
        graphs: whether a GPU repeats `step` from a CUDA graph, see `ucl.machine.cuda_graphs.Graphed`.

    Attributes:
        lr: learning rate.
        draw: numpy's generator, for the draws from the memory; a checkpoint keeps its state.
    """

    def __init__(
        self, model: Network, lr: float = 0.1, replay_seed: int = 0, updates: int = 1, graphs: bool = False
    ) -> None:
        of_subclass = set(vars(self))
        self.lr = lr
        self.draw = np.random.default_rng(replay_seed)
        self._updates = updates
        self._step = Graphed(partial(self.step, lr), graphs)
        self._saved = {*vars(self), "_saved"} - of_subclass  # attributes that `state` has or that never change

    @property
    def graphs_in_use(self) -> bool:
        """Whether steps are repeated from a CUDA graph."""
        return self._step.in_use

    def learn(self, model: Network, batch: Batch, buffer: Buffer | None = None) -> None:
        """Update the model; from the second task on, the batch is joined by as many memory samples of earlier tasks."""
        for _ in range(self._updates):
            if not model.training:
                model.train()
            self.update(model, batch, buffer)

    def state(self) -> State:
        """All that `restore` needs beyond the model; attributes of the user's subclass as in `Buffer.state`."""
        return {"draw": self.draw.bit_generator.state, "added": attributes(self, self._saved)}

    def restore(self, state: State) -> None:
        """Make a new method equal to the one that `state` was taken of."""
        self.draw.bit_generator.state = state["draw"]
        restore_attributes(self, state["added"])

    @abstractmethod
    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        """Make one training step.

        Args:
            model: the network, in training mode; ``model(images)`` are the logits of uint8 images.
            batch: the batch.
            buffer: the memory; None without one.
        """

    def replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor] | None:
        """As many memory samples of earlier tasks as the batch has images.

        Returns:
            Images (N, C, H, W), uint8, and labels (N,), or fewer if fewer are stored; None if none is.
        """
        return None if buffer is None else buffer.sample(len(batch), batch.task, self.draw)

    def with_replay(self, batch: Batch, buffer: Buffer | None) -> tuple[Tensor, Tensor]:
        """Images and labels of a batch, and after them those of `replay`."""
        replay = self.replay(batch, buffer)
        if replay is None:
            return batch.images, batch.labels
        return torch.cat([batch.images, replay[0]]), torch.cat([batch.labels, replay[1]])

    def descend(self, model: Network, loss: Tensor) -> None:
        """Update all weights by a step of SGD along the gradient of a loss, a tensor without dimensions."""
        model.zero_grad()
        loss.backward()
        _descend(model, _gradients(model), self.lr)

    @staticmethod
    def step(lr: float, model: Network, images: Tensor, labels: Tensor) -> None:
        """Descend along the gradient of the mean cross-entropy of images (N, C, H, W) and labels (N,)."""
        _descend(model, gradient_of(model, images, labels), lr)


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

    Where the two gradients oppose each other, the part of the batch gradient along the memory gradient is removed.
    """

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels, *(self.replay(batch, buffer) or ()))

    @staticmethod
    def step(lr: float, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the projected gradient; `replay` is the images and labels of a memory batch, or empty."""
        reference = gradient_of(model, *replay) if replay else None
        gradient = gradient_of(model, images, labels)
        if reference is not None:
            project(gradient, reference)
        _descend(model, gradient, lr)


class ERACE(Method):
    """ER-ACE: batch samples compete with the classes of their batch only (Caccia et al., 2022).

    The loss is the cross-entropy of the batch over the classes in it, plus the cross-entropy of the memory samples over
    all classes. New classes therefore do not push earlier classes away; only the replay separates them.

    As in the authors' code (`pclucas14/AML`), batch and memory samples have a pass each, and the memory samples may be
    of the current task: without those, nothing would separate its classes from the earlier ones. That code also lets
    batch samples compete with all classes that come later. Here they do not, as in the paper's equation.
    """

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        replay = None if buffer is None else buffer.sample(len(batch), None, self.draw)
        self._step(model, batch.images, batch.labels, *(replay or ()))

    @staticmethod
    def step(lr: float, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the gradient of the sum of both losses; `replay` is a memory batch, or empty."""
        model.train()
        model.zero_grad()
        loss = F.cross_entropy(over_own_classes(model(images), labels), labels)
        if replay:
            loss = loss + F.cross_entropy(model(replay[0]), replay[1])
        loss.backward()
        _descend(model, _gradients(model), lr)


def over_own_classes(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The logits (N, C), minus infinity for each class that none of the labels is of."""
    is_absent_C = torch.ones_like(logits_NC[0], dtype=torch.bool).index_fill(0, labels_N, False)
    return logits_NC.masked_fill(is_absent_C, -math.inf)


class DERPP(Method):
    """DER++: memory samples keep their label and the logits that they had when they came (Buzzega et al., 2020, eq. 6).

    The loss is the cross-entropy of the batch, plus `alpha` times the mean squared difference between the logits of one
    memory batch and its stored logits, plus `beta` times the cross-entropy of a second memory batch.

    As in the authors' code (`aimagelab/mammoth`), the three batches have a pass each, the memory samples may be of the
    current task, the stored logits are those of the training pass, and the squared differences are averaged over the
    classes; the paper's equation has their sum. `alpha` and `beta` are the authors' values for CIFAR-10 with a memory of
    500.
    """

    alpha, beta = 0.2, 0.5

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        logits_NC = model(batch.images)
        loss = F.cross_entropy(logits_NC, batch.labels)
        if buffer is not None and buffer.n_stored:
            slots = torch.from_numpy(buffer.drawn_slots(len(batch), None, self.draw)).to(buffer.device)
            distance = F.mse_loss(model(buffer.images_at(slots)), buffer.values["logits"][slots])
            replay = buffer.sample(len(batch), None, self.draw)
            assert replay is not None  # The memory is not empty.
            loss = loss + self.alpha * distance + self.beta * F.cross_entropy(model(replay[0]), replay[1])
        self.descend(model, loss)
        batch.values["logits"] = logits_NC.detach()


def gradient_of(model: Network, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Gradient of the mean cross-entropy in training mode: one tensor for each weight, with the weight's shape.

    Args:
        model: the network; the running statistics of its BatchNorm change.
        images: (N, C, H, W).
        labels: (N,).
    """
    model.train()
    model.zero_grad()  # The next call makes new tensors, so the gradients returned here do not change.
    F.cross_entropy(model(images), labels).backward()
    return _gradients(model)


def _gradients(model: Network) -> list[Tensor]:
    """The gradient of each weight; zeros for a weight of the user's own network that a pass does not use."""
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]


def _descend(model: Network, gradient: list[Tensor], lr: float) -> None:
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


METHODS: dict[str, type[Method]] = {
    "er": ExperienceReplay,
    "agem": AGEM,
    "finetune": Finetune,
    "er-ace": ERACE,
    "derpp": DERPP,
}
"""The methods by the names that `Config.method` takes."""
