"""Configurations: defaults, refused values, storage, keys and labels."""

import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from ucl import naming
from ucl.catalogue import METHODS, POLICIES, SCORES, SELECTIONS, WITHOUT_SCORE
from ucl.config import Config
from ucl.errors import InputError
from ucl.fields import FIELDS, Bounds

NAN, INF = float("nan"), float("inf")
ALLOWED = {name: field.metadata["allowed"] for name, field in FIELDS.items()}
CHOICES = {name: list(field.metadata["choices"]) for name, field in FIELDS.items() if field.metadata["choices"]}
WHOLE = {name: (r.start, r.stop - 1) for name, r in ALLOWED.items() if isinstance(r, range)}
WHOLE |= {"image_size": (25, 512), "batch_size": (2, 10_000)}  # for the network by default
REAL = {name: range_ for name, range_ in ALLOWED.items() if isinstance(range_, Bounds)}
FLAGS = [name for name, allowed in ALLOWED.items() if allowed is bool]


def ends(name):
    """The smallest and the largest value of a field that is a real number."""
    range_ = REAL[name]
    return range_.low + 1e-9 * (range_.ends[0] == "("), range_.high - 1e-9 * (range_.ends[1] == ")")


def values_of(name):
    """A strategy for the values of a field, which contradict no other field's."""
    if name in WHOLE:
        values = st.integers(*WHOLE[name])
    elif name in REAL:
        inside = {"refresh": (1e-9, 1), "validation": (0.01, 0.5), "dropout": (0.01, 0.99)}
        values = st.floats(*inside.get(name, ends(name)))
    else:
        values = st.sampled_from(CHOICES[name]) if name in CHOICES else st.booleans()
    return values | st.none() if FIELDS[name].default is None else values


STRATEGIES = {name: values_of(name) for name in FIELDS.keys() - {"dataset", "replay", "test_batchnorm"}}
STRATEGIES |= {
    "dataset": st.sampled_from(["digits", "cifar10", "cifar100-lt", "bloodcell", "pathmnist", "a b/cells é.npz"]),
    "replay": st.sampled_from([None, "all"]),
    "score": st.sampled_from([*SCORES, "my.scores:spread"]),
}
configs = st.fixed_dictionaries({}, optional=STRATEGIES).map(lambda given: Config(**given))


# Defaults


@pytest.mark.parametrize(
    ("dataset", "n_tasks", "memory_size", "class_order", "imbalance", "balanced"),
    [
        ("cifar10", 5, 500, "seed", 1.0, False),
        ("cifar100", 5, 1000, "seed", 1.0, False),
        ("cifar10-lt", 5, 200, "seed", 0.1, False),
        ("cifar100-lt", 5, 500, "seed", 0.1, False),
        ("bloodcell", 4, 40, "size", 1.0, True),
        ("bloodcell-lt", 4, 40, "size", 0.1, True),
        ("digits", 5, 50, "seed", 1.0, False),
        ("pathmnist", 5, 200, "seed", 1.0, True),
        ("fashionmnist", 5, 200, "seed", 1.0, False),
        ("my/mnist", 5, 200, "seed", 1.0, False),
        ("mine:mnist", 5, 200, "seed", 1.0, False),
    ],
)
def test_a_data_set_has_the_papers_scenario(dataset, n_tasks, memory_size, class_order, imbalance, balanced):
    config = Config(dataset=dataset)
    assert (config.n_tasks, config.memory_size, config.class_order) == (n_tasks, memory_size, class_order)
    assert (config.imbalance, config.balanced_accuracy) == (imbalance, balanced)
    explicit = Config(dataset=dataset, n_tasks=2, memory_size=77, balanced_accuracy=False)
    assert (explicit.n_tasks, explicit.memory_size, explicit.balanced_accuracy) == (2, 77, False)


def test_the_defaults_are_the_papers_training():
    config = Config()
    assert (config.batch_size, config.lr, config.validation, config.method) == (10, 0.1, 0.05, "er")
    assert (config.population, config.score, config.selection) == ("uncertainty", "BI", "bottom")
    assert (config.dropout, config.refresh) == (0.0, 1.0)
    assert [Config(method=name).population for name in METHODS if name != "er"] == ["reservoir"] * (len(METHODS) - 1)


@pytest.mark.parametrize("score", SCORES)
def test_only_the_dropout_score_has_dropout_by_default(score):
    assert Config(score=score).dropout == (0.3 if score == "MC" else 0)
    assert Config(score=score, population="reservoir").dropout == Config(score=score, method="finetune").dropout == 0
    assert Config(score=score, dropout=0.5).dropout == 0.5


