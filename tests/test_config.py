"""Configurations: defaults, refused values, storage, keys and labels."""

import dataclasses
import json
import os
import pickle
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ucl
from ucl.config import Config
from ucl.errors import InputError, one_line, one_line_with_type, one_of

SCORES = ["LC", "MS", "RC", "EN", "RM", "BI", "MC"]
NAN, INF = float("nan"), float("inf")


def share(low: float = 0.0, high: float = 1.0, **how: bool) -> st.SearchStrategy:
    return st.floats(low, high, allow_nan=False, **how)


FIELDS = {
    "dataset": st.sampled_from(["digits", "cifar10", "cifar100-lt", "bloodcell", "pathmnist", "a b/cells é.npz"]),
    "image_size": st.none() | st.integers(25, 512),
    "n_tasks": st.none() | st.integers(1, 1000),
    "class_order": st.none() | st.sampled_from(["seed", "size"]),
    "boundaries": st.sampled_from(["clear", "gradual", "blurry"]),
    "blur": st.none() | share(),
    "disjoint": share(),
    "imbalance": st.none() | share(exclude_min=True),
    "validation": share(0.01, 0.5),
    "batch_size": st.integers(2, 10_000),
    "seed": st.integers(0, 2**32 - 1),
    "method": st.sampled_from(["er", "agem", "finetune", "er-ace", "derpp", "mir", "joint"]),
    "model": st.sampled_from(["slim_resnet18", "slim_resnet18_groupnorm"]),
    "dropout": st.none() | share(0.01, 1, exclude_max=True),
    "lr": share(0, 100, exclude_min=True) | st.integers(1, 100),
    "updates": st.integers(1, 1000),
    "replay": st.sampled_from([None, "all"]),  # "earlier" needs clear boundaries
    "augmentation": st.sampled_from(["none", "randaugment"]),
    "memory_size": st.none() | st.integers(1, 10_000_000),
    "population": st.none() | st.sampled_from(["uncertainty", "reservoir", "class-balanced", "herding", "rainbow"]),
    "score": st.sampled_from([*SCORES, "my.scores:spread"]),
    "selection": st.sampled_from(["bottom", "step", "top"]),
    "refresh": share(exclude_min=True) | st.integers(1, 10_000).map(float),
    "smoothing": share(exclude_min=True),
    "n_draws": st.integers(1, 100),
    "scoring_batchnorm": st.sampled_from(["eval", "train"]),
    "averaging": st.sampled_from(["scores", "probabilities"]),
    "view_draws": st.sampled_from(["image", "batch", "fixed"]),
    "view_space": st.sampled_from(["pixels", "normalized"]),
    "class_balancing": st.sampled_from(["chrysakis", "redraw"]),
    "reservoir_index": st.sampled_from(["inclusive", "exclusive"]),
    "long_tailed_test": st.booleans(),
    "balanced_accuracy": st.none() | st.booleans(),
    "evaluate_on": st.sampled_from(["test", "validation"]),
    "test_batchnorm": st.sampled_from(["running", "training", "displaced", "balanced"]),  # These need no memory.
    "evaluate_every": st.integers(0, 10_000_000),
    "readings": st.booleans(),
    "precision": st.sampled_from(["auto", "float32", "bfloat16"]),
}


def possible(given):
    """Return the fields without contradictory pairs."""
    between_task_ends = given.get("test_batchnorm", "running") == "running"
    return {name: value for name, value in given.items() if between_task_ends or name != "evaluate_every"}


configs = st.fixed_dictionaries({}, optional=FIELDS).map(lambda given: Config(**possible(given)))


def test_the_strategy_knows_every_field():
    assert set(FIELDS) == {f.name for f in dataclasses.fields(Config)}


# What a data set brings with it


@pytest.mark.parametrize(
    ("dataset", "n_tasks", "memory_size", "class_order", "imbalance", "balanced"),
    [
        ("cifar10", 5, 500, "seed", 1.0, False),
        ("cifar100", 5, 1000, "seed", 1.0, False),
        ("cifar10-lt", 5, 200, "seed", 0.1, False),
        ("cifar100-lt", 5, 500, "seed", 0.1, False),
        ("bloodcell", 4, 40, "size", 1.0, True),
        ("digits", 5, 50, "seed", 1.0, False),
        ("pathmnist", 5, 200, "seed", 1.0, True),
        ("fashionmnist", 5, 200, "seed", 1.0, False),
        ("my/cells.npz", 5, 200, "seed", 1.0, False),
        ("my/mnist", 5, 200, "seed", 1.0, False),
        ("mine:mnist", 5, 200, "seed", 1.0, False),
    ],
)
def test_a_data_set_brings_the_papers_scenario(dataset, n_tasks, memory_size, class_order, imbalance, balanced):
    config = Config(dataset=dataset)
    assert (config.n_tasks, config.memory_size, config.class_order) == (n_tasks, memory_size, class_order)
    assert (config.imbalance, config.balanced_accuracy) == (imbalance, balanced)


