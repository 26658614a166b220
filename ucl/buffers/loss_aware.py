"""Loss-aware reservoir sampling: samples with a low loss leave first."""

from __future__ import annotations

import numpy as np
import torch

from ucl.buffers.buffer import Buffer
from ucl.models import Network
from ucl.models.passes import losses_of
from ucl.streams import Batch


class LossAwareBuffer(Buffer):
    """Loss-aware reservoir sampling, LARS (Buzzega et al., 2021).

    Reservoir sampling decides whether a sample enters a full memory. The slot that it gets is drawn by the stored
    losses, the lower the more likely, see `leaving_probabilities`. `values["loss"]` has for each slot the loss of its
    image from the last time that it came or was drawn for replay. MIR draws more samples than it replays: all count.

    The authors' code (`hastings24/rethinking_er`) takes the losses from the training pass, in training mode. Here they
    are computed after the step, in evaluation mode, for the batch and the samples that were drawn for it. Any
    method can then fill the memory, at the cost of one forward pass without a gradient for each of these images. The
    reservoir draws among all samples seen, including the new one. The authors' code also combines the losses with the
    sizes of the classes; this is the rule without that balance, as in `LARSSampling` of `aimagelab/mammoth`. The
    authors replay the whole memory, as `Config.replay` "all" does. With "earlier", the default with clear boundaries,
    images of the current task are not drawn, so their losses stay those of their arrival until the task ends.

    An update that replaces samples waits for the device, because the host draws the slots by the losses.
    """

    _replayed: tuple[int, ...] = ()  # slots that were drawn for the batch; empty after its update

    def drawn_slots(self, n: int, exclude_task: int | None, draw: np.random.Generator) -> np.ndarray:
        slots = super().drawn_slots(n, exclude_task, draw)
        self._replayed = (*self._replayed, *slots.tolist())
        return slots

    def update(self, model: Network, batch: Batch) -> None:
        self._measure(model, batch)
        rest = np.arange(self.store(batch), len(batch))
        enters = self.draw.random(len(rest)) * (self.n_seen + rest + 1) < self.size
        if enters.any():
            stored, new = (values["loss"].double().cpu().numpy() for values in (self.values, batch.values))
            slots = []
            for i in rest[enters]:
                slots.append(self.draw.choice(self.size, p=leaving_probabilities(stored)))
                stored[slots[-1]] = new[i]
            self.replace(slots, batch, rest[enters])
        self.n_seen += len(batch)

    def _measure(self, model: Network, batch: Batch) -> None:
        """Compute and store the losses of the batch and of the samples that were replayed with it."""
        slots = np.array(list(dict.fromkeys(self._replayed)), dtype=np.int64)
        images, labels = self.samples_at(slots)
        losses = losses_of(model, torch.cat([batch.images, images]), torch.cat([batch.labels, labels]))
        batch.values["loss"] = losses[: len(batch)]
        if len(slots):
            self.values["loss"][self._on_device(slots)] = losses[len(batch) :]
        self._replayed = ()


def leaving_probabilities(losses_S: np.ndarray) -> np.ndarray:
    """The probability (S,) of each slot to be replaced: proportional to how far its loss is below the largest one.

    If a loss is not finite, or all are equal, all slots are equally likely.
    """
    with np.errstate(invalid="ignore"):
        below_S = losses_S.max() - losses_S
    total = below_S.sum()
    return below_S / total if np.isfinite(total) and total > 0 else np.full(len(losses_S), 1 / len(losses_S))
