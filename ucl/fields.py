"""The fields of a `Config`: one per choice, with its default, its allowed values and its help text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ucl.catalogue import (
    BOUNDARIES,
    LARGEST_IMAGE,
    METHODS,
    NETWORKS,
    POLICIES,
    SCORES,
    SELECTIONS,
    SMALLEST_IMAGE,
    STATISTICS,
    Row,
    check_name,
    helps,
    is_user_object,
)
from ucl.errors import InputError, number, one_of, whole_number

Choices = Mapping[str, str]
Check = Callable[[str, Any], None]  # takes a field's name and a value, and raises an InputError


def _field(default: Any, text: str, check: Check, choices: Choices | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "check": check, "choices": choices})


def _whole(default: int | None, text: str, low: int, high: int) -> Any:
    return _field(default, text, lambda name, value: whole_number(name, value, low, high))


def _number(default: float | None, text: str, **range_: Any) -> Any:
    return _field(default, text, lambda name, value: number(name, value, **range_))


def _flag(default: bool | None, text: str) -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise InputError(name, value, "give True or False")

    return _field(default, text, check)


def _choice(default: str | None, text: str, choices: Choices) -> Any:
    return _field(default, text, lambda name, value: one_of(name, value, choices), choices)


def _name_or_object(default: str | None, text: str, rows: Mapping[str, Row]) -> Any:
    """A name of the catalogue, or an object of the user's own, which is not looked up here."""

    def check(name: str, value: Any) -> None:
        if not is_user_object(value):
            check_name(name, value, rows)

    return _field(default, text, check, helps(rows))