@pytest.mark.parametrize("dataset", ["bloodcell", "pathmnist"])
def test_a_long_tail_leaves_the_other_properties_of_a_data_set(dataset):
    config = Config(dataset=f"{dataset}-lt")
    assert config.imbalance == 0.1
    assert config.n_tasks == Config(dataset=dataset).n_tasks
    assert config.balanced_accuracy is True


def test_the_defaults_are_the_papers_training():
    config = Config()
    assert (config.batch_size, config.lr, config.validation, config.method) == (10, 0.1, 0.05, "er")
    assert (config.population, config.score, config.selection) == ("uncertainty", "BI", "bottom")
    assert (config.dropout, config.refresh) == (0.0, 1.0)


def test_what_a_person_gives_stands_whatever_the_data_set():
    config = Config(dataset="bloodcell", n_tasks=2, memory_size=77, class_order="seed", balanced_accuracy=False)
    assert (config.n_tasks, config.memory_size, config.class_order) == (2, 77, "seed")
    assert config.balanced_accuracy is False


@pytest.mark.parametrize(
    ("method", "population"), [("er", "uncertainty"), ("agem", "reservoir"), ("finetune", "reservoir")]
)
def test_a_method_brings_its_memory(method, population):
    assert Config(method=method).population == population


def test_only_the_dropout_score_brings_dropout():
    assert {score: Config(score=score).dropout for score in SCORES} == {**dict.fromkeys(SCORES, 0.0), "MC": 0.3}
    assert Config(score="MC", population="reservoir").dropout == 0
    assert Config(score="MC", method="finetune").dropout == 0
    assert Config(score="MC", dropout=0.5).dropout == 0.5


# replace


def test_replace_decides_again_what_was_not_given():
    blood = Config(dataset="cifar10", lr=0.03).replace(dataset="bloodcell")
    assert blood == Config(dataset="bloodcell", lr=0.03)
    assert Config(score="MC").replace(score="BI").dropout == 0
    assert Config(method="agem").replace(method="er").population == "uncertainty"


def test_replace_keeps_what_was_given_and_leaves_the_original():
    first = Config(dataset="cifar10", n_tasks=2, memory_size=100)
    second = first.replace(dataset="bloodcell", seed=3)
    assert (second.n_tasks, second.memory_size, second.class_order, second.seed) == (2, 100, "size", 3)
    assert (first.dataset, first.class_order, first.seed) == ("cifar10", "seed", 0)
    assert second.replace(n_tasks=None).n_tasks == 4


def test_explicit_are_the_fields_that_were_set_to_another_value_than_the_default_of_all_runs():
    assert Config().explicit == {} and Config(seed=1, lr=0.1).explicit == {"seed": 1}
    assert Config(memory_size=50).explicit == {"memory_size": 50}  # the default of digits only
    assert Config(dataset=Path("a/b")).explicit == {"dataset": "a/b"}
    assert Config(dataset="cifar10", refresh=2).replace(seed=3).explicit == dict(dataset="cifar10", refresh=2, seed=3)


def test_repr_is_the_call_that_names_the_data_set_and_what_was_set_explicitly():
    assert repr(Config()) == "Config(dataset='digits')"
    config = Config(seed=1, dataset=Path("cells"), n_tasks=2, lr=0.1)
    assert repr(config) == "Config(dataset='cells', n_tasks=2, seed=1)"
    scored = config.replace(score="my.scores:spread(power=2)")
    again = eval(repr(scored))
    assert again == scored and again.replace(dataset="bloodcell") == scored.replace(dataset="bloodcell")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1


@settings(deadline=None, max_examples=50)
@given(config=configs)
def test_replacing_nothing_changes_nothing(config):
    assert config.replace() == config
    assert hash(config.replace()) == hash(config)


# There and back


@settings(deadline=None, max_examples=200)
@given(config=configs)
def test_json_there_and_back_is_the_same_configuration(config):
    again = Config.from_json(config.to_json())
    assert again == config
    assert (again.key, again.label, again.to_json()) == (config.key, config.label, config.to_json())


@settings(deadline=None, max_examples=50)
@given(config=configs)
def test_a_configuration_travels_to_another_process(config):
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.replace(seed=5) == config.replace(seed=5)


