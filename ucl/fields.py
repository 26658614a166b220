"""The fields of a `Config`: one per choice, with its default, its allowed values and its help text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ucl import catalogue
from ucl.catalogue import LARGEST_IMAGE, SMALLEST_IMAGE, helps, is_user_object
from ucl.errors import InputError, one_of, whole_number
from ucl.user_objects import KINDS

CLASS_LISTS = ("class_order", "tasks")
"""The fields whose value may be a list of all classes, as text."""


class Bounds(NamedTuple):
    """A range of numbers; an end with a round bracket does not belong to it."""

    low: float
    high: float
    ends: str = "[]"

    def __contains__(self, value: Any) -> bool:
        above = self.low < value if self.ends[0] == "(" else self.low <= value
        return above and (value < self.high if self.ends[1] == ")" else value <= self.high)

    def __str__(self) -> str:
        return f"{self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"


def _field(default: Any, allowed: range | Bounds | type | Mapping[str, str], text: str) -> Any:
    """A field with its allowed values: a range of whole or real numbers, a type, or names with a help text each."""
    choices = allowed if isinstance(allowed, Mapping) else None
    return dataclasses.field(default=default, metadata={"help": text, "allowed": allowed, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What a run depends on. The default None means that the value follows from other fields, see `Config`."""

    # A table of default, allowed values and help.
    # fmt: off
    dataset: str = _field("digits", str,
        "data set: digits, cifar10, cifar100, bloodcell, a MedMNIST name, each with -lt for its long-tailed version, "
        "a path to an .npz in MedMNIST's layout or to a folder of class folders, or your own function of no arguments "
        "as package.module:function")
    image_size: int | None = _field(None, range(1, LARGEST_IMAGE + 1),
        f"pixels per side: 28, 64, 128 or 224 for MedMNIST sets, {SMALLEST_IMAGE} to {LARGEST_IMAGE} (with your own "
        "network from 1) for a folder (the middle square of each image is resized) or your own function that returns "
        "items, not arrays; by default the data set's own, 32 for a folder")
    n_tasks: int = _field(None, range(1, 1001),
        "number of tasks into which the classes are split, the first ones with one class more if needed; by default "
        "as in the paper: 4 for bloodcell, otherwise 5")
    class_order: str = _field(None,
        {"seed": "drawn at random by the seed", "size": "largest class first, the default for bloodcell"},
        "order of the classes; or all classes, each by its name or its index from 0, such as 2,0,1 (a name with a "
        "comma or a bar by its index)")
    tasks: str = _field("equal", {"equal": "as many in each task, see n_tasks"},
        "classes of each task; or all classes, as for class_order, with a bar between tasks, such as '0,1|2', which "
        "also sets n_tasks and class_order")
    boundaries: str = _field("clear", helps(catalogue.BOUNDARIES), "how one task turns into the next")
    blur: float = _field(None, Bounds(0, 1),
        "in [0, 1]. gradual: length of a transition, as a share of a task's images (default 1: the stream is always "
        "in a transition). blurry: share of a blurry class's images that is divided equally among all tasks (default "
        "0.1)")
    disjoint: float = _field(0.5, Bounds(0, 1),
        "share of the classes that come in one task only, in [0, 1]; for the boundaries 'blurry'")
    imbalance: float = _field(None, Bounds(0, 1, "(]"),
        "size of the last class over that of the first, in (0, 1]; the sizes fall along the class order. 1 keeps all "
        "images; 0.1 is the default of -lt data sets")
    validation: float = _field(0.05, Bounds(0, 0.5),
        "share of each class's training images that is held out, in [0, 0.5]; not used where the data set has its own "
        "validation set. Of a folder with patients, as many whole patients as fit into this share")
    batch_size: int = _field(10, range(1, 10_001),
        "images per batch of the stream, and the number of memory samples replayed with them; an incomplete last "
        "batch of a task is dropped: its images are not learnt")
    seed: int = _field(0, range(0, 2**32),
        "of the random generators; class order, weights, batches, replay, memory and views have a generator each")
    method: str = _field("er", helps(catalogue.METHODS),
        "how a batch is learnt; your own ucl.methods.Method as package.module:Method")
    model: str = _field("slim_resnet18", helps(catalogue.NETWORKS),
        "the network; your own as package.module:function, a function of the numbers of classes, channels and pixels "
        "per side")
    dropout: float = _field(None, Bounds(0, 1, "[)"),
        "dropout rate after each block's first activation and before the head, in [0, 1); by default 0.3 for the "
        "score MC, otherwise 0. One of your own has its own layers. With dropout, tests average 20 passes")
    lr: float = _field(0.1, Bounds(0, 100, "(]"), "learning rate of SGD, without momentum or weight decay")
    updates: int = _field(1, range(1, 1001), "training steps per batch, each with its own memory samples")
    replay: str = _field(None, {
        "earlier": "images of earlier tasks only, as in the paper: the method knows the task's number",
        "all": "any image: no task number is needed"},
        "what is drawn from the memory for a batch; by default earlier with clear boundaries, otherwise all")
    reference_batch: int = _field(0, range(0, 10_000_001),
        "memory samples of agem's reference gradient, or all eligible ones if fewer; 0 is as many as batch_size; its "
        "authors' code has 256")
    projected: str = _field("batch", {
        "batch": "that of the batch, as published",
        "replay": "that of the batch and the reference's memory samples together, as er has it: a reading of the "
                  "paper's rows"},
        "the gradient that agem projects")
    augmentation: str = _field("none",
        {"none": "the images as they are", "randaugment": "a random operation per image (Cubuk et al., 2020)"},
        "of batch and memory samples before each training step; with several updates, repeated augmented rehearsal "
        "(Zhang et al., 2022)")
    memory_size: int = _field(None, range(1, 10_000_001),
        "number of images in the memory; by default the smaller of the paper's sizes for a data set of the paper, 50 "
        "for digits, and 200 for others")
    population: str = _field(None, helps(catalogue.POLICIES),
        "memory policy; by default uncertainty for er, otherwise reservoir; your own ucl.buffers.Buffer as "
        "package.module:Buffer")
    score: str = _field("BI", helps(catalogue.SCORES),
        "uncertainty score, for the population 'uncertainty'; your own as package.module:function")
    selection: str = _field("bottom", helps(catalogue.SELECTIONS), "which candidates of a class stay")
    refresh: float = _field(1.0, Bounds(0, 10_000_000, "(]"),
        "how many stored images of a class are rescored per update, those with the oldest scores first: a share in "
        "(0, 1], or a number above 1; 1 rescores all, as in the paper")
    smoothing: float = _field(1.0, Bounds(0, 1, "(]"),
        "weight of the new score when a stored image is rescored, in (0, 1]: s <- (1 - smoothing) * s + smoothing * "
        "new; 1 as in the paper")
    n_draws: int = _field(1, range(1, 101), "draws of the 12 views per score")
    scoring_batchnorm: str = _field("eval", {
        "eval": "evaluation mode: running statistics, which scoring does not change",
        "train": "training mode: batch statistics, and the running ones move; as in the reference implementation"},
        "BatchNorm while scoring, also while mir computes losses")
    averaging: str = _field("scores", {
        "scores": "the mean of the views' scores, as in the paper's equations",
        "probabilities": "the score of the mean probabilities; as in the reference implementation"},
        "how LC, MS, RC and EN average over the views")
    view_draws: str = _field("image", {
        "image": "for each image, each time it is scored",
        "batch": "once for all candidates of a class; as in the reference implementation",
        "fixed": "once for each image: its views are the same whenever it is scored"},
        "when the parameters of a view are drawn")
    view_space: str = _field("pixels", {
        "pixels": "the image in [0, 1], normalised afterwards",
        "normalized": "the normalised tensor; as in the reference implementation"},
        "what the views act on")
    class_balancing: str = _field("chrysakis", {
        "chrysakis": "class-balancing reservoir sampling (Chrysakis & Moens, 2020)",
        "redraw": "memory and batch are redrawn together at every step; as in the reference implementation"},
        "variant of the population 'class-balanced'")
    reservoir_index: str = _field("inclusive", {
        "inclusive": "all samples seen, the new one included (Vitter, 1985)",
        "exclusive": "those before the new one; as in the reference implementation"},
        "reservoir sampling draws an index among")
    long_tailed_test: bool = _field(False, bool,
        "thin the test classes like the training classes; as in the reference implementation")
    balanced_accuracy: bool = _field(None, bool,
        "last accuracy is the mean of the class recalls instead of the task accuracies; the default for bloodcell and "
        "MedMNIST sets given by name, whose test classes differ in size")
    evaluate_on: str = _field("test",
        {"test": "the test set", "validation": "the held-out training images, for tuning"},
        "images on which accuracy is measured")
    evaluate_tasks: str = _field("all", {
        "all": "all tasks learnt so far",
        "current": "the task just learnt, and all at the end: 2 T - 1 tests of T tasks instead of T (T + 1) / 2; F and "
        "the other measures that need the tests left out are NaN"},
        "tasks that are tested after each task")
    test_batchnorm: str = _field("running",
        {"running": "the network's running statistics", **helps(catalogue.STATISTICS)},
        "BatchNorm statistics that the tests use, see `ucl.evaluation.readings`")
    evaluate_every: int = _field(0, range(0, 10_000_001),
        "also test on the validation images after every so many batches, for average anytime and worst-case accuracy; "
        "0 tests after each task only")
    readings: bool = _field(False, bool, "also test the network after each task in all `ucl.evaluation.readings`")
    precision: str = _field("auto",
        {"auto": "bfloat16 where the processor is faster in it, otherwise float32", "float32": "", "bfloat16": ""},
        "arithmetic of the scoring passes; training and tests are always float32")
    # fmt: on


