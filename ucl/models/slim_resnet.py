"""The slim ResNet-18 of the online continual learning literature, and its folded form for fast inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # width multiplier and stride of the four stages, two blocks each

Norm = Callable[[int], nn.Module]  # of so many channels

_Layer = tuple[Tensor, Tensor, list[int], list[int]]  # a convolution: weight, bias, padding, stride


def to_unit(images_NCHW: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1], channels last in memory."""
    return images_NCHW.to(torch.float32, memory_format=torch.channels_last).div_(255)


def images_at_once(n: int, image_size: int) -> int:
    """How many images have as many pixels as `n` of 32 a side: chunks of so many fill a GPU alike."""
    return max(1, n * 32**2 // image_size**2)


def chunk_size(x_NCHW: Tensor, dropout: float) -> int:
    """Images of one pass without a gradient.

    So many keep a thread's activations in its cache; a GPU wants many at once, as far as its memory goes. Dropout draws
    its masks chunk after chunk, and what it draws must not depend on the number of threads.
    """
    if x_NCHW.device.type != "cpu":
        return images_at_once(4096, x_NCHW.shape[-1])
    return 128 if dropout else 48 * torch.get_num_threads()


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation; torch's own, but in training on several threads of a processor, with few channels.

    There torch's kernel for channels-last keeps each thread's sums of the channels side by side: threads that share a
    cache line wait for each other, and two take two to four times as long as one.
    """

    def forward(self, x_NCHW: Tensor) -> Tensor:
        sums_share_a_line = self.num_features < 32 and torch.get_num_threads() > 1
        channels_last = x_NCHW.is_contiguous(memory_format=torch.channels_last)
        if not (self.training and sums_share_a_line and channels_last and x_NCHW.device.type == "cpu"):
            return super().forward(x_NCHW)
        return _NormalizedRows.apply(
            x_NCHW, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps
        )


class _NormalizedRows(torch.autograd.Function):
    """Batch normalisation of rows of pixels (N * H, W * C): sums over rows first, then over the pixels of a row."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NCHW: Tensor,
        weight_C: Tensor,
        bias_C: Tensor,
        running_mean_C: Tensor,
        running_var_C: Tensor,
        momentum: float,
        eps: float,
    ) -> Tensor:
        out_NCHW = torch.empty_like(x_NCHW)
        x_MR, out_MR, (channels, width) = _rows(x_NCHW), _rows(out_NCHW), x_NCHW.shape[1::2]
        n = x_NCHW.numel() // channels
        mean_C = _folded(x_MR.sum(0), width) / n
        centred_MR = x_MR - _spread(mean_C, width)
        var_C = _folded(torch.mul(centred_MR, centred_MR, out=out_MR).sum(0), width) / n
        running_mean_C.lerp_(mean_C, momentum)
        running_var_C.lerp_(var_C * (n / (n - 1)), momentum)
        inverse_std_C = torch.rsqrt(var_C + eps)
        ctx.save_for_backward(centred_MR, weight_C, inverse_std_C)
        torch.addcmul(_spread(bias_C, width), centred_MR, _spread(weight_C * inverse_std_C, width), out=out_MR)
        return out_NCHW

    @staticmethod
    def backward(ctx: Any, gradient_NCHW: Tensor) -> tuple[Tensor | None, ...]:
        centred_MR, weight_C, inverse_std_C = ctx.saved_tensors
        gradient_NCHW = gradient_NCHW.contiguous(memory_format=torch.channels_last)
        onto_NCHW = torch.empty_like(gradient_NCHW)
        gradient_MR, onto_MR, (channels, width) = _rows(gradient_NCHW), _rows(onto_NCHW), onto_NCHW.shape[1::2]
        n = gradient_NCHW.numel() // channels
        bias_C = _folded(gradient_MR.sum(0), width)
        slope_C = _folded(torch.mul(gradient_MR, centred_MR, out=onto_MR).sum(0), width) * inverse_std_C
        scale_C = weight_C * inverse_std_C
        mean_R, along_R = (_spread(of_C * scale_C / -n, width) for of_C in (bias_C, slope_C * inverse_std_C))
        torch.addcmul(mean_R, centred_MR, along_R, out=onto_MR)
        onto_MR.addcmul_(gradient_MR, _spread(scale_C, width))
        return onto_NCHW, slope_C, bias_C, None, None, None, None


def _rows(x_NCHW: Tensor) -> Tensor:
    return x_NCHW.permute(0, 2, 3, 1).flatten(0, 1).flatten(1)


