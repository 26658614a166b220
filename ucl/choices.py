"""The values that fields of `Config` may have: meaning, names in tables, and the defaults that they imply."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ucl.errors import one_of

METHODS = {
    "er": "experience replay: the batch and as many memory samples in one update (Chaudhry et al., 2019)",
    "agem": "A-GEM: the batch gradient, projected so that it never opposes a memory gradient (Chaudhry et al., 2019)",
    "finetune": "plain SGD on the stream, no memory",
    "er-ace": "ER-ACE: batch samples compete with the classes of their batch only (Caccia et al., 2022)",
    "derpp": "DER++: memory samples keep the logits that they had when they came (Buzzega et al., 2020)",
    "mir": "MIR: replay of the samples whose loss the batch would raise most (Aljundi et al., 2019)",
    "joint": "the images of all tasks mixed, each seen once, no memory: a reference without forgetting",
}
POPULATIONS = {
    "uncertainty": "class-balanced, each class keeps samples by an uncertainty score (the paper's Algorithm 1)",
    "reservoir": "reservoir sampling: every sample of the stream equally likely (Vitter, 1985)",
    "class-balanced": "CBR: class-balancing reservoir sampling (Chrysakis & Moens, 2020)",
    "loss-aware": "LARS: a reservoir in which samples with a low loss leave first (Buzzega et al., 2021)",
    "closest-to-mean": "MoF: each class keeps the samples closest to the mean of its features (Chaudhry et al., 2019)",
    "herding": "each class keeps samples whose mean features are closest to those of the class (Rebuffi et al., 2017)",
    "gss": "GSS-greedy: samples with gradients unlike the others' (Aljundi et al., 2019)",
    "homogeneous": "MOE: at a task's end, among all its images, those whose neighbours have their label "
    "(Hurtado et al., 2023); not online",
    "rainbow": "Rainbow Memory: at a task's end, among all its images, every n-th from the least uncertain on "
    "(Bang et al., 2021); not online",
    "coreset": "OCS: typical gradients, unlike each other, that agree with the memory (Yoon et al., 2022)",
}
SCORE_NAMES = {
    "BI": "Bregman Information of the logits, a generalised variance (paper, eq. 6)",
    "LC": "least confidence (eq. 2)",
    "MS": "margin between the two most probable classes (eq. 3)",
    "RC": "ratio of the two highest probabilities (eq. 4)",
    "EN": "entropy (eq. 5)",
    "RM": "disagreement of the views, as in Rainbow Memory (eq. 1)",
    "MC": "variance over Monte-Carlo dropout passes (Gal & Ghahramani, 2016)",
}
UNIFORM = "ucl.scorers:uniform"
"""The random control: views are computed, but the score is a random number. Its name in labels is "uniform"."""
SELECTIONS = {
    "bottom": "the least uncertain",
    "step": "evenly spaced from the least to the most uncertain",
    "top": "the most uncertain",
}

STATISTICS = {
    "training": "those after the training steps alone, without scoring passes",
    "displaced": "after training-mode scoring passes, like the reference implementation's, over the task's classes",
    "memory": "re-estimated on batches of the memory",
    "memory+stream": "re-estimated on batches that are half memory, half the task's last images",
    "views": "re-estimated on views of the memory",
    "balanced": "re-estimated on training images of all classes so far, which a stream does not keep: for comparison",
}
FROM_MEMORY = ("memory", "memory+stream", "views")
"""The statistics that need a memory."""
READINGS = {
    **STATISTICS,
    "published test": "in training mode, by the mean of the logits, as the reference implementation tests MC; "
    "networks with dropout only",
    "thinned": "the run's own answers to a long-tailed test set, as in the reference implementation; "
    "long-tailed streams only",
}

BOUNDARIES = {
    "clear": "a class comes in one task only, as in the paper",
    "gradual": "the share of each task falls linearly while that of the next rises",
    "blurry": "i-Blurry: some classes come in one task, the others also in small parts in all tasks (Koh et al., 2022)",
}
# Defaults of each kind of boundaries. Unless they are clear, a batch does not belong to a single task.
OF_BOUNDARIES: dict[str, dict[str, Any]] = {
    "clear": dict(blur=0.0, replay="earlier"),
    "gradual": dict(blur=1.0, replay="all"),
    "blurry": dict(blur=0.1, replay="all"),
}
PLUGS = {
    "dataset": "function",
    "method": "Method",
    "model": "function",
    "population": "Buffer",
    "score": "function",
}
"""The fields whose value may be an object of the user's own, as ``package.module:name``, and what kind of object."""

