"""Forward passes that nothing is learnt from, of any network and in either mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models.folded import FoldedNetwork, chunk_size, drop_, images_at_once
from ucl.models.slim_resnet import SlimResNet18

_AT_ONCE_ON_CPU, _AT_ONCE_ON_GPU = 256, 4096  # images of 32 pixels a side in one convolution


def in_evaluation_mode(
    model: SlimResNet18, dtype: torch.dtype = torch.float32, dropout: bool = False
) -> FoldedNetwork | PlainNetwork:
    """A copy of a network in evaluation mode, its convolutions in `dtype`: folded where it has running statistics.

    Args:
        model: the network to copy.
        dtype: arithmetic of all but the head, which is float32 always.
        dropout: whether dropout stays active.
    """
    return (FoldedNetwork if model.has_running_statistics else PlainNetwork)(model, dtype, dropout)


class PlainNetwork:
    """A copy of a network in evaluation mode, layer by layer as it is; see `in_evaluation_mode`."""

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32, dropout: bool = False) -> None:
        self.dtype, self.normalize = dtype, model.normalize
        self.rate = model.dropout_rate if dropout else 0.0
        self._copy = copy.deepcopy(model).to(dtype).eval()
        self._copy.linear.float()
        for module in self._copy.modules():
            if isinstance(module, nn.Dropout):
                module.train(dropout)

    @torch.no_grad()
    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C), float32, of normalised images; any number of them, computed chunk after chunk."""
        parts = x_NCHW.to(self.dtype).split(chunk_size(x_NCHW, self.rate))
        return torch.cat([self._copy.linear(self._copy.dropout(self._copy.features(x).float())) for x in parts])


@dataclass
class _Layer:
    """A convolution and the BatchNorm after it: copies of their weights, and the running statistics themselves."""

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
    """A `SlimResNet18` in training mode, for passes that nothing is learnt from: several at once, without a gradient.

    Each pass normalises by the mean and variance of its own images, layer by layer, and moves the running statistics
    of the network that it was made of as `torch.nn.BatchNorm2d` does. The weights are copied as they are now.

    Args:
        model: the network; its weights and its mode stay as they are.
        dtype: arithmetic of the convolutions; statistics, normalisation and the head are computed in float32 always.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.rate = dtype, model.dropout_rate
        self._at_once = _AT_ONCE_ON_CPU if model.mean.device.type == "cpu" else _AT_ONCE_ON_GPU
        layers = self._layers(model)
        self._stem = next(layers)
        self._blocks = [
            (next(layers), next(layers), next(layers) if len(block.shortcut) else None)  # type: ignore[arg-type]
            for block in model.blocks
        ]
        self._head = (model.linear.weight.clone(), model.linear.bias.clone())

    def _layers(self, model: SlimResNet18) -> Iterator[_Layer]:
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]  # each after its own
        for conv, norm in zip(convolutions, norms, strict=True):
            kernel = conv.weight.to(self.dtype, copy=True, memory_format=torch.channels_last)
            assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
            statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
            yield _Layer(kernel, conv.stride, conv.padding, norm.weight.clone(), norm.bias.clone(), *statistics)

    @torch.no_grad()
    def logits(self, x_PNCHW: Tensor) -> Tensor:
        """Logits (P, N, C), float32, of P passes, one after another, over N normalised images each.

        As many passes share the convolutions as fill the caches: that changes no result but by rounding.
        """
        at_once = max(1, images_at_once(self._at_once, x_PNCHW.shape[-1]) // x_PNCHW.shape[1])
        return torch.cat([self._passes(part) for part in x_PNCHW.split(at_once)])

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
    """Normalise each pass by its own images, in place; the running statistics move pass after pass.

    Columns and channels count as one dimension here, R: sums over so many values side by side are fast, and threads
    that share the rows do not write to one cache line. A channel's statistics are put together from its columns'.
    """
    channels, width = x_NCHW.shape[1], x_NCHW.shape[3]
    x_PMR = x_NCHW.permute(0, 2, 3, 1).view(n_passes, -1, width * channels)
    a_R, b_R = torch.zeros(2, width * channels, device=x_NCHW.device)  # ignored; float32, so that the statistics are
    of_columns = [torch.batch_norm_update_stats(x_MR, a_R, b_R, 0.0) for x_MR in x_PMR]
    mean_PWC, var_PWC = (torch.stack(of).unflatten(1, (width, channels)) for of in zip(*of_columns, strict=True))
    mean_P1C = mean_PWC.mean(1, keepdim=True)
    var_P1C = var_PWC.add_((mean_PWC - mean_P1C).square_()).mean(1, keepdim=True)
    n = x_NCHW.numel() // (n_passes * channels)
    _move(layer.running_mean_C, mean_P1C.squeeze(1), layer.momentum)
    _move(layer.running_var_C, var_P1C.squeeze(1) * (n / (n - 1)), layer.momentum)
    weight_R, bias_R = layer.weight_C.repeat(width), layer.bias_C.repeat(width)
    mean_PR, var_PR = (of_P1C.expand_as(mean_PWC).flatten(1) for of_P1C in (mean_P1C, var_P1C))
    for x_MR, mean_R, var_R in zip(x_PMR, mean_PR, var_PR, strict=True):
        torch.native_batch_norm(x_MR, weight_R, bias_R, mean_R, var_R, False, 0.0, layer.eps, out=(x_MR, a_R, b_R))
    return x_NCHW


def _move(running_C: Tensor, of_pass_PC: Tensor, momentum: float) -> None:
    """What P passes one after another do to a running statistic: r <- (1 - momentum) r + momentum s, P times."""
    left_P = (1 - momentum) ** torch.arange(len(of_pass_PC) - 1, -1, -1, device=running_C.device)
    running_C.mul_((1 - momentum) ** len(of_pass_PC)).add_(left_P @ of_pass_PC, alpha=momentum)
