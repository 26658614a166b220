"""The hypotheses of the protocol: the plan equals the committed file, and verdicts use only the planned runs."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ucl import Config, Record
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import Interval
from ucl.evidence.hypotheses import COMPARISONS, HYPOTHESES, MARGINS, PLANNED, judged, verdict
from ucl.records import Reading
from ucl.records.runs import latest
from ucl.report import comparisons, finding
from ucl.report.hypotheses import section

PROTOCOL = (Path(__file__).resolve().parents[1] / "figures" / "PROTOCOL.md").read_text(encoding="utf-8")
REDRAW = dict(population="class-balanced", class_balancing="redraw")
ER = dict(population="reservoir")


def rows_of(heading):
    """Return the cells of the table after a heading of the protocol."""
    lines = PROTOCOL.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def matrix(a, f):
    """Return the accuracy matrix of two tasks with last accuracy a and last forgetting f."""
    kept = 0.9 - f
    return np.array([[0.9, np.nan], [kept, 2 * a - kept]])


def record(config, a=0.5, f=0.3, readings=None, **facts):
    recall, shares = np.full((2, 2), a), np.full((2, 2), 0.5)
    return Record(
        config,
        matrix(a, f),
        class_recall=recall,
        classes=["a", "b"],
        class_order=[0, 1],
        memory={},
        timing={"total": 7.0, "evaluation": 2.0, "batches": 5},
        environment={"device": "cpu", "processor": "p", "threads": 1},
        data={"name": "made up", "fingerprint": "aa"},
        readings={
            name: Reading(matrix(*numbers), np.full((2, 2), numbers[0]), shares, np.zeros(2))
            for name, numbers in (readings or {}).items()
        },
        **facts,
    )


def frame(records):
    return pd.DataFrame([one.summary() for one in records])


def overall(table, **wanted):
    rows = table[table["dataset"] == "all streams"]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def test_the_plan_is_that_of_the_protocol():
    groups = ["readings", "published settings", "refresh=2"]
    planned = {name: {} for name in groups}
    for dataset, size, *seeds in rows_of("Streams, memory sizes and seeds"):
        for name, text in zip(groups, seeds, strict=True):
            if text:
                first, last = map(int, text.split(" to "))
                planned[name][dataset, int(size)] = range(first, last + 1)
    assert planned == PLANNED


def test_the_hypotheses_and_margins_are_those_of_the_protocol():
    assert {name: text for name, text, *_ in rows_of("Hypotheses")} == HYPOTHESES
    f, a = map(float, re.search(r"Margin of equivalence.*: (\d+) points in F, (\d+) points in A", PROTOCOL).groups())
    assert {"F": f, "A": a} == MARGINS
    assert {comparison.hypothesis for comparison in COMPARISONS if comparison.expected} == set(HYPOTHESES)


def test_between_readings_it_is_the_paired_t_interval_of_the_planned_seeds():
    draw = np.random.default_rng(0)
    base = Config(dataset="bloodcell", memory_size=40, readings=True, **ER)
    moved = dict(zip(range(10, 20), draw.normal(-0.1, 0.05, 10), strict=True))
    records = [
        record(base.replace(seed=seed), readings={"training": (0.5, 0.4), "displaced": (0.5, 0.4 + change)})
        for seed, change in {**moved, 0: 0.3, 20: 0.3}.items()  # Seeds 0 and 20 are not in the plan.
    ]
    table = judged(frame(records))
    expected = stats.ttest_1samp([100 * change for change in moved.values()], 0).confidence_interval(0.95)
    for row in overall(table, hypothesis="H1", memory="ER"), table[table["dataset"] == "bloodcell"].iloc[0]:
        assert (row["n"], row["low"], row["high"]) == (10, pytest.approx(expected.low), pytest.approx(expected.high))
    assert overall(table, hypothesis="H1", memory="ER")["verdict"] == "holds"
    assert overall(table, hypothesis="H1", memory="ER")["planned"] == 31
    assert overall(table, hypothesis="H1", memory="CBR")["n"] == 0
    assert np.isnan(overall(table, hypothesis="H5", memory="ER")["mean"])  # The records do not have that reading.


def test_over_several_streams_each_weighs_the_same():
    draw = np.random.default_rng(1)
    changes, records = {}, []
    for stream in (("bloodcell", 40), ("cifar10", 500)):
        base = Config(dataset=stream[0], memory_size=stream[1], readings=True, **ER)
        changes[stream] = draw.normal(0.05, 0.03, len(PLANNED["readings"][stream]))
        for seed, change in zip(PLANNED["readings"][stream], changes[stream], strict=True):
            readings = {"training": (0.5, 0.4), "memory+stream": (0.5 + change, 0.4)}
            records.append(record(base.replace(seed=seed), readings=readings))
    row = overall(judged(frame(records)), hypothesis="H5", memory="ER")
    one, two = changes.values()
    welch = stats.ttest_ind(one, -two, equal_var=False).confidence_interval(0.95)
    assert (row["low"], row["high"]) == (pytest.approx(50 * welch.low), pytest.approx(50 * welch.high))


def test_two_memories_are_compared_under_one_reading():
    published = dict(score="BI", **paper.PUBLISHED_CODE)
    base = Config(dataset="bloodcell", memory_size=40, readings=True)
    draw, records = np.random.default_rng(2), []
    for seed in range(10, 14):
        for memory, f in (published, 0.32), (REDRAW, 0.3):
            noise = draw.normal(0, 0.001)
            readings = {"training": (0.5, f + noise), "displaced": (0.5, f - 0.2 + noise)}
            records.append(record(base.replace(seed=seed, **memory), readings=readings))
    table = judged(frame(records))
    for reading in ("training", "displaced"):
        row = overall(table, hypothesis="H2", other_memory="CBR redraw", reading=reading, metric="F")
        assert (row["n"], row["planned"], row["verdict"]) == (4, 16, "holds")
        assert row["mean"] == pytest.approx(2, abs=0.3)
    assert "holds, incomplete" in section(frame(records))


def row_of(name, records):
    """Return the cells after the name of a row of the finding's differences, with ASCII signs; None without one."""
    rows = [line.strip("| ").split(" | ") for line in finding.finding(frame(records))["differences"].splitlines()]
    cells = [own for found, *own in rows if found == name]
    return [cell.replace("\N{MINUS SIGN}", "-") for cell in cells[0]] if cells else None


