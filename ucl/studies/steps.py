"""The steps of a run, for studies that look at it batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

from ucl.buffers import Buffer
from ucl.methods import Method
from ucl.models import Network
from ucl.streams import Batch, Task


def steps(task: Task, model: Network, buffer: Buffer | None, method: Method) -> Iterator[Batch]:
    """Learn a task as `ucl.run` does: bit for bit within `ucl.machine.determinism.repeatable`.

    Yields:
        Each batch, after the network has learnt it and the memory was updated with it; the last batch after the
        memory's update at the end of the task.
    """
    for number, batch in enumerate(task, 1):
        method.learn(model, batch, buffer)
        if buffer is not None:
            buffer.update(model, batch)
            if number == len(task):
                buffer.end_of_task(model, task)
        yield batch
