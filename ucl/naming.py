"""Names of runs, streams and methods in tables, pictures and messages: what differs from the defaults."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from ucl.config import FURTHER_TESTS, Config
from ucl.fields import as_text

PUBLISHED_CODE: dict[str, Any] = dict(
    scoring_batchnorm="train",
    averaging="probabilities",
    view_draws="batch",
    view_space="normalized",
    class_balancing="redraw",
    reservoir_index="exclusive",
    long_tailed_test=True,
)
"""The choices of the reference implementation where the paper says nothing, or something else (averaging,
class_balancing, reservoir_index): `config.replace(**ucl.paper.PUBLISHED_CODE)`.

Further properties of that implementation are not reproduced:

- At each batch it scores the classes of the current task that have more candidates than their quota, those with fewer
  candidates first; hardly any is absent from the batch. Here the classes of the batch are scored, in the order of their
  first image. In training mode, the class scored last has the largest weight in the running statistics.
- If a memory cannot be divided equally, the classes of the current task get the remainder; here the oldest classes do.
- Under "step" it keeps too many images, and a class that is not in the task gives up the end of its stored order.
- For MC it runs the views, too, and it tests networks with MC in training mode (`readings=True` has this test).
"""

STREAM = {  # the fields that define a stream and its test; all others belong to the method
    *("dataset", "image_size", "n_tasks", "class_order", "tasks", "imbalance", "validation", "memory_size"),
    *("boundaries", "blur", "disjoint", "long_tailed_test", "balanced_accuracy", "evaluate_on", "evaluate_tasks"),
}
DECIDED = ("dataset", "memory_size", "method", "population", "score", "selection")
"""The fields that a table's rows and columns set."""


def run_name(config: Config) -> str:
    """A run, such as "bloodcell, memory 40, EN bottom, refresh=2, seed 0"."""
    return f"{stream_and_memory(config)}, {name_of(config)}, seed {config.seed}"


def stream_and_memory(config: Config) -> str:
    """The stream and the size of the memory, such as "bloodcell, memory 40"."""
    return stream_of(config) + (f", memory {config.memory_size}" if config.uses_memory else "")


def stream_of(config: Config, free: Iterable[str] = ()) -> str:
    """The name of a stream: its data set, then the fields of `STREAM` that differ from the defaults, except `free`."""
    changes = [f"{name}={value}" for name, value in changed(config).items() if name in STREAM - {*free}]
    return ", ".join([config.dataset_name, *changes])


def name_of(config: Config) -> str:
    """The name of a method: its label, then its fields that differ from the defaults, but not those of `STREAM`.

    All choices of the reference implementation together are named "published settings", and its random memory
    "CBR redraw".
    """
    changes = {name: value for name, value in changed(config).items() if name not in STREAM}
    published = {k: as_text(v) for k, v in PUBLISHED_CODE.items() if k in config.relevant and k not in STREAM}
    if changes == {"class_balancing": "redraw"}:
        return f"{config.label} redraw"
    if changes and changes == published:
        return f"{config.label}, published settings"
    return ", ".join([config.label, *(f"{name}={value}" for name, value in changes.items())])


def no_effect(config: Config, name: str) -> str:
    """Why one of the idle fields of a run has no effect: "refresh=2 has no effect: population=reservoir"."""
    value, cause = (f"{field}={as_text(getattr(config, field))}" for field in (name, config.idle[name]))
    return f"{value} has no effect: {cause}"


def score_is_unused(config: Config) -> bool:
    """Whether a score was given that the default memory of the method does not use; `ucl.run` warns of it."""
    return (
        "score" in config.explicit and config.idle.get("score") == "population" and "population" not in config.explicit
    )


def settings(config: Config, without: Container[str] = ()) -> str:
    """The fields of a run that differ from the defaults, such as "lr=0.05, refresh=10"; "" if there are none.

    `DECIDED`, which a table's rows and columns show anyway, the seed and those in `without` are left out.
    """
    return ", ".join(f"{name}={value}" for name, value in changed(config).items() if name not in without)


def changed(config: Config) -> dict[str, str]:
    """The fields of `settings`, each with its value as text."""
    defaults, left_out = config.defaults(), {"seed", *DECIDED, *FURTHER_TESTS}
    fields = {k: v for k, v in config.relevant.items() if v != defaults[k] and k not in left_out}
    return {name: as_text(value) for name, value in fields.items()}
