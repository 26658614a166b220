"""Batch normalisation in training mode that is fast on several CPU threads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ucl.models.convolution import in_torch_func


class BatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with a faster training mode for few channels on several CPU threads.

    In that case torch's kernel for channels-last stores the channel sums of all threads side by side. Threads that
    share a cache line wait for each other: two threads take two to four times as long as one. The faster mode has no
    second derivatives, and `torch.func` uses torch's kernel.
    """

    def forward(self, x_NCHW: Tensor) -> Tensor:
        sums_share_a_line = self.num_features < 32 and torch.get_num_threads() > 1 and x_NCHW.device.type == "cpu"
        if (
            self.training
            and sums_share_a_line
            and x_NCHW.dtype == torch.float32
            and x_NCHW.numel() > self.num_features  # Torch refuses a single value per channel.
            and not in_torch_func()  # `torch.func.vmap` cannot say whether a tensor is channels last.
            and x_NCHW.is_contiguous(memory_format=torch.channels_last)
        ):
            return _NormalizedRows.apply(x_NCHW, self.weight, self.bias, self)
        return super().forward(x_NCHW)


class _NormalizedRows(torch.autograd.Function):
    """Batch normalisation of rows of pixels (N * H, W * C): sums over rows first, then over the pixels of a row."""

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, weight_C: Tensor, bias_C: Tensor, norm: Any) -> Tensor:
        out_NCHW = torch.empty_like(x_NCHW)
        x_MR, out_MR, (channels, width) = _rows(x_NCHW), _rows(out_NCHW), x_NCHW.shape[1::2]
        n = x_NCHW.numel() // channels
        mean_C = _folded(x_MR.sum(0), width) / n
        centred_MR = x_MR - _spread(mean_C, width)
        var_C = _folded(torch.mul(centred_MR, centred_MR, out=out_MR).sum(0), width) / n
        norm.running_mean.lerp_(mean_C, norm.momentum)
        norm.running_var.lerp_(var_C * (n / (n - 1)), norm.momentum)
        inverse_std_C = torch.rsqrt(var_C + norm.eps)
        ctx.save_for_backward(centred_MR, weight_C, inverse_std_C)
        torch.addcmul(_spread(bias_C, width), centred_MR, _spread(weight_C * inverse_std_C, width), out=out_MR)
        return out_NCHW

    @staticmethod
    @once_differentiable  # Derivatives of these gradients would need the input, which is not stored.
    def backward(ctx: Any, gradient_NCHW: Tensor) -> tuple[Tensor | None, ...]:
        centred_MR, weight_C, inverse_std_C = ctx.saved_tensors
        gradient_NCHW = gradient_NCHW.contiguous(memory_format=torch.channels_last)
        grad_x_NCHW = torch.empty_like(gradient_NCHW)
        gradient_MR, grad_x_MR, (channels, width) = _rows(gradient_NCHW), _rows(grad_x_NCHW), grad_x_NCHW.shape[1::2]
        n = gradient_NCHW.numel() // channels
        bias_C = _folded(gradient_MR.sum(0), width)
        slope_C = _folded(torch.mul(gradient_MR, centred_MR, out=grad_x_MR).sum(0), width) * inverse_std_C
        scale_C = weight_C * inverse_std_C
        mean_R, along_R = (_spread(x_C * scale_C / -n, width) for x_C in (bias_C, slope_C * inverse_std_C))
        torch.addcmul(mean_R, centred_MR, along_R, out=grad_x_MR)
        grad_x_MR.addcmul_(gradient_MR, _spread(scale_C, width))
        return grad_x_NCHW, slope_C, bias_C, None


def _rows(x_NCHW: Tensor) -> Tensor:
    return x_NCHW.permute(0, 2, 3, 1).flatten(0, 1).flatten(1)


def _folded(sums_R: Tensor, width: int) -> Tensor:
    return sums_R.view(width, -1).sum(0)


def _spread(value_C: Tensor, width: int) -> Tensor:
    return value_C.expand(width, -1).flatten()
