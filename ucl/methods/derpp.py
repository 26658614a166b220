"""DER++: dark experience replay with labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.methods.method import Method
from ucl.models import Network
from ucl.streams import Batch


class DERPP(Method):
    """DER++: memory samples keep their label and the logits that they had when they came (Buzzega et al., 2020, eq. 6).

    The loss is the cross-entropy of the batch, plus `alpha` times the mean squared difference between the logits of one
    memory batch and its stored logits, plus `beta` times the cross-entropy of a second memory batch.

    As in the authors' code (`aimagelab/mammoth`), each of the three batches has its own pass, the memory samples may be
    of the current task, and the stored logits are those of the training pass. The squared differences are averaged over
    the classes, also as in that code, while the paper's equation has their sum. `alpha` and `beta` are the authors'
    values for CIFAR-10 with a memory of 500.
    """

    alpha, beta = 0.2, 0.5

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        replay: tuple[Tensor, ...] = ()
        if buffer is not None and buffer.n_stored:
            drawn = buffer.drawn_slots(len(batch), None, self.draw)
            slots = torch.from_numpy(drawn).to(buffer.device, non_blocking=True)
            replay = self.augmented(buffer.images_at(slots), "memory"), buffer.values["logits"][slots]
            replay += self.drawn(len(batch), None, buffer)
        batch.values["logits"] = self._step(model, batch.images, batch.labels, *replay)

    def step(self, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> Tensor:
        """Descend along the gradient of the loss, and return the logits of the images.

        `replay` is empty, or has the images and stored logits of a memory batch, and the images and labels of another.
        """
        logits_NC = model(images)
        loss = F.cross_entropy(logits_NC, labels)
        if replay:
            others, stored_NC, images, labels = replay
            distance = F.mse_loss(model(others), stored_NC)
            loss = loss + self.alpha * distance + self.beta * F.cross_entropy(model(images), labels)
        self.descend(model, loss)
        return logits_NC.detach()