@pytest.mark.parametrize(("moved", "of_random"), [(-0.2, 0.0), (0.0, -0.2), (0.2, 0.2)])
def test_the_finding_has_what_the_statistics_alone_do_to_networks_of_bi(moved, of_random):
    """The table uses the planned seeds; seed 0 shows the opposite."""
    base, draw, records = Config(dataset="bloodcell", memory_size=40, readings=True), np.random.default_rng(3), []
    for seed, sign in (*((seed, 1) for seed in range(10, 20)), (0, -5)):
        f, noise = 0.4 + draw.normal(0, 0.01), draw.normal(0, 0.01, 3)
        readings = {"training": (0.5, f), "displaced": (0.5, f - 0.1)}
        bi = dict(score="BI", **paper.PUBLISHED_CODE)
        records.append(record(base.replace(seed=seed, **bi), f=f + sign * moved + noise[0], readings=readings))
        readings = {name: (a, of + sign * of_random + noise[1]) for name, (a, of) in readings.items()}
        records.append(record(base.replace(seed=seed, **REDRAW), readings=readings))
    for name, expected in (
        ("BI's networks, `running` minus `training`", moved),
        ("BI minus CBR redraw, both `displaced`", -of_random),
        ("BI minus CBR redraw, both `training`", -of_random),
    ):
        mean, n, *_ = row_of(name, records)
        assert float(mean.partition(" ")[0]) == pytest.approx(100 * expected, abs=2)
        assert n == "bloodcell 40, n = 10, incomplete"
    assert row_of("ER's networks, `displaced` minus `training`", records) is None
    assert set(finding.finding(frame(records)[:0]).values()) == {"No record.\n"}


