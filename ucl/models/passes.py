"""Forward passes without a gradient, in evaluation mode and in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.models.folded import (
    FoldedNetwork,
    chunk_size,
    convolutions_and_norms,
    drop_,
    images_at_once,
    in_blocks,
    multiple_of_channels,
)
from ucl.models.network import Network, in_mode
from ucl.models.slim_resnet import SlimResNet18

_CHUNK_ON_CPU, _CHUNK_ON_GPU = 256, 12 * 1024  # images of 32 x 32 pixels per convolution


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

    joins_classes = False

    def __init__(self, model: Network, dtype: torch.dtype = torch.float32) -> None:
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

    Attributes:
        joins_classes: whether the passes of all classes share the operations, as a GPU needs; a CPU computes few passes
            of one class at a time, which fit into its caches.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.rate = dtype, model.dropout_rate
        self.joins_classes = model.mean.device.type != "cpu"
        self._chunk = _CHUNK_ON_GPU if self.joins_classes else _CHUNK_ON_CPU
        self._stem, self._blocks = in_blocks(model, self._layers(model))
        self._head = (model.linear.weight.clone(), model.linear.bias.clone())

    def _layers(self, model: SlimResNet18) -> Iterator[_Layer]:
        multiple = multiple_of_channels(model.mean.device, self.dtype)
        for conv, norm in zip(*convolutions_and_norms(model), strict=True):
            more_out, more_in = (-channels % multiple for channels in conv.weight.shape[:2])
            kernel = F.pad(conv.weight, (0, 0, 0, 0, 0, more_in, 0, more_out))
            kernel = kernel.to(self.dtype, copy=True, memory_format=torch.channels_last)
            weight_C, bias_C = (F.pad(values, (0, more_out)) for values in (norm.weight, norm.bias))
            assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
            statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
            yield _Layer(kernel, conv.stride, conv.padding, weight_C, bias_C, *statistics)

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
        n_images = images_at_once(self._chunk, x_PNCHW.shape[-1])
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
        logits_of_parts = []
        for part_PNCHW, later in zip(x_PNCHW.split(n_passes), later_PK.split(n_passes), strict=True):
            classes = _Classes(sizes_K, class_N, average_KN, later, n_moves)
            logits_of_parts.append(self._passes(part_PNCHW, classes.normalize_))
            n_moves = 0
        return torch.cat(logits_of_parts)

    def _passes(self, x_PNCHW: Tensor, normalize_: _Normalization) -> Tensor:
        x_NCHW = x_PNCHW.flatten(0, 1)
        if more := self._stem.kernel.shape[1] - x_NCHW.shape[1]:
            x_NCHW = F.pad(x_NCHW, (0, 0, 0, 0, 0, more))
        x_NCHW = x_NCHW.to(self.dtype, memory_format=torch.channels_last)
        out_NCHW = _convolve(x_NCHW, self._stem, normalize_).relu_()
        for first, second, shortcut in self._blocks:
            inner_NCHW = _convolve(out_NCHW, first, normalize_).relu_()
            if self.rate:
                drop_(inner_NCHW, self.rate)
            inner_NCHW = _convolve(inner_NCHW, second, normalize_)
            if shortcut is not None:
                out_NCHW = _convolve(out_NCHW, shortcut, normalize_)
            out_NCHW = inner_NCHW.add_(out_NCHW).relu_()
        features_NF = F.avg_pool2d(out_NCHW, 4).flatten(1).float()
        logits_NC = F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self._head)
        return logits_NC.unflatten(0, (len(x_PNCHW), -1))


_Normalization = Callable[[Tensor, _Layer], Tensor]  # in place


def _convolve(x_NCHW: Tensor, layer: _Layer, normalize_: _Normalization) -> Tensor:
    out_NCHW = F.conv2d(x_NCHW, layer.kernel, None, layer.stride, layer.padding)
    return normalize_(out_NCHW.contiguous(memory_format=torch.channels_last), layer)


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


@dataclass
class _Classes:
    """Classes whose passes share all operations; each pass of a class is normalised by its own images.

    The number of operations depends neither on the classes nor on the passes: on a GPU, launching a small operation
    costs more than computing it.

    Attributes:
        sizes_K: number of images per class.
        class_N: class of each image.
        average_KN: the product with this matrix is the mean over the images of each class.
        later_PK: number of passes after each pass, which determines its share in the running statistics; float64, for
            powers of many passes.
        n_moves: number of passes by which the running statistics before them move: all, or 0 if they have moved.
    """

    sizes_K: Tensor
    class_N: Tensor
    average_KN: Tensor
    later_PK: Tensor
    n_moves: int

    def normalize_(self, x_NCHW: Tensor, layer: _Layer) -> Tensor:
        """Normalise in place, and update the running statistics. Those of a class are combined from its images'."""
        x_PNMC = x_NCHW.permute(0, 2, 3, 1).flatten(1, 2).unflatten(0, (len(self.later_PK), -1))
        var_PNC, mean_PNC = torch.var_mean(x_PNMC.float(), 2, correction=0)
        mean_PKC = self.average_KN @ mean_PNC
        distance_PNC = mean_PNC - mean_PKC[:, self.class_N]
        var_PKC = self.average_KN @ var_PNC.addcmul_(distance_PNC, distance_PNC)
        left, n_K = 1 - layer.momentum, self.sizes_K * x_PNMC.shape[2]
        left_PK = left**self.later_PK
        moves = (layer.running_mean_C, mean_PKC, left_PK), (layer.running_var_C, var_PKC, left_PK * (n_K / (n_K - 1)))
        for running_C, passes_PKC, share_PK in moves:
            moved_C = share_PK.flatten() @ passes_PKC.flatten(0, 1).double()
            # Padded channels have no running statistics.
            running_C.mul_(left**self.n_moves).add_(moved_C[: len(running_C)], alpha=layer.momentum)
        scale_PKC = layer.weight_C * torch.rsqrt(var_PKC + layer.eps)
        shift_PKC = torch.addcmul(layer.bias_C, mean_PKC, scale_PKC, value=-1)
        scale_PN1C, shift_PN1C = (x_PKC[:, self.class_N, None] for x_PKC in (scale_PKC, shift_PKC))
        torch.addcmul(shift_PN1C, x_PNMC, scale_PN1C, out=x_PNMC)
        return x_NCHW
