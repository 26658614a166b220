"""The differences behind the paper's claims, on made-up records: which runs count, and verdicts by half the paper's."""

import math

import numpy as np
import pytest
from made_up import frame, matrix, one_row, record_of
from scipy import stats

from ucl import Config, claims, paper

BASELINES = {"ER": dict(population="reservoir"), "CBR": dict(population="class-balanced"), "A-GEM": dict(method="agem")}
CIFAR10, BLOOD = ("cifar10", 500), ("bloodcell", 40)


def configs(label, streams=(CIFAR10,), seeds=range(3), **fields):
    name, _, selection = label.partition(" ")
    row = BASELINES.get(name) or dict(score=name, selection=selection)
    return [Config(dataset=d, memory_size=m, seed=s, **row, **fields) for d, m in streams for s in seeds]


def made_up(config, a, f, learnt=0.9, **facts):
    """A record with these A, F and accuracy on the first task when learnt, with a little noise."""
    of_a, of_f = np.random.default_rng(int(config.key, 16)).normal(0, 0.005, 2)
    return record_of(config, matrix(a + of_a, f + of_f, learnt), **facts)


def runs(values, streams=(CIFAR10,), seeds=range(3), fields=None, **facts):
    """Records of methods with given (A, F) or (A, F, learnt)."""
    of_method = {label: configs(label, streams, seeds, **(fields or {})) for label in values}
    return frame(*(made_up(c, *values[label], **facts) for label in of_method for c in of_method[label]))


def row(table, label, comparator, metric, stream=("all streams", None)):
    """The one row of a table of verdicts."""
    rows = table[table["memory_size"].isna() | (table["memory_size"] == stream[1])]
    return one_row(rows, label=label, comparator=comparator, metric=metric, dataset=stream[0])


def test_without_records_each_difference_of_the_paper_is_not_shown():
    table = claims.verdicts(frame())
    assert set(table["n"]) == {0} and not table["excludes_0"].any()
    assert set(table["verdict"]) == {"not shown", ""}  # The paper prints no retained accuracy.
    counts = claims.counts(table).set_index("claim")
    # 7 scores, 4 memories, A and F; 5 other scores of views and 10 memories; 3 baselines, A and F; MC; two times.
    assert counts["differences"].to_dict() == {1: 56, 2: 50, 3: 60, 4: 20, 6: 4}
    assert (counts["not shown"] == counts["differences"]).all()
    assert dict(counts["statement"]) == {n: text for n, text in claims.STATEMENTS.items() if n != 5}


@pytest.mark.parametrize(
    ("share", "verdict", "excludes_0"),
    [(1.0, "reproduced", True), (0.5, "undecided", True), (0.0, "excluded", False), (-1.0, "excluded", True)],
)
def test_a_share_of_the_papers_difference_is_reproduced_excluded_or_undecided(share, verdict, excludes_0):
    effect = paper.printed_difference(CIFAR10, "BI bottom", "ER", "F") / 100
    assert effect < -0.1
    table = claims.verdicts(runs({"BI bottom": (0.3, 0.5 + share * effect), "ER": (0.3, 0.5)}))
    for stream in CIFAR10, ("all streams", None):
        cell = row(table, "BI bottom", "ER", "F", stream)
        assert (cell["verdict"], cell["excludes_0"], cell["n"]) == (verdict, excludes_0, 3)
    assert row(table, "BI bottom", "CBR", "F", CIFAR10)["verdict"] == "not shown"
    counts = claims.counts(table).set_index("claim").loc[3]
    assert counts[verdict] >= 1 and counts["not shown"] == 58
    assert counts["excludes_0"] == (excludes_0 and share > 0)


def test_low_forgetting_from_low_accuracy_alone_retains_no_more():
    table = claims.verdicts(runs({"BI bottom": (0.4, 0.5, 0.9), "MC bottom": (0.3, 0.3, 0.6)}))
    means = {metric: row(table, "MC bottom", "BI bottom", metric)["mean"] for metric in ("F", "A", "retained")}
    assert means == pytest.approx({"F": -20, "A": -10, "retained": -10}, abs=1)
    assert row(table, "MC bottom", "BI bottom", "retained")["verdict"] == ""  # The paper prints none.