def test_bottom_k_and_top_k_are_compared_under_one_reading():
    """The finding uses the planned seeds; seed 0 shows the opposite, and has no readings."""
    base, records = Config(dataset="bloodcell", memory_size=40, readings=True), []
    bottom = dict(score="BI", **paper.PUBLISHED_CODE)
    for seed, noise in {10: 0, 11: 0.01, 12: -0.01, 13: 0.02}.items():
        for memory, f, moved in (bottom, 0.4, -0.2), ({**bottom, "selection": "top"}, 0.6, 0.1), (REDRAW, 0.45, 0):
            own = noise if memory is bottom else 0
            readings = {"training": (0.5, f + own), "displaced": (0.5, f - 0.1 + own)}
            records.append(record(base.replace(seed=seed, **memory), f=f + moved + own, readings=readings))
    own = base.replace(seed=0, readings=False)
    records += [record(own.replace(**bottom), f=0.9), record(own.replace(**{**bottom, "selection": "top"}), f=0.1)]
    rows = [line.strip("| ").split(" | ") for line in comparisons.of_selections(frame(records)).splitlines()[2:]]
    found = {(reading, pair): (n, early, f.partition(" ")[0]) for reading, pair, n, early, _, _, f, _ in rows}
    minus = "\N{MINUS SIGN}"
    for reading in ("`training`", "`displaced`"):
        assert found[reading, "BI bottom minus BI top"] == ("4", "0", f"{minus}19.5")
        assert found[reading, "BI bottom minus CBR redraw"] == ("4", "0", f"{minus}4.5")
        assert found[reading, "BI top minus CBR redraw"] == ("4", "0", "+15.0")
    with_seed_0 = f"{minus}23.6"  # (4 * -49.5 + 80) / 5
    assert found["`running`", "BI bottom minus BI top"] == ("5", "1", with_seed_0)
    mean, n, *_ = row_of("BI bottom minus BI top, published settings", records)
    assert (mean.partition(" ")[0], n) == ("-49.5", "bloodcell 40, n = 4")
    assert comparisons.of_selections(frame(records)[:0]) == "No record.\n"


def test_the_finding_has_bi_without_batchnorm_next_to_a_random_choice():
    records = []
    for seed, noise in enumerate((0, 0.01, -0.01, 0.02)):
        base = Config(dataset="bloodcell", memory_size=40, seed=seed)
        for network, fall in ({"model": "slim_resnet18_groupnorm"}, -0.1), ({}, 0.3):
            own = base.replace(**network)
            records.append(record(own.replace(score="BI"), f=0.5 - fall + noise))
            records.append(record(own.replace(population="class-balanced"), f=0.5))
    mean, n, *_ = row_of("BI minus CBR, GroupNorm instead of BatchNorm", records)
    assert n == "bloodcell 40, n = 4, exploratory"
    assert float(mean.partition(" ")[0]) == pytest.approx(10.5, abs=0.06)


@pytest.mark.parametrize(
    ("fall", "word"), [(0.3, "reproduced"), (0.15, "undecided"), (0.02, "excluded"), (-0.3, "excluded")]
)
def test_the_finding_judges_the_papers_effect_by_half_of_it(fall, word):
    """The paper: BI minus ER, BloodCell with 40 images, -31.3 points in F."""
    records = []
    for seed, noise in zip(range(10, 20), np.linspace(-0.02, 0.02, 10), strict=True):
        base = Config(dataset="bloodcell", memory_size=40, seed=seed, readings=True)
        of_bi = base.replace(score="BI", **paper.PUBLISHED_CODE)
        records.append(record(of_bi, f=0.5 - fall + noise, readings={"training": (0.5, 0.5)}))
        records.append(record(base.replace(**ER), f=0.5, readings={"training": (0.5, 0.5)}))
    mean, n, in_paper = row_of("BI, published settings, minus ER", records)
    assert (n, in_paper) == ("bloodcell 40, n = 10", f"-31.3, {word}")
    assert float(mean.partition(" ")[0]) == pytest.approx(-100 * fall, abs=0.1)


