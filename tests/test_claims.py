"""The differences behind the paper's claims, on made-up records: which runs count, and verdicts by half the paper's."""

import numpy as np
import pytest
from made_up import frame, matrix, one_row, record_of

from ucl import claims, paper

CIFAR10 = ("cifar10", 500)


def runs(values, **fields):
    """Records of methods with given (A, F) or (A, F, accuracy on the first task when learnt), with a little noise."""
    records = []
    for config in paper.grid("table1", range(3), **fields):
        if (config.dataset, config.memory_size) == CIFAR10 and config.label in values:
            a, f, *learnt = values[config.label]
            noise = np.random.default_rng(int(config.key, 16)).normal(0, 0.005, 2)
            records.append(record_of(config, matrix(a + noise[0], f + noise[1], *learnt)))
    return frame(*records)


def row(table, label, comparator, metric, stream=("all streams", None)):
    """The one row of a table of verdicts."""
    rows = table[table["memory_size"].isna() | (table["memory_size"] == stream[1])]
    return one_row(rows, label=label, comparator=comparator, metric=metric, dataset=stream[0])


def test_without_records_each_difference_of_the_paper_is_not_shown():
    table = claims.verdicts(frame())
    assert set(table["n"]) == {0} and not table["excludes_0"].any()
    assert set(table["verdict"]) == {"not shown", ""}  # The paper prints no retained accuracy.
    counts = claims.counts(table).set_index("claim")
    # 7 scores, 4 memories, A and F; 5 other scores of views and 10 memories; 3 baselines, A and F; MC.
    assert counts["differences"].to_dict() == {1: 56, 2: 50, 3: 60, 4: 20}
    assert (counts["not shown"] == counts["differences"]).all()
    assert dict(counts["statement"]) == claims.STATEMENTS


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
    lr = runs({"BI bottom": (0.4, 0.4), "ER": (0.4, 0.5)}, lr=0.05)
    assert set(claims.verdicts(lr)["n"]) == {0}
    assert row(claims.verdicts(lr, lr=0.05), "BI bottom", "ER", "F")["n"] == 3
