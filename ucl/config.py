"""The configuration of one run: a frozen, validated dataclass with one field per choice.

Everything that a run depends on is a field (`ucl.fields`), so a record names the exact experiment that it measured.
This module does not import torch: configurations can be built, compared and stored anywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ucl import catalogue
from ucl.catalogue import dataset_row, is_user_object, method_row, network_row, plain_name, policy_row, score_row
from ucl.errors import InputError
from ucl.fields import CLASS_LISTS, FIELDS, Fields, check_field, classes_in, known_fields, without_numpy
from ucl.user_objects import KINDS, parsed

FURTHER_TESTS: dict[str, Any] = dict(readings=False, evaluate_every=0)  # fields that do not change what is learnt


@dataclass(frozen=True, kw_only=True)
class Config(Fields):
    """One run: which stream is learnt, how, and what the memory keeps.

    A field that is None gets its default from the data set, the tasks, the boundaries or the method when the `Config`
    is created. `replace` chooses the defaults again for all fields that were not set explicitly, so
    `replace(dataset="bloodcell")` also takes BloodCell's four tasks and class order. `repr` shows the fields that were
    set explicitly, `to_json` all.

    Fields that cannot change the result of a run are not `relevant`. Configurations that differ only in such fields,
    for example two scores with reservoir sampling, have the same `key`.

    Raises:
        InputError: (a ValueError) a field is unknown, a value is out of range or unknown, or two fields contradict each
            other.
    """

    def __new__(cls, **values: Any) -> Config:
        known_fields(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        explicit = {}
        for name, field in FIELDS.items():
            value = _in_plain_python(name, getattr(self, name))
            if value is not None or field.default is not None:
                check_field(name, value)
                object.__setattr__(self, name, value)
                # Also the type counts: 1 and 1.0 are written to a record as they were given.
                if type(value) is not type(field.default) or value != field.default:
                    explicit[name] = value
        object.__setattr__(self, "_explicit", explicit)
        defaults = self.defaults()
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        self._check_together(defaults)

    def _check_together(self, defaults: dict[str, Any]) -> None:
        by_tasks = f"tasks={self.tasks!r} sets it; leave it out"
        smallest_batch = network_row(self.model).smallest_batch
        smallest_image = 1 if is_user_object(self.model) else catalogue.SMALLEST_IMAGE
        statistics = catalogue.STATISTICS.get(self.test_batchnorm)
        needs_dropout = self.uses_scores and score_row(self.score).dropout_passes
        needs_validation = self.evaluate_on == "validation" or self.evaluate_every
        has_validation = self.validation or dataset_row(self.dataset).has_validation
        for name, is_wrong, reason in (
            ("n_tasks", self.tasks != "equal" and self.n_tasks != defaults["n_tasks"], by_tasks),
            ("class_order", self.tasks != "equal" and self.class_order != defaults["class_order"], by_tasks),
            ("batch_size", self.batch_size < smallest_batch,
             f"give {smallest_batch} or more, because BatchNorm would normalise a single image by itself; or the model "
             "slim_resnet18_groupnorm"),
            ("image_size", self.image_size is not None and self.image_size < smallest_image,
             f"the network's last pooling needs at least {smallest_image} pixels"),
            ("refresh", self.refresh > 1 and self.refresh != int(self.refresh),
             "above 1 it counts samples: give a whole number, or a share in (0, 1]"),
            ("replay", self.replay == "earlier" and self.boundaries != "clear",
             f"with {self.boundaries} boundaries no batch has a task number; give 'all'"),
            ("evaluate_every", self.evaluate_every and self.test_batchnorm != "running",
             "tests between task ends read the running statistics only; give 0, or test_batchnorm 'running'"),
            ("test_batchnorm", statistics and statistics.needs_memory and not self.uses_memory,
             f"needs a memory, and {self.method} has none; give running, training, displaced or balanced"),
            ("dropout", needs_dropout and not self.dropout,
             f"the score {self.score} needs a network with dropout; give a rate above 0, or leave it out"),
            ("validation", needs_validation and not has_validation,
             f"{self.dataset} has no validation set; hold out a share above 0"),
        ):  # fmt: skip
            if is_wrong:
                raise InputError(name, getattr(self, name), reason)

    def __repr__(self) -> str:
        """A call that creates the same configuration: the data set and the fields that were set explicitly."""
        named = dict.fromkeys(["dataset", *self.explicit])
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in named)})"

    @property
    def uses_scores(self) -> bool:
        """Whether an uncertainty score decides what the memory keeps."""
        return self.uses_memory and "score" in policy_row(self.population).uses

    @property
    def uses_memory(self) -> bool:
        """Whether the method has a replay memory."""
        return method_row(self.method).has_memory

    @functools.cached_property
    def user_objects(self) -> dict[str, str]:
        """The dotted paths of user objects that can change this run's result, by field."""
        named = {name: value for name, value in self.relevant.items() if name in KINDS}
        return {name: plain_name(value) for name, value in named.items() if is_user_object(value)}

    @property
    def relevant(self) -> dict[str, Any]:
        """The fields that can change this run's result, in order, with their values."""
        idle = self.idle
        return {name: getattr(self, name) for name in FIELDS if name not in idle}

    @property
    def idle(self) -> dict[str, str]:
        """The fields that cannot change this run's result, each with the name of the field that makes it so."""
        method, policy = method_row(self.method), policy_row(self.population)
        if method.has_memory:
            used = {*policy.uses, *method.uses}
            idle = {name: "population" for name in catalogue.POLICY_FIELDS if name not in used}
            if self.uses_scores:
                idle |= dict.fromkeys(score_row(self.score).ignores, "score")
            # Here `replay` only decides whether the policy gets the number of a batch's task.
            if method.replays_all and not policy.uses_task:
                idle["replay"] = "method"
        else:
            idle = dict.fromkeys((*catalogue.POLICY_FIELDS, *catalogue.MEMORY_FIELDS), "method")
        idle |= {name: "method" for name in catalogue.METHOD_FIELDS if name not in method.uses}
        idle |= dict.fromkeys(network_row(self.model).ignores, "model")
        if plain_name(self.dataset) in catalogue.DATASETS and dataset_row(self.dataset).has_validation:
            idle["validation"] = "dataset"
        if self.tasks != "equal":
            idle["class_order"] = "tasks"
        if self.imbalance == 1:
            idle["long_tailed_test"] = "imbalance"
        if self.boundaries != "blurry":
            idle["disjoint"] = "boundaries"
        if self.boundaries == "clear":
            idle["blur"] = "boundaries"
        return idle

    @property
    def label(self) -> str:
        """The name of the method in tables, such as ER, CBR, A-GEM, DER++ or Finetune, or a score with its selection.

        A user's method or memory policy is named by its path.
        """
        method = method_row(self.method).label
        if not self.uses_memory:
            return method
        scored = f"{'uniform' if self.score == catalogue.UNIFORM else self.score} {self.selection}"
        memory = scored if self.uses_scores else policy_row(self.population).label
        if not method:  # experience replay is named by its memory
            return memory
        return method if memory == "ER" else f"{method}, {memory}"

    @functools.cached_property
    def key(self) -> str:
        """16 hexadecimal digits that identify the experiment, the same on every machine.

        Fields with their default value are left out, so a new field does not change the keys of older records.
        """
        defaults = self.defaults()
        always = ("dataset", "method", "memory_size", "population", "seed")
        named = {k: v for k, v in self.relevant.items() if k in always or v != defaults[k]}
        named = {k: float(v) if isinstance(defaults[k], float) else v for k, v in named.items()}
        text = json.dumps(named, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @functools.cached_property
    def seedless(self) -> Config:
        """The same experiment with seed 0 and without `FURTHER_TESTS`, equal for all seeds."""
        return self.without_further_tests.replace(seed=0)

    @functools.cached_property
    def without_further_tests(self) -> Config:
        """The same run without the additional measurements of `FURTHER_TESTS`."""
        return self.replace(**FURTHER_TESTS) if self.further_tests else self

    @property
    def further_tests(self) -> list[str]:
        """Which of the `FURTHER_TESTS` the run has."""
        return [name for name in FURTHER_TESTS if getattr(self, name)]

    @property
    def dataset_name(self) -> str:
        """The data set without its folder: equal for `set`, `./set` and `/data/set`."""
        path = self.dataset
        is_path = not is_user_object(path) and (catalogue.has_separator(path) or path in (".", ".."))
        return os.path.basename(os.path.abspath(path)) if is_path else path

    @functools.cached_property
    def experiment(self) -> str:
        """All that can change the result except the folder of the images: equal for all spellings of one path.

        Two folders of the same name share it. It identifies a result together with the fingerprint of the images
        (`ucl.records.store`). Record files are named by `key`, which keeps the path as typed.
        """
        fields = {**self.relevant, "dataset": self.dataset_name}
        return json.dumps({k: float(v) if type(v) is int else v for k, v in fields.items()}, sort_keys=True)

    def defaults(self) -> dict[str, Any]:
        """The default of each field; some follow from the data set, the tasks, the boundaries and the method."""
        row, is_long_tailed = dataset_row(self.dataset), self.dataset.endswith("-lt")
        boundaries, method = catalogue.BOUNDARIES[self.boundaries], method_row(self.method)
        policy = policy_row(self.population or method.population)
        is_scored = method.has_memory and "score" in policy.uses
        return {name: field.default for name, field in FIELDS.items()} | {
            "n_tasks": row.n_tasks if self.tasks == "equal" else len(classes_in(self.tasks)),
            "memory_size": (row.long_tailed_memory if is_long_tailed else None) or row.memory_size,
            "class_order": row.class_order if self.tasks == "equal" else self.tasks.replace("|", ","),
            "imbalance": 0.1 if is_long_tailed else 1.0,
            "balanced_accuracy": row.balanced_accuracy,
            "blur": boundaries.blur,
            "replay": boundaries.replay,
            "population": method.population,
            "dropout": 0.3 if is_scored and score_row(self.score).dropout_passes else 0.0,
        }

    def replace(self, **changes: Any) -> Config:
        """A copy with other values; fields that were not set explicitly take their defaults again."""
        return Config(**{**self._explicit, **changes})  # type: ignore[attr-defined]

    def to_json(self) -> str:
        """All fields as a JSON object, in their order."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @property
    def explicit(self) -> dict[str, Any]:
        """The fields that were set explicitly, see `replace`, except to a default that is the same for all runs."""
        return dict(self._explicit)  # type: ignore[attr-defined]

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The configuration that `to_json` wrote; a missing field takes its default.

        A value equal to its default does not count as set explicitly, see `replace`.

        Raises:
            InputError: the text is not a JSON object, or has an unknown field or a value out of range.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError("config", text[:40], f"not JSON ({error})") from None
        if not isinstance(values, dict):
            raise InputError("config", text[:40], "give a JSON object of Config fields")
        config = cls(**values)
        defaults = config.defaults()
        explicit = {k: v for k, v in config.explicit.items() if v != defaults[k]}
        object.__setattr__(config, "_explicit", explicit)
        return config


def _in_plain_python(name: str, value: Any) -> Any:
    """A value of a field: a path as text, a numpy scalar as a number, user objects and classes in one spelling."""
    if name == "dataset" and isinstance(value, os.PathLike):
        return os.fspath(value)
    if name in KINDS and is_user_object(value):
        plain = plain_name(value)
        return f"{parsed(name, plain)}{value[len(plain) :]}"
    if name in CLASS_LISTS and isinstance(value, str):
        return "|".join(map(",".join, classes_in(value)))
    return without_numpy(value)


def unique(configs: Iterable[Config]) -> list[Config]:
    """The configurations in order, each experiment once."""
    by_key: dict[str, Config] = {}
    for config in configs:
        by_key.setdefault(config.key, config)
    return list(by_key.values())
