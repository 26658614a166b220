"""Replay memories, one class per memory policy, and the rules that select what a memory keeps."""

from ucl.buffers.buffer import Buffer, ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer

__all__ = ["Buffer", "ClassBalancedBuffer", "ReservoirBuffer", "UncertaintyBuffer"]