@pytest.mark.parametrize(
    ("boundaries", "blur", "replay"), [("clear", 0, "earlier"), ("gradual", 1, "all"), ("blurry", 0.1, "all")]
)
def test_boundaries_decide_blur_and_replay(boundaries, blur, replay):
    config = Config(boundaries=boundaries)
    assert (config.blur, config.disjoint, config.replay) == (blur, 0.5, replay)
    assert Config(boundaries=boundaries, blur=0.7, replay="all").blur == 0.7
    assert Config().replace(boundaries=boundaries) == config
    assert Config.from_json(config.to_json()).replace(boundaries="clear") == Config()


# replace, explicit, repr


def test_replace_chooses_the_defaults_again_of_what_was_not_set():
    assert Config(dataset="cifar10", lr=0.03).replace(dataset="bloodcell") == Config(dataset="bloodcell", lr=0.03)
    assert Config(score="MC").replace(score="BI").dropout == 0
    assert Config(method="agem").replace(method="er").population == "uncertainty"
    first = Config(dataset="cifar10", n_tasks=2, memory_size=100)
    second = first.replace(dataset="bloodcell", seed=3)
    assert (second.n_tasks, second.memory_size, second.class_order, second.seed) == (2, 100, "size", 3)
    assert (first.dataset, first.class_order, first.seed) == ("cifar10", "seed", 0)
    assert second.replace(n_tasks=None).n_tasks == 4


def test_repr_is_a_call_that_creates_the_configuration():
    assert repr(Config(seed=1, dataset=Path("cells"), lr=0.1)) == "Config(dataset='cells', seed=1)"
    assert Config(memory_size=50).explicit == {"memory_size": 50}  # the default of digits only
    config = Config(n_tasks=2, score="my.scores:spread(power=2)")
    again = eval(repr(config))
    assert again == config and again.replace(dataset="bloodcell") == config.replace(dataset="bloodcell")


# Storage


@settings(deadline=None, max_examples=200)
@given(config=configs)
def test_copies_are_the_same_configuration(config):
    again = Config.from_json(config.to_json())
    assert again == config and (again.key, again.label, again.to_json()) == (config.key, config.label, config.to_json())
    assert again.replace(seed=5) == config.replace(seed=5)
    pickled = pickle.loads(pickle.dumps(config))
    assert pickled == config and pickled.replace(seed=5) == config.replace(seed=5)
    assert config.replace() == config and hash(config.replace()) == hash(config)
    assert config.key == f"{int(config.key, 16):016x}"


def test_a_configuration_read_from_json_chooses_its_defaults_again():
    assert list(json.loads(Config(dataset="bloodcell").to_json())) == list(FIELDS)
    assert Config.from_json('{"dataset": "bloodcell", "seed": 2}') == Config(dataset="bloodcell", seed=2)
    for config in (Config(), Config(dataset="bloodcell", lr=0.03), Config(method="agem")):
        again = Config.from_json(config.to_json())
        assert again.replace(dataset="bloodcell").n_tasks == 4
        assert again.replace(population="uncertainty", score="MC").dropout == 0.3


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", '"digits"'])
def test_text_that_is_not_a_configuration_is_refused(text):
    with refused("config"):
        Config.from_json(text)


# Keys


def test_keys_are_pinned():
    """The names of committed records depend on these keys: a change here would orphan all records."""
    assert Config(dataset="bloodcell", memory_size=40, score="BI", selection="bottom", seed=0).key == "8c3e8e227342ccb8"
    stream = dict(dataset="cifar100-lt", imbalance=0.05, long_tailed_test=True, evaluate_on="validation", seed=2)
    scoring = dict(score="LC", selection="step", refresh=32, averaging="probabilities", view_space="normalized")
    memory = dict(memory_size=1000, population="uncertainty", scoring_batchnorm="train")
    assert Config(method="agem", lr=0.03, **stream, **scoring, **memory).key == "f72a749f9580322b"
    paths = {"set": "eaa4d1d65e11b97c", "./set": "f8aedf057d1e96c8", "/data/set": "55dd1fa7a40f7339"}
    assert {dataset: Config(dataset=dataset).key for dataset in paths} == paths