def _dataset(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(name, value, "give a name or a path, such as 'digits'")


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What a run depends on. The default None stands for one that follows from other fields, see `Config`."""

    dataset: str = _field(
        "digits",
        "data set: digits, cifar10, cifar100, bloodcell, a MedMNIST name, each with -lt for its long-tailed "
        "version, a path to an .npz in MedMNIST's layout or to a folder of class folders, or your own function of "
        "no arguments as package.module:function",
        _dataset,
    )
    image_size: int | None = _whole(
        None,
        f"pixels per side: 28, 64, 128 or 224 for MedMNIST sets, {SMALLEST_IMAGE} to {LARGEST_IMAGE} (with your own "
        "network from 1) for a folder (the middle square of each image is resized) or your own function that returns "
        "items, not arrays; by default the data set's own, 32 for a folder",
        low=1,
        high=LARGEST_IMAGE,
    )
    n_tasks: int = _whole(
        None,
        "number of tasks into which the classes are split, the first ones with one class more if needed; by default as "
        "in the paper: 4 for bloodcell, otherwise 5",
        low=1,
        high=1000,
    )
    class_order: str = _choice(
        None,
        "order of the classes",
        {"seed": "drawn at random by the seed", "size": "largest class first, the default for bloodcell"},
    )
    boundaries: str = _choice("clear", "how one task turns into the next", helps(BOUNDARIES))
    blur: float = _number(
        None,
        "in [0, 1]. gradual: length of a transition, as a share of a task's images (default 1: the stream is "
        "always in a transition). blurry: share of a blurry class's images that is divided equally among all "
        "tasks (default 0.1)",
        low=0,
        high=1,
    )
    disjoint: float = _number(
        0.5, "share of the classes that come in one task only, in [0, 1]; for the boundaries 'blurry'", low=0, high=1
    )
    imbalance: float = _number(
        None,
        "size of the last class over that of the first, in (0, 1]; the sizes fall along the class order. 1 keeps "
        "all images; 0.1 is the default of -lt data sets",
        low=0,
        high=1,
        open_low=True,
    )
    validation: float = _number(
        0.05,
        "share of each class's training images that is held out, in [0, 0.5]; not used where the data set has its "
        "own validation set. Of a folder with patients, as many whole patients as fit into this share",
        low=0,
        high=0.5,
    )
    batch_size: int = _whole(
        10,
        "images per batch of the stream, and the number of memory samples replayed with them; an incomplete last "
        "batch of a task is dropped: its images are not learnt",
        low=1,
        high=10_000,
    )
    seed: int = _whole(
        0,
        "of the random generators; class order, weights, batches, replay, memory and views have a generator each",
        low=0,
        high=2**32 - 1,
    )
    method: str = _name_or_object(
        "er", "how a batch is learnt; your own ucl.methods.Method as package.module:Method", METHODS
    )
    model: str = _name_or_object(
        "slim_resnet18",
        "the network; your own as package.module:function, a function of the numbers of classes, channels and "
        "pixels per side",
        NETWORKS,
    )
    dropout: float = _number(
        None,
        "dropout rate after each block's first activation and before the head, in [0, 1); by default 0.3 for the "
        "score MC, otherwise 0; above 0, tests average 20 passes; a network of your own has its own",
        low=0,
        high=1,
        open_high=True,
    )
    lr: float = _number(0.1, "learning rate of SGD, without momentum or weight decay", low=0, high=100, open_low=True)
    updates: int = _whole(1, "training steps per batch, each with its own memory samples", low=1, high=1000)
    replay: str = _choice(
        None,
        "what is drawn from the memory for a batch; by default earlier with clear boundaries, otherwise all",
        {
            "earlier": "images of earlier tasks only, as in the paper: the method knows the task's number",
            "all": "any image: no task number is needed",
        },
    )
    augmentation: str = _choice(
        "none",
        "of batch and memory samples before each training step; with several updates, repeated augmented "
        "rehearsal (Zhang et al., 2022)",
        {"none": "the images as they are", "randaugment": "a random operation per image (Cubuk et al., 2020)"},
    )
    memory_size: int = _whole(
        None,
        "number of images in the memory; by default the smaller of the paper's sizes for a data set of the paper, 50 "
        "for digits, and 200 for others",
        low=1,
        high=10_000_000,
    )
    population: str = _name_or_object(
        None,
        "memory policy; by default uncertainty for er, otherwise reservoir; your own ucl.buffers.Buffer as "
        "package.module:Buffer",
        POLICIES,
    )
    score: str = _name_or_object(
        "BI", "uncertainty score, for the population 'uncertainty'; your own as package.module:function", SCORES
    )
    selection: str = _choice("bottom", "which candidates of a class stay", helps(SELECTIONS))
    refresh: float = _number(
        1.0,
        "how many stored images of a class are rescored per update, those with the oldest scores first: a share "
        "in (0, 1], or a number above 1; 1 rescores all, as in the paper",
        low=0,
        high=10_000_000,
        open_low=True,
    )
    smoothing: float = _number(
        1.0,
        "weight of the new score when a stored image is rescored, in (0, 1]: s <- (1 - smoothing) * s + smoothing "
        "* new; 1 as in the paper",
        low=0,
        high=1,
        open_low=True,
    )
    n_draws: int = _whole(1, "draws of the 12 views per score", low=1, high=100)
    scoring_batchnorm: str = _choice(
        "eval",
        "BatchNorm while scoring, also while mir computes losses",
        {
            "eval": "evaluation mode: running statistics, which scoring does not change",
            "train": "training mode: batch statistics, and the running ones move; as in the reference implementation",
        },
    )
    averaging: str = _choice(
        "scores",
        "how LC, MS, RC and EN average over the views",
        {
            "scores": "the mean of the views' scores, as in the paper's equations",
            "probabilities": "the score of the mean probabilities; as in the reference implementation",
        },
    )
    view_draws: str = _choice(
        "image",
        "when the parameters of a view are drawn",
        {
            "image": "for each image, each time it is scored",
            "batch": "once for all candidates of a class; as in the reference implementation",
            "fixed": "once for each image: its views are the same whenever it is scored",
        },
    )
    view_space: str = _choice(
        "pixels",
        "what the views act on",
        {
            "pixels": "the image in [0, 1], normalised afterwards",
            "normalized": "the normalised tensor; as in the reference implementation",
        },
    )
    class_balancing: str = _choice(
        "chrysakis",
        "variant of the population 'class-balanced'",
        {
            "chrysakis": "class-balancing reservoir sampling (Chrysakis & Moens, 2020)",
            "redraw": "memory and batch are redrawn together at every step; as in the reference implementation",
        },
    )
    reservoir_index: str = _choice(
        "inclusive",
        "reservoir sampling draws an index among",
        {
            "inclusive": "all samples seen, the new one included (Vitter, 1985)",
            "exclusive": "those before the new one; as in the reference implementation",
        },
    )
    long_tailed_test: bool = _flag(
        False, "thin the test classes like the training classes; as in the reference implementation"
    )
    balanced_accuracy: bool = _flag(
        None,
        "last accuracy is the mean of the class recalls instead of the task accuracies; the default for bloodcell "
        "and MedMNIST sets given by name, whose test classes differ in size",
    )
    evaluate_on: str = _choice(
        "test",
        "images on which accuracy is measured",
        {"test": "the test set", "validation": "the held-out training images, for tuning"},
    )
    test_batchnorm: str = _choice(
        "running",
        "BatchNorm statistics that the tests use, see `ucl.evaluation.readings`",
        {"running": "the network's running statistics", **helps(STATISTICS)},
    )
    evaluate_every: int = _whole(
        0,
        "also test on the validation images after every so many batches, for average anytime and worst-case "
        "accuracy; 0 tests after each task only",
        low=0,
        high=10_000_000,
    )
    readings: bool = _flag(False, "also test the network after each task in all `ucl.evaluation.readings`")
    precision: str = _choice(
        "auto",
        "arithmetic of the scoring passes; training and tests are always float32",
        {"auto": "bfloat16 where the processor is faster in it, otherwise float32", "float32": "", "bfloat16": ""},
    )


@functools.cache
def fields() -> tuple[dataclasses.Field[Any], ...]:
    """The fields in their order."""
    return dataclasses.fields(Fields)  # Cached: it takes a third of the time to create a configuration.


def check_fields(**values: Any) -> None:
    """Check values of fields, each on its own.

    Args:
        values: the values by the names of the fields; objects of the user's own are not looked up.

    Raises:
        InputError: a value is unknown or out of range.
    """
    for field in fields():
        if field.name in values:
            field.metadata["check"](field.name, without_numpy(values[field.name]))


def without_numpy(value: Any) -> Any:
    """A numpy scalar, as loops over arrays give, as a value of Python; anything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def as_text(value: object) -> str:
    """A value as messages, tables and pictures show it: 2 and 2.0 are one value, "2"."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def decimal(value: float, digits: int = 1) -> str:
    """A number with a fixed number of decimals; what is rounded to zero has no sign."""
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # numpy's own rounding of 0.15 is 0.2


def known_fields(values: dict[str, Any], name: str = "field") -> dict[str, Any]:
    """The same values, after a check that every key is the name of a field.

    Raises:
        InputError: a key is not; the message reports it as `name`.
    """
    names = [field.name for field in fields()]
    for field_name in values:
        one_of(name, field_name, names, "field of Config")
    return values