@pytest.mark.parametrize(("difference", "word"), [(-0.3, "reproduced"), (0.3, "excluded")])
def test_the_finding_compares_en_with_cbr_and_uniform_on_the_planned_seeds(difference, word):
    """Exploratory seeds show the opposite."""
    base, records = Config(dataset="cifar10-lt", memory_size=200, refresh=2), []
    for seed, noise in {30: 0, 31: 0.01, 32: -0.01, 33: 0.02, 0: -2 * difference, 1: -2 * difference}.items():
        records.append(record(base.replace(score="EN", seed=seed), f=0.5 + difference + noise))
        records.append(record(base.replace(population="class-balanced", seed=seed), f=0.5))
    mean, n, in_paper = row_of("EN minus CBR, `refresh=2`", records)
    assert float(mean.partition(" ")[0]) == pytest.approx(100 * difference + 0.5, abs=0.06)
    assert n == "cifar10-lt 200, n = 4, incomplete" and in_paper.endswith(word)
    assert row_of("EN minus uniform, `refresh=2`", records) is None
    for seed in range(30, 34):
        records.append(record(base.replace(score="ucl.scorers:uniform", seed=seed), f=0.5 + 2 * difference))
    mean, n, *_ = row_of("EN minus uniform, `refresh=2`", records)
    assert float(mean.partition(" ")[0]) == pytest.approx(-100 * difference + 0.5, abs=0.06)
    assert n == "cifar10-lt 200, n = 4, incomplete"


def test_a_stream_with_a_single_pair_is_shown_and_does_not_undo_the_interval_of_the_others():
    readings = {"training": (0.5, 0.4), "displaced": (0.5, 0.3)}
    base = Config(dataset="bloodcell", memory_size=40, readings=True, **ER)
    varied = [readings | {"displaced": (0.5, f)} for f in (0.3, 0.25, 0.33)]
    records = [record(base.replace(seed=10 + i), readings=own) for i, own in enumerate(varied)]
    before = overall(judged(frame(records)), hypothesis="H1", memory="ER")
    records.append(record(base.replace(dataset="cifar10", memory_size=500, seed=20), readings=readings))
    found = judged(frame(records)).query("hypothesis == 'H1' and memory == 'ER'")
    assert found["n"].tolist() == [3, 1, 3]
    after = overall(found)
    assert -25 < after["low"] < after["mean"] < 0
    assert [after[name] for name in ("mean", "low", "high")] == [before[name] for name in ("mean", "low", "high")]


def test_a_run_that_failed_is_left_out_and_counted():
    base = Config(dataset="bloodcell", memory_size=40, readings=True, **ER)
    readings = {"training": (0.5, 0.4), "displaced": (0.5, 0.3)}
    records = [record(base.replace(seed=seed), readings=readings) for seed in range(10, 15)]
    records.append(record(base.replace(seed=15), readings=readings, diverged_after=1))
    row = overall(judged(frame(records)), hypothesis="H1", memory="ER")
    assert row["n"] == 5
    assert "do not count: 1 diverged" in section(frame(records))
    assert "do not count: none" in section(frame(records[:-1]))
    top = record(hypotheses._WITHOUT_HYPOTHESIS.replace(seed=hypotheses.SEEDS_WITHOUT_HYPOTHESIS[0]), diverged_after=1)
    assert "do not count: 1 diverged" in section(frame([*records[:-1], top]))
    assert hypotheses.without_hypothesis(frame([*records[:-1], top])) == 1
    # H3 has no BloodCell, so this run is not of the protocol.
    other = record(Config(dataset="bloodcell", memory_size=40, score="EN", refresh=2, seed=12), diverged_after=1)
    assert "do not count: none" in section(frame([*records[:-1], other]))


def test_memories_that_are_compared_are_tested_on_the_same_images():
    for comparison in COMPARISONS:
        for dataset, size in PLANNED[comparison.runs]:
            one, two = (
                Config(dataset=dataset, memory_size=size).replace(**hypotheses._MEMORIES[name])
                for name in comparison.memories
            )
            assert {name: getattr(one, name) for name in paper.STREAM} == {
                name: getattr(two, name) for name in paper.STREAM
            }


