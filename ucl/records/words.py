"""Parts of a record as text: what `print` and `ucl run` show of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ucl.config import Config
from ucl.fields import decimal

MOST_CLASSES, AT_ENDS = 12, 4  # classes that are listed; of more classes, so many at each end


def run_in_words(config: Config) -> str:
    """Such as "digits, 5 tasks, memory 50, BI bottom, seed 0"."""
    memory = f", memory {config.memory_size}" if config.uses_memory else ""
    tasks = "1 task" if config.n_tasks == 1 else f"{config.n_tasks} tasks"
    return f"{config.dataset_name}, {tasks}{memory}, {config.label}, seed {config.seed}"


def accuracy_in_words(measures: Mapping[str, float], balanced: bool) -> str:
    """Last accuracy, also balanced over the classes if that differs, and last forgetting.

    Args:
        measures: see `Record.measures`.
        balanced: whether A is the balanced accuracy.
    """
    A, over_classes, F = (f"{decimal(100 * measures[name])} %" for name in ("A", "balanced", "F"))
    also = " (balanced)" if balanced else f", balanced over the classes {over_classes}" if over_classes != A else ""
    return f"last accuracy {A}{also}, last forgetting {F}"


def recall_in_words(recall_C: np.ndarray, classes: Sequence[str], class_order: Sequence[int]) -> str:
    """The recall of each class; of many classes, those with the lowest and the highest.

    Args:
        recall_C: (C,), in [0, 1]; NaN for a class without test images, which is left out.
        classes, class_order: see `Record`.
    """
    tested = [label for label in class_order if not np.isnan(recall_C[label])]

    def listed(labels: Sequence[int]) -> str:
        return ", ".join(f"{classes[label]}: {100 * recall_C[label]:.1f}" for label in labels)

    if len(tested) <= MOST_CLASSES:
        return f"recall in per cent of the classes, in the order of the stream: {listed(tested)}"
    ranked = sorted(tested, key=lambda label: float(recall_C[label]))
    lowest, highest = listed(ranked[:AT_ENDS]), listed(ranked[: -AT_ENDS - 1 : -1])
    return f"recall in per cent of the classes, lowest first: {lowest}; highest first: {highest}"
