"""Replay memories, one class per memory policy, and the rules that select what a memory keeps."""

from ucl.buffers.buffer import Buffer
from ucl.buffers.coreset import CoresetBuffer
from ucl.buffers.gss import GSSGreedyBuffer
from ucl.buffers.herding import FeatureBuffer, ICaRLBuffer
from ucl.buffers.homogeneous import HomogeneousBuffer
from ucl.buffers.loss_aware import LossAwareBuffer
from ucl.buffers.rainbow import RainbowBuffer
from ucl.buffers.reservoir import ClassBalancedBuffer, ReservoirBuffer
from ucl.buffers.uncertainty import UncertaintyBuffer

__all__ = [
    "Buffer", "ClassBalancedBuffer", "CoresetBuffer", "FeatureBuffer", "GSSGreedyBuffer", "HomogeneousBuffer",
    "ICaRLBuffer", "LossAwareBuffer", "RainbowBuffer", "ReservoirBuffer", "UncertaintyBuffer",
]  # fmt: skip
