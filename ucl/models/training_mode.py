"""Passes of the slim ResNet-18 in training mode without a gradient, several at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ucl.models.folded import FastPasses, Layer, Normalization, filled, images_at_once
from ucl.models.network import norms_of
from ucl.models.slim_resnet import SlimResNet18

_CHUNK_ON_CPU, _CHUNK_ON_GPU = 256, 12 * 1024  # images of 32 x 32 pixels per convolution


class TrainingModeNetwork(FastPasses):
    """Passes with BatchNorm in training mode.

    Each pass normalises by the mean and variance of its images, layer by layer, and updates the running statistics
    of the original network as `torch.nn.BatchNorm2d` does. Statistics and normalisation are computed in float32.

    Attributes:
        joins_classes: whether the passes of all classes share the operations, as a GPU needs; a CPU computes few passes
            of one class at a time, which fit into its caches.
    """

    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model, dtype, model.dropout_rate)
        self._norms = norms_of(model)
        self.joins_classes = not self.on_cpu

    def _layers(self, convolutions: list[nn.Conv2d], norms: list[Any]) -> Iterator[Layer]:
        for conv, norm in zip(convolutions, norms, strict=True):
            kernel = filled(conv.weight, self._multiple, 0, 1)
            kernel = kernel.to(self.dtype, copy=True, memory_format=torch.channels_last)
            weight_C, bias_C = (filled(values.clone(), self._multiple, 0) for values in (norm.weight, norm.bias))
            yield Layer(kernel, weight_C, bias_C, conv, norm)

    @torch.no_grad()
    def logits(self, x_PNCHW: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """Logits (P, N, C), float32, of P successive passes over the normalised images of each class.

        Several passes share a convolution, as many as suit the device. This changes results only by rounding.

        Args:
            x_PNCHW: images of all classes, those of a class one after another.
            sizes: number of images per class, at least 1; the P passes of a class come after those of the classes
                before it. By default all images are of one class.
        """
        sizes = list(sizes) or [x_PNCHW.shape[1]]
        n_images = images_at_once(_CHUNK_ON_CPU if self.on_cpu else _CHUNK_ON_GPU, x_PNCHW.shape[-1])
        if self.joins_classes:
            return self._of_joined_classes(x_PNCHW, sizes, max(1, n_images // x_PNCHW.shape[1]))
        logits_of_classes = []
        for class_PNCHW in x_PNCHW.split(sizes, 1):
            parts = class_PNCHW.split(max(1, n_images // class_PNCHW.shape[1]))
            logits = [self._passes(part, partial(_normalize_, n_passes=len(part))) for part in parts]
            logits_of_classes.append(torch.cat(logits))
        return torch.cat(logits_of_classes, 1)

    def _of_joined_classes(self, x_PNCHW: Tensor, sizes: list[int], n_passes: int) -> Tensor:
        """Logits of all classes, `n_passes` passes of each at a time; the host does not wait for the device."""
        device, n_classes, n_moves = x_PNCHW.device, len(sizes), len(x_PNCHW) * len(sizes)
        sizes_K = torch.tensor(sizes).to(device, non_blocking=True)
        class_N = torch.repeat_interleave(sizes_K, output_size=x_PNCHW.shape[1])
        average_KN = (class_N == torch.arange(n_classes, device=device)[:, None]) / sizes_K[:, None]
        later_PK = torch.arange(n_moves - 1, -1, -1, dtype=torch.float64, device=device).view(n_classes, -1).T
        for norm in self._norms:  # Each pass then adds its share.
            norm.running_mean.mul_((1 - norm.momentum) ** n_moves)
            norm.running_var.mul_((1 - norm.momentum) ** n_moves)
        classes = partial(_normalize_classes_, sizes_K=sizes_K, class_N=class_N, average_KN=average_KN)
        parts = zip(x_PNCHW.split(n_passes), later_PK.split(n_passes), strict=True)
        return torch.cat([self._passes(part_PNCHW, partial(classes, later_PK=later)) for part_PNCHW, later in parts])

    def _passes(self, x_PNCHW: Tensor, normalize_: Normalization) -> Tensor:
        return self._head(self._features(x_PNCHW.flatten(0, 1), normalize_)).unflatten(0, (len(x_PNCHW), -1))


def _normalize_(x_NCHW: Tensor, layer: Layer, n_passes: int) -> Tensor:
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
    norm, n = layer.norm, x_NCHW.numel() // (n_passes * channels)
    _move(norm.running_mean, mean_P1C.squeeze(1), norm.momentum)
    _move(norm.running_var, var_P1C.squeeze(1) * (n / (n - 1)), norm.momentum)
    weight_R, bias_R = layer.weight_C.repeat(width), layer.bias_C.repeat(width)
    mean_PR, var_PR = (x_P1C.expand_as(mean_PWC).flatten(1) for x_P1C in (mean_P1C, var_P1C))
    for x_MR, mean_R, var_R in zip(x_PMR, mean_PR, var_PR, strict=True):
        torch.native_batch_norm(x_MR, weight_R, bias_R, mean_R, var_R, False, 0.0, norm.eps, out=(x_MR, a_R, b_R))
    return x_NCHW


def _move(running_C: Tensor, passes_PC: Tensor, momentum: float) -> None:
    """Update a running statistic as P successive passes do: r <- (1 - momentum) r + momentum s, P times."""
    left_P = (1 - momentum) ** torch.arange(len(passes_PC) - 1, -1, -1, device=running_C.device)
    running_C.mul_((1 - momentum) ** len(passes_PC)).add_(left_P @ passes_PC, alpha=momentum)


def _normalize_classes_(
    x_NCHW: Tensor, layer: Layer, sizes_K: Tensor, class_N: Tensor, average_KN: Tensor, later_PK: Tensor
) -> Tensor:
    """Normalise each pass of each class by its images, in place, and add its share to the running statistics.

    The number of operations depends neither on the classes nor on the passes: on a GPU, launching a small operation
    costs more than computing it. The statistics of a class are combined from those of its images.

    Args:
        x_NCHW, layer: the output of a layer's convolution.
        sizes_K: number of images per class.
        class_N: class of each image.
        average_KN: the product with this matrix is the mean over the images of each class.
        later_PK: number of passes after each pass, which determines its share in the running statistics; float64, for
            powers of many passes.
    """
    x_PNMC = x_NCHW.permute(0, 2, 3, 1).flatten(1, 2).unflatten(0, (len(later_PK), -1))
    var_PNC, mean_PNC = torch.var_mean(x_PNMC.float(), 2, correction=0)
    mean_PKC = average_KN @ mean_PNC
    distance_PNC = mean_PNC - mean_PKC[:, class_N]
    var_PKC = average_KN @ var_PNC.addcmul_(distance_PNC, distance_PNC)
    norm, n_K = layer.norm, sizes_K * x_PNMC.shape[2]
    left_PK = (1 - norm.momentum) ** later_PK
    moves = (norm.running_mean, mean_PKC, left_PK), (norm.running_var, var_PKC, left_PK * (n_K / (n_K - 1)))
    for running_C, passes_PKC, share_PK in moves:
        moved_C = share_PK.flatten() @ passes_PKC.flatten(0, 1).double()
        running_C.add_(moved_C[: len(running_C)], alpha=norm.momentum)  # Channels of zeros have no statistics.
    scale_PKC = layer.weight_C * torch.rsqrt(var_PKC + norm.eps)
    shift_PKC = torch.addcmul(layer.bias_C, mean_PKC, scale_PKC, value=-1)
    scale_PN1C, shift_PN1C = (x_PKC[:, class_N, None] for x_PKC in (scale_PKC, shift_PKC))
    torch.addcmul(shift_PN1C, x_PNMC, scale_PN1C, out=x_PNMC)
    return x_NCHW
