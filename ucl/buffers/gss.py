"""Greedy gradient-based sample selection: the memory keeps samples with gradients in different directions."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.buffer import Buffer
from ucl.models import Network
from ucl.models.network import in_mode
from ucl.streams import Batch

N_REFERENCES, REFERENCE_SIZE = 10, 10  # number of memory batches for reference gradients, and samples in each
_FIRST_SIMILARITY = 0.1  # similarity of the first samples, when the memory is empty


class GSSGreedyBuffer(Buffer):
    """GSS-greedy (Aljundi et al., 2019, algorithm 2).

    `values["similarity"]` has for each slot the largest cosine of its sample's gradient with the gradients of ten
    memory batches of ten samples, at the time when the sample came. A full memory takes samples of a batch only if the
    largest cosine of the batch's gradient is negative. For each of these samples a slot is drawn in proportion to the
    slot's similarity, see `slot_weights`. The sample replaces the slot's sample with probability
    s_slot / (s_slot + s_sample), where s = (similarity + 1) / 2. The samples of the batch that fills the memory do not
    compete; of a batch that is larger than the memory, only the first `size` samples do.

    Gradients are those of all weights, in evaluation mode; computing them changes neither weights nor statistics. The
    paper draws slots in proportion to the cosine plus one. Here similarities are first scaled to [0, 1), as in the
    authors' code (`rahafaljundi/Gradient-based-Sample-Selection`), on which the published numbers are based. The
    authors replay the whole memory, as `Config.replay` "all" does. With "earlier", the default with clear boundaries,
    images of the current task are not drawn.

    A batch costs up to 10 gradients of memory batches. While the memory fills, it also costs one per sample; the first
    batch costs none at all. With a full memory it also costs one of the whole batch and, when samples compete, one per
    sample. An update of a full memory waits for the device, because a gradient decides whether samples compete.
    """

    def update(self, model: Network, batch: Batch) -> None:
        self.n_seen += len(batch)
        if self.n_stored == self.size:
            self._compete(model, batch)
            return
        similarity_B = torch.full((len(batch),), _FIRST_SIMILARITY, device=self.device)
        if self.n_stored:
            similarity_B = _similarities(model, batch, self._references(model))
        batch.values["similarity"] = similarity_B
        self.store(batch)

    def _compete(self, model: Network, batch: Batch) -> None:
        references_KP = self._references(model)
        if not _similarity(model, batch.images, batch.labels, references_KP) < 0:
            return
        batch.values["similarity"] = _similarities(model, batch, references_KP)
        stored_S, new_B = (values["similarity"].double().cpu().numpy() for values in (self.values, batch.values))
        slots = drawn_by_weight(slot_weights(stored_S), min(len(batch), self.size), self.draw)
        slot_shares, new_shares = (stored_S[slots] + 1) / 2, (new_B[: len(slots)] + 1) / 2
        is_replaced = self.draw.random(len(slots)) * (slot_shares + new_shares) < slot_shares
        self.replace(slots[is_replaced], batch, np.flatnonzero(is_replaced))

    def _references(self, model: Network) -> Tensor:
        """The gradients (K, P) of up to ten disjoint memory batches of ten samples."""
        size = min(REFERENCE_SIZE, self.n_stored)
        n_references = min(N_REFERENCES, self.n_stored // size)
        images, labels = self.samples_at(self.draw.permutation(self.n_stored)[: n_references * size])
        batches = zip(images.split(size), labels.split(size), strict=True)
        return torch.stack([evaluation_gradient(model, *batch) for batch in batches])


def evaluation_gradient(model: Network, images: Tensor, labels: Tensor) -> Tensor:
    """Gradient (P,) of the mean cross-entropy for all P weights, in evaluation mode; the network does not change."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with in_mode(model, training=False), torch.enable_grad():
        loss = F.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def slot_weights(similarities_S: np.ndarray) -> np.ndarray:
    """Similarities (S,) scaled to [0, 1): 0 for the smallest one, and for all of them if they are equal."""
    low, high = similarities_S.min(), similarities_S.max()
    return (similarities_S - low) / (high - low + 0.01)


def drawn_by_weight(weights_S: np.ndarray, n: int, draw: np.random.Generator) -> np.ndarray:
    """Draw n different indices, one after another, in proportion to the weights; those of weight 0 come last."""
    drawable = np.flatnonzero(weights_S > 0)
    first = min(n, len(drawable))
    drawn = np.zeros(0, dtype=np.int64)
    if first:
        shares = weights_S[drawable] / weights_S[drawable].sum()
        drawn = draw.choice(drawable, first, replace=False, p=shares)
    return np.concatenate([drawn, draw.choice(np.flatnonzero(weights_S <= 0), n - first, replace=False)])


def _similarities(model: Network, batch: Batch, references_KP: Tensor) -> Tensor:
    samples = zip(batch.images.split(1), batch.labels.split(1), strict=True)
    return torch.stack([_similarity(model, *sample, references_KP) for sample in samples])


def _similarity(model: Network, images: Tensor, labels: Tensor, references_KP: Tensor) -> Tensor:
    """The largest cosine of the gradient of images with the references: a tensor without dimensions, in [-1, 1]."""
    gradient_P = evaluation_gradient(model, images, labels)
    return F.cosine_similarity(references_KP, gradient_P[None], dim=1).max()
