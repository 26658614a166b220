"""Replay memories, one class per memory policy, and the rules that select what a memory keeps."""

from ucl.buffers.buffer import Buffer
from ucl.buffers.reservoir import ClassBalancedBuffer, ReservoirBuffer
from ucl.buffers.uncertainty import UncertaintyBuffer

__all__ = ["Buffer", "ClassBalancedBuffer", "ReservoirBuffer", "UncertaintyBuffer"]