def test_json_holds_every_field_in_order_and_nothing_undecided():
    held = json.loads(Config(dataset="bloodcell").to_json())
    assert list(held) == [f.name for f in dataclasses.fields(Config)]
    assert [name for name, value in held.items() if value is None] == ["image_size"]  # The data set decides it.


def test_a_field_missing_from_json_takes_its_default():
    assert Config.from_json('{"dataset": "bloodcell", "seed": 2}') == Config(dataset="bloodcell", seed=2)
    assert Config.from_json("{}") == Config()


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", '"digits"', '{"dataset": "digits"'])
def test_text_that_is_no_configuration_is_refused(text):
    with pytest.raises(InputError) as refusal:
        Config.from_json(text)
    assert_says_in_one_line(refusal.value, "config", repr(text))


def test_text_nested_beyond_measure_is_refused():
    with pytest.raises(InputError) as refusal:
        Config.from_json("[" * 100_000)
    assert_says_in_one_line(refusal.value, "config", "not JSON")


def test_a_wrong_value_in_json_is_refused_like_one_in_python():
    for text, name in [('{"lr": NaN}', "lr"), ('{"lr": Infinity}', "lr"), ('{"seed": "0"}', "seed")]:
        with pytest.raises(InputError) as refusal:
            Config.from_json(text)
        assert refusal.value.name == name


# Keys


def test_keys_are_pinned():
    """The names of committed records depend on these keys: a change here would orphan all records."""
    assert Config(dataset="bloodcell", memory_size=40, score="BI", selection="bottom", seed=0).key == "8c3e8e227342ccb8"
    elaborate = Config(
        dataset="cifar100-lt",
        method="agem",
        memory_size=1000,
        population="uncertainty",
        score="LC",
        selection="step",
        lr=0.03,
        imbalance=0.05,
        seed=2,
        refresh=32,
        averaging="probabilities",
        view_space="normalized",
        scoring_batchnorm="train",
        long_tailed_test=True,
        evaluate_on="validation",
    )
    assert elaborate.key == "f72a749f9580322b"


def test_the_committed_records_still_have_the_keys_in_their_file_names():
    files = sorted(Path(__file__).parents[1].glob("figures/runs/*.json"))
    for file in files:
        config = Config.from_json(json.dumps(json.loads(file.read_text(encoding="utf-8"))["config"]))
        assert config.key in file.name
    assert len(files) > 300


