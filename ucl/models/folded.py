"""The slim ResNet-18 in evaluation mode with BatchNorm folded into the convolutions, and the images per pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models.slim_resnet import SlimResNet18

_Layer = tuple[Tensor, Tensor, list[int], list[int]]  # a convolution: weight, bias, padding, stride
Layer = TypeVar("Layer")


def convolutions_and_norms(model: SlimResNet18) -> tuple[list[nn.Conv2d], list[nn.BatchNorm2d]]:
    """The convolutions of the network, and the BatchNorm after each of them."""
    modules = list(model.modules())
    return [m for m in modules if isinstance(m, nn.Conv2d)], [m for m in modules if isinstance(m, nn.BatchNorm2d)]


def in_blocks(model: SlimResNet18, layers: Iterable[Layer]) -> tuple[Layer, list[tuple[Layer, Layer, Layer | None]]]:
    """The layers, one per convolution: that of the stem, and for each block the first, the second and the shortcut."""
    remaining = iter(layers)
    stem = next(remaining)
    has_shortcut = [len(block.shortcut) > 0 for block in model.blocks]  # type: ignore[arg-type]
    return stem, [(next(remaining), next(remaining), next(remaining) if has else None) for has in has_shortcut]


def images_at_once(n: int, image_size: int) -> int:
    """The number of images with as many pixels as `n` images of 32 x 32: such chunks use a GPU equally well."""
    return max(1, n * 32**2 // image_size**2)


def chunk_size(x_NCHW: Tensor, dropout: float) -> int:
    """Number of images per pass without a gradient.

    On a CPU the activations of such a chunk stay in each thread's cache. A GPU needs many images at once, as far as its
    memory allows. Dropout draws its masks chunk by chunk, and the masks must not depend on the number of threads.
    """
    if x_NCHW.device.type != "cpu":
        return images_at_once(4096, x_NCHW.shape[-1])
    return 128 if dropout else 48 * torch.get_num_threads()


class FoldedNetwork:
    """A copy of a `SlimResNet18` in evaluation mode, with each BatchNorm folded into the convolution before it.

    It computes the same function up to rounding, in half the time or, in bfloat16, a third. It copies the current
    weights and does not change the network; make a new copy after the next update. In bfloat16 on a GPU, channels of
    zeros make the number of channels a multiple of 8, because its matrix units multiply 8 at once.

    Args:
        model: the network to copy.
        dtype: arithmetic of the convolutions; the head is always float32.
        dropout: whether dropout stays active, as the passes of the MC score need.
    """

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32, dropout: bool = False) -> None:
        self.dtype = dtype
        self.normalize = model.normalize
        self.rate = model.dropout_rate if dropout else 0.0
        on_cpu = model.mean.device.type == "cpu"
        self.fused = on_cpu and _has_fused_convolutions()
        self._multiple = multiple_of_channels(model.mean.device, dtype)
        self.stem, self.blocks = in_blocks(model, self._fold(model))
        self.head = (model.linear.weight.clone(), model.linear.bias.clone())

    def _fold(self, model: SlimResNet18) -> Iterator[_Layer]:
        convolutions, norms = convolutions_and_norms(model)

        # All channels of the network form one vector: on a GPU, launching an operation costs more than computing it.
        def joined(name: str) -> Tensor:
            return torch.cat([getattr(norm, name) for norm in norms])

        scale = joined("weight") * torch.rsqrt(joined("running_var") + norms[0].eps)
        bias = (joined("bias") - joined("running_mean") * scale).to(self.dtype)
        sizes = [norm.num_features for norm in norms]
        for conv, scale_C, bias_C in zip(convolutions, scale.split(sizes), bias.split(sizes), strict=True):
            weight = (conv.weight * scale_C.view(-1, 1, 1, 1)).to(self.dtype, memory_format=torch.channels_last)
            assert not isinstance(conv.padding, str)
            yield *self._padded(weight, bias_C), list(conv.padding), list(conv.stride)

    def _padded(self, weight: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
        more_out, more_in = (-channels % self._multiple for channels in weight.shape[:2])
        if more_out or more_in:
            return F.pad(weight, (0, 0, 0, 0, 0, more_in, 0, more_out)), F.pad(bias_C, (0, more_out))
        return weight, bias_C

    @torch.no_grad()
    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C), float32, of any number of normalised images, computed chunk by chunk."""
        return torch.cat([self.one_pass(part) for part in self._chunks(x_NCHW)])

    @torch.no_grad()
    def shared_logits(self, x_KCHW: Tensor, shared_N: Tensor) -> Tensor:
        """`logits(x_KCHW[shared_N])`, (N, C), with one pass per image of x_KCHW.

        On a CPU they are equal bit for bit: the rounding of a linear layer depends on the number of its rows, that of a
        convolution does not, so only features are shared.
        """
        features_KF = torch.cat([self._features(part) for part in self._chunks(x_KCHW)])
        rows = features_KF[shared_N].split(chunk_size(x_KCHW, self.rate))
        return torch.cat([self._head(part) for part in rows])

    @torch.no_grad()
    def one_pass(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C), float32, of normalised images, all in one pass."""
        return self._head(self._features(x_NCHW))

    @torch.no_grad()
    def features_and_logits(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F), the input of the head before its dropout, and logits (N, C), of any number of images."""
        parts = [self._features(part) for part in self._chunks(x_NCHW)]
        return torch.cat(parts), torch.cat([self._head(part) for part in parts])

    def _chunks(self, x_NCHW: Tensor) -> tuple[Tensor, ...]:
        return x_NCHW.split(chunk_size(x_NCHW, self.rate))

    def _head(self, features_NF: Tensor) -> Tensor:
        return F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self.head)

    def _features(self, x_NCHW: Tensor) -> Tensor:
        x_NCHW = x_NCHW.to(self.dtype)
        if more := -x_NCHW.shape[1] % self._multiple:
            x_NCHW = F.pad(x_NCHW, (0, 0, 0, 0, 0, more))
        out_NCHW = self._convolve(x_NCHW, self.stem, "relu")
        for first, second, shortcut in self.blocks:
            inner_NCHW = self._convolve(out_NCHW, first, "relu")
            if self.rate:
                drop_(inner_NCHW, self.rate)
            if shortcut is not None:
                out_NCHW = self._convolve(out_NCHW, shortcut, "none")
            out_NCHW = self._convolve_onto(out_NCHW, inner_NCHW, second)
        # The last stage has 8 times the width, so no feature is one of the zeros.
        return F.avg_pool2d(out_NCHW, 4).flatten(1).float()

    def _convolve(self, x_NCHW: Tensor, layer: _Layer, activation: str) -> Tensor:
        weight, bias_C, padding, stride = layer
        if self.fused:
            return torch.ops.mkldnn._convolution_pointwise(
                x_NCHW, weight, bias_C, padding, stride, [1, 1], 1, activation, [], ""
            )
        out_NCHW = F.conv2d(x_NCHW, weight, bias_C, stride, padding)
        return F.relu_(out_NCHW) if activation == "relu" else out_NCHW

    def _convolve_onto(self, sum_NCHW: Tensor, x_NCHW: Tensor, layer: _Layer) -> Tensor:
        """Compute relu(sum + convolution of x) in place of the sum."""
        weight, bias_C, padding, stride = layer
        if self.fused:
            return torch.ops.mkldnn._convolution_pointwise_.binary(
                sum_NCHW, x_NCHW, weight, bias_C, padding, stride, [1, 1], 1, "add", 1.0, "relu", [], ""
            )
        return F.relu_(sum_NCHW.add_(F.conv2d(x_NCHW, weight, bias_C, stride, padding)))