def other_value(config, name):
    """A value of a field that contradicts no other field and differs from that of the configuration."""
    explicit = {
        "dataset": "cifar10",
        "evaluate_every": 10,
        "tasks": "0,1|2",
        "refresh": 0.5,
        "replay": "all",
        "test_batchnorm": "training",
        **dict.fromkeys(("blur", "disjoint", "imbalance", "validation", "dropout", "smoothing", "lr"), 0.17),
    }
    if name in explicit:
        return explicit[name]
    value = getattr(config, name)
    if name in FLAGS:
        return not value
    return (value or 63) + 1 if name in WHOLE else next(choice for choice in CHOICES[name] if choice != value)


SCORING = {"score", "selection", "refresh", "smoothing", "scoring_batchnorm", "averaging", "precision"}
VIEWS = {"view_draws", "view_space", "n_draws"}
NO_SCORE = SCORING | VIEWS
RANDOM = {"class_balancing", "reservoir_index"}
NO_MEMORY = NO_SCORE | RANDOM | {"memory_size", "population", "replay"}
STATISTICS = {"scoring_batchnorm", "test_batchnorm", "readings"}


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        *((row.fields, RANDOM | (set() if row.of_probabilities else {"averaging"})) for row in SCORES.values()),
        ({"score": "MC", "dropout": 0.3}, RANDOM | VIEWS | {"averaging"}),
        ({"score": "my.scores:spread"}, RANDOM | {"averaging"}),
        ({"score": "EN", "model": "slim_resnet18_groupnorm"}, RANDOM | STATISTICS),
        ({"score": "EN", "model": "mine:net"}, RANDOM | {"dropout"}),
        ({"score": "EN", "method": "agem", "population": "uncertainty"}, RANDOM),
        ({"score": "EN", "boundaries": "gradual"}, RANDOM),
        ({"score": "EN", "boundaries": "blurry"}, RANDOM),
        ({"population": "reservoir"}, NO_SCORE | {"class_balancing"}),
        ({"population": "reservoir", "dataset": "bloodcell"}, NO_SCORE | {"class_balancing", "validation"}),
        ({"population": "class-balanced"}, NO_SCORE | {"reservoir_index"}),
        *((POLICIES[name].fields, NO_SCORE | RANDOM) for name in ("loss-aware", "herding", "gss", "coreset")),
        ({"method": "agem"}, NO_SCORE | {"class_balancing"}),
        ({"method": "mir"}, NO_SCORE - {"scoring_batchnorm"} | {"class_balancing"}),
        ({"method": "finetune"}, NO_MEMORY),
        ({"method": "joint"}, NO_MEMORY),
        ({"method": "derpp"}, NO_SCORE | {"class_balancing", "replay"}),
        ({"method": "er-ace", "population": "herding"}, NO_SCORE | RANDOM | {"replay"}),
        ({"method": "er-ace", "population": "coreset"}, NO_SCORE | RANDOM),
        ({"method": "derpp", "population": "mine:P"}, NO_SCORE | RANDOM),
    ],
    ids=lambda value: str(value if isinstance(value, dict) else sorted(value)),
)
def test_a_key_changes_with_each_field_that_can_change_the_result_and_with_no_other(fields, idle):
    config = Config(imbalance=0.1, **fields)
    if config.boundaries != "blurry":
        idle = idle | {"disjoint"} | ({"blur"} if config.boundaries == "clear" else set())
    if config.method != "agem":
        idle = idle | {"reference_batch", "projected"}
    if config.score == "MC" and config.uses_scores:
        idle = idle | VIEWS
    assert config.idle.keys() == idle and set(config.idle.values()) <= config.relevant.keys()
    assert idle | config.relevant.keys() == FIELDS.keys() and not idle & config.relevant.keys()
    others = {name: config.replace(**{name: other_value(config, name)}) for name in FIELDS if name not in ("method",)}
    if "population" in idle:  # No memory: what the policy would be changes nothing.
        others["population"] = config.replace(population="herding")
    if config.boundaries != "clear":
        del others["replay"]  # It can only be "all".
    del others["boundaries"], others["model"]
    same = {name for name, other in others.items() if other.key == config.key}
    assert same == idle & others.keys()
    different = [other.key for name, other in others.items() if name not in idle]
    assert len(set(different)) == len(different)


def test_each_method_with_each_memory_policy_has_its_own_key_and_label():
    with_memory = [name for name, row in METHODS.items() if row.has_memory]
    variants = [Config(method=m, population=p) for m, p in itertools.product(with_memory, POLICIES)]
    assert len({config.key for config in variants}) == len({config.label for config in variants}) == len(variants)
    assert Config(method="finetune", population="class-balanced").key == Config(method="finetune").key


