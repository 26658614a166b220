"""Class-incremental streams of images, and the data sets that they are made from."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ucl.streams.class_incremental import ClassIncrementalStream, long_tailed_counts
    from ucl.streams.task import Batch, LazyImages, Task

__all__ = ["Batch", "ClassIncrementalStream", "LazyImages", "Task", "long_tailed_counts"]


# The names are imported when they are first used: streams need torch, and the command lists data sets without it.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ucl.streams' has no attribute {name!r}")
    from ucl.streams import class_incremental, task

    return getattr(task if hasattr(task, name) else class_incremental, name)


def __dir__() -> list[str]:
    """The names of the module, with those that have not been used yet."""
    return sorted({*globals(), *__all__})
