"""The differences behind the paper's claims, on made-up records: means, intervals, and verdicts by half the paper's."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ucl import Config, Record, claims, paper

BASELINES = {"ER": dict(population="reservoir"), "CBR": dict(population="class-balanced"), "A-GEM": dict(method="agem")}
NOTHING = pd.DataFrame(columns=["label", "seed", "last_accuracy", "last_forgetting", "record"])
CIFAR10, BLOOD = ("cifar10", 500), ("bloodcell", 40)


def record_of(config, a, f, learnt=0.9, seconds=7.0, memory=None, device="cpu", fingerprint="aa"):
    """A record of two tasks with these A, F and accuracy on the first task when learnt, all with a little noise."""
    noise = np.random.default_rng(int(config.key, 16)).normal(0, 0.005, 2)
    retained = learnt - f + noise[0]
    accuracy = np.array([[learnt, np.nan], [retained, 2 * (a + noise[1]) - retained]])
    return Record(
        config,
        accuracy,
        class_recall=np.full((2, 2), a + noise[1]),
        classes=["a", "b"],
        class_order=[0, 1],
        memory=memory or {},
        timing={"total": seconds, "evaluation": 2.0, "batches": 5},
        environment={"device": device, "processor": "p", "threads": 1},
        data={"name": "made up", "fingerprint": fingerprint},
        date="2025-03-01",
    )


def frame(records):
    return pd.DataFrame([record.summary() for record in records])


def configs(label, streams=(CIFAR10,), seeds=range(3)):
    name, _, selection = label.partition(" ")
    row = BASELINES.get(name) or dict(score=name, selection=selection)
    return [Config(dataset=d, memory_size=m, seed=s, **row) for d, m in streams for s in seeds]


def runs(values, streams=(CIFAR10,), seeds=range(3), **facts):
    """Records of methods with given (A, F) or (A, F, learnt)."""
    of_method = {label: configs(label, streams, seeds) for label in values}
    return frame([record_of(c, *values[label], **facts) for label, own in of_method.items() for c in own])


def row(table, label, comparator, metric, stream=("all streams", None)):
    """The one row of a table of verdicts."""
    found = table[(table["label"] == label) & (table["comparator"] == comparator) & (table["metric"] == metric)]
    found = found[(found["dataset"] == stream[0]) & (found["memory_size"].isna() | (found["memory_size"] == stream[1]))]
    (one,) = found.to_dict("records")
    return one


def test_without_records_each_difference_of_the_paper_is_not_shown():
    table = claims.verdicts(NOTHING)
    assert set(table["n"]) == {0} and not table["excludes_0"].any()
    assert set(table["verdict"]) == {"not shown", ""}  # The paper prints no retained accuracy.
    counts = claims.counts(table).set_index("claim")
    # 7 scores, 4 memories, A and F; 5 other scores of views and 10 memories; 3 baselines, A and F; MC; two times.
    assert counts["differences"].to_dict() == {1: 56, 2: 50, 3: 60, 4: 20, 6: 4}
    assert (counts["not shown"] == counts["differences"]).all()
    assert dict(counts["statement"]) == {n: text for n, text in claims.STATEMENTS.items() if n != 5}


def test_the_interval_is_the_wider_of_scipys():
    """Two streams with the same seeds: Welch's interval, and that of the seeds' means."""
    streams = [CIFAR10, ("cifar100", 1000)]
    records = runs({"BI bottom": (0.4, 0.4), "EN bottom": (0.4, 0.45)}, streams)
    f = records.assign(F=100 * records["last_forgetting"]).pivot_table("F", ["dataset", "seed"], "label")
    difference = f["BI bottom"] - f["EN bottom"]
    one, two = difference["cifar10"], difference["cifar100"]
    welch = stats.ttest_ind(one, -two, equal_var=False).confidence_interval(0.95)
    seeds = stats.ttest_1samp((one + two) / 2, 0).confidence_interval(0.95)
    table = claims.verdicts(records)
    found = row(table, "BI bottom", "EN bottom", "F")
    assert (found["claim"], found["n"], found["exploratory"]) == (2, 6, 6)
    assert found["mean"] == pytest.approx((one.mean() + two.mean()) / 2)
    assert found["low"] == pytest.approx(min(welch.low / 2, seeds.low))
    assert found["high"] == pytest.approx(max(welch.high / 2, seeds.high))
    printed = [paper.printed_difference(stream, "BI bottom", "EN bottom", "F") for stream in streams]
    assert found["published"] == pytest.approx(np.mean(printed))
    alone = row(table, "BI bottom", "EN bottom", "F", CIFAR10)
    paired = stats.ttest_1samp(one, 0).confidence_interval(0.95)
    assert (alone["low"], alone["high"], alone["published"]) == pytest.approx((*paired, printed[0]))


@pytest.mark.parametrize(
    ("share", "verdict", "excludes_0"),
    [
        (1.0, "reproduced", True),
        (2.0, "reproduced", True),
        (0.5, "undecided", True),
        (0.2, "excluded", True),
        (0.0, "excluded", False),
        (-1.0, "excluded", True),
    ],
)
def test_a_share_of_the_papers_difference_is_reproduced_excluded_or_undecided_by_three_seeds(
    share, verdict, excludes_0
):
    effect = paper.printed_difference(CIFAR10, "BI bottom", "ER", "F") / 100
    assert effect < -0.1
    table = claims.verdicts(runs({"BI bottom": (0.3, 0.5 + share * effect), "ER": (0.3, 0.5)}))
    for stream in CIFAR10, ("all streams", None):
        found = row(table, "BI bottom", "ER", "F", stream)
        assert (found["verdict"], found["excludes_0"], found["n"]) == (verdict, excludes_0, 3)
    assert row(table, "BI bottom", "CBR", "F", CIFAR10)["verdict"] == "not shown"
    counts = claims.counts(table).set_index("claim").loc[3]
    assert counts[verdict] >= 1 and counts["not shown"] == 58
    assert counts["excludes_0"] == (excludes_0 and share > 0)


def test_the_mean_over_streams_stands_with_streams_of_opposite_sign():
    both = [runs({"BI bottom": (0.4, f), "ER": (0.4, 0.5)}, [s]) for s, f in ((CIFAR10, 0.3), (BLOOD, 0.7))]
    table = claims.verdicts(pd.concat(both, ignore_index=True))
    of_streams = [row(table, "BI bottom", "ER", "F", stream) for stream in (CIFAR10, BLOOD)]
    assert of_streams[0]["high"] < 0 < of_streams[1]["low"]
    mean = row(table, "BI bottom", "ER", "F")
    assert abs(mean["mean"]) < 1 and not mean["excludes_0"] and mean["n"] == 6


def test_a_stream_with_a_single_pair_is_shown_and_left_out_of_the_mean():
    values = {"BI bottom": (0.4, 0.4), "ER": (0.4, 0.5)}
    table = claims.verdicts(pd.concat([runs(values), runs(values, [BLOOD], [9])], ignore_index=True))
    single = row(table, "BI bottom", "ER", "F", BLOOD)
    assert (single["n"], single["verdict"]) == (1, "not shown") and math.isnan(single["low"])
    one, mean = row(table, "BI bottom", "ER", "F", CIFAR10), row(table, "BI bottom", "ER", "F")
    assert all(mean[name] == one[name] for name in ("n", "mean", "low", "high", "published"))


def test_a_stream_that_the_paper_does_not_print_is_shown_without_a_verdict():
    """The paper has no top-k on BloodCell."""
    values = {"BI bottom": (0.4, 0.4), "BI top": (0.4, 0.6)}
    table = claims.verdicts(runs(values, [BLOOD, CIFAR10]))
    blood = row(table, "BI bottom", "BI top", "F", BLOOD)
    assert (blood["n"], blood["verdict"], blood["excludes_0"]) == (3, "", True) and math.isnan(blood["published"])
    assert row(table, "BI bottom", "BI top", "F")["n"] == 3


def test_a_low_forgetting_due_to_a_low_accuracy_alone_retains_no_more():
    table = claims.verdicts(runs({"BI bottom": (0.4, 0.5, 0.9), "MC bottom": (0.3, 0.3, 0.6)}))
    means = {metric: row(table, "MC bottom", "BI bottom", metric)["mean"] for metric in ("F", "A", "retained")}
    assert means == pytest.approx({"F": -20, "A": -10, "retained": -10}, abs=1)
    assert row(table, "MC bottom", "BI bottom", "retained")["verdict"] == ""  # The paper prints none.


@pytest.mark.parametrize(("seeds", "early"), [(range(3), 6), (range(20, 24), 0), (range(2, 6), 4)])
def test_exploratory_seeds_are_counted(seeds, early):
    """Seeds 0 to 4 of BloodCell and 0 to 2 of CIFAR-10."""
    table = claims.verdicts(runs({"BI bottom": (0.4, 0.4), "EN bottom": (0.4, 0.5)}, [BLOOD, CIFAR10], seeds))
    assert row(table, "BI bottom", "EN bottom", "F")["exploratory"] == early


def test_15_of_the_16_committed_differences_of_bottom_and_top_in_table_1_exclude_0_on_the_papers_side():
    """LC, MS, RC and EN with `refresh=2`, two memory sizes, A and F."""
    table = pd.read_csv(Path(__file__).parents[1] / "figures" / "claims_differences.csv")
    own = table.query("settings == 'refresh=2' and claim == 1 and dataset == 'cifar10'")
    own = own[own["label"].isin([f"{score} bottom" for score in ("LC", "MS", "RC", "EN")])]
    assert len(own) == 16 and (own["mean"] * own["published"] > 0).all() and own["excludes_0"].sum() == 15


# Which runs count


def test_runs_with_other_settings_do_not_count_unless_asked_for():
    values = {"BI bottom": (0.4, 0.4), "ER": (0.4, 0.5)}
    lr = frame([record_of(c.replace(lr=0.05), *n) for label, n in values.items() for c in configs(label)])
    assert set(claims.verdicts(lr)["n"]) == {0}
    assert row(claims.verdicts(lr, lr=0.05), "BI bottom", "ER", "F")["n"] == 3


def test_runs_of_different_seeds_are_no_pairs():
    parts = [runs({"BI bottom": (0.4, 0.4)}, seeds=range(3)), runs({"ER": (0.4, 0.5)}, seeds=range(3, 6))]
    assert set(claims.verdicts(pd.concat(parts, ignore_index=True))["n"]) == {0}


def test_a_data_set_that_is_named_by_a_path_is_that_data_set():
    values = {"BI bottom": 0.1, "LC bottom": 0.3}
    named = [
        record_of(c.replace(dataset="./cifar10", memory_size=500), 0.5, f)
        for label, f in values.items()
        for c in configs(label)
    ]
    found = row(claims.verdicts(frame(named)), "BI bottom", "LC bottom", "F", CIFAR10)
    assert found["n"] == 3 and abs(found["mean"] + 20) < 1


def test_runs_that_failed_do_not_count():
    broken, *others = [record_of(c, 0.4, 0.4) for c in configs("BI bottom")]
    broken = dataclasses.replace(broken, accuracy=np.full((2, 2), np.nan), diverged_after=0)
    er = [record_of(c, 0.4, 0.5) for c in configs("ER")]
    assert row(claims.verdicts(frame([broken, *others, *er])), "BI bottom", "ER", "F")["n"] == 2


def test_pairs_are_of_one_version_of_the_images_and_a_second_version_adds_none():
    values = {"BI bottom": (0.5, 0.1), "LC bottom": (0.5, 0.3)}
    # On the other images both forget more, so a pair across the versions would show the opposite.
    more = runs({label: (a, f + 0.5) for label, (a, f) in values.items()}, fingerprint="bb")
    found = row(claims.verdicts(pd.concat([runs(values), more], ignore_index=True)), "BI bottom", "LC bottom", "F")
    assert found["n"] == 3 and found["mean"] == pytest.approx(-20, abs=1)
    across = pd.concat([runs({"BI bottom": (0.5, 0.1)}), more[more["label"] == "LC bottom"]], ignore_index=True)
    assert row(claims.verdicts(across), "BI bottom", "LC bottom", "F")["n"] == 0


# Claims 5 and 6


def memories(stored_apart, final_apart=0.0, stream=CIFAR10):
    """Records of CBR, BI top and BI bottom whose memory samples vary around given means.

    CBR has no scores of its own; under the final network, those of BI top differ from the others by `final_apart`.
    """
    records = []
    for label, stored, final in (("CBR", None, 0.0), ("BI top", stored_apart, final_apart), ("BI bottom", 0.0, 0.0)):
        for config in configs(label, [stream]):
            draw, n = np.random.default_rng(int(config.key, 16)), config.memory_size
            memory = {
                "score": [None] * n if stored is None else draw.normal(stored, 1, n).tolist(),
                "confidence": [None, *draw.normal(final, 1, n)],
                "bregman_information": [None, *draw.normal(final, 1, n)],
            }
            records.append(record_of(config, 0.4, 0.5, memory=memory))
    return frame(records)


def distances(records):
    table = claims.memory_distances(records)
    return table[table["dataset"] == "all streams"].set_index("score")[["n", "mean"]].T.to_dict("list")


@pytest.mark.parametrize(("stored", "final"), [(4.0, 0.0), (4.0, 4.0), (0.0, 4.0)])
def test_distances_of_memories_are_those_of_their_distributions(stored, final):
    """The distance of two normal distributions d standard deviations apart; final: 2 of 3 pairs are apart."""
    found = distances(memories(stored, final))
    expected = {shift: 1 - 2 * stats.norm.sf(shift / 2) for shift in (stored, final)}
    assert found["BI when stored"] == pytest.approx([3, expected[stored]], abs=0.08)
    for name in ("confidence", "BI"):
        assert found[name] == pytest.approx([3, 2 / 3 * expected[final]], abs=0.08)


def test_memories_that_are_small_or_have_no_numbers_do_not_count():
    records = memories(4.0)
    records.query("seed == 0 and label == 'BI top'")["record"].iloc[0].memory["score"] = [None, None]
    assert {name: n for name, (n, _) in distances(records).items()} == {"BI when stored": 2, "confidence": 3, "BI": 3}
    assert {n for n, _ in distances(memories(4.0, stream=BLOOD)).values()} == {0}


@pytest.mark.parametrize(("device", "n"), [("cpu", 3), ("cuda", 0)])
def test_times_are_compared_on_one_machine(device, n):
    """ER takes 1 s per batch; a seed adds a little to all methods alike."""
    times = {"ER": (1.0, "cpu"), "CBR": (1.1, "cpu"), "BI bottom": (3.3, device)}
    records = frame(
        record_of(c, 0.4, 0.5, seconds=2 + 5 * seconds * (1 + 0.01 * c.seed), device=where)
        for label, (seconds, where) in times.items()
        for c in configs(label, [CIFAR10, BLOOD])
    )
    table = claims.verdicts(records)
    bi, cbr = (row(table, label, "ER", "log_time") for label in ("BI bottom", "CBR"))
    assert (bi["n"], cbr["n"]) == (n, 3)  # CIFAR-10 alone, as in Table 4
    assert cbr["mean"] == pytest.approx(math.log(1.1)) and cbr["verdict"] == "excluded"
    assert cbr["published"] == pytest.approx(math.log(60 / 42))
    if n:
        assert bi["mean"] == pytest.approx(math.log(3.3)) and bi["verdict"] == "reproduced"
