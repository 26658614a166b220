"""The leaderboard: its runs, its differences compared with scipy, and the comparison at equal seconds."""

import itertools
from functools import cache

import numpy as np
import pandas as pd
import pytest
from made_up import frame, one_row, record_with
from scipy import stats

from ucl import Config, InputError, catalogue, naming, plots
from ucl.benchmarks.measure import _configs
from ucl.config import unique
from ucl.evidence.leaderboard import (
    AT_EQUAL_SECONDS,
    EXPERIMENTS,
    UNIFORM_SCORE,
    UPDATES,
    benchmark_name,
    benchmark_names,
    equal_seconds,
    gaps,
    standings,
    with_updates,
)
from ucl.report import policies
from ucl.scorers import resolve

NO_TIMES = pd.DataFrame(columns=["dataset", "memory_size", "method", "task", "whole_ms"])
SOME = ["ER", "CBR", *(f"CBR, {n} updates" for n in UPDATES), "GSS", "LARS", "BI top", "BI bottom", UNIFORM_SCORE]
TO_TIME = benchmark_names()
CBR = {"CBR": 20.0, "CBR updates=2": 40.0, "CBR updates=4": 80.0, "CBR updates=8": 160.0}


def times_of(**ms):
    """A table of the times of CBR and the given methods, such as ``times_of(BI=90)``."""
    rows = [row for name, value in {**CBR, **ms}.items() for row in ((name, "1", 3 * value), (name, "mean", value))]
    return pd.DataFrame(rows, columns=["method", "task", "whole_ms"]).assign(dataset="bloodcell", memory_size=40)


@cache
def numbers():
    """Made-up A and F in [0, 1] for each policy and seed."""
    draw = np.random.default_rng(0)
    return {(p, seed): (draw.uniform(0.4, 0.6), draw.uniform(0.3, 0.7)) for p in EXPERIMENTS for seed in range(5)}


def made_up(policies, seeds=range(5), **facts):
    return [record_with(EXPERIMENTS[p].replace(seed=s), *numbers()[p, s], **facts) for p in policies for s in seeds]


def shown(records, times):
    """The table for readers, by policy."""
    return policies.leaderboard(standings(records, times), gaps(records, times)).set_index("policy")


def test_the_experiments_are_distinct_and_have_every_policy():
    configs = list(EXPERIMENTS.values())
    assert len(unique(configs)) == len(configs)
    labels = {one.label for one in configs}
    assert labels >= {*catalogue.WITHOUT_SCORE, *(f"{name} bottom" for name in catalogue.SCORES)}
    assert {one.updates for one in configs if one.label == "CBR"} == {1, *UPDATES}
    for one in configs:
        resolve(one.score)
        assert set(naming.changed(one)) <= {"updates"}  # All other fields are as in the paper's text.


def test_a_difference_is_that_of_scipy_at_the_same_seeds_and_at_equal_seconds_that_from_the_cbr_as_slow():
    records, times = frame(*made_up(SOME)), times_of(BI=90, GSS=3000, LARS=19)
    compared, updates = gaps(records, times), {"BI bottom": 4, "BI top": 4, "GSS": 8, "LARS": 1}
    pairs = [(p, other, other, 1) for p in ("GSS", "BI top", "CBR") for other in ("CBR", UNIFORM_SCORE) if p != other]
    pairs += [(policy, AT_EQUAL_SECONDS, with_updates(n), n) for policy, n in updates.items()]
    for (policy, comparator, other, n), (index, metric) in itertools.product(pairs, enumerate("AF")):
        one, two = ([100 * numbers()[p, seed][index] for seed in range(5)] for p in (policy, other))
        bounds = stats.ttest_rel(one, two).confidence_interval(0.95)
        row = one_row(compared, policy=policy, comparator=comparator, metric=metric)
        assert (row["n"], row["updates"], row["mean"]) == (5, n, pytest.approx(np.mean(one) - np.mean(two)))
        assert (row["low"], row["high"]) == (pytest.approx(bounds.low), pytest.approx(bounds.high))
    assert set(compared[compared["comparator"] == AT_EQUAL_SECONDS]["policy"]) == updates.keys()  # the timed ones
    table = standings(records, times).set_index("policy")
    assert table.loc["BI top", ["ms", "updates"]].tolist() == [90, 4]
    assert np.isnan(table.loc["ER", "ms"]) and pd.isna(table.loc["CBR", "updates"])


