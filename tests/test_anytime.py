"""Tests between task ends: they change no result, count correctly, and appear in the record and the tables."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from conftest import parts, refused, run, save_bands

import ucl
from ucl import Config, Record
from ucl.evaluation import AnytimeEvaluation, predictions
from ucl.machine.clock import Clock
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.records import Anytime, as_table

pytestmark = pytest.mark.usefixtures("small_networks")

NAN = float("nan")
VARIANTS = {
    "BI": dict(),
    "BI, statistics moved by scoring": dict(scoring_batchnorm="train", view_draws="batch"),
    "ER, dropout": dict(population="reservoir", dropout=0.3),
    "EN, blurry": dict(score="EN", boundaries="blurry", blur=0.5),
    "Finetune, gradual": dict(method="finetune", boundaries="gradual"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Two tasks of six batches: 72 images of four classes, with three more images of each class held out."""
    path = save_bands(tmp_path_factory.mktemp("data") / "bands.npz", train=88)
    small = dict(n_tasks=2, memory_size=9, batch_size=6)
    return Config(dataset=str(path), lr=0.05, validation=0.16, precision="float32", **small)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tests_between_task_ends_change_nothing_else(base, variant):
    config = base.replace(**VARIANTS[variant])
    plain, tested = run(config), run(config.replace(evaluate_every=2))
    results = tested.results
    assert results.pop("anytime")["batches"]
    assert json.dumps(results) == json.dumps(plain.results)  # These include answers, memory and final scores.
    assert plain.anytime is None


@pytest.mark.parametrize(("every", "batches"), [(1, range(1, 13)), (4, [4, 8, 12]), (5, [5, 10, 12]), (99, [12])])
def test_tests_are_after_every_so_many_batches_and_at_the_end(base, every, batches):
    anytime = run(base.replace(population="reservoir", evaluate_every=every)).anytime
    assert anytime.batches.tolist() == list(batches)
    assert (~np.isnan(anytime.correct)).sum(1).tolist() == [1 if b <= 6 else 2 for b in batches]
    assert anytime.images.tolist() == [6, 6]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_each_number_is_that_of_the_network_tested_by_itself(base, dropout):
    config = base.replace(dropout=dropout)
    stream, model, *_ = parts(config.replace(evaluate_on="validation"))
    clock = Clock(torch.device("cpu"))
    anytime = AnytimeEvaluation(config.replace(evaluate_every=1), model, parts(config).stream, clock)
    for task in stream:
        anytime.after_batch(task)
    images = torch.cat([task.test_images for task in stream])
    for n_learnt, row in enumerate(anytime.finish()["anytime"].correct, start=1):
        begun = stream.tasks[:n_learnt]
        n = sum(len(task.test_labels) for task in begun)
        with seeded_draws(seed_for(config.seed, f"anytime evaluation after batch {n_learnt}"), "cpu"):
            given = predictions(model, images[:n])
        for task in begun:
            labels, given = given[: len(task.test_labels)], given[len(task.test_labels) :]
            assert row[task.number] == (labels == task.test_labels.numpy()).sum()
        assert np.isnan(row[n_learnt:]).all()


def test_a_task_without_validation_images_is_refused(base):
    with refused("evaluate_every", 2):
        run(base.replace(evaluate_every=2, validation=0.01))


def with_anytime(record, seed=0, correct=((5, NAN), (9, NAN), (2, 4), (3, 8))):
    config = record.config.replace(evaluate_every=3, seed=seed)
    anytime = Anytime(np.array([3, 6, 9, 12]), np.array(correct), np.array([10, 10]))
    return dataclasses.replace(record, config=config, anytime=anytime)


@pytest.fixture(scope="module")
def measured(base):
    """The record of a run, with fixed results instead of those that such a small network learns."""
    recall = np.full((2, 4), NAN)
    record = run(base.replace(population="reservoir"))
    recall[:, record.class_order[:2]], recall[1, record.class_order[2:]] = [[0.8, 1.0], [0.3, 0.5]], [0.7, 0.9]
    return dataclasses.replace(record, accuracy=np.array([[0.9, NAN], [0.4, 0.8]]), class_recall=recall)


def test_a_record_keeps_whole_numbers_and_comes_back_as_it_was(measured):
    record = with_anytime(measured)
    text = record.to_json()
    assert json.loads(text)["anytime"]["correct"] == [[5, None], [9, None], [2, 4], [3, 8]]
    again = Record.from_json(text)
    assert again.results == record.results and again.to_json() == text
    np.testing.assert_array_equal(again.anytime.accuracy, [[0.5, NAN], [0.9, NAN], [0.2, 0.4], [0.3, 0.8]])
    assert "anytime" not in json.loads(measured.to_json())


def test_measures_of_a_record_are_those_of_its_tests(measured):
    a = [[0.5, NAN], [0.9, NAN], [0.2, 0.4], [0.3, 0.8]]
    measures = with_anytime(measured).measures()
    assert measures["anytime"] == ucl.metrics.average_anytime_accuracy(a) == pytest.approx((0.5 + 0.9 + 0.3 + 0.55) / 4)
    assert measures["worst_case"] == ucl.metrics.worst_case_accuracy(a) == pytest.approx((0.2 + 0.8) / 2)
    assert measures["backward"] == ucl.metrics.backward_transfer(measured.accuracy) == measured.measures()["backward"]
    assert np.isnan([measured.measures()[name] for name in ("anytime", "worst_case")]).all()


def test_tables_show_the_measures_where_records_hold_them(measured):
    further = ["backward", "anytime", "worst_case"]
    results = ucl.results(as_table([with_anytime(measured, seed) for seed in range(2)]))
    assert results[["n", "settings"]].to_numpy().tolist()[0][0] == 2
    assert "evaluate_every" not in results["settings"][0]  # The result is the same as without tests between task ends.
    assert results["anytime"].tolist() == [pytest.approx(56.25)] and results["worst_case"].tolist() == [50]
    assert not set(further) & set(ucl.results(as_table([measured])))
    assert not set(further) & set(ucl.results(as_table([])))
    assert list(results)[-4:-1] == further


def test_several_intervals_between_evaluations_are_named(measured):
    """A mean over other evaluations is another measure."""
    runs = [with_anytime(measured, seed) for seed in range(2)]
    runs[1].config = runs[1].config.replace(evaluate_every=5)
    table = as_table(runs)
    assert ucl.results(table, measures="worst_case")["evaluate_every"].tolist() == ["3 and 5"]
    assert "evaluate_every" not in ucl.results(table, measures="A")
    others = [dataclasses.replace(run, config=run.config.replace(lr=0.01)) for run in runs]
    both = as_table([*runs, *others])
    compared = ucl.compare(both, "lr=0.05", "lr=0.01", ["A", "anytime"])
    assert compared["evaluate_every"].tolist() == ["", "3 and 5"]