def test_equal_values_have_one_key():
    assert Config(long_tailed_test=True).key == Config().key  # Without a long tail it changes nothing.
    assert Config(lr=2, refresh=1, imbalance=1).key == Config(lr=2.0, refresh=1.0, imbalance=1.0).key
    assert Config(dataset="bloodcell", n_tasks=4, dropout=0.0).key == Config(dataset="bloodcell").key
    assert Config(score="MC", dropout=0.3).key == Config(score="MC").key
    path = Path("my images") / "cells.npz"
    assert Config(dataset=path) == Config(dataset=str(path)) and Config(dataset=path).dataset == str(path)


def test_explicit_tasks_set_the_number_of_tasks_and_the_class_order():
    config = Config(dataset="bloodcell", tasks=" b cell, 3|2 | a,0", class_order=None)
    assert (config.tasks, config.n_tasks, config.class_order) == ("b cell,3|2|a,0", 3, "b cell,3,2,a,0")
    assert Config(dataset="bloodcell", tasks="b cell,3|2|a,0").key == config.key
    assert config.replace(tasks="equal") == Config(dataset="bloodcell")
    assert Config(class_order="1, 0").key == Config(class_order="1,0").key


def test_numbers_of_numpy_count_as_numbers():
    config = Config(seed=np.int64(3), lr=np.float64(0.05), memory_size=np.arange(9)[8])
    assert config == Config(seed=3, lr=0.05, memory_size=8)
    assert Config.from_json(config.to_json()) == config


def test_further_tests_change_the_key_and_are_left_out_of_the_plain_run():
    base = Config(population="reservoir", seed=3)
    for further in (dict(readings=True), dict(evaluate_every=10), dict(readings=True, evaluate_every=7)):
        config = base.replace(**further)
        assert config.key != base.key
        assert config.without_further_tests == base and config.seedless == base.seedless
    assert base.without_further_tests == base


def test_labels_are_those_of_tables_and_figures():
    for label, row in WITHOUT_SCORE.items():
        assert Config(**row.fields).label == label
    for score, selection in itertools.product(SCORES, SELECTIONS):
        assert Config(score=score, selection=selection).label == f"{score} {selection}"
    assert Config(score="ucl.scorers:uniform").label == "uniform bottom"
    assert Config(method="derpp", population="rainbow").label == "DER++, Rainbow"


def test_settings_name_what_differs_and_nothing_else():
    config = Config(dataset="cifar10", score="LC", selection="top", memory_size=70, seed=4)
    assert naming.settings(config) == ""
    assert naming.settings(config.replace(lr=0.05, averaging="probabilities")) == "lr=0.05, averaging=probabilities"
    assert naming.settings(Config(dataset="cifar10", method="finetune", n_tasks=2)) == "n_tasks=2"
    assert naming.settings(Config(score="MC", dropout=0.2)) == "dropout=0.2"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (dict(n_tasks=2, score="EN", refresh=2), "cells, n_tasks=2, memory 40, EN bottom, refresh=2, seed 3"),
        (dict(method="finetune", lr=0.05), "cells, Finetune, lr=0.05, seed 3"),
        (dict(population="class-balanced", class_balancing="redraw"), "cells, memory 40, CBR redraw, seed 3"),
        (naming.PUBLISHED_CODE, "cells, memory 40, BI bottom, published settings, seed 3"),
    ],
)
def test_a_run_is_named_by_its_data_set_without_the_folder_its_method_and_settings(fields, name):
    assert naming.run_name(Config(dataset="/data/cells", memory_size=40, seed=3).replace(**fields)) == name


# Refused values