MEDMNIST = (
    *("pathmnist", "chestmnist", "dermamnist", "octmnist", "pneumoniamnist", "retinamnist", "breastmnist"),
    *("bloodmnist", "tissuemnist", "organamnist", "organcmnist", "organsmnist"),
)
"""MedMNIST's names of its 2-D sets."""

# Defaults of each data set, as in the paper, or in its reference implementation (balanced accuracy). A name that ends
# in "-lt" is long-tailed.
_SCENARIOS: dict[str, dict[str, Any]] = {
    "digits": dict(n_tasks=5, memory_size=50),
    "cifar10": dict(n_tasks=5, memory_size=500),
    "cifar100": dict(n_tasks=5, memory_size=1000),
    "cifar10-lt": dict(n_tasks=5, memory_size=200),
    "cifar100-lt": dict(n_tasks=5, memory_size=500),
    "bloodcell": dict(n_tasks=4, memory_size=40, class_order="size", balanced_accuracy=True),
}
_ANY_DATASET: dict[str, Any] = dict(
    n_tasks=5, memory_size=200, class_order="seed", imbalance=1.0, balanced_accuracy=False
)
WITHOUT_VALIDATION = ("digits", "cifar10", "cifar100")
"""The data sets, of those known by name, without a validation set of their own."""

METHOD_LABELS = {
    "agem": "A-GEM",
    "finetune": "Finetune",
    "er-ace": "ER-ACE",
    "derpp": "DER++",
    "mir": "MIR",
    "joint": "Joint",
}
"""The names in tables and figures of the methods other than experience replay."""
POPULATION_LABELS = {
    "reservoir": "ER",
    "class-balanced": "CBR",
    "loss-aware": "LARS",
    "closest-to-mean": "MoF",
    "herding": "Herding",
    "gss": "GSS",
    "homogeneous": "MOE",
    "rainbow": "Rainbow",
    "coreset": "OCS",
}
"""The names in tables and figures of the memory policies other than a score, with experience replay."""
PICTURES = {
    "accuracy": "accuracy after each task: on all tasks seen so far, and on the first task",
    "forgetting": "last accuracy A and last forgetting F, one dot per seed, and the accuracies behind F",
    "tasks": "accuracy on each task after each task, one matrix per method",
    "classes": "recall of each class at the end, one dot per seed: what happens to rare classes",
    "memory": "what the final memory holds: confidence and Bregman Information of its images",
    "differences": "each method minus one other in A and F: mean and 95 % interval of paired differences",
}
"""Names of the pictures, and what they show."""
SMALLEST_IMAGE, LARGEST_IMAGE = 25, 512  # pixels per side; a network of the user's own may take fewer


def plain_name(dataset: str) -> str:
    """The name of a data set without the suffix of its long-tailed version."""
    return dataset.removesuffix("-lt")


def scenario(dataset: str) -> dict[str, Any]:
    """The defaults of a data set: tasks, class order, imbalance, memory size and metric."""
    plain = plain_name(dataset)
    tail = {"imbalance": 0.1} if plain != dataset else {}
    balanced = {"balanced_accuracy": True} if plain in MEDMNIST else {}
    return {**_ANY_DATASET, **balanced, **_SCENARIOS.get(plain, {}), **tail, **_SCENARIOS.get(dataset, {})}


def has_separator(path: str) -> bool:
    """Whether a text has a separator of folders: "/" everywhere, "\\" as well on Windows."""
    return "/" in path or os.sep in path


def is_own(value: object) -> bool:
    """Whether a value names an object of the user's own, see `ucl.own`, and not the path of a file."""
    if not isinstance(value, str):
        return False
    path = value.partition("(")[0]  # The arguments in package.module:name(file="a/b") are no part of the path.
    return ":" in path and not (has_separator(path) or path.endswith(".npz"))


def choose_from(name: str, value: object, known: Iterable[str]) -> None:
    """Check that a field of `PLUGS` has a known name.

    Raises:
        InputError: it has not; the message says that an object of the user's own can be given, too.
    """
    one_of(name, value, known, f"{name} (your own goes by package.module:{PLUGS[name]})")
