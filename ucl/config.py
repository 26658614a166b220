"""The configuration of one run: a frozen, validated dataclass with one field per choice.

Everything that a run depends on is a field, so a record names the exact experiment that it measured. This module does
not import torch: configurations can be built, compared and stored anywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ucl.choices import (
    BOUNDARIES,
    METHOD_LABELS,
    METHODS,
    OF_BOUNDARIES,
    PLUGS,
    POPULATION_LABELS,
    POPULATIONS,
    SCORE_NAMES,
    SELECTIONS,
    SMALLEST_IMAGE,
    STATISTICS,
    UNIFORM,
    choose_from,
    is_own,
    plain_name,
    scenario,
)
from ucl.errors import InputError, number, one_of, whole_number
from ucl.own.path import parsed

SCORING_FIELDS = (  # they decide what the population "uncertainty" keeps
    *("score", "selection", "refresh", "smoothing", "n_draws", "scoring_batchnorm"),
    *("averaging", "view_draws", "view_space", "precision"),
)
_WHOLE = {  # the whole numbers that a field may have: the lowest and the highest one
    "n_tasks": (1, 1000),
    "batch_size": (1, 10_000),
    "seed": (0, 2**32 - 1),
    "updates": (1, 1000),
    "n_draws": (1, 100),
    "evaluate_every": (0, 10_000_000),
    "memory_size": (1, 10_000_000),
}
_REAL: dict[str, dict[str, Any]] = {  # the numbers that a field may have: arguments of `number`
    "imbalance": dict(low=0, high=1, open_low=True),
    "blur": dict(low=0, high=1),
    "disjoint": dict(low=0, high=1),
    "validation": dict(low=0, high=0.5),
    "dropout": dict(low=0, high=1, open_high=True),
    "lr": dict(low=0, high=100, open_low=True),
    "smoothing": dict(low=0, high=1, open_low=True),
    "refresh": dict(low=0, high=10_000_000, open_low=True),
}
FURTHER_TESTS: dict[str, Any] = dict(readings=False, evaluate_every=0)  # fields that do not change what is learnt


def _choice(default: Any, text: str, choices: dict[str, str] | tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run: which stream is learnt, how, and what the memory keeps.

    A field that is None gets its default from the data set (`scenario`), the method or the boundaries when the `Config`
    is created. `replace` chooses the defaults again for all fields that were not set explicitly, so
    `replace(dataset="bloodcell")` also takes BloodCell's four tasks and class order.

    Fields that cannot change the result of a run are not `relevant`. Configurations that differ only in such fields, for
    example two scores with reservoir sampling, have the same `key`.

    Raises:
        InputError: (a ValueError) a value is out of range or unknown, or two fields contradict each other.
    """

    # fmt: off
    dataset: str = _choice("digits", "data set: digits, cifar10, cifar100, bloodcell, a MedMNIST name, each with -lt "
                           "for its long-tailed version, a path to an .npz in MedMNIST's layout or to a folder of class "
                           "folders, or your own function of no arguments as package.module:function")
    image_size: int | None = _choice(None, "pixels per side: 28, 64, 128 or 224 for MedMNIST sets, any for a folder (its "
                                     "images are resized) or your own function; by default the data set's own, 32 for a folder")
    n_tasks: int = _choice(None, "number of tasks into which the classes are split; by default as in the paper: 4 for bloodcell, otherwise 5")
    class_order: str = _choice(None, "order of the classes", {
        "seed": "drawn at random by the seed", "size": "largest class first, the default for bloodcell"})
    boundaries: str = _choice("clear", "how one task turns into the next", BOUNDARIES)
    blur: float = _choice(None, "in [0, 1]. gradual: length of a transition, as a share of a task's images (default 1: the stream is always in a "
                          "transition). blurry: share of a blurry class's images that is divided equally among all tasks (default 0.1)")
    disjoint: float = _choice(0.5, "share of the classes that come in one task only, in [0, 1]; for the boundaries 'blurry'")
    imbalance: float = _choice(None, "size of the last class over that of the first, in (0, 1]; the sizes fall along the "
                                      "class order. 1 keeps all images; 0.1 is the default of -lt data sets")
    validation: float = _choice(0.05, "share of each class's training images that is held out, in [0, 0.5]; not used "
                                "where the data set has its own validation set")
    batch_size: int = _choice(10, "images per batch of the stream, and the number of memory samples replayed with them; "
                              "an incomplete last batch of a task is dropped: its images are not learnt")
    seed: int = _choice(0, "of the random generators; class order, weights, batches, replay, memory and views have a generator each")
    method: str = _choice("er", "how a batch is learnt; your own ucl.methods.Method as package.module:Method", METHODS)
    model: str = _choice("slim_resnet18", "the network; your own as package.module:function, a function of the numbers of classes, channels and pixels per side", {
        "slim_resnet18": "ResNet-18 with 20 filters at the start (Lopez-Paz & Ranzato, 2017)",
        "slim_resnet18_groupnorm": "the same with GroupNorm, 4 groups, in place of BatchNorm (Wu & He, 2018): no running statistics"})
    dropout: float = _choice(None, "dropout rate after each block's first activation and before the head, in [0, 1); "
                                    "by default 0.3 for the score MC, otherwise 0; above 0, tests average 20 passes; "
                                    "a network of your own has its own")
    lr: float = _choice(0.1, "learning rate of SGD, without momentum or weight decay")
    updates: int = _choice(1, "training steps per batch, each with its own memory samples")
    replay: str = _choice(None, "what is drawn from the memory for a batch; by default earlier with clear boundaries, otherwise all", {
        "earlier": "images of earlier tasks only, as in the paper: the method knows the task's number",
        "all": "any image: no task number is needed"})
    augmentation: str = _choice("none", "of batch and memory samples before each training step; with several updates, repeated "
                                "augmented rehearsal (Zhang et al., 2022)", {
        "none": "the images as they are",
        "randaugment": "a random operation per image (Cubuk et al., 2020)"})
    memory_size: int = _choice(None, "number of images in the memory; by default the smaller of the paper's sizes")
    population: str = _choice(None, "memory policy; by default uncertainty for er, otherwise reservoir; your own "
                              "ucl.buffers.Buffer as package.module:Buffer", POPULATIONS)
    score: str = _choice("BI", "uncertainty score, for the population 'uncertainty'; your own as package.module:function", SCORE_NAMES)
    selection: str = _choice("bottom", "which candidates of a class stay", SELECTIONS)
    refresh: float = _choice(1.0, "how many stored images of a class are rescored per update, those with the oldest scores "
                             "first: a share in (0, 1], or a number above 1; 1 rescores all, as in the paper")
    smoothing: float = _choice(1.0, "weight of the new score when a stored image is rescored, in (0, 1]: "
                               "s <- (1 - smoothing) * s + smoothing * new; 1 as in the paper")
    n_draws: int = _choice(1, "draws of the 12 views per score")
    scoring_batchnorm: str = _choice("eval", "BatchNorm while scoring, also while mir computes losses", {
        "eval": "evaluation mode: running statistics, which scoring does not change",
        "train": "training mode: batch statistics, and the running ones move; as in the reference implementation"})
    averaging: str = _choice("scores", "how LC, MS, RC and EN average over the views", {
        "scores": "the mean of the views' scores, as in the paper's equations",
        "probabilities": "the score of the mean probabilities; as in the reference implementation"})
    view_draws: str = _choice("image", "when the parameters of a view are drawn", {
        "image": "for each image, each time it is scored",
        "batch": "once for all candidates of a class; as in the reference implementation",
        "fixed": "once for each image: its views are the same whenever it is scored"})
    view_space: str = _choice("pixels", "what the views act on", {
        "pixels": "the image in [0, 1], normalised afterwards",
        "normalized": "the normalised tensor; as in the reference implementation"})
    class_balancing: str = _choice("chrysakis", "variant of the population 'class-balanced'", {
        "chrysakis": "class-balancing reservoir sampling (Chrysakis & Moens, 2020)",
        "redraw": "memory and batch are redrawn together at every step; as in the reference implementation"})
    reservoir_index: str = _choice("inclusive", "reservoir sampling draws an index among", {
        "inclusive": "all samples seen, the new one included (Vitter, 1985)",
        "exclusive": "those before the new one; as in the reference implementation"})
    long_tailed_test: bool = _choice(False, "thin the test classes like the training classes; as in the reference implementation")
    balanced_accuracy: bool = _choice(None, "last accuracy is the mean of the class recalls instead of the task "
                                             "accuracies; the default for bloodcell and MedMNIST, whose test classes differ in size")
    evaluate_on: str = _choice("test", "images on which accuracy is measured", {
        "test": "the test set", "validation": "the held-out training images, for tuning"})
    test_batchnorm: str = _choice("running", "BatchNorm statistics that the tests use, see `ucl.readings`", {
        "running": "the network's running statistics", **STATISTICS})
    evaluate_every: int = _choice(0, "also test on the validation images after every so many batches, for average anytime and worst-case "
                                  "accuracy; 0 tests after each task only")
    readings: bool = _choice(False, "also test the network after each task in all ways of `ucl.readings`")
    precision: str = _choice("auto", "arithmetic of the scoring passes; training and tests are always float32", {
        "auto": "bfloat16 where the processor computes in it, otherwise float32", "float32": "", "bfloat16": ""})
    # fmt: on

    def __post_init__(self) -> None:
        for f in _fields():
            value = getattr(self, f.name)
            if hasattr(value, "item"):  # a numpy scalar, as loops over arrays give
                object.__setattr__(self, f.name, value.item())
            elif f.name in PLUGS and is_own(value):
                object.__setattr__(self, f.name, _in_one_spelling(f.name, value))
        given = {f.name: getattr(self, f.name) for f in _fields() if getattr(self, f.name) is not None}
        object.__setattr__(self, "_given", given)
        if isinstance(self.dataset, os.PathLike):
            object.__setattr__(self, "dataset", os.fspath(self.dataset))
        if not isinstance(self.dataset, str) or not self.dataset:
            raise InputError("dataset", self.dataset, "give a name or a path, such as 'digits'")
        if not is_own(self.method):
            choose_from("method", self.method, METHODS)
        one_of("boundaries", self.boundaries, BOUNDARIES)
        implied = self._implied()
        for name, value in implied.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.dropout is None:
            object.__setattr__(self, "dropout", self._implied_dropout())
        self._check()

    def _check(self) -> None:
        if self.model == "slim_resnet18":
            why = "its BatchNorm would normalise a single image by itself; slim_resnet18_groupnorm takes 1"
            whole_number("batch_size", self.batch_size, 2, 10_000, why)
        check_fields(**{f.name: getattr(self, f.name) for f in _fields()})
        if self.image_size is not None:
            why = "" if is_own(self.model) else f"the network's last pooling needs at least {SMALLEST_IMAGE} pixels"
            whole_number("image_size", self.image_size, 1 if is_own(self.model) else SMALLEST_IMAGE, 512, why)
        if self.refresh > 1 and self.refresh != int(self.refresh):
            raise InputError(
                "refresh", self.refresh, "above 1 it counts samples: give a whole number, or a share in (0, 1]"
            )
        if self.replay == "earlier" and self.boundaries != "clear":
            reason = f"with {self.boundaries} boundaries no batch has a task number, so earlier tasks are unknown; give 'all'"
            raise InputError("replay", self.replay, reason)
        if self.evaluate_every and self.test_batchnorm != "running":
            reason = "tests between task ends read the running statistics only; give 0, or test_batchnorm 'running'"
            raise InputError("evaluate_every", self.evaluate_every, reason)
        if not self.uses_memory and self.test_batchnorm in ("memory", "memory+stream", "views"):
            reason = f"needs a memory, and {self.method} has none; give running, training, displaced or balanced"
            raise InputError("test_batchnorm", self.test_batchnorm, reason)
        if self.uses_scores and self.score == "MC" and not self.dropout:
            raise InputError(
                "dropout",
                self.dropout,
                "the score MC needs a network with dropout; give a rate above 0, or leave it out",
            )
        if (
            (self.evaluate_on == "validation" or self.evaluate_every)
            and not self.validation
            and plain_name(self.dataset) in ("digits", "cifar10", "cifar100")
        ):
            raise InputError(
                "validation",
                self.validation,
                f"{self.dataset} has no validation set of its own; hold out a share above 0",
            )

    @property
    def uses_scores(self) -> bool:
        """Whether an uncertainty score decides what the memory keeps."""
        return self.uses_memory and self.population == "uncertainty"

    @property
    def uses_memory(self) -> bool:
        """Whether the method has a replay memory."""
        return self.method not in ("finetune", "joint")

    @functools.cached_property
    def own(self) -> dict[str, str]:
        """The fields, among those that can change this run's result, that name an object of the user's own."""
        paths = {name: value for name, value in self.relevant.items() if name in PLUGS and is_own(value)}
        return {**paths, "dataset": plain_name(paths["dataset"])} if "dataset" in paths else paths

    @property
    def relevant(self) -> dict[str, Any]:
        """The fields that can change this run's result, in order, with their values."""
        idle = self.idle
        return {f.name: getattr(self, f.name) for f in _fields() if f.name not in idle}

    @property
    def idle(self) -> dict[str, str]:
        """The fields that cannot change this run's result, each with the name of the field that makes it so."""
        idle: dict[str, str] = {}
        if not self.uses_memory:
            without = ("memory_size", "population", "replay", "class_balancing", "reservoir_index")
            idle |= dict.fromkeys((*SCORING_FIELDS, *without), "method")
        elif self.population == "uncertainty":
            idle |= dict.fromkeys(("class_balancing", "reservoir_index"), "population")
            if self.score == "MC":
                idle |= dict.fromkeys(("view_draws", "view_space", "n_draws"), "score")
            if self.score in ("MC", "BI", "RM") or is_own(self.score):
                idle |= {"averaging": "score"}
        else:
            idle |= dict.fromkeys(SCORING_FIELDS, "population")
            idle |= {"class_balancing": "population"} if self.population != "class-balanced" else {}
            idle |= {"reservoir_index": "population"} if self.population != "reservoir" else {}
        if self.method == "mir":
            idle.pop("scoring_batchnorm", None)
        if self.model == "slim_resnet18_groupnorm":
            idle |= dict.fromkeys(("scoring_batchnorm", "test_batchnorm", "readings"), "model")
        if is_own(self.model):
            idle |= {"dropout": "model"}
        if self.imbalance == 1:
            idle |= {"long_tailed_test": "imbalance"}
        if self.boundaries != "blurry":
            idle |= {"disjoint": "boundaries"}
            idle |= {"blur": "boundaries"} if self.boundaries == "clear" else {}
        return idle

    @property
    def label(self) -> str:
        """The name of the method in tables, such as ER, CBR, A-GEM, DER++ or Finetune, or a score with its selection.

        A method or memory policy of the user's own is named by its path.
        """
        method = METHOD_LABELS.get(self.method, self.method)
        if not self.uses_memory:
            return method
        scored = f"{'uniform' if self.score == UNIFORM else self.score} {self.selection}"
        memory = scored if self.uses_scores else POPULATION_LABELS.get(self.population, self.population)
        if self.method == "er":
            return memory
        return method if memory == "ER" else f"{method}, {memory}"

    @functools.cached_property
    def key(self) -> str:
        """16 hexadecimal digits that identify the experiment, the same on every machine.

        Fields with their default value are left out, so a new field does not change the keys of older records.
        """
        defaults = self._defaults()
        always = ("dataset", "method", "memory_size", "population", "seed")
        named = {k: v for k, v in self.relevant.items() if k in always or v != defaults[k]}
        text = json.dumps(
            {k: float(v) if isinstance(defaults[k], float) else v for k, v in named.items()}, sort_keys=True
        )
        import hashlib  # Not at the top: loading its library takes a third of the time of `ucl --help`.

        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def result_key(self) -> str:
        """The `key` without `FURTHER_TESTS`: equal for runs whose accuracy is the same by construction."""
        return self.without_further_tests.key

    @functools.cached_property
    def seedless(self) -> Config:
        """The same experiment with seed 0 and without `FURTHER_TESTS`, equal for all seeds."""
        return self.without_further_tests.replace(seed=0)

    @functools.cached_property
    def without_further_tests(self) -> Config:
        """The same run without the additional measurements of `FURTHER_TESTS`."""
        return self.replace(**FURTHER_TESTS) if self.readings or self.evaluate_every else self

    @property
    def dataset_name(self) -> str:
        """The data set without its folder: equal for `set`, `./set` and `/data/set`."""
        spelled = self.dataset
        if not is_own(spelled) and ("/" in spelled or os.sep in spelled or spelled in (".", "..")):
            return os.path.basename(os.path.abspath(spelled)) or spelled
        return spelled

    @functools.cached_property
    def experiment(self) -> str:
        """All that can change the result except the folder of the images: equal for all spellings of one path.

        Two folders of the same name share it. It identifies a result together with the fingerprint of the images
        (`ucl.records.versions`). Record files are named by `key`, which keeps the path as typed.
        """
        fields = {**self.relevant, "dataset": self.dataset_name}
        return json.dumps({k: float(v) if type(v) is int else v for k, v in fields.items()}, sort_keys=True)

    def _defaults(self) -> dict[str, Any]:
        """The default of each field, given the data set and the method."""
        implied = {**self._implied(), "dropout": self._implied_dropout()}
        return {f.name: implied.get(f.name, f.default) for f in _fields()}

    def _implied(self) -> dict[str, Any]:
        """The defaults that follow from the data set, the boundaries and the method."""
        population = "uncertainty" if self.method == "er" else "reservoir"
        return {**scenario(self.dataset), **OF_BOUNDARIES[self.boundaries], "population": population}

    def _implied_dropout(self) -> float:
        return 0.3 if self.uses_scores and self.score == "MC" else 0.0

    def replace(self, **changes: Any) -> Config:
        """A copy with other values; fields that were not set explicitly take their defaults again."""
        return Config(**{**self._given, **known_fields(changes)})  # type: ignore[attr-defined]

    def to_json(self) -> str:
        """All fields as a JSON object, in their order."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @property
    def explicit(self) -> dict[str, Any]:
        """The fields that were set explicitly, see `replace`."""
        return dict(self._given)  # type: ignore[attr-defined]

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The configuration that `to_json` wrote; a missing field takes its default.

        A value equal to its default does not count as set explicitly, see `replace`.

        Raises:
            InputError: the text is not a JSON object, or has an unknown field or a value out of range.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError("config", text[:40], f"not JSON ({error})") from None
        if not isinstance(values, dict):
            raise InputError("config", text[:40], "give a JSON object of Config fields")
        config = cls(**known_fields(values))
        defaults = config._defaults()
        given = {k: v for k, v in config._given.items() if v != defaults[k]}  # type: ignore[attr-defined]
        object.__setattr__(config, "_given", given)
        return config


@functools.cache
def _fields() -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(Config)  # Cached: it takes a third of the time to create a configuration.


def check_fields(**values: Any) -> None:
    """Check values of fields of `Config`, each on its own.

    Args:
        values: the values by the names of the fields; objects of the user's own are not looked up.

    Raises:
        InputError: a value is unknown or out of range.
    """
    known = {f.name: f for f in _fields()}
    for name, value in values.items():
        if hasattr(value, "item"):
            value = value.item()  # a numpy scalar, as loops over arrays give
        choices = known[name].metadata["choices"]
        if name in _WHOLE:
            whole_number(name, value, *_WHOLE[name])
        elif name in _REAL:
            number(name, value, **_REAL[name])
        elif known[name].type == "bool":
            if not isinstance(value, bool):
                raise InputError(name, value, "give True or False")
        elif choices and name not in PLUGS:
            one_of(name, value, choices)
        elif choices and not is_own(value):
            choose_from(name, value, choices)


def _in_one_spelling(name: str, value: str) -> str:
    """The path of an object of the user's own, with its arguments written in one way, so that equal runs share a key."""
    plain = plain_name(value)
    return f"{parsed(name, plain)}{value[len(plain) :]}"


def known_fields(values: dict[str, Any], name: str = "field") -> dict[str, Any]:
    """The same values, after a check that every key is a field of `Config`.

    Raises:
        InputError: a key is not a field; the message reports it as `name`.
    """
    names = [f.name for f in _fields()]
    for field_name in values:
        one_of(name, field_name, names, "field of Config")
    return values


def unique(configs: Iterable[Config]) -> list[Config]:
    """The configurations in order, each experiment once."""
    found: dict[str, Config] = {}
    for config in configs:
        found.setdefault(config.key, config)
    return list(found.values())


def shard(configs: Iterable[Config], i: int, n: int) -> list[Config]:
    """The i-th of n parts of a grid, i from 1 to n; each experiment is in exactly one part."""
    return unique(configs)[i - 1 :: n]
