"""The hypotheses of the protocol: the plan equals the committed file, and verdicts use only the planned runs."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_up import frame, one_row, record_with
from scipy import stats

from ucl import Config, grid, plots
from ucl.config import unique
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import Interval
from ucl.evidence.hypotheses import COMPARISONS, MARGINS, MEMORIES, PLANNED, judged, verdict

FIGURES = Path(__file__).resolve().parents[1] / "figures"
PROTOCOL = (FIGURES / "PROTOCOL.md").read_text(encoding="utf-8")
REDRAW = dict(population="class-balanced", class_balancing="redraw")
ER = dict(population="reservoir")


def rows_of(heading):
    """Return the cells of the table after a heading of the protocol."""
    lines = PROTOCOL.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


overall = partial(one_row, dataset="all streams")


def test_the_plan_is_that_of_the_protocol():
    groups = ["readings", "published settings", "refresh=2"]
    planned = {name: {} for name in groups}
    for dataset, size, *seeds in rows_of("Streams, memory sizes and seeds"):
        for name, text in zip(groups, seeds, strict=True):
            if text:
                first, last = map(int, text.split(" to "))
                planned[name][dataset, int(size)] = range(first, last + 1)
    decisive = r"Streams, memory sizes, seeds: (.*?)\. All are new"
    (text,) = re.findall(decisive, " ".join(PROTOCOL.split()))
    streams = re.findall(r"(\S+) (\d+), seeds (\d+) to (\d+)", text)
    planned["everything rescored"] = {(name, int(m)): range(int(one), int(last) + 1) for name, m, one, last in streams}
    assert planned == PLANNED


def test_the_grid_of_the_decisive_experiment_is_its_plan():
    plans = [plan for plan in COMPARISONS if plan.runs == "everything rescored"]
    memories = unique(MEMORIES[name] for plan in plans for name in (plan.memory, plan.other_memory))
    planned = set()
    for (dataset, size), seeds in PLANNED["everything rescored"].items():
        fields = dict(dataset=dataset, memory_size=size, readings=True)
        planned |= {memory.replace(seed=seed, **fields).key for seed in seeds for memory in memories}
    asked = [config.key for config in grid(FIGURES / "decisive.yaml")]
    assert {*asked} == planned and len(asked) == 100


def test_the_hypotheses_and_margins_are_those_of_the_protocol():
    f, a = map(float, re.search(r"Margin of equivalence.*: (\d+) points in F, (\d+) points in A", PROTOCOL).groups())
    assert {"F": f, "A": a} == MARGINS
    named = {name for name, *_ in [*rows_of("Hypotheses"), *rows_of("The decisive experiment")]}
    assert {comparison.hypothesis for comparison in COMPARISONS if comparison.expected} == named


def test_a_difference_of_readings_has_the_paired_t_interval_of_the_planned_seeds():
    draw = np.random.default_rng(0)
    base = Config(dataset="bloodcell", memory_size=40, readings=True, **ER)
    moved = dict(zip(range(10, 20), draw.normal(-0.1, 0.05, 10), strict=True))
    records = []
    for seed, change in {**moved, 0: 0.3, 20: 0.3}.items():  # Seeds 0 and 20 are not in the plan.
        readings = {"training": (0.5, 0.4), "displaced": (0.5, 0.4 + change)}
        records.append(record_with(base.replace(seed=seed), readings=readings))
    table = judged(frame(*records))
    expected = stats.ttest_1samp([100 * change for change in moved.values()], 0).confidence_interval(0.95)
    for row in overall(table, hypothesis="H1", memory="ER"), table[table["dataset"] == "bloodcell"].iloc[0]:
        assert (row["n"], row["low"], row["high"]) == (10, pytest.approx(expected.low), pytest.approx(expected.high))
    assert overall(table, hypothesis="H1", memory="ER")["verdict"] == "holds"
    assert overall(table, hypothesis="H1", memory="ER")["planned"] == 31
    assert overall(table, hypothesis="H1", memory="CBR")["n"] == 0
    assert np.isnan(overall(table, hypothesis="H5", memory="ER")["mean"])  # The records do not have that reading.


def test_the_table_has_the_papers_difference_and_each_stream_besides_the_protocols_verdict():
    """BI minus CBR redraw is +3 on one stream and -3 on the other: the mean is 0, and the paper's mean is excluded."""
    records = []
    for (dataset, size, first), change in {("bloodcell", 40, 10): 0.03, ("cifar10", 500, 20): -0.03}.items():
        base = Config(dataset=dataset, memory_size=size, readings=True)
        for seed, noise in enumerate((-0.001, 0, 0.001), first):
            for memory, f in (dict(score="BI", **paper.PUBLISHED_CODE), 0.3 + change + noise), (REDRAW, 0.3):
                records.append(record_with(base.replace(seed=seed, **memory), readings={"training": (0.5, f)}))
    table = judged(frame(*records))
    mean = overall(table, hypothesis="H2", other_memory="CBR redraw", reading="training", metric="F")
    assert (mean["verdict"], mean["against_paper"], mean["excludes_0"]) == ("holds", "excluded", False)
    streams = [("bloodcell", 40), ("cifar10", 500)]
    printed = [paper.printed_difference(stream, "BI bottom", "CBR", "F") for stream in streams]
    assert mean["published"] == pytest.approx(np.mean(printed))
    rows = table.query("hypothesis == 'H2' and other_memory == 'CBR redraw' and reading == 'training'")
    of_stream = rows.query("metric == 'F' and dataset != 'all streams'")
    assert of_stream["mean"].tolist() == pytest.approx([3, -3]) and of_stream["excludes_0"].all()
    assert of_stream["published"].tolist() == pytest.approx(printed)
    readings = overall(table, hypothesis="H1", memory="ER")
    assert np.isnan(readings["published"]) and readings["against_paper"] == ""


