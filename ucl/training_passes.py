"""Forward passes in training mode, where nothing is learnt from them: batch statistics, and the running ones move."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models import SlimResNet18, drop_, images_at_once

_AT_ONCE = {"cpu": 256, "cuda": 4096}  # images of 32 pixels a side in one convolution


class TrainingModeNetwork:
    """A `SlimResNet18` in training mode, for passes without a gradient: a third of the time or less, several at once.

    Each pass normalises by the mean and variance of its own images, layer by layer, and moves the running statistics
    of the network it was made of as `torch.nn.BatchNorm2d` does; the weights are copied as they are now.

    Args:
        model: the network; its weights and its mode stay as they are.
        dtype: arithmetic of the convolutions; statistics, normalisation and the head are computed in float32 always.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.rate = dtype, model.dropout_rate
        self.normalize = model.normalize
        self._at_once = _AT_ONCE["cpu" if model.mean.device.type == "cpu" else "cuda"]
        self._weights = {
            conv: conv.weight.to(dtype, copy=True, memory_format=torch.channels_last)
            for conv in model.modules()
            if isinstance(conv, nn.Conv2d)
        }
        self._model = model
        self._head = (model.linear.weight.clone(), model.linear.bias.clone())

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
        out_NCHW = self._convolve(x_NCHW, self._model.conv1, self._model.bn1, n_passes).relu_()
        for block in self._model.blocks:
            inner_NCHW = self._convolve(out_NCHW, block.conv1, block.bn1, n_passes).relu_()
            if self.rate:
                drop_(inner_NCHW, self.rate)
            inner_NCHW = self._convolve(inner_NCHW, block.conv2, block.bn2, n_passes)
            if len(block.shortcut):
                out_NCHW = self._convolve(out_NCHW, *block.shortcut, n_passes)
            out_NCHW = inner_NCHW.add_(out_NCHW).relu_()
        features_NF = F.avg_pool2d(out_NCHW, 4).flatten(1).float()
        logits_NC = F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self._head)
        return logits_NC.unflatten(0, (n_passes, -1))

    def _convolve(self, x_NCHW: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, n_passes: int) -> Tensor:
        out_NCHW = F.conv2d(x_NCHW, self._weights[conv], None, conv.stride, conv.padding)
        return _normalize_(out_NCHW.contiguous(memory_format=torch.channels_last), norm, n_passes)


def _normalize_(x_NCHW: Tensor, norm: nn.BatchNorm2d, n_passes: int) -> Tensor:
    """Normalise each pass by its own images, in place; the running statistics move pass after pass.

    Columns and channels count as one dimension here, R: sums over so many values side by side are fast, and threads
    that share the rows do not write to one cache line. A channel's statistics are put together from its columns'.
    """
    channels, width = x_NCHW.shape[1], x_NCHW.shape[3]
    x_PMR = x_NCHW.permute(0, 2, 3, 1).view(n_passes, -1, width * channels)
    ignored_R = torch.zeros(2, width * channels, device=x_NCHW.device)  # float32, and so are the statistics then
    of_columns = [torch.batch_norm_update_stats(x_MR, *ignored_R, momentum=0.0) for x_MR in x_PMR]
    mean_PWC, var_PWC = (torch.stack(of).unflatten(1, (width, channels)) for of in zip(*of_columns, strict=True))
    mean_P1C = mean_PWC.mean(1, keepdim=True)
    var_P1C = var_PWC.add_((mean_PWC - mean_P1C).square_()).mean(1, keepdim=True)
    n = x_NCHW.numel() // (n_passes * channels)
    _move(norm.running_mean, mean_P1C.squeeze(1), norm.momentum)
    _move(norm.running_var, var_P1C.squeeze(1) * (n / (n - 1)), norm.momentum)
    weight_R, bias_R = norm.weight.repeat(width), norm.bias.repeat(width)
    mean_PR, var_PR = (of_P1C.expand_as(mean_PWC).flatten(1) for of_P1C in (mean_P1C, var_P1C))
    for x_MR, mean_R, var_R in zip(x_PMR, mean_PR, var_PR, strict=True):
        torch.native_batch_norm(
            x_MR, weight_R, bias_R, mean_R, var_R, False, 0.0, norm.eps, out=(x_MR, *ignored_R.new_empty(2, 0))
        )
    return x_NCHW


def _move(running_C: Tensor, of_pass_PC: Tensor, momentum: float) -> None:
    """What P passes one after another do to a running statistic: r <- (1 - momentum) r + momentum s, P times."""
    left_P = (1 - momentum) ** torch.arange(len(of_pass_PC) - 1, -1, -1, device=running_C.device)
    running_C.mul_((1 - momentum) ** len(of_pass_PC)).add_(left_P @ of_pass_PC, alpha=momentum)
