"""The slim ResNet-18 in evaluation mode with BatchNorm folded into the convolutions, and how many images it takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.models.slim_resnet import SlimResNet18

_Layer = tuple[Tensor, Tensor, list[int], list[int]]  # a convolution: weight, bias, padding, stride


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
