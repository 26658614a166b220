"""Loss-aware reservoir sampling: samples that the network has learnt well leave first."""

from __future__ import annotations

import numpy as np
import torch

from ucl.buffers.buffer import Buffer
from ucl.models import Network
from ucl.models.passes import losses_of
from ucl.streams import Batch


class LossAwareBuffer(Buffer):
    """Loss-aware reservoir sampling, LARS (Buzzega et al., 2021).

    A reservoir decides whether a sample enters a full memory. Which slot it gets is drawn in proportion to minus the
    stored loss, see `leaving_probabilities`. Each slot has in `values["loss"]` the loss of its image from the last time
    that the network saw it: when it came, or when it was replayed.

    The authors' code (`hastings24/rethinking_er`) takes the losses from the training pass, in training mode. Here they
    are computed after the step, in evaluation mode, for the batch and the samples that were replayed with it: any
    method can then fill the memory, at the cost of as many forward passes without a gradient. The reservoir draws among
    all samples seen, the new one included. The same code combines the losses with the sizes of the classes; this is
    their rule without the balance, as in `LARSSampling` of `aimagelab/mammoth`.

    An update that replaces samples waits for the device once: the host draws the slots by the losses.

    Args:
        size, image_shape, device, seed: see `Buffer`.
    """

    _replayed: tuple[int, ...] = ()  # slots drawn since the last update

    def drawn_slots(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> np.ndarray:
        slots = super().drawn_slots(n, exclude_task, draw)
        self._replayed = (*self._replayed, *slots.tolist())
        return slots

    def update(self, model: Network, batch: Batch) -> None:
        self._measure(model, batch)
        rest = np.arange(self.store(batch), len(batch))
        enters = self.draw.random(len(rest)) * (self.n_seen + rest + 1) < self.size
        if enters.any():
            self._replace(batch, rest[enters])
        self.n_seen += len(batch)

    def _measure(self, model: Network, batch: Batch) -> None:
        """Compute the losses of the batch and of the samples that were replayed with it."""
        slots = torch.tensor(list(dict.fromkeys(self._replayed)), dtype=torch.int64).to(self.device, non_blocking=True)
        labels = torch.from_numpy(self.labels).to(self.device, non_blocking=True)[slots]
        losses = losses_of(model, torch.cat([batch.images, self.images_at(slots)]), torch.cat([batch.labels, labels]))
        batch.values["loss"] = losses[: len(batch)]
        if len(slots):
            self.values["loss"][slots] = losses[len(batch) :]
        self._replayed = ()

    def _replace(self, batch: Batch, entering: np.ndarray) -> None:
        stored, new = (of["loss"].double().cpu().numpy() for of in (self.values, batch.values))
        slots = []
        for i in entering:
            slots.append(self.draw.choice(self.size, p=leaving_probabilities(stored)))
            stored[slots[-1]] = new[i]
        self.replace(slots, batch, entering)


def leaving_probabilities(losses_S: np.ndarray) -> np.ndarray:
    """The probability of each slot to be replaced: in proportion to the distance of its loss from the largest.

    Args:
        losses_S: loss of each slot; where one is not finite, or all are equal, all slots are equally likely.

    Returns:
        (S,), sum 1; 0 for the slot with the largest loss.
    """
    with np.errstate(invalid="ignore"):
        below_S = losses_S.max() - losses_S
    total = below_S.sum()
    return below_S / total if np.isfinite(total) and total > 0 else np.full(len(losses_S), 1 / len(losses_S))
