"""Forward passes without a gradient: the choice of a pass, and the passes of networks without fast ones.

| network | evaluation mode | training mode |
|---|---|---|
| `SlimResNet18` with `ucl.models.batchnorm.BatchNorm2d` | `FoldedNetwork` | `TrainingModeNetwork` |
| any other, also a subclass, or with a layer of another class | `PlainPasses` | `PlainTrainingPasses` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models.batchnorm import BatchNorm2d
from ucl.models.convolution import Conv2d, contiguous_input
from ucl.models.folded import FoldedNetwork, chunk_size
from ucl.models.network import Network, in_mode
from ucl.models.slim_resnet import BasicBlock, SlimResNet18
from ucl.models.training_mode import TrainingModeNetwork

_LAYERS = (BasicBlock, Conv2d, BatchNorm2d, nn.Dropout, nn.Linear, nn.Sequential)  # of the fast passes


def in_evaluation_mode(
    model: Network, dtype: torch.dtype = torch.float32, dropout: bool = False
) -> FoldedNetwork | PlainPasses:
    """The passes of a network in evaluation mode.

    Args:
        model: the network, which does not change. Use the result before the next update of it.
        dtype: arithmetic of all layers except the head, which is always float32; in a network without fast passes, that
            of the layers which torch.autocast selects.
        dropout: whether dropout stays active.
    """
    if _has_fast_passes(model):
        return FoldedNetwork(model, dtype, dropout)
    return PlainPasses(model, dtype, dropout)


def in_training_mode(model: Network, dtype: torch.dtype = torch.float32) -> TrainingModeNetwork | PlainTrainingPasses:
    """The passes of a network in training mode, which update its running statistics; see `in_evaluation_mode`."""
    if _has_fast_passes(model):
        return TrainingModeNetwork(model, dtype)
    return PlainTrainingPasses(model, dtype)


def logits_of(model: Network, images_NCHW: Tensor) -> Tensor:
    """Logits (N, C), float32, of images, uint8 or float in [0, 1]: in evaluation mode, without a gradient."""
    return in_evaluation_mode(model).logits(model.normalize(images_NCHW))


def losses_of(model: Network, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
    """Cross-entropy (N,), in nats, of images with their labels; see `logits_of`."""
    return F.cross_entropy(logits_of(model, images_NCHW), labels_N, reduction="none")


def features_of(model: Network, images_NCHW: Tensor) -> Tensor:
    """Features (N, F), float32, of images, the input of the last linear layer; see `logits_of`.

    Raises:
        InputError: a user's network has no such layer.
    """
    return in_evaluation_mode(model).features_and_logits(model.normalize(images_NCHW))[0]


def _has_fast_passes(model: Network) -> TypeGuard[SlimResNet18]:
    """Whether the fast passes compute what the network does: a subclass, another layer or a hook may change that."""
    if type(model) is not SlimResNet18 or type(model.linear) is not nn.Linear or model.linear.bias is None:
        return False
    _, *layers = model.modules()
    hooks = {hook for layer in layers for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values())}
    return hooks <= {contiguous_input} and all(type(layer) in _LAYERS for layer in layers)


class PlainPasses:
    """A network itself in evaluation mode, with unchanged layers; see `in_evaluation_mode`."""

    def __init__(self, model: Network, dtype: torch.dtype, dropout: bool) -> None:
        self._model, self._dtype, self._dropout = model, dtype, dropout
        self.rate = model.dropout_rate if dropout else 0.0

    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C), float32, of any number of normalised images, computed chunk by chunk."""
        return self._by_chunks(lambda x: (self._model.logits(x),), x_NCHW)[0]

    def features_and_logits(self, x_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Features (N, F) and logits (N, C), float32, of any number of normalised images, by one pass."""
        return self._by_chunks(self._model.features_and_logits, x_NCHW)

    @torch.no_grad()
    def _by_chunks(self, function: Callable[[Tensor], tuple[Tensor, ...]], x_NCHW: Tensor) -> tuple[Tensor, ...]:
        with in_mode(self._model, training=False, dropout=self._dropout), _autocast(x_NCHW, self._dtype):
            chunks = [function(x) for x in x_NCHW.split(chunk_size(x_NCHW, self.rate))]
        return tuple(torch.cat([part.float() for part in parts]) for parts in zip(*chunks, strict=True))


class PlainTrainingPasses:
    """A network itself in training mode, with unchanged layers; see `in_training_mode`."""

    joins_classes = False

    def __init__(self, model: Network, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype

    @torch.no_grad()
    def logits(self, x_PNCHW: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """See `TrainingModeNetwork.logits`."""
        with in_mode(self._model, training=True), _autocast(x_PNCHW, self._dtype):
            logits_of_classes = [
                torch.stack([self._model.logits(x_NCHW.float()).float() for x_NCHW in part_PNCHW])
                for part_PNCHW in x_PNCHW.split(list(sizes) or x_PNCHW.shape[1], 1)
            ]
        return torch.cat(logits_of_classes, 1)


def _autocast(x: Tensor, dtype: torch.dtype) -> torch.autocast:
    torch.clear_autocast_cache()  # Only the end of an outermost autocast does so, and the cache has old weights.
    return torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=True)
