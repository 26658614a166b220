"""Forward passes without a gradient, in evaluation mode and in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.models.folded import FoldedNetwork, chunk_size, convolutions_and_norms, drop_, images_at_once, in_blocks
from ucl.models.network import Network, in_mode
from ucl.models.slim_resnet import SlimResNet18

_CHUNK_ON_CPU, _CHUNK_ON_GPU = 256, 4096  # images of 32 x 32 pixels per convolution


def in_evaluation_mode(
    model: Network, dtype: torch.dtype = torch.float32, dropout: bool = False
) -> FoldedNetwork | PlainPasses:
    """The passes of a network in evaluation mode; BatchNorm is folded in a `SlimResNet18` with running statistics.

    Args:
        model: the network, which does not change. Use the result before the next update of it.
        dtype: arithmetic of all layers except the head, which is always float32; in any other network, that of the
            layers which torch.autocast selects.
        dropout: whether dropout stays active.
    """
    if isinstance(model, SlimResNet18) and model.has_running_statistics:
        return FoldedNetwork(model, dtype, dropout)
    return PlainPasses(model, dtype, dropout)


def in_training_mode(model: Network, dtype: torch.dtype = torch.float32) -> TrainingModeNetwork | PlainTrainingPasses:
    """The passes of a network in training mode, without a gradient; they update its running statistics.

    Args:
        model, dtype: see `in_evaluation_mode`; weights and mode of the network do not change.
    """
    if isinstance(model, SlimResNet18) and model.has_running_statistics:
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


class PlainPasses:
    """A network itself in evaluation mode, with unchanged layers; see `in_evaluation_mode`."""

    def __init__(self, model: Network, dtype: torch.dtype = torch.float32, dropout: bool = False) -> None:
        self.normalize, self._model, self._dtype, self._dropout = model.normalize, model, dtype, dropout
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

    def __init__(self, model: Network, dtype: torch.dtype = torch.float32) -> None:
        self._model, self._dtype = model, dtype

    @torch.no_grad()
    def logits(self, x_PNCHW: Tensor) -> Tensor:
        """Logits (P, N, C), float32, of P successive passes over N normalised images each."""
        with in_mode(self._model, training=True), _autocast(x_PNCHW, self._dtype):
            return torch.stack([self._model.logits(x_NCHW.float()).float() for x_NCHW in x_PNCHW])


def _autocast(x: Tensor, dtype: torch.dtype) -> torch.autocast:
    torch.clear_autocast_cache()  # Only the end of an outermost autocast does so, and the cache has old weights.
    return torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=True)


@dataclass
class _Layer:
    """A convolution and the BatchNorm after it: copies of the weights, and the running statistics themselves."""

    kernel: Tensor
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    weight_C: Tensor
    bias_C: Tensor
    running_mean_C: Tensor
    running_var_C: Tensor
    momentum: float
    eps: float


class TrainingModeNetwork:
    """A `SlimResNet18` with BatchNorm in training mode, for forward passes without a gradient, several at once.

    Each pass normalises by the mean and variance of its images, layer by layer, and updates the running statistics
    of the original network as `torch.nn.BatchNorm2d` does. The weights are a copy of the current ones.

    Args:
        model: the network; its weights and its mode do not change.
        dtype: arithmetic of the convolutions; statistics, normalisation and the head are always computed in float32.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.rate = dtype, model.dropout_rate
        self._chunk = _CHUNK_ON_CPU if model.mean.device.type == "cpu" else _CHUNK_ON_GPU
        self._stem, self._blocks = in_blocks(model, self._layers(model))
        self._head = (model.linear.weight.clone(), model.linear.bias.clone())

    def _layers(self, model: SlimResNet18) -> Iterator[_Layer]:
        for conv, norm in zip(*convolutions_and_norms(model), strict=True):
            kernel = conv.weight.to(self.dtype, copy=True, memory_format=torch.channels_last)
            assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
            statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
            yield _Layer(kernel, conv.stride, conv.padding, norm.weight.clone(), norm.bias.clone(), *statistics)

    @torch.no_grad()
    def logits(self, x_PNCHW: Tensor) -> Tensor:
        """Logits (P, N, C), float32, of P successive passes over N normalised images each.

        Several passes share a convolution, as many as use the caches best. This changes results only by rounding.
        """
        n_passes = max(1, images_at_once(self._chunk, x_PNCHW.shape[-1]) // x_PNCHW.shape[1])
        return torch.cat([self._passes(part) for part in x_PNCHW.split(n_passes)])

    def _passes(self, x_PNCHW: Tensor) -> Tensor:
        n_passes = len(x_PNCHW)
        x_NCHW = x_PNCHW.flatten(0, 1).to(self.dtype, memory_format=torch.channels_last)
        out_NCHW = _convolve(x_NCHW, self._stem, n_passes).relu_()
        for first, second, shortcut in self._blocks:
            inner_NCHW = _convolve(out_NCHW, first, n_passes).relu_()
            if self.rate:
                drop_(inner_NCHW, self.rate)
            inner_NCHW = _convolve(inner_NCHW, second, n_passes)
            if shortcut is not None:
                out_NCHW = _convolve(out_NCHW, shortcut, n_passes)
            out_NCHW = inner_NCHW.add_(out_NCHW).relu_()
        features_NF = F.avg_pool2d(out_NCHW, 4).flatten(1).float()
        logits_NC = F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self._head)
        return logits_NC.unflatten(0, (n_passes, -1))