NOT_NUMBERS = [NAN, INF, -INF, True, "1", "", [1], {}, 1j, np.arange(2), 1e308]
NOT_NAMES = ["", "quux!", 0, True, NAN, [], b"digits", np.array(["BI", "EN"])]
REFUSED = {  # values that a field refuses
    **{name: [low - 1, high + 1, 7.5, *NOT_NUMBERS] for name, (low, high) in WHOLE.items()},
    **{name: [ends(name)[0] - 1e-6, ends(name)[1] + 1e-6, *NOT_NUMBERS] for name in REAL},
    **dict.fromkeys(CHOICES, NOT_NAMES),
    **{name: [0, 1, "yes", "", NAN, []] for name in FLAGS},
    "dataset": ["", 3, True, [], b"digits", NAN, np.array(["BI"])],
    "class_order": [*NOT_NAMES, "2", "0,1,1", "0,,1", "0,1|2", "a,b, a"],
    "tasks": [*NOT_NAMES, "2", "0,1|1", "0,1|", "0|1||2", "a,b| a"],
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_out_of_range_is_refused_in_one_line_with_its_field(name):
    for value in [*REFUSED[name], *([None] if FIELDS[name].default is not None else [])]:
        with refused(name):
            Config(**{name: value})


@pytest.mark.parametrize("name", [*WHOLE, *REAL, *CHOICES])
def test_all_values_of_a_range_are_accepted(name):
    for value in WHOLE[name] if name in WHOLE else ends(name) if name in REAL else CHOICES[name]:
        assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"batch_size": 1}, "batch_size"),
        ({"batch_size": 0, "model": "mine:net"}, "batch_size"),
        ({"image_size": 8}, "image_size"),
        ({"refresh": 1.5}, "refresh"),
        ({"score": "MC", "dropout": 0}, "dropout"),
        ({"dataset": "digits", "evaluate_on": "validation", "validation": 0}, "validation"),
        ({"evaluate_every": 10, "validation": 0}, "validation"),
        ({"evaluate_every": 10, "test_batchnorm": "training"}, "evaluate_every"),
        ({"boundaries": "gradual", "replay": "earlier"}, "replay"),
        ({"boundaries": "blurry", "replay": "earlier"}, "replay"),
        ({"method": "finetune", "test_batchnorm": "memory"}, "test_batchnorm"),
        ({"memorysize": 8}, "field"),
        ({"tasks": "0,1|2", "n_tasks": 3}, "n_tasks"),
        ({"tasks": "0,1|2", "class_order": "1,0,2"}, "class_order"),
        ({"tasks": "0,1|2", "class_order": "seed"}, "class_order"),
        ({"tasks": "0,1|2", "class_order": "0,1,2", "n_tasks": 2}, None),
        ({"batch_size": 1, "model": "slim_resnet18_groupnorm"}, None),
        ({"batch_size": 1, "model": "mine:net"}, None),
        ({"image_size": 8, "model": "mine:net"}, None),
        ({"score": "MC", "dropout": 0, "population": "reservoir"}, None),
        ({"dataset": "bloodcell", "evaluate_on": "validation", "validation": 0}, None),
    ],
    ids=str,
)
def test_fields_that_contradict_each_other_are_refused_and_others_accepted(fields, field):
    if field is None:
        assert {name: getattr(Config(**fields), name) for name in fields} == fields
    else:
        with refused(field):
            Config(**fields)


MISTYPED = [("method", "DER++", "derpp"), ("population", "reservior", "reservoir"), ("score", "bi", "BI")]


@pytest.mark.parametrize(("name", "typed", "meant"), [*MISTYPED, ("memorysize", 8, "memory_size")])
def test_a_mistyped_name_gets_the_nearest_one(name, typed, meant):
    with pytest.raises(InputError, match=f"did you mean {meant!r}"):
        Config(**{name: typed})


def test_an_input_error_is_a_value_error_and_survives_a_process_boundary():
    with pytest.raises(ValueError) as refusal:
        Config(lr=-1)
    again = pickle.loads(pickle.dumps(refusal.value))
    assert isinstance(again, InputError)
    assert (again.name, again.value, str(again)) == ("lr", -1, str(refusal.value))


# User objects


def test_user_objects_are_listed_only_where_they_can_change_the_run():
    paths = dict(dataset="mine:birds-lt", method="mine:M", model="mine:net", population="mine:P")
    config = Config(score="mine:s", **paths)
    assert config.user_objects == paths | {"dataset": "mine:birds"}
    assert config.imbalance == 0.1 and config.label == "mine:M, mine:P"
    assert config.key == config.replace(score="BI", dropout=0.5, class_balancing="redraw", precision="float32").key
    assert config.key != config.replace(model="slim_resnet18").key
    scored = Config(score="mine:s", method="mine:M", population="uncertainty")
    assert scored.user_objects == {"method": "mine:M", "score": "mine:s"} and scored.label == "mine:M, mine:s bottom"
    assert Config(method="mine:M").population == "reservoir" and Config(method="mine:M").label == "mine:M"
    assert Config(method="finetune", score="mine:s", population="mine:P").user_objects == {}
    assert Config.from_json(config.to_json()) == config and Config().user_objects == {}


@pytest.mark.parametrize("dataset", ["/data/a:b", "a:b/c", "a:b.npz", "a/b:c"])
def test_a_path_with_a_colon_is_a_path_and_an_argument_may_hold_a_path(dataset):
    assert Config(dataset=dataset).user_objects == {}
    config = Config(dataset=f"given:images(folder={dataset!r})")
    assert config.user_objects == {"dataset": config.dataset} and config.dataset_name == config.dataset