def test_keys_are_the_same_in_another_process():
    code = "import sys, ucl; print(*(ucl.Config.from_json(text).key for text in sys.argv[1:]))"
    some = [Config(), Config(dataset="é/cells.npz", lr=0.1 + 0.2), Config(method="finetune", seed=7, refresh=0.3)]
    environment = {**os.environ, "PYTHONPATH": str(Path(ucl.__file__).parents[1]), "PYTHONHASHSEED": "12345"}
    reported = subprocess.run(
        [sys.executable, "-c", code, *(config.to_json() for config in some)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout.split() == [config.key for config in some]


OTHER = {
    "dataset": "cifar10",
    "image_size": 64,
    "n_tasks": 2,
    "class_order": "size",
    "boundaries": "gradual",
    "blur": 0.3,
    "disjoint": 0.2,
    "imbalance": 0.5,
    "validation": 0.1,
    "batch_size": 20,
    "seed": 1,
    "model": "slim_resnet18_groupnorm",
    "dropout": 0.1,
    "lr": 0.05,
    "updates": 2,
    "replay": "all",
    "augmentation": "randaugment",
    "memory_size": 60,
    "score": "MS",
    "selection": "top",
    "refresh": 0.5,
    "smoothing": 0.2,
    "n_draws": 2,
    "scoring_batchnorm": "train",
    "averaging": "probabilities",
    "view_draws": "batch",
    "view_space": "normalized",
    "class_balancing": "redraw",
    "reservoir_index": "exclusive",
    "long_tailed_test": True,
    "balanced_accuracy": True,
    "evaluate_on": "validation",
    "evaluate_every": 10,
    "precision": "bfloat16",
}
OF_SCORING = {
    "score",
    "selection",
    "refresh",
    "smoothing",
    "n_draws",
    "scoring_batchnorm",
    "averaging",
    "view_draws",
    "view_space",
    "precision",
}
OF_RANDOM_MEMORIES = {"class_balancing", "reservoir_index"}
OF_BOUNDARIES = {"blur", "disjoint"}


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        (dict(score="LC"), {*OF_RANDOM_MEMORIES, "long_tailed_test"}),
        (dict(score="LC", imbalance=0.1), OF_RANDOM_MEMORIES),
        (dict(score="BI", imbalance=0.1), {*OF_RANDOM_MEMORIES, "averaging"}),
        (dict(score="RM", imbalance=0.1), {*OF_RANDOM_MEMORIES, "averaging"}),
        (dict(score="my.scores:spread", imbalance=0.1), {*OF_RANDOM_MEMORIES, "averaging"}),
        (
            dict(score="MC", dropout=0.3, imbalance=0.1),
            {*OF_RANDOM_MEMORIES, "averaging", "view_draws", "view_space", "n_draws"},
        ),
        (dict(score="EN", imbalance=0.1, scoring_batchnorm="train"), OF_RANDOM_MEMORIES),
        (
            dict(score="EN", imbalance=0.1, model="slim_resnet18_groupnorm"),
            {*OF_RANDOM_MEMORIES, "scoring_batchnorm", "test_batchnorm", "readings"},
        ),
        (dict(score="EN", imbalance=0.1, method="agem", population="uncertainty"), OF_RANDOM_MEMORIES),
        (dict(population="reservoir", imbalance=0.1), {*OF_SCORING, "class_balancing"}),
        (dict(method="agem", imbalance=0.1), {*OF_SCORING, "class_balancing"}),
        (dict(population="class-balanced", imbalance=0.1), {*OF_SCORING, "reservoir_index"}),
        (dict(method="finetune", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES, "memory_size", "replay"}),
        (dict(score="EN", imbalance=0.1, boundaries="gradual"), {*OF_RANDOM_MEMORIES, "disjoint", "replay"}),
        (dict(score="EN", imbalance=0.1, boundaries="blurry"), {*OF_RANDOM_MEMORIES, "replay"}),
        (dict(method="joint", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES, "memory_size", "replay"}),
        (dict(method="mir", imbalance=0.1), {*OF_SCORING, "class_balancing"} - {"scoring_batchnorm"}),
        (dict(method="derpp", imbalance=0.1), {*OF_SCORING, "class_balancing", "replay"}),
        (dict(method="er-ace", population="herding", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES, "replay"}),
        (dict(method="er-ace", population="coreset", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES}),
        (dict(method="derpp", population="mine:P", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES}),
        (dict(population="herding", imbalance=0.1), {*OF_SCORING, *OF_RANDOM_MEMORIES}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_key_changes_with_every_field_that_can_show_and_with_no_other(given, idle):
    config = Config(**given)
    if config.boundaries == "clear":
        idle = {*idle, *OF_BOUNDARIES}
    changed = {name: config.replace(**{name: value}) for name, value in OTHER.items() if given.get(name) != value}
    if not config.uses_scores or config.score == "MC":
        changed.pop("score")
        if not config.uses_scores:
            assert config.replace(score="MS").key == config.key
    same = {name for name, other in changed.items() if other.key == config.key}
    assert same == idle & set(changed)
    different = [other.key for name, other in changed.items() if name not in idle]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("dataset", ["mnist", "bloodcell", "my/mnist", "digits", "cifar10-lt", "cells.npz"])
def test_a_data_set_that_may_hold_some_out_has_a_key_for_each_share(dataset):
    """A user's file may have such a name and no validation images; a shared key would mix two runs."""
    assert Config(dataset=dataset, validation=0.1).key != Config(dataset=dataset).key


def test_methods_and_memories_have_keys_of_their_own():
    variants = [Config(method=m, population=p) for m in ("er", "agem") for p in ("reservoir", "class-balanced")]
    variants += [Config(method="finetune")]
    assert len({config.key for config in variants}) == len(variants)
    assert Config(method="finetune", population="class-balanced").key == Config(method="finetune").key


def test_a_number_has_one_key_however_it_is_written():
    assert Config(lr=1).key == Config(lr=1.0).key
    assert Config(lr=2, refresh=1, imbalance=1).key == Config(lr=2.0, refresh=1.0, imbalance=1.0).key
    assert Config(refresh=8, validation=0).key == Config(refresh=8.0, validation=0.0).key


def test_giving_a_default_by_hand_changes_no_key():
    implied = Config(dataset="bloodcell")
    assert Config(dataset="bloodcell", n_tasks=4, class_order="size", dropout=0.0).key == implied.key
    assert Config(score="MC", dropout=0.3).key == Config(score="MC").key


@settings(deadline=None, max_examples=100)
@given(config=configs)
def test_a_key_is_sixteen_hexadecimal_digits(config):
    assert len(config.key) == 16
    assert set(config.key) <= set(string.hexdigits.lower())


# Labels


def test_labels_are_the_papers_names():
    """The paper's tables have three baselines, and seven scores with three selections."""
    assert Config(population="reservoir").label == "ER"
    assert Config(population="class-balanced").label == "CBR"
    assert Config(method="agem").label == "A-GEM"
    assert Config(method="finetune").label == "Finetune"
    for score in SCORES:
        for selection in ("top", "step", "bottom"):
            assert Config(score=score, selection=selection).label == f"{score} {selection}"
    assert Config(score="ucl.scorers:uniform").label == "uniform bottom"  # The control has its name from the protocol.


def test_rivals_have_the_names_of_the_literature():
    of_method = {"er-ace": "ER-ACE", "derpp": "DER++", "mir": "MIR", "joint": "Joint"}
    assert {method: Config(method=method).label for method in of_method} == of_method
    of_population = {
        "loss-aware": "LARS",
        "closest-to-mean": "MoF",
        "herding": "Herding",
        "gss": "GSS",
        "homogeneous": "MOE",
        "rainbow": "Rainbow",
        "coreset": "OCS",
    }
    assert {name: Config(population=name).label for name in of_population} == of_population
    assert Config(method="derpp", population="rainbow").label == "DER++, Rainbow"


def test_other_mixtures_have_labels_of_their_own():
    mixtures = [
        Config(method=method, population=population)
        for method in ("er", "agem")
        for population in ("uncertainty", "reservoir", "class-balanced")
    ]
    assert len({config.label for config in mixtures}) == len(mixtures)
    assert Config(score="my.scores:spread", selection="top").label == "my.scores:spread top"


# What is refused


def assert_says_in_one_line(error: InputError, *parts: str) -> None:
    message = str(error)
    assert "\n" not in message and len(message) < 700
    for part in parts:
        assert part in message


NO_NUMBERS = [NAN, INF, -INF, True, False, "1", "", b"1", [1], (1,), {}, 1j, object]
WHOLE = {
    "n_tasks": (1, 1000),
    "batch_size": (2, 10_000),
    "seed": (0, 2**32 - 1),
    "memory_size": (1, 10_000_000),
    "image_size": (25, 512),
    "evaluate_every": (0, 10_000_000),
}
REAL = {
    "imbalance": ("(0, 1]", [0, -0.1, 1.0001]),
    "blur": ("[0, 1]", [-0.01, 1.01]),
    "disjoint": ("[0, 1]", [-0.01, 1.01]),
    "validation": ("[0, 0.5]", [-0.01, 0.51, 1]),
    "dropout": ("[0, 1)", [-0.1, 1, 1.5]),
    "lr": ("(0, 100]", [0, -0.1, 101]),
    "refresh": ("(0, 1e+07]", [0, -1, 1e8]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_count_is_a_whole_number_in_its_range(name):
    low, high = WHOLE[name]
    for bad in [low - 1, -1, high + 1, 10**30, -(10**400), low + 0.5, float(low + 1), 1e308, *NO_NUMBERS]:
        with pytest.raises(InputError) as refusal:
            Config(**{name: bad})
        assert (refusal.value.name, refusal.value.value) == (name, bad) or bad != bad
        assert_says_in_one_line(refusal.value, name, repr(bad), f"from {low} to {high}")
    assert getattr(Config(**{name: low}), name) == low
    assert getattr(Config(**{name: high}), name) == high


def test_single_images_are_refused_for_batchnorm_only():
    with pytest.raises(InputError, match="normalise a single image by itself; slim_resnet18_groupnorm takes 1"):
        Config(batch_size=1)
    for model in ("slim_resnet18_groupnorm", "mine:net"):
        assert Config(batch_size=1, model=model).batch_size == 1
        with pytest.raises(InputError, match="from 1 to 10000"):
            Config(batch_size=0, model=model)


@pytest.mark.parametrize("name", REAL)
def test_a_rate_is_a_number_in_its_range(name):
    allowed, outside = REAL[name]
    for bad in [*outside, 1e308, -1e308, 10**30, *NO_NUMBERS]:
        with pytest.raises(InputError) as refusal:
            Config(**{name: bad})
        assert (refusal.value.name, refusal.value.value) == (name, bad) or bad != bad
        assert_says_in_one_line(refusal.value, name, repr(bad), allowed)


@pytest.mark.parametrize("name", REAL)
def test_a_whole_number_beyond_all_floats_is_out_of_range_too(name):
    with pytest.raises(InputError) as refusal:
        Config(**{name: 10**400})
    assert_says_in_one_line(refusal.value, name, REAL[name][0])


def test_the_ends_of_a_range_are_in_it_where_the_bracket_says_so():
    ends = Config(imbalance=1, validation=0, dropout=0, lr=100, refresh=10_000_000)
    assert (ends.imbalance, ends.validation, ends.dropout, ends.lr, ends.refresh) == (1, 0, 0, 100, 10_000_000)
    assert Config(imbalance=1e-9, validation=0.5, dropout=1 - 1e-9, lr=1e-9, refresh=1e-9).validation == 0.5


CHOICES = {
    "class_order": ["seed", "size"],
    "boundaries": ["clear", "gradual", "blurry"],
    "replay": ["earlier", "all"],
    "method": ["er", "agem", "finetune", "er-ace", "derpp", "mir", "joint"],
    "model": ["slim_resnet18", "slim_resnet18_groupnorm"],
    "population": [
        "uncertainty",
        "reservoir",
        "class-balanced",
        "loss-aware",
        "closest-to-mean",
        "herding",
        "gss",
        "homogeneous",
        "rainbow",
        "coreset",
    ],
    "augmentation": ["none", "randaugment"],
    "score": SCORES,
    "selection": ["bottom", "step", "top"],
    "scoring_batchnorm": ["eval", "train"],
    "averaging": ["scores", "probabilities"],
    "view_draws": ["image", "batch", "fixed"],
    "view_space": ["pixels", "normalized"],
    "class_balancing": ["chrysakis", "redraw"],
    "reservoir_index": ["inclusive", "exclusive"],
    "evaluate_on": ["test", "validation"],
    "precision": ["auto", "float32", "bfloat16"],
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_its_names(name):
    for bad in ["", "quux!", 0, -1, 10**30, *NO_NUMBERS]:
        with pytest.raises(InputError) as refusal:
            Config(**{name: bad})
        assert_says_in_one_line(refusal.value, name, repr(bad), *CHOICES[name])
    for good in CHOICES[name]:
        assert getattr(Config(**{name: good}), name) == good


@pytest.mark.parametrize("name", ["long_tailed_test", "balanced_accuracy"])
def test_a_switch_is_true_or_false(name):
    for bad in [0, 1, "yes", "true", "", NAN, []]:
        with pytest.raises(InputError) as refusal:
            Config(**{name: bad})
        assert_says_in_one_line(refusal.value, name, repr(bad), "True or False")


@pytest.mark.parametrize("bad", ["", None, 3, True, [], b"digits", NAN])
def test_a_data_set_has_a_name(bad):
    with pytest.raises(InputError) as refusal:
        Config(dataset=bad)
    assert_says_in_one_line(refusal.value, "dataset", repr(bad), "name or a path")


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(Config) if f.default is not None and f.name != "dataset"]
)
def test_nothing_is_no_value_of_a_field_with_a_default(name):
    with pytest.raises(InputError) as refusal:
        Config(**{name: None})
    assert_says_in_one_line(refusal.value, name, "None")


@pytest.mark.parametrize(
    ("name", "typed", "meant"),
    [
        ("method", "a-gem", "agem"),
        ("method", "fine-tune", "finetune"),
        ("population", "Uncertainty", "uncertainty"),
        ("population", "reservior", "reservoir"),
        ("population", "balanced", "class-balanced"),
        ("score", "bi", "BI"),
        ("score", "mc", "MC"),
        ("selection", "bottom-k", "bottom"),
        ("selection", "botom", "bottom"),
        ("selection", "step-sized", "step"),
        ("model", "slimresnet", "slim_resnet18"),
        ("scoring_batchnorm", "training", "train"),
        ("view_space", "normalised", "normalized"),
        ("precision", "float16", "bfloat16"),
        ("score", "entropy", "EN"),
        ("population", "class", "class-balanced"),
        ("method", "ER-ACE", "er-ace"),
        ("method", "er_ace", "er-ace"),
        ("method", "A-GEM", "agem"),
        ("method", "DER++", "derpp"),
        ("method", "ER", "er"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(name, typed, meant):
    with pytest.raises(InputError) as refusal:
        Config(**{name: typed})
    assert_says_in_one_line(refusal.value, repr(typed), f"did you mean {meant!r}?")


@pytest.mark.parametrize("typed", ["memorysize", "batchsize", "Seed", "n_task"])
def test_a_misspelt_field_gets_the_nearest_one(typed):
    meant = {"memorysize": "memory_size", "batchsize": "batch_size", "Seed": "seed", "n_task": "n_tasks"}[typed]
    attempts = (
        lambda: Config(**{typed: 8}),
        lambda: Config().replace(**{typed: 8}),
        lambda: Config.from_json(json.dumps({typed: 8})),
    )
    for attempt in attempts:
        with pytest.raises(InputError) as refusal:
            attempt()
        assert_says_in_one_line(refusal.value, typed, f"did you mean {meant!r}?")


def test_refresh_above_one_counts_samples():
    assert Config(refresh=7).refresh == 7
    with pytest.raises(InputError) as refusal:
        Config(refresh=7.5)
    assert_says_in_one_line(refusal.value, "refresh", "7.5", "(0, 1]")


def test_the_dropout_score_needs_dropout():
    with pytest.raises(InputError) as refusal:
        Config(score="MC", dropout=0)
    assert_says_in_one_line(refusal.value, "dropout", "MC")
    assert Config(score="MC", dropout=0, population="reservoir").dropout == 0


def test_tuning_needs_images_held_out():
    for dataset in ("digits", "cifar10", "cifar100-lt"):
        with pytest.raises(InputError) as refusal:
            Config(dataset=dataset, evaluate_on="validation", validation=0)
        assert_says_in_one_line(refusal.value, "validation", dataset)
    assert Config(dataset="bloodcell", evaluate_on="validation", validation=0).validation == 0


@pytest.mark.parametrize(
    ("boundaries", "blur", "replay"), [("clear", 0, "earlier"), ("gradual", 1, "all"), ("blurry", 0.1, "all")]
)
def test_boundaries_bring_their_blur_and_what_is_replayed(boundaries, blur, replay):
    config = Config(boundaries=boundaries)
    assert (config.blur, config.disjoint, config.replay) == (blur, 0.5, replay)
    assert Config(boundaries=boundaries, blur=0.7, replay="all").blur == 0.7
    assert Config().replace(boundaries=boundaries) == config
    assert Config.from_json(config.to_json()).replace(boundaries="clear") == Config()


@pytest.mark.parametrize("boundaries", ["gradual", "blurry"])
def test_without_clear_boundaries_no_batch_tells_which_tasks_are_earlier(boundaries):
    with pytest.raises(InputError) as refusal:
        Config(boundaries=boundaries, replay="earlier")
    assert_says_in_one_line(refusal.value, "replay", "'earlier'", boundaries, "'all'")
    with pytest.raises(InputError, match="replay"):
        Config(replay="earlier").replace(boundaries=boundaries)


def test_tests_between_task_ends_need_held_out_images_and_read_the_running_statistics():
    with pytest.raises(InputError) as refusal:
        Config(evaluate_every=10, validation=0)
    assert_says_in_one_line(refusal.value, "validation", "hold out")
    with pytest.raises(InputError) as refusal:
        Config(evaluate_every=10, test_batchnorm="training")
    assert_says_in_one_line(refusal.value, "evaluate_every", "10", "test_batchnorm")


def test_further_tests_are_of_the_same_result_but_of_another_record():
    base = Config(population="reservoir", seed=3)
    for further in (dict(readings=True), dict(evaluate_every=10), dict(readings=True, evaluate_every=7)):
        config = base.replace(**further)
        assert config.key != base.key and config.result_key == base.key
        assert config.without_further_tests == base and config.seedless == base.seedless
    assert base.without_further_tests == base


def test_an_input_error_is_a_value_error_and_survives_a_process_boundary():
    with pytest.raises(ValueError) as refusal:
        Config(lr=-1)
    again = pickle.loads(pickle.dumps(refusal.value))
    assert isinstance(again, InputError)
    assert (again.name, again.value, again.reason) == ("lr", -1, refusal.value.reason)
    assert str(again) == str(refusal.value)
    assert str(InputError("", None, "all there is to say")) == "all there is to say"


def test_an_error_in_one_line_is_its_message_or_without_one_its_type():
    assert (one_line(ValueError("no\n  number")), one_line(EOFError())) == ("no number", "EOFError")
    assert one_line_with_type(ValueError("no\n  number")) == "ValueError: no number"
    assert one_line_with_type(EOFError()) == "EOFError"
    long = ValueError("x" * 1000)
    assert (len(one_line(long)), len(one_line(long, most=None))) == (200, 1000)


def test_one_of_guesses_only_what_is_near():
    one_of("fruit", "apple", ["apple", "pear"])
    with pytest.raises(InputError) as refusal:
        one_of("fruit", "Peer", ["apple", "pear"])
    assert_says_in_one_line(refusal.value, "fruit='Peer'", "did you mean 'pear'?", "apple, pear")


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("zzz", ["apple", "pear"]),
        ("", ["apple", "pear"]),
        ("lowest", ["bottom", "step", "top"]),
        ("best", ["bottom", "step", "top"]),
        ("random", ["uncertainty", "reservoir", "class-balanced"]),
        ("XX", ["BI", "LC"]),
    ],
)
def test_one_of_does_not_guess_where_none_is_near(typed, known):
    with pytest.raises(InputError) as refusal:
        one_of("thing", typed, known)
    assert str(refusal.value) == f"thing={typed!r}: unknown thing; choose from: {', '.join(known)}"


def test_a_configuration_read_from_json_decides_again_like_the_one_it_was():
    for config in (Config(), Config(dataset="bloodcell", lr=0.03), Config(method="agem")):
        again = Config.from_json(config.to_json())
        assert again.replace(dataset="bloodcell").n_tasks == 4
        assert again.replace(population="uncertainty", score="MC").dropout == 0.3
        assert again.replace(seed=5) == config.replace(seed=5)
        assert again.replace(method="agem").label == "A-GEM"


@pytest.mark.parametrize(
    ("given", "name", "decides"),
    [
        ({}, "blur", "boundaries"),
        ({"boundaries": "gradual"}, "disjoint", "boundaries"),
        ({"population": "reservoir"}, "score", "population"),
        ({"method": "finetune"}, "score", "method"),
        ({"score": "MC"}, "n_draws", "score"),
        ({"model": "slim_resnet18_groupnorm"}, "readings", "model"),
        ({}, "long_tailed_test", "imbalance"),
    ],
)
def test_an_idle_field_comes_with_the_field_that_makes_it_so(given, name, decides):
    config = Config(**given)
    assert config.idle[name] == decides and decides in config.relevant
    assert config.idle.keys() | config.relevant.keys() == {f.name for f in dataclasses.fields(Config)}
    assert not config.idle.keys() & config.relevant.keys()


def test_a_path_is_the_name_of_a_data_set():
    path = Path("my images") / "cells.npz"
    assert Config(dataset=path) == Config(dataset=str(path)) and Config(dataset=path).dataset == str(path)


def test_numbers_of_numpy_count_as_numbers():
    config = Config(seed=np.int64(3), lr=np.float64(0.05), memory_size=np.arange(9)[8])
    assert config == Config(seed=3, lr=0.05, memory_size=8)
    assert Config.from_json(config.to_json()) == config
    with pytest.raises(InputError, match=r"^seed=array\(\[0, 1\]\): give a whole number"):
        Config(seed=np.arange(2))


@pytest.mark.parametrize("field", ["dataset", "method", "model", "population", "score"])
def test_an_array_as_a_name_is_refused_in_one_line(field):
    with pytest.raises(InputError, match=rf"^{field}=array\(\['BI', 'EN'\].*\): ") as refusal:
        Config(**{field: np.array(["BI", "EN"])})
    assert "\n" not in str(refusal.value)


# Objects of the user's own


def test_own_objects_are_fields_of_the_run_only_where_they_can_change_it():
    paths = dict(dataset="mine:birds-lt", method="mine:M", model="mine:net", population="mine:P", score="mine:s")
    config = Config(**paths)
    assert config.own == {"dataset": "mine:birds", "method": "mine:M", "model": "mine:net", "population": "mine:P"}
    assert config.imbalance == 0.1 and config.label == "mine:M, mine:P"
    assert config.key == config.replace(score="BI", dropout=0.5, class_balancing="redraw", precision="float32").key
    assert config.key != config.replace(model="slim_resnet18").key
    scored = Config(score="mine:s", method="mine:M", population="uncertainty")
    assert scored.own == {"method": "mine:M", "score": "mine:s"} and scored.label == "mine:M, mine:s bottom"
    assert Config(method="mine:M").population == "reservoir" and Config(method="mine:M").label == "mine:M"
    assert Config(method="finetune", score="mine:s", population="mine:P").own == {}
    assert Config.from_json(config.to_json()) == config and Config().own == {}


@pytest.mark.parametrize("dataset", ["/data/a:b", "a:b/c", "a:b.npz", "a/b:c"])
def test_a_path_with_a_colon_is_a_path(dataset):
    assert Config(dataset=dataset).own == {}


def test_a_network_of_ones_own_may_take_small_images():
    assert Config(model="mine:net", image_size=8).image_size == 8
    with pytest.raises(InputError, match="last pooling"):
        Config(image_size=8)


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (24, ": the network's last pooling needs at least 25 pixels"),
        (600, ": images are resized to at most 512 pixels per side"),
        (30.5, ""),
        ("64", ""),
    ],
)
def test_an_image_size_is_refused_with_the_reason_of_its_end_of_the_range(size, why):
    with pytest.raises(InputError, match=f"give a whole number from 25 to 512{why}$"):
        Config(image_size=size)
