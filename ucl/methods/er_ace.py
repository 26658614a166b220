"""ER-ACE: experience replay with an asymmetric cross-entropy."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers import Buffer
from ucl.methods.method import Method
from ucl.models import Network
from ucl.streams import Batch


class ERACE(Method):
    """ER-ACE: the loss of batch samples compares only the classes of their batch (Caccia et al., 2022).

    The loss is the cross-entropy of the batch over the classes in it, plus the cross-entropy of the memory samples over
    all classes, as in the authors' code; the paper's equation has those seen so far. New classes
    therefore do not push earlier classes away; only the replay separates them.

    As in the authors' code (`pclucas14/AML`), batch and memory samples have separate passes, and the memory samples may
    be of the current task: without those, nothing would separate its classes from the earlier ones. In that code, the
    loss of batch samples also includes all classes that come later. Here it does not, as in the paper's equation.
    """

    def update(self, model: Network, batch: Batch, buffer: Buffer | None) -> None:
        self._step(model, batch.images, batch.labels, *self.drawn(len(batch), None, buffer))

    def step(self, model: Network, images: Tensor, labels: Tensor, *replay: Tensor) -> None:
        """Descend along the gradient of the sum of both losses; `replay` is a memory batch, or empty."""
        loss = F.cross_entropy(over_own_classes(model(images), labels), labels)
        if replay:
            loss = loss + F.cross_entropy(model(replay[0]), replay[1])
        self.descend(model, loss)


def over_own_classes(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The logits (N, C), with minus infinity for each class that is not among the labels."""
    is_absent_C = torch.ones_like(logits_NC[0], dtype=torch.bool).index_fill(0, labels_N, False)
    return logits_NC.masked_fill(is_absent_C, -math.inf)
