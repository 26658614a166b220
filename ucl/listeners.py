"""Listeners: what follows a run, such as its progress bar and its checkpoint. `ucl.run` calls them."""

from __future__ import annotations

from typing import Any

from ucl.streams import Task


class Diverged(Exception):
    """Raised by a listener to end the run: the network has diverged during the task."""

    def __init__(self, task: Task) -> None:
        self.task = task


class Listener:
    """Something that follows a run; each method does nothing by default."""

    def after_batch(self, task: Task) -> None:
        """A batch of the task has been learnt, and the memory updated."""

    def after_task(self, task: Task) -> None:
        """A task has been learnt; listeners that come earlier in the list have been called for it.

        Raises:
            Diverged: the run ends, without a call of later listeners.
        """

    def finish(self) -> dict[str, Any]:
        """The run has ended; returns entries of its `Record`, by name."""
        return {}