def _folded(sums_R: Tensor, width: int) -> Tensor:
    return sums_R.view(width, -1).sum(0)


def _spread(value_C: Tensor, width: int) -> Tensor:
    return value_C.expand(width, -1).flatten()


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation, the same in training and in tests (Wu & He, 2018).

    4 groups divide all widths of the network; in their table 3, between 2 and 64 groups the error differs by less than
    a point.
    """
    return nn.GroupNorm(4, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; dropout after the first activation (used by the MC score)."""

    def __init__(self, n_in: int, n_out: int, stride: int, dropout: float, norm: Norm = BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = norm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = norm(n_out)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        out_NCHW = self.dropout(F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True))
        return F.relu(self.bn2(self.conv2(out_NCHW)).add_(self.shortcut(x_NCHW)), inplace=True)


class SlimResNet18(nn.Module):
    """ResNet-18 with 20 filters at the start and a 3x3 stem (Lopez-Paz & Ranzato, 2017): 1.1 million weights.

    Args:
        n_classes: logits; one for each class of the whole stream.
        channels: 1 or 3.
        image_size: pixels a side, 25 or more; 25 to 56 give 160 features, 57 to 88 give 640.
        mean, std: of each channel over the training images, in [0, 1]; `normalize` uses them.
        dropout: rate after each block's first activation and before the head.
        width: filters of the first stage.
        norm: number of channels to the normalisation of so many.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        n_classes: int,
        channels: int = 3,
        image_size: int = 32,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.25,),
        dropout: float = 0.0,
        width: int = 20,
        norm: Norm = BatchNorm2d,
    ) -> None:
        super().__init__()
        self.dropout_rate = dropout
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1), persistent=False)
        std = [of_channel or 1.0 for of_channel in std]  # a channel without variation is 0 throughout, not 0 / 0
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = norm(width)
        n_in, blocks = width, []
        for multiplier, stride in _STAGES:
            for block_stride in (stride, 1):
                blocks.append(BasicBlock(n_in, width * multiplier, block_stride, dropout, norm))
                n_in = width * multiplier
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(n_in * (-(-image_size // 8) // 4) ** 2, n_classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None  # counted for averages without a momentum: an operation a layer
        self.to(memory_format=torch.channels_last)

    def normalize(self, images_NCHW: Tensor) -> Tensor:
        """uint8, or float in [0, 1], to float32 with zero mean and unit variance over the data, channels last."""
        if images_NCHW.dtype == torch.uint8:
            images_NCHW = to_unit(images_NCHW)
        # As rows of pixels: an operand of one value a channel would be read with three values to a vector.
        channels, _, width = images_NCHW.shape[1:]
        mean_R, std_R = (_spread(of.expand(channels, 1, 1).flatten(), width) for of in (self.mean, self.std))
        x_NHR = (images_NCHW.permute(0, 2, 3, 1).flatten(2) - mean_R).div_(std_R)
        return x_NHR.unflatten(2, (width, channels)).permute(0, 3, 1, 2)

    @property
    def has_running_statistics(self) -> bool:
        """Whether training mode normalises in another way than evaluation mode."""
        return isinstance(self.bn1, nn.BatchNorm2d)

    def features(self, x_NCHW: Tensor) -> Tensor:
        """What the head is given (N, F), before its dropout, of normalised images."""
        out_NCHW = F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True)
        return F.avg_pool2d(self.blocks(out_NCHW), 4).flatten(1)

    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C) of normalised images."""
        return self.linear(self.dropout(self.features(x_NCHW)))

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Logits (N, C) of images: uint8, or float in [0, 1]."""
        return self.logits(self.normalize(images_NCHW))


MODELS: dict[str, Callable[..., SlimResNet18]] = {
    "slim_resnet18": SlimResNet18,
    "slim_resnet18_groupnorm": partial(SlimResNet18, norm=group_norm),
}


class FoldedNetwork:
    """A `SlimResNet18` in evaluation mode, with each BatchNorm folded into the convolution before it.

    The same function up to rounding, in half the time or, in bfloat16, a third. It is a copy of the weights as they
    are now and leaves the network untouched; make a new one after the next update.

    Args:
        model: the network to copy.
        dtype: arithmetic of the convolutions; the head is float32 always.
        dropout: whether dropout stays active, as the passes of the MC score need.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32, dropout: bool = False) -> None:
        self.dtype = dtype
        self.normalize = model.normalize
        self.rate = model.dropout_rate if dropout else 0.0
        on_cpu = model.mean.device.type == "cpu"
        self.chunk: int | None = None
        self.fused = on_cpu and _has_fused_convolutions()
        layers = self._fold(model)
        self.stem = next(layers)
        self.blocks = [
            (next(layers), next(layers), next(layers) if len(block.shortcut) else None)  # type: ignore[arg-type]
            for block in model.blocks
        ]
        self.head = (model.linear.weight.clone(), model.linear.bias.clone())

    def _fold(self, model: SlimResNet18) -> Iterator[_Layer]:
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]  # each after its own

        # All channels of the network as one vector: on a GPU, starting an operation takes longer than these last.
        def of_all(name: str) -> Tensor:
            return torch.cat([getattr(norm, name) for norm in norms])

        scale = of_all("weight") * torch.rsqrt(of_all("running_var") + norms[0].eps)
        bias = (of_all("bias") - of_all("running_mean") * scale).to(self.dtype)
        sizes = [norm.num_features for norm in norms]
        for conv, scale_C, bias_C in zip(convolutions, scale.split(sizes), bias.split(sizes), strict=True):
            weight = (conv.weight * scale_C.view(-1, 1, 1, 1)).to(self.dtype, memory_format=torch.channels_last)
            assert not isinstance(conv.padding, str)
            yield weight, bias_C, list(conv.padding), list(conv.stride)

    @torch.no_grad()
    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C), float32, of normalised images; any number of them, computed chunk after chunk."""
        return torch.cat([self._logits(part) for part in x_NCHW.split(self.chunk or chunk_size(x_NCHW, self.rate))])

    def _logits(self, x_NCHW: Tensor) -> Tensor:
        out_NCHW = self._convolve(x_NCHW.to(self.dtype), self.stem, "relu")
        for first, second, shortcut in self.blocks:
            inner_NCHW = self._convolve(out_NCHW, first, "relu")
            if self.rate:
                drop_(inner_NCHW, self.rate)
            if shortcut is not None:
                out_NCHW = self._convolve(out_NCHW, shortcut, "none")
            out_NCHW = self._convolve_onto(out_NCHW, inner_NCHW, second)
        features_NF = F.avg_pool2d(out_NCHW, 4).flatten(1).float()
        return F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self.head)

    def _convolve(self, x_NCHW: Tensor, layer: _Layer, activation: str) -> Tensor:
        weight, bias_C, padding, stride = layer
        if self.fused:
            return torch.ops.mkldnn._convolution_pointwise(
                x_NCHW, weight, bias_C, padding, stride, [1, 1], 1, activation, [], ""
            )
        out_NCHW = F.conv2d(x_NCHW, weight, bias_C, stride, padding)
        return F.relu_(out_NCHW) if activation == "relu" else out_NCHW

    def _convolve_onto(self, sum_NCHW: Tensor, x_NCHW: Tensor, layer: _Layer) -> Tensor:
        """relu(sum + convolution of x), in the place of the sum."""
        weight, bias_C, padding, stride = layer
        if self.fused:
            return torch.ops.mkldnn._convolution_pointwise_.binary(
                sum_NCHW, x_NCHW, weight, bias_C, padding, stride, [1, 1], 1, "add", 1.0, "relu", [], ""
            )
        return F.relu_(sum_NCHW.add_(F.conv2d(x_NCHW, weight, bias_C, stride, padding)))


def drop_(x: Tensor, rate: float) -> Tensor:
    """Dropout in place: a value is zero with probability `rate`, in steps of 2^-16, and else grows by 1 / (1 - rate).

    16 random bits decide a value, from torch's global generator: `F.dropout` draws a number of 53 bits for each, in one
    thread, and takes longer than the convolutions do.

    Args:
        x: contiguous, or (N, C, H, W) and channels last.
        rate: in [0, 1).
    """
    in_memory = (x if x.is_contiguous() else x.permute(0, 2, 3, 1)).view(-1)
    bits = torch.empty(-(-len(in_memory) // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    # a mask of numbers, as torch multiplies by truth values three times slower
    kept = torch.ge(
        bits.view(torch.int16)[: len(in_memory)], round(rate * 2**16) - 2**15, out=torch.empty_like(in_memory)
    )
    in_memory.mul_(kept).mul_(1 / (1 - rate))
    return x


def _has_fused_convolutions() -> bool:
    """Whether torch has oneDNN's convolutions with the sum and the activation in one pass over the memory.

    They are what torch.compile generates calls to; they spare an eighth of the time, and no compiler is needed.
    """
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise_")