def test_runs_with_other_settings_count_only_on_request():
    lr = runs({"BI bottom": (0.4, 0.4), "ER": (0.4, 0.5)}, fields={"lr": 0.05})
    assert set(claims.verdicts(lr)["n"]) == {0}
    assert row(claims.verdicts(lr, lr=0.05), "BI bottom", "ER", "F")["n"] == 3


def memories(stored_shift, final_shift=0.0, stream=CIFAR10):
    """Records of CBR, BI top and BI bottom whose memory samples vary around given means.

    CBR stores no scores; under the final network, those of BI top differ from the others by `final_shift`.
    """
    records = []
    for label, stored, final in (("CBR", None, 0.0), ("BI top", stored_shift, final_shift), ("BI bottom", 0.0, 0.0)):
        for config in configs(label, [stream]):
            draw, n = np.random.default_rng(int(config.key, 16)), config.memory_size
            memory = {
                "score": [None] * n if stored is None else draw.normal(stored, 1, n).tolist(),
                "confidence": [None, *draw.normal(final, 1, n)],
                "bregman_information": [None, *draw.normal(final, 1, n)],
            }
            records.append(made_up(config, 0.4, 0.5, memory=memory))
    return frame(*records)


def distances(records):
    table = claims.memory_distances(records)
    return table[table["dataset"] == "all streams"].set_index("score")[["n", "mean"]].T.to_dict("list")


@pytest.mark.parametrize(("stored", "final"), [(4.0, 0.0), (4.0, 4.0), (0.0, 4.0)])
def test_distances_of_memories_are_those_of_their_distributions(stored, final):
    """The distance of two normal distributions that are d standard deviations apart; final: 2 of 3 pairs differ."""
    measured = distances(memories(stored, final))
    expected = {shift: 1 - 2 * stats.norm.sf(shift / 2) for shift in (stored, final)}
    assert measured["BI when stored"] == pytest.approx([3, expected[stored]], abs=0.08)
    for name in ("confidence", "BI"):
        assert measured[name] == pytest.approx([3, 2 / 3 * expected[final]], abs=0.08)


def test_memories_that_are_small_or_have_no_numbers_do_not_count():
    records = memories(4.0)
    records.query("seed == 0 and label == 'BI top'")["record"].iloc[0].memory["score"] = [None, None]
    assert {name: n for name, (n, _) in distances(records).items()} == {"BI when stored": 2, "confidence": 3, "BI": 3}
    assert {n for n, _ in distances(memories(4.0, stream=BLOOD)).values()} == {0}


@pytest.mark.parametrize(("device", "n"), [("cpu", 3), ("cuda", 0)])
def test_times_are_compared_on_one_machine(device, n):
    """ER takes 1 s per batch; a seed adds a little to all methods alike."""
    records = []
    for label, seconds, where in (("ER", 1.0, "cpu"), ("CBR", 1.1, "cpu"), ("BI bottom", 3.3, device)):
        for c in configs(label, [CIFAR10, BLOOD]):
            total = 2 + 5 * seconds * (1 + 0.01 * c.seed)
            records.append(made_up(c, 0.4, 0.5, seconds=total, environment={"device": where}))
    table = claims.verdicts(frame(*records))
    bi, cbr = (row(table, label, "ER", "log_time") for label in ("BI bottom", "CBR"))
    assert (bi["n"], cbr["n"]) == (n, 3)  # CIFAR-10 alone, as in Table 4
    assert cbr["mean"] == pytest.approx(math.log(1.1)) and cbr["verdict"] == "excluded"
    assert cbr["published"] == pytest.approx(math.log(60 / 42))
    if n:
        assert bi["mean"] == pytest.approx(math.log(3.3)) and bi["verdict"] == "reproduced"
