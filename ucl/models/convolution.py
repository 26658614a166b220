"""Convolutions of few channels: a fast weight gradient on a GPU, and a correct one on a CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

_MAX_COPIED = 2**24  # values, 64 MiB: a weight gradient copies each value of the input once per value of the kernel


class Conv2d(nn.Conv2d):
    """`torch.nn.Conv2d` without bias, with a faster weight gradient where a GPU has no good kernel for it.

    If a number of channels is not a multiple of 8, cuDNN's deterministic weight gradients in float32 are slow: on an
    H200 they took a third of a training step of the slim ResNet-18. A copy of all patches of the input and a product
    of matrices replace them; six processes that share the GPU then make twice as many steps. The host needs a tenth of
    a millisecond more per layer, unless steps are repeated from CUDA graphs.
    """

    def forward(self, x_NCHW: Tensor) -> Tensor:
        if torch.is_grad_enabled() and _is_slow(self, x_NCHW) and not in_torch_func():
            return _Convolution.apply(x_NCHW, self.weight, self.stride, self.padding)
        return super().forward(x_NCHW)


def make_narrow_convolutions_contiguous(model: nn.Module) -> None:
    """Keep strided 1x1 convolutions with fewer than 16 input channels out of the channels-last layout.

    Torch's oneDNN writes the weight gradient of such a layer beyond its memory if the input or the weight is
    channels-last: the process crashes, or computes with wrong values. With fewer than 8 channels, this was seen on
    processors without AVX-512; with 8 to 15, also with AVX-512, with 4 threads.
    """
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d) or layer.in_channels >= 16:
            continue
        if layer.kernel_size == (1, 1) and layer.stride != (1, 1):
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(contiguous_input)


def contiguous_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The hook of these layers."""
    return tuple(x_NCHW.contiguous() for x_NCHW in inputs)


def in_torch_func() -> bool:
    """Whether `torch.func` transforms the call, for example into gradients per image.

    The autograd functions of this package can't be transformed: functions that can take the host longer to call.
    """
    return torch._C._are_functorch_transforms_active()


def _is_slow(conv: nn.Conv2d, x_NCHW: Tensor) -> bool:
    """Whether cuDNN is slow, and the copy of the patches is of a moderate size."""
    return (
        x_NCHW.device.type == "cuda"
        and bool(conv.in_channels % 8 or conv.out_channels % 8)
        and x_NCHW.dtype == torch.float32
        and not torch.is_autocast_enabled()
        and x_NCHW.numel() * math.prod(conv.kernel_size) <= _MAX_COPIED
    )


class _Convolution(torch.autograd.Function):
    """A convolution whose weight gradient is a product of patches of the input and the gradient of the output."""

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x_NCHW, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x_NCHW, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient_NOHW: Tensor) -> tuple[Tensor | None, ...]:
        x_NCHW, weight = ctx.saved_tensors
        x_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = conv2d_input(x_NCHW.shape, weight, gradient_NOHW, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            weight_gradient = _weight_gradient(x_NCHW, weight, gradient_NOHW, ctx.stride, ctx.padding)
        return x_gradient, weight_gradient, None, None


def _weight_gradient(
    x_NCHW: Tensor, weight: Tensor, gradient_NOHW: Tensor, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    (n_out, n_in, *kernel), (n, _, *pixels) = weight.shape, gradient_NOHW.shape
    if any(padding):
        x_NCHW = F.pad(x_NCHW, (padding[1], padding[1], padding[0], padding[0]))
    image, channel, row, column = x_NCHW.stride()  # steps in memory to the next image, channel, ...
    strides = image, stride[0] * row, stride[1] * column, row, column, channel
    patches_NPK = x_NCHW.as_strided((n, *pixels, *kernel, n_in), strides).reshape(n, pixels[0] * pixels[1], -1)
    # One product per image: a single one, with few rows and columns of many values each, would use a GPU badly.
    return torch.bmm(gradient_NOHW.flatten(2), patches_NPK).sum(0).view(n_out, *kernel, n_in).permute(0, 3, 1, 2)