@pytest.mark.parametrize("dates", [("2026-01-01", "2026-01-02"), ("2026-01-02", "2026-01-01")])
def test_a_run_without_readings_does_not_hide_the_same_run_with_readings(dates):
    config = Config(dataset="bloodcell", memory_size=40, seed=10, **ER)
    plain, read = (
        record(one, readings=readings, date=date)
        for one, readings, date in zip(
            (config, config.replace(readings=True)), (None, {"training": (0.5, 0.4)}), dates, strict=True
        )
    )
    for records in ([plain, read], [read, plain]):
        assert latest(frame(records))["record"].tolist() == [read]
    older, newer = (record(config, date=date) for date in sorted(dates))
    assert latest(frame([newer, older]))["record"].tolist() == [newer]


def test_without_records_there_is_no_verdict():
    table = judged(pd.DataFrame(columns=["label", "record"]))
    assert len(table) == len(COMPARISONS) and set(table["verdict"]) == {""} and set(table["n"]) == {0}


@pytest.mark.parametrize(
    ("expected", "metric", "interval", "word"),
    [
        ("lower", "F", (-3, -1), "holds"),
        ("lower", "F", (-3, 1), "undecided"),
        ("lower", "F", (1, 3), "refuted"),
        ("higher", "A", (1, 3), "holds"),
        ("higher", "A", (-3, -1), "refuted"),
        ("as much", "F", (-4.9, 4.9), "holds"),
        ("as much", "A", (-4.9, 2.9), "undecided"),
        ("as much", "A", (-2.9, 2.9), "holds"),
        ("as much", "A", (3.1, 9), "refuted"),
        ("as much", "F", (-9, -5.1), "refuted"),
        ("", "F", (-3, -1), ""),
        ("lower", "F", (np.nan, np.nan), ""),
    ],
)
def test_a_verdict_follows_from_the_interval(expected, metric, interval, word):
    assert verdict(expected, metric, Interval(*interval)) == word


def test_the_page_counts_the_streams_on_which_a_hypothesis_holds_alone():
    """F falls on both streams, but on the second one the interval includes 0; the third has a single pair."""
    base, records = Config(dataset="bloodcell", memory_size=40, readings=True, **ER), []
    changes = {("bloodcell", 40, 10): (-0.2, -0.21, -0.19), ("cifar10", 500, 20): (-0.2, 0.1, -0.3)}
    for (dataset, size, first), own in {**changes, ("cifar100", 1000, 40): (-0.2,)}.items():
        for seed, change in enumerate(own, first):
            readings = {"training": (0.5, 0.4), "displaced": (0.5, 0.4 + change)}
            records.append(record(base.replace(dataset=dataset, memory_size=size, seed=seed), readings=readings))
    (row,) = [line for line in section(frame(records)).splitlines() if line.startswith("| ER: `displaced` minus `tr")]
    assert row.endswith("| 1 of 2 |")


def test_the_page_names_streams_with_opposite_effects():
    """The third stream's interval includes 0."""
    base, records = Config(dataset="bloodcell", memory_size=40, readings=True, **ER), []
    changes = {
        ("bloodcell", 40, 10): (-0.2, -0.21, -0.19),
        ("cifar10", 500, 20): (0.2, 0.21, 0.19),
        ("cifar100", 1000, 40): (0.1, -0.1, 0.2),
    }
    for (dataset, size, first), own in changes.items():
        for seed, change in enumerate(own, first):
            readings = {"training": (0.5, 0.4), "displaced": (0.5, 0.4 + change)}
            records.append(record(base.replace(dataset=dataset, memory_size=size, seed=seed), readings=readings))
    where = "with an interval below 0 on bloodcell 40 and above 0 on cifar10 500."
    (line,) = [line for line in section(frame(records)).splitlines() if "differ in sign" in line]
    assert line == f"- ER: `displaced` minus `training`, F: streams differ in sign, {where}"
    assert "differ in sign" not in section(frame(records[:3]))
