"""The slim ResNet-18 of the online continual learning literature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucl.catalogue import NETWORKS, resolved
from ucl.models.batchnorm import BatchNorm2d
from ucl.models.convolution import Conv2d, make_narrow_convolutions_contiguous
from ucl.models.network import Network

_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # width multiplier and stride of the four stages, two blocks each

Norm = Callable[[int], nn.Module]  # from a number of channels to their normalisation


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation, which is the same in training and in tests (Wu & He, 2018).

    All widths of the network are divisible by 4 groups. In table 3 of the source, the errors with 2 to 64 groups
    differ by less than a point.
    """
    return nn.GroupNorm(4, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; dropout after the first activation (used by the MC score)."""

    def __init__(self, n_in: int, n_out: int, stride: int, dropout: float, norm: Norm = BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = norm(n_out)
        self.conv2 = Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = norm(n_out)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        out_NCHW = self.dropout(F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True))
        return F.relu(self.bn2(self.conv2(out_NCHW)).add_(self.shortcut(x_NCHW)), inplace=True)


class SlimResNet18(Network):
    """ResNet-18 with 20 filters at the start and a 3x3 stem (Lopez-Paz & Ranzato, 2017): 1.1 million weights.

    Args:
        n_classes: number of logits, one per class of the whole stream.
        channels: 1 or 3.
        image_size: pixels per side, 25 or more; 25 to 56 give 160 features, 57 to 88 give 640.
        mean, std: mean and standard deviation of each channel over the training images, in [0, 1], for `normalize`.
        dropout: rate after each block's first activation and before the head.
        width: filters of the first stage.
        norm: function from a number of channels to the normalisation layer.
    """

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
        super().__init__(mean, std)
        self.conv1 = Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = norm(width)
        n_in, blocks = width, []
        for multiplier, stride in _STAGES:
            for block_stride in (stride, 1):
                blocks.append(BasicBlock(n_in, width * multiplier, block_stride, dropout, norm))
                n_in = width * multiplier
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(n_in * (math.ceil(image_size / 8) // 4) ** 2, n_classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                # Only averages without a momentum need the count, and counting costs one operation per layer.
                module.num_batches_tracked = None
        self.to(memory_format=torch.channels_last)
        make_narrow_convolutions_contiguous(self)

    def features_and_logits(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F), the input of the head before its dropout, and logits (N, C) of normalised images."""
        out_NCHW = F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True)
        features_NF = F.avg_pool2d(self.blocks(out_NCHW), 4).flatten(1)
        return features_NF, self.linear(self.dropout(features_NF))


slim_resnet18_groupnorm = partial(SlimResNet18, norm=group_norm)

MODELS: dict[str, Callable[..., SlimResNet18]] = resolved(NETWORKS)
"""The networks by the names that `Config.model` takes."""
