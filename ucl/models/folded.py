"""Fast passes of the slim ResNet-18 without a gradient: what they share, and those with folded BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models.network import norms_of
from ucl.models.slim_resnet import SlimResNet18


class Layer(NamedTuple):
    """A convolution of the network and the BatchNorm after it, with copies of their weights.

    If BatchNorm is folded, `weight_C` is a factor of the kernel, and `bias_C` is the bias of the convolution.
    """

    kernel: Tensor
    weight_C: Tensor
    bias_C: Tensor
    convolution: Any
    norm: Any


Normalization = Callable[[Tensor, Layer], Tensor]  # of the output of a layer's convolution, in place


class FastPasses:
    """Passes of a `SlimResNet18` with BatchNorm without a gradient; they have copies of its current weights.

    In bfloat16 on a GPU, channels of zeros make the number of channels a multiple of 8, because its matrix units
    multiply 8 at once.

    Args:
        model: the network; its weights and its mode do not change.
        dtype: arithmetic of the convolutions; the head is always float32.
        rate: rate of the dropout.
    """

    fused = False

    @torch.no_grad()
    def __init__(self, model: SlimResNet18, dtype: torch.dtype, rate: float) -> None:
        self.dtype, self.rate, self.on_cpu = dtype, rate, model.mean.device.type == "cpu"
        self._multiple = multiple_of_channels(model.mean.device, dtype)
        layers = self._layers([module for module in model.modules() if isinstance(module, nn.Conv2d)], norms_of(model))
        self.stem = next(layers)
        has_shortcut = [len(block.shortcut) > 0 for block in model.blocks]  # type: ignore[arg-type]
        self._blocks = [(next(layers), next(layers), next(layers) if has else None) for has in has_shortcut]
        self._head_weights = model.linear.weight.clone(), model.linear.bias.clone()

    def _layers(self, convolutions: list[nn.Conv2d], norms: list[Any]) -> Iterator[Layer]:
        """The layers, from the convolutions and the BatchNorm after each of them, in the network's order."""
        raise NotImplementedError

    def _features(self, x_NCHW: Tensor, normalize_: Normalization | None = None) -> Tensor:
        """Features (N, F), float32; `normalize_` follows each convolution, unless BatchNorm is folded."""
        x_NCHW = filled(x_NCHW.to(self.dtype), self._multiple, 1).contiguous(memory_format=torch.channels_last)
        out_NCHW = self._convolve(x_NCHW, self.stem, normalize_)
        for first, second, shortcut in self._blocks:
            inner_NCHW = self._convolve(out_NCHW, first, normalize_)
            if self.rate:
                drop_(inner_NCHW, self.rate)
            if shortcut is not None:
                out_NCHW = self._convolve(out_NCHW, shortcut, normalize_, relu=False)
            out_NCHW = self._convolve(inner_NCHW, second, normalize_, onto_NCHW=out_NCHW)
        # The last stage has 8 times the width, so no feature is one of the zeros.
        return F.avg_pool2d(out_NCHW, 4).flatten(1).float()

    def _head(self, features_NF: Tensor) -> Tensor:
        return F.linear(drop_(features_NF, self.rate) if self.rate else features_NF, *self._head_weights)

    def _convolve(
        self,
        x_NCHW: Tensor,
        layer: Layer,
        normalize_: Normalization | None,
        relu: bool = True,
        onto_NCHW: Tensor | None = None,
    ) -> Tensor:
        """The output of a layer for x, added to `onto` in place if that is given, and with ReLU if asked."""
        convolution = layer.convolution
        if self.fused:
            how = layer.bias_C, convolution.padding, convolution.stride, [1, 1], 1
            if onto_NCHW is None:
                activation = "relu" if relu else "none"
                return torch.ops.mkldnn._convolution_pointwise(x_NCHW, layer.kernel, *how, activation, [], "")
            sum_ = torch.ops.mkldnn._convolution_pointwise_.binary
            return sum_(onto_NCHW, x_NCHW, layer.kernel, *how, "add", 1.0, "relu", [], "")
        bias_C = layer.bias_C if normalize_ is None else None
        out_NCHW = F.conv2d(x_NCHW, layer.kernel, bias_C, convolution.stride, convolution.padding)
        if normalize_ is not None:
            out_NCHW = normalize_(out_NCHW.contiguous(memory_format=torch.channels_last), layer)
        if onto_NCHW is not None:
            out_NCHW = onto_NCHW.add_(out_NCHW)
        return out_NCHW.relu_() if relu else out_NCHW


class FoldedNetwork(FastPasses):
    """Passes in evaluation mode, with each BatchNorm folded into the convolution before it.

    They compute the same function up to rounding, in half the time or, in bfloat16, a third.

    Args:
        model, dtype: see `FastPasses`.
        dropout: whether dropout stays active, as the passes of the MC score need.
    """

    def __init__(self, model: SlimResNet18, dtype: torch.dtype = torch.float32, dropout: bool = False) -> None:
        super().__init__(model, dtype, model.dropout_rate if dropout else 0.0)
        self.fused = self.on_cpu and _has_fused_convolutions()

    def _layers(self, convolutions: list[nn.Conv2d], norms: list[Any]) -> Iterator[Layer]:
        # All channels of the network form one vector: on a GPU, launching an operation costs more than computing it.
        weight, bias, mean, var = (
            torch.cat([getattr(norm, name) for norm in norms])
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight * torch.rsqrt(var + norms[0].eps)
        bias = (bias - mean * scale).to(self.dtype)
        sizes = [norm.num_features for norm in norms]
        for conv, norm, scale_C, bias_C in zip(convolutions, norms, scale.split(sizes), bias.split(sizes), strict=True):
            kernel = filled(conv.weight * scale_C.view(-1, 1, 1, 1), self._multiple, 0, 1)
            kernel = kernel.to(self.dtype, memory_format=torch.channels_last)
            yield Layer(kernel, scale_C, filled(bias_C, self._multiple, 0), conv, norm)

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


def multiple_of_channels(device: torch.device, dtype: torch.dtype) -> int:
    """The number of which each layer's number of channels shall be a multiple.

    cuDNN pads channels by itself, but for that it copies the input of every layer.
    """
    return 8 if device.type == "cuda" and dtype == torch.bfloat16 else 1


def filled(x: Tensor, multiple: int, *dimensions: int) -> Tensor:
    """The tensor with zeros at the ends of these dimensions, which make their sizes multiples of a number."""
    more = [-size % multiple if dimension in dimensions else 0 for dimension, size in enumerate(x.shape)]
    return F.pad(x, [n for after in reversed(more) for n in (0, after)]) if any(more) else x


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
