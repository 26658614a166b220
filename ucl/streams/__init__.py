"""Streams of images, task after task, and the data sets that they are made from."""

from ucl.streams.class_incremental import Batch, ClassIncrementalStream, Task, long_tailed_counts

__all__ = ["Batch", "ClassIncrementalStream", "Task", "long_tailed_counts"]
