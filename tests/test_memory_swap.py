"""Memories exchanged in one frozen state: equal policies agree exactly, and only the memory differs."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from conftest import learn, parts, refused, run

import ucl
from ucl.assembly import build_method
from ucl.evaluation import predictions
from ucl.machine.determinism import repeatable
from ucl.streams import datasets
from ucl.studies.memory_swap import against, memory_swap, pool
from ucl.studies.observe import observe

pytestmark = pytest.mark.usefixtures("small_networks")

BASE = ucl.Config(dataset="digits", n_tasks=3, imbalance=0.1, memory_size=10, validation=0.5, population="reservoir")
POLICIES = [BASE, BASE.replace(population="class-balanced"), BASE.replace(population="uncertainty", score="EN")]


@pytest.fixture(scope="module")
def table():
    return memory_swap(POLICIES, "cpu", progress=False)


def test_there_is_a_row_per_policy_and_state_and_all_start_from_the_same_network(table):
    assert list(table["method"]) == ["ER", "CBR", "EN bottom"] * 2
    assert list(table["task"]) == [task for task in (2, 3) for _ in POLICIES]
    assert (table.groupby("task")["before"].nunique() == 1).all()
    assert table.groupby("task")["retained"].nunique().max() > 1
    assert table[["before", "retained", "last", "A"]].stack().between(0, 100).all()


def test_the_policies_do_not_influence_each_other(table):
    others = [BASE, BASE.replace(population="uncertainty", score="LC", view_draws="batch"), POLICIES[2]]
    swapped = memory_swap(others, "cpu", progress=False)
    for label in ("ER", "EN bottom"):
        one, other = (rows[rows["method"] == label].reset_index(drop=True) for rows in (table, swapped))
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_policies_of_one_label_are_named_by_their_settings_and_never_averaged():
    two_tasks = BASE.replace(n_tasks=2)
    table = memory_swap([two_tasks, two_tasks.replace(reservoir_index="exclusive")], "cpu", progress=False)
    assert list(table["method"]) == ["ER", "ER, published settings"]
    assert set(against(table, "ER")["method"]) == {"ER, published settings"}


def test_a_memory_that_chooses_at_a_tasks_end_is_filled_and_its_runs_are_those_of_ucl(tiny):
    rainbow = BASE.replace(population="rainbow", n_tasks=2, imbalance=0.1)
    table = memory_swap([rainbow.replace(population="reservoir"), rainbow], "cpu", progress=False)
    assert table["retained"].nunique() == 2  # An empty memory would forget all.
    assert table.loc[table["method"] == "Rainbow", "retained"].item() > 0
    rainbow = tiny.replace(population="rainbow")
    table = observe(rainbow, device="cpu", progress=False).stays
    held = table.loc[table["exit"].isna(), "position"]
    assert sorted(held) == sorted(run(rainbow).memory["position"])


def test_differences_are_paired_by_seed_and_the_states_of_a_seed_count_once():
    base = {"dataset": "digits", "memory_size": 10, "last": 50.0, "A": 0.0}
    values = [(0, "CBR", 40), (0, "CBR", 60), (0, "ER", 41), (0, "ER", 65), (1, "CBR", 10), (1, "ER", 15)]
    table = pd.DataFrame([{**base, "seed": seed, "method": method, "retained": a} for seed, method, a in values])
    rows = against(table, "CBR").set_index("measure")
    assert set(rows["method"]) == {"ER"} and (rows["n"] == 2).all()
    assert rows.loc["retained", "mean"] == pytest.approx(4.0)  # the mean of 3 and 5
    interval = scipy.stats.t.interval(0.95, 1, 4, 1)
    assert rows.loc["retained", ["low", "high"]].tolist() == pytest.approx(interval)
    assert rows.loc["last", ["mean", "low", "high"]].tolist() == [0, 0, 0]


def test_a_row_equals_the_steps_by_hand(table):
    with repeatable(BASE.seed, torch.device("cpu")):
        stream, model, buffer, method = parts(BASE)
        first, second = stream.tasks[:2]
        learn([first], model, buffer, method)
        swapped = parts(POLICIES[2]).buffer
        (everything,) = pool([first])
        swapped.update(model, everything)
        method = build_method(BASE, model)
        for batch in second:
            method.learn(model, batch, swapped)
        right = [(predictions(model, task.test_images) == task.test_labels.numpy()).mean() for task in (first, second)]
    row = table[(table["method"] == "EN bottom") & (table["task"] == 2)].iloc[0]
    assert [row["retained"], row["last"], row["A"]] == pytest.approx([100 * r for r in (*right, np.mean(right))])


def test_the_pool_is_every_training_image_of_the_tasks_once():
    tasks = parts(BASE).stream.tasks[:3]
    everything = pool(tasks)
    assert sorted(everything.positions.tolist()) == sorted(p for task in tasks for p in task.positions.tolist())
    data = datasets.load("digits")
    of_positions = data.train_images[everything.positions]
    assert np.array_equal(everything.images.permute(0, 2, 3, 1).numpy(), of_positions)
    assert np.array_equal(everything.host_labels, data.train_labels[everything.positions])


@pytest.mark.parametrize(
    "policies",
    [
        [BASE, BASE.replace(method="finetune")],
        [BASE.replace(method="derpp"), BASE.replace(method="derpp", population="herding")],
        [BASE, BASE.replace(population="gss")],
        [BASE, BASE.replace(population="coreset")],
        [BASE, BASE.replace(lr=0.2, population="class-balanced")],
        [BASE, BASE.replace(population="uncertainty", score="MC")],
    ],
)
def test_policies_that_cannot_be_compared_are_refused_before_anything_is_learnt(policies, monkeypatch):
    monkeypatch.setattr("ucl.studies.memory_swap.assemble", None)
    with refused("policies"):
        memory_swap(policies, "cpu")