def multiple_of_channels(device: torch.device, dtype: torch.dtype) -> int:
    """The number of which each layer's number of channels shall be a multiple.

    cuDNN pads channels by itself, but for that it copies the input of every layer.
    """
    return 8 if device.type == "cuda" and dtype == torch.bfloat16 else 1


def drop_(x: Tensor, rate: float) -> Tensor:
    """Dropout in place: a value becomes 0 with probability `rate`, otherwise it is multiplied by 1 / (1 - rate).

    The probability is rounded to a multiple of 2^-16, because each value needs only 16 random bits of torch's global
    generator. `F.dropout` draws 53 bits per value, in one thread, which takes longer than the convolutions.

    Args:
        x: contiguous, or (N, C, H, W) and channels last.
        rate: in [0, 1).
    """
    in_memory = (x if x.is_contiguous() else x.permute(0, 2, 3, 1)).view(-1)
    bits = torch.empty(math.ceil(len(in_memory) / 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    # The mask has the dtype of the values: multiplying by booleans is three times slower.
    mask = torch.ge(
        bits.view(torch.int16)[: len(in_memory)], round(rate * 2**16) - 2**15, out=torch.empty_like(in_memory)
    )
    in_memory.mul_(mask).mul_(1 / (1 - rate))
    return x


def _has_fused_convolutions() -> bool:
    """Whether torch has oneDNN's convolutions that include the sum and the activation.

    torch.compile generates calls to them. They save an eighth of the time, and calling them needs no compiler.
    """
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise_")