def test_only_the_planned_seeds_with_the_papers_settings_count_sorted_by_a():
    records = made_up(EXPERIMENTS) + [record_with(EXPERIMENTS["CBR"].replace(seed=seed), 0.9, 0.0) for seed in (10, 11)]
    records.append(record_with(Config(dataset="bloodcell", memory_size=40, score="BI", refresh=2), 0.9, 0.0))
    table = standings(frame(*records), NO_TIMES)
    assert set(table["policy"]) == set(EXPERIMENTS) and set(table["n"]) == {5} and table["A"].is_monotonic_decreasing
    a = [100 * numbers()["MOE", seed][0] for seed in range(5)]
    assert one_row(table, policy="MOE")["A"] == pytest.approx(np.mean(a))


def test_a_network_that_failed_is_left_out_and_named():
    records = frame(*made_up(["CBR"]), *made_up(["OCS"], range(4)), *made_up(["OCS"], [4], diverged_after=1))
    table = standings(records, NO_TIMES).set_index("policy")
    assert (table.loc["OCS", "n"], table.loc["OCS", "left_out"]) == (4, "1 diverged")
    assert table.loc["OCS", "A"] == pytest.approx(100 * np.mean([numbers()["OCS", seed][0] for seed in range(4)]))
    assert one_row(gaps(records, NO_TIMES), policy="OCS", comparator="CBR", metric="A")["n"] == 4
    assert shown(records, NO_TIMES).loc[["CBR", "OCS"], "left out"].tolist() == ["", "1 diverged"]


@pytest.mark.parametrize(("ms", "updates"), [(15, 1), (39.99, 1), (40, 2), (79, 2), (80, 4), (159.9, 4), (160, 8)])
def test_cbr_gets_the_most_updates_that_take_no_longer(ms, updates):
    of_cbr = {with_updates(n): 20 * n for n in (1, *UPDATES)}
    assert equal_seconds({"GSS": ms, **of_cbr}) == {"GSS": updates}
    slower = {**of_cbr, with_updates(2): 500}  # More updates that were measured faster are the ones that count.
    assert equal_seconds({"GSS": ms, **slower}) == {"GSS": 1 if updates == 2 else updates}
    del of_cbr[with_updates(8)]
    assert equal_seconds({"GSS": ms, **of_cbr}) == {}


def test_a_row_has_what_was_measured_and_empty_cells_for_the_rest():
    records = frame(*made_up(["CBR", "ER"]), *made_up(["BI bottom"], range(3)), *made_up(["CBR, 4 updates"], [0, 1]))
    times = times_of(BI=90.4)
    table, row = shown(records, times), one_row(gaps(records, times), policy="BI bottom", comparator="CBR", metric="A")
    assert sorted(table.index) == ["BI bottom", "CBR", "CBR, 4 updates", "ER"]
    bi = table.loc["BI bottom"]
    assert bi["n"] == 3 and f"{abs(row['mean']):.1f}" in bi["A minus CBR [95 %]"] and bi["ms per batch"] == "90"
    assert bi["A minus CBR at equal seconds [95 %]"].endswith("(n = 2)") and bi["steps per batch of that CBR"] == 4
    cbr = table.loc["CBR"]
    assert cbr["ms per batch"] == "20" and set(cbr.filter(like="CBR")) == {""}


def test_the_picture_has_a_row_per_policy_except_cbr_the_highest_accuracy_first():
    compared = gaps(frame(*made_up(SOME)), times_of(BI=90))
    left, right = plots.effects.leaderboard(compared).axes
    texts = [text.get_text().removesuffix(", n=5") for text in right.texts]
    names = list(dict.fromkeys(texts))  # also those at equal seconds, in the next row
    of_a = compared[(compared["comparator"] == "CBR") & (compared["metric"] == "A")].set_index("policy")["mean"]
    assert {"ER", *(f"CBR, {n} updates" for n in UPDATES), "LARS", "BI top", UNIFORM_SCORE} <= set(names)
    assert of_a[names].is_monotonic_decreasing and len(names) == len(of_a)
    hollow = [line for ax in (left, right) for line in ax.lines if line.get_markerfacecolor() == "white"]
    expected = compared[compared["comparator"] == AT_EQUAL_SECONDS]
    assert sorted(line.get_xdata()[0] for line in hollow) == pytest.approx(sorted(expected["mean"]))


def test_the_benchmark_understands_every_name_and_times_that_policy():
    assert len(TO_TIME) == len(EXPERIMENTS) - 1  # BI top has the same cost as BI bottom.
    for name, built in _configs(TO_TIME, memory_size=40, dataset="bloodcell").items():
        assert benchmark_name(built) == name and built.key in {one.key for one in EXPERIMENTS.values()}
    with pytest.raises(InputError):
        _configs(["CRB updates=2"], memory_size=40)
