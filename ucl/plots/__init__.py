"""Figures: records, counts or images in, a matplotlib figure out. They have one look, that of `style`."""

from ucl.catalogue import method_order
from ucl.plots import effects, held_images, paper, readings, studies
from ucl.plots.accuracy import (
    accuracy_and_forgetting,
    accuracy_matrices,
    accuracy_over_stream,
    class_recall,
)
from ucl.plots.confusion import class_confusion
from ucl.plots.memory import (
    class_shares,
    memory_over_time,
    memory_samples,
    score_distributions,
    scored_images,
    stream_classes,
)
from ucl.plots.style import color, dash, save

__all__ = [
    "accuracy_and_forgetting",
    "accuracy_matrices",
    "accuracy_over_stream",
    "class_confusion",
    "class_recall",
    "class_shares",
    "color",
    "dash",
    "effects",
    "held_images",
    "memory_over_time",
    "memory_samples",
    "method_order",
    "paper",
    "readings",
    "save",
    "score_distributions",
    "scored_images",
    "stream_classes",
    "studies",
]