def _convolve(x_NCHW: Tensor, layer: _Layer, n_passes: int) -> Tensor:
    out_NCHW = F.conv2d(x_NCHW, layer.kernel, None, layer.stride, layer.padding)
    return _normalize_(out_NCHW.contiguous(memory_format=torch.channels_last), layer, n_passes)


def _normalize_(x_NCHW: Tensor, layer: _Layer, n_passes: int) -> Tensor:
    """Normalise each pass by its images, in place, and update the running statistics pass by pass.

    Columns and channels form one dimension R here. Sums over R adjacent values are fast, and threads that share the
    rows do not write to the same cache line. The statistics of a channel are combined from those of its columns.
    """
    channels, width = x_NCHW.shape[1], x_NCHW.shape[3]
    x_PMR = x_NCHW.permute(0, 2, 3, 1).view(n_passes, -1, width * channels)
    # The operation ignores these operands, but their dtype makes the statistics float32.
    a_R, b_R = torch.zeros(2, width * channels, device=x_NCHW.device)
    columns = [torch.batch_norm_update_stats(x_MR, a_R, b_R, 0.0) for x_MR in x_PMR]
    mean_PWC, var_PWC = (torch.stack(x).unflatten(1, (width, channels)) for x in zip(*columns, strict=True))
    mean_P1C = mean_PWC.mean(1, keepdim=True)
    var_P1C = var_PWC.add_((mean_PWC - mean_P1C).square_()).mean(1, keepdim=True)
    n = x_NCHW.numel() // (n_passes * channels)
    _move(layer.running_mean_C, mean_P1C.squeeze(1), layer.momentum)
    _move(layer.running_var_C, var_P1C.squeeze(1) * (n / (n - 1)), layer.momentum)
    weight_R, bias_R = layer.weight_C.repeat(width), layer.bias_C.repeat(width)
    mean_PR, var_PR = (x_P1C.expand_as(mean_PWC).flatten(1) for x_P1C in (mean_P1C, var_P1C))
    for x_MR, mean_R, var_R in zip(x_PMR, mean_PR, var_PR, strict=True):
        torch.native_batch_norm(x_MR, weight_R, bias_R, mean_R, var_R, False, 0.0, layer.eps, out=(x_MR, a_R, b_R))
    return x_NCHW


def _move(running_C: Tensor, passes_PC: Tensor, momentum: float) -> None:
    """Update a running statistic as P successive passes do: r <- (1 - momentum) r + momentum s, P times."""
    left_P = (1 - momentum) ** torch.arange(len(passes_PC) - 1, -1, -1, device=running_C.device)
    running_C.mul_((1 - momentum) ** len(passes_PC)).add_(left_P @ passes_PC, alpha=momentum)
