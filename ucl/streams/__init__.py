"""Streams of images, task after task, and the data sets that they are made from."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucl.streams.class_incremental import Batch, ClassIncrementalStream, Task, long_tailed_counts

__all__ = ["Batch", "ClassIncrementalStream", "Task", "long_tailed_counts"]


def __getattr__(name: str) -> Any:  # streams import torch; the data sets, which the command lists, do not
    if name not in __all__:
        raise AttributeError(f"module 'ucl.streams' has no attribute {name!r}")
    from ucl.streams import class_incremental

    return getattr(class_incremental, name)