FIELDS = {field.name: field for field in dataclasses.fields(Fields)}
"""The fields by their names, in their order."""


def check_field(name: str, value: Any) -> None:
    """Check the value of a field; a user object is not looked up.

    Raises:
        InputError: the value is unknown or out of range.
    """
    value, allowed = without_numpy(value), FIELDS[name].metadata["allowed"]
    if isinstance(allowed, range):
        whole_number(name, value, allowed.start, allowed.stop - 1)
    elif isinstance(allowed, Bounds):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value not in allowed:
            raise InputError(name, value, f"give a number in {allowed}")
    elif isinstance(allowed, type):
        if not isinstance(value, allowed) or value == "":
            wanted = "True or False" if allowed is bool else "a name or a path, such as 'digits'"
            raise InputError(name, value, f"give {wanted}")
    elif name in CLASS_LISTS and not (isinstance(value, str) and value in allowed):
        classes = [c for task in classes_in(value) for c in task] if isinstance(value, str) else []
        is_repeated, is_in_tasks = len({*classes}) < len(classes), "|" in str(value)
        if len(classes) < 2 or is_repeated or "" in classes or (is_in_tasks and name != "tasks"):
            example = "0,1|2" if name == "tasks" else "2,0,1"
            raise InputError(name, value, f"give {' or '.join(allowed)}, or each class once, such as '{example}'")
    elif name not in KINDS:
        one_of(name, value, allowed)
    elif not is_user_object(value):
        one_of(name, value, allowed, f"{name} (your own goes by package.module:{KINDS[name].noun})")


def classes_in(text: str) -> list[list[str]]:
    """The classes of each task in an explicit value of `CLASS_LISTS`, as they are written there."""
    return [[name.strip() for name in task.split(",")] for task in text.split("|")]


def without_numpy(value: Any) -> Any:
    """A numpy scalar, as loops over arrays give, as a value of Python; anything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def as_text(value: object) -> str:
    """A value as messages, tables and pictures show it: 2 and 2.0 are one value, "2"."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def decimal(value: float, digits: int = 1) -> str:
    """A number with a fixed number of decimals; what is rounded to zero has no sign."""
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # numpy rounds 0.15 to 0.2


def known_fields(values: dict[str, Any], name: str = "field") -> dict[str, Any]:
    """The same values, after a check that every key is the name of a field.

    Raises:
        InputError: a key is not; the message reports it as `name`.
    """
    for field_name in values:
        one_of(name, field_name, FIELDS, "field of Config")
    return values