def decisive_runs(changes, environments, stream=("cifar10", 500), first=60):
    """The runs of the decisive experiment on a stream: F of BI, and its environment, differ from the others'."""
    other = [ER, dict(population="class-balanced"), dict(score="EN")]
    other.append(dict(score="ucl.scorers:uniform", smoothing=1e-9, refresh=2))
    for seed, (change, environment) in enumerate(zip(changes, environments, strict=True), first):
        base = Config(dataset=stream[0], memory_size=stream[1], seed=seed)
        for memory in other:
            yield record_with(base.replace(**memory), f=0.3)
        yield record_with(base.replace(score="BI"), f=0.3 + change, environment=environment)


@pytest.fixture
def decisive_plans(monkeypatch):
    """Judge the decisive experiment alone, which is faster."""
    plans = [plan for plan in COMPARISONS if plan.runs == "everything rescored"]
    monkeypatch.setattr(hypotheses, "COMPARISONS", plans)


@pytest.mark.usefixtures("decisive_plans")
@pytest.mark.parametrize("machine", [{"processor": "q"}, {"scoring_precision": "bfloat16"}])
def test_a_seed_of_the_decisive_experiment_counts_if_all_its_runs_are_of_one_processor(machine):
    changes = [-0.1, -0.12, -0.11, 0.5, 0.5]
    *runs, last = decisive_runs(changes, [{}, {}, {}, machine, {}])  # Seed 63 is split, and seed 64 lacks a run.
    table = judged(frame(*runs))
    expected = stats.ttest_1samp([100 * change for change in changes[:3]], 0).confidence_interval(0.95)
    for hypothesis, other in (("D1", "ER"), ("D3", "kept uniform"), ("D3", "CBR")):
        rows = table[(table["hypothesis"] == hypothesis) & (table["other_memory"] == other)]
        row = overall(rows, reading="running", metric="F")
        assert (row["n"], row["planned"], row["mean"]) == (3, 20, pytest.approx(-11))
        assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))
        assert row["verdict"] == ""  # Three of four streams are missing.
    d1 = overall(table, hypothesis="D1", reading="running", metric="F")
    printed = paper.printed_difference(("cifar10", 500), "BI bottom", "ER", "F")
    assert d1["published"] == pytest.approx(printed) and d1["against_paper"] == "excluded"
    drawn = {x for line in plots.effects.decisive(table).axes[0].lines for x in line.get_xdata()}
    assert {d1["mean"], d1["low"], d1["high"], d1["published"]} <= drawn
    complete = judged(frame(*runs, last))
    assert overall(complete, hypothesis="D1", reading="running", metric="F")["n"] == 4


@pytest.mark.usefixtures("decisive_plans")
def test_the_decisive_experiment_is_judged_over_all_four_streams():
    changes = [-0.1, -0.12, -0.11, -0.13, -0.1]
    streams = PLANNED["everything rescored"].items()
    runs = [run for stream, seeds in streams for run in decisive_runs(changes, [{}] * 5, stream, seeds[0])]
    table = judged(frame(*runs)).query("reading == 'running' and metric == 'F'")
    verdicts = {"D1": "holds", "D2": "fails", "D3": "holds", "D4": "fails"}
    for hypothesis, expected in verdicts.items():
        row = overall(table.query("expected == 'less'"), hypothesis=hypothesis)
        assert (row["n"], row["planned"], row["verdict"]) == (20, 20, expected)


def test_without_records_there_is_no_verdict():
    table = judged(frame())
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
        ("less", "F", (-9, -0.1), "holds"),
        ("less", "F", (-3, -0.1), "holds"),  # The protocol says first when a hypothesis holds.
        ("less", "F", (-4.9, 9), "fails"),
        ("less", "F", (-5.1, 0.1), "open"),
        ("", "F", (-3, -1), ""),
        ("lower", "F", (np.nan, np.nan), ""),
    ],
)
def test_a_verdict_follows_from_the_interval(expected, metric, interval, word):
    assert verdict(expected, metric, Interval(*interval)) == word
