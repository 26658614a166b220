"""Tables of results: the committed pages have what the records give, and numbers agree with numpy and scipy."""

import ast
import dataclasses
import re
import shlex
import shutil
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_up import frame, one_row, record_with
from scipy import stats

import ucl
from ucl import plots
from ucl.cli import texts
from ucl.cli.parser import parser
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.run_measures import SETTINGS, Runs, of_one_version, reductions
from ucl.evidence.table_formats import interval, markdown, number, with_interval
from ucl.records import as_table
from ucl.report import comparisons, costs, pages, results
from ucl.report.comparisons import Comparison, estimates

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "figures"
README = ROOT / "README.md"
PAGES = [README, FIGURES / "RESULTS.md", FIGURES / "APPENDIX.md"]
ER = Config(population="reservoir")
CBR = Config(population="class-balanced")


@cache
def stored(folder):
    """The records of a folder of figures, read once."""
    return ucl.load_records(FIGURES / folder)


committed = partial(stored, "runs")


@cache
def full():
    measured = pd.concat([committed(), stored("decisive")], ignore_index=True)
    return pages.in_full(committed(), measured, pd.read_csv(FIGURES / "leaderboard_costs.csv"))


def runs(label, dataset, memory_size, **fields):
    """A and F of committed runs by seed, selected by label and by all fields that differ from the defaults.

    If a run was measured twice, the record with readings counts.
    """
    defaults = Config(dataset=dataset, memory_size=memory_size)
    names = (*paper.PUBLISHED_CODE, "refresh", "precision", "smoothing", "n_draws", "lr", "updates", "model")
    values = {}
    for run in sorted(committed()["record"], key=lambda run: bool(run.readings)):
        config = run.config
        if (config.label, config.dataset, config.memory_size) == (label, dataset, memory_size) and all(
            getattr(config, name) == fields.get(name, getattr(defaults, name)) for name in names
        ):
            values[config.seed] = {"A": 100 * run.last_accuracy, "F": 100 * run.last_forgetting}
    return pd.DataFrame.from_dict(values, orient="index", columns=["A", "F"]).sort_index()


def test_the_committed_files_are_those_of_the_records(tmp_path, monkeypatch):
    shutil.copytree(FIGURES, tmp_path / "figures", ignore=shutil.ignore_patterns("*.png", "*.json"))
    shutil.copy(README, tmp_path)
    computed, pictures = full(), []  # once for all tests
    monkeypatch.setattr(pages, "in_full", lambda *_: computed)
    monkeypatch.setattr(pages, "load_records", lambda folder: stored(folder.name))
    monkeypatch.setattr(plots, "save", lambda figure, path: pictures.append(path.name))
    tables = pages.write(tmp_path)
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT)).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    for name in computed:
        one, other = (pd.read_csv(folder / f"{name}.csv") for folder in (FIGURES, tmp_path / "figures"))
        pd.testing.assert_frame_equal(one, other)
    assert all((FIGURES / f"{name}.png").is_file() for name in pictures) and len(pictures) == 5
    shown = {name for page in PAGES for name in re.findall(r"<!-- (\w+) -->", page.read_text(encoding="utf-8"))}
    assert shown == set(tables) - {"remedies", "selections"}


# Means and differences of the committed records, computed again


@pytest.mark.parametrize(
    ("table", "name", "streams", "one", "other"),
    [
        ("random_numbers", "kept uniform minus uniform", "cifar10-lt 200",
         ("uniform bottom", {"refresh": 2, "smoothing": 1e-9}), ("uniform bottom", {"refresh": 2})),
        ("cheaper", "BI bottom, float32 scores", "bloodcell 40", ("BI bottom", {"precision": "float32"}),
         ("BI bottom", {})),
        ("finding", "BI minus ER, everything rescored", "bloodcell 40", ("BI bottom", {}), ("ER", {})),
    ],
)  # fmt: skip
def test_a_comparison_is_that_of_the_runs_chosen_one_by_one(table, name, streams, one, other):
    dataset, size = streams.split()
    sides = [runs(label, dataset, int(size), **fields) for label, fields in (one, other)]
    gaps = (sides[0] - sides[1]).dropna()
    for metric in "AF":
        row = one_row(full()["comparisons"], table=table, difference=name, streams=streams, metric=metric)
        bounds = stats.ttest_1samp(gaps[metric], 0).confidence_interval(0.95)
        early = sum(seed < (5 if dataset == "bloodcell" else 3) for seed in gaps.index)
        assert (row["n"], row["exploratory"]) == (len(gaps), early) and len(gaps) >= 3
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((gaps[metric].mean(), bounds.low, bounds.high))


def test_over_streams_each_stream_has_the_same_weight():
    gaps = []
    for dataset, size in comparisons.CIFAR:
        one, er = runs("EN bottom", dataset, size, refresh=2), runs("ER", dataset, size)
        gaps.append((one["F"] - er["F"]).dropna())
    row = one_row(full()["comparisons"], table="over_cifar", difference="EN bottom minus ER", metric="F")
    assert row["mean"] == pytest.approx(np.mean([gap.mean() for gap in gaps]))
    assert row["streams"] == "4 streams" and row["n"] == sum(map(len, gaps))
    intervals = [stats.ttest_1samp(gap, 0).confidence_interval(0.95) for gap in gaps]
    assert row["streams_excluding_0"] == sum(low > 0 or high < 0 for low, high in intervals)
    printed = [paper.printed_difference(stream, "EN bottom", "ER", "F") for stream in comparisons.CIFAR]
    assert row["published"] == pytest.approx(np.mean(printed))
    error = np.sqrt(sum(gap.var(ddof=1) / len(gap) for gap in gaps)) / len(gaps)
    narrowest = stats.t.ppf(0.975, sum(len(gap) - 1 for gap in gaps)) * error
    assert row["high"] - row["low"] >= 2 * narrowest  # the wider of both intervals


def test_the_coverage_has_the_papers_cells_and_their_runs():
    cells = full()["coverage"]
    published = paper.published()
    names = ["dataset", "memory_size", "method", "selection"]
    assert len(cells) == len(published) / 2 == 156
    assert set(cells[names].itertuples(index=False)) == set(published[names].itertuples(index=False))
    for (dataset, size, label), setting in {
        ("cifar10", 500, "BI top"): "refresh=2",
        ("bloodcell", 40, "LC bottom"): "published settings",
        ("cifar100", 2000, "ER"): "everything rescored",
        ("cifar10", 1000, "BI step"): "everything rescored",
    }.items():
        method, _, selection = label.partition(" ")
        row = one_row(cells, **dict(zip(names, (dataset, size, method, selection), strict=True)))
        fields = paper.PUBLISHED_CODE if setting == "published settings" else SETTINGS[setting]
        assert row[setting] == len(runs(label, dataset, size, **fields))
    assert one_row(cells, dataset="cifar10", memory_size=500, method="ER")["refresh=2"] == 0  # It changes nothing.
    counted = results.coverage_by_dataset(cells).set_index("data set")
    assert counted.loc["all", "no run"] == sum(~(cells[list(SETTINGS)] > 0).any(axis=1))
    assert counted.loc["bloodcell", "cells"] == 20


def test_the_facts_count_records_devices_and_pairs():
    facts = results.facts(committed(), full()["coverage"], full()["effects"]).set_index("fact")["value"]
    on_cpus = [record for record in committed()["record"] if record.environment["device"] == "cpu"]
    hours = sum(record.timing["total"] * record.environment["threads"] for record in on_cpus) / 3600
    of_f = full()["effects"].query("metric == 'F'")
    assert facts["records"] == len(committed()) == len(on_cpus) + facts["records from a GPU"]
    cells = full()["coverage"].query("selection != ''")
    n_seeds = [n >= 3 for n in cells["everything rescored"]]
    assert facts["cells of a score with everything rescored at three seeds"] == f"{sum(n_seeds)} of {len(cells)}"
    assert facts["core hours on CPUs"] == f"{hours:.0f}"
    assert facts["pairs that join two kinds of processor"] == (of_f["n"] - of_f["same_processor"]).sum()


# Comparisons of made-up records


def changed_by(changes, seeds, reading="", **fields):
    """Pairs of runs of ER and of another experiment on BloodCell, whose F, or that of a reading, has some changes."""
    base = Config(dataset="bloodcell", memory_size=40)
    records = []
    for seed, change in zip(seeds, changes, strict=True):
        for method, f in (dict(population="reservoir"), 0.4), (fields, 0.4 + change):
            measured = {"readings": {reading: (0.5, f)}} if reading else {"f": f}
            records.append(record_with(base.replace(seed=seed, **method), **measured))
    return records


def test_only_planned_seeds_are_judged_against_the_paper():
    """The paper: BI minus ER, BloodCell with 40 images, -31.3 points in F."""
    records = changed_by(np.linspace(-0.32, -0.28, 10), range(10, 20), score="BI", **paper.PUBLISHED_CODE)
    records += changed_by([0.9, 0.9], [0, 1], score="BI", **paper.PUBLISHED_CODE)  # The plan does not have these seeds.
    row = one_row(estimates(frame(*records), comparisons.GROUPS["finding"][:1]), metric="F")
    assert (row["n"], row["exploratory"], row["verdict"]) == (10, 0, "reproduced")
    assert (row["mean"], row["published"]) == (pytest.approx(-30), pytest.approx(-31.3, abs=0.05))


def test_a_comparison_is_of_its_reading_and_seeds():
    records = changed_by([-0.2, -0.21, -0.19], [10, 11, 12], "displaced", population="class-balanced")
    streams = {("bloodcell", 40): range(10, 12), ("cifar10", 500): None}
    table = estimates(frame(*records), [Comparison("CBR minus ER", CBR, ER, streams, "displaced")])
    row = one_row(table, metric="F")
    assert (row["n"], row["streams"], row["verdict"]) == (2, "bloodcell 40", "")
    assert row["mean"] == pytest.approx(-20.5) and np.isnan(row["published"])


def test_only_runs_of_the_requested_arithmetic_are_compared():
    """A machine without bfloat16 measures in float32 by default; such runs are not compared with float32."""
    records = changed_by([0.1, 0.2], [0, 1], score="BI")
    for record in records:
        record.environment["scoring_precision"] = "float32"
    asked = Config(score="BI", precision="float32")
    as_asked = [dataclasses.replace(r, config=r.config.replace(precision="float32")) for r in records[1::2]]
    both = frame(*records, *as_asked)
    one = Comparison("", asked, Config(score="BI"), comparisons.BLOODCELL, other_arithmetic="bfloat16")
    assert estimates(both, [one]).empty
    assert len(estimates(both, [dataclasses.replace(one, other_arithmetic="")])) == 2


def test_experiments_are_compared_with_the_first():
    records = frame(*changed_by([0.02, 0.04, 0.06, 0.08], range(4), score="EN"))
    base = Config(dataset="bloodcell", memory_size=40)
    asked = {"ER": base.replace(population="reservoir"), "EN": base.replace(score="EN"), "none": base.replace(lr=0.5)}
    first, second = results.with_differences(records, asked).to_dict("records")
    half = stats.t.ppf(0.975, 3) * stats.sem([2, 4, 6, 8])
    assert first["F minus first row [95 %]"] == "" and first["F"] == "40.0 ± 0.0"
    assert second["F minus first row [95 %]"] == with_interval(5, 5 - half, 5 + half)
    assert second["n"] == "4, exploratory"


def test_runs_on_another_stream_do_not_count_as_planned():
    planned = results.planned(committed())
    other = [dataclasses.replace(r, config=r.config.replace(n_tasks=2)) for r in planned["record"][:3]]
    assert len(planned) and results.planned(as_table(other)).empty


def test_cells_near_the_papers_are_counted():
    cells = pd.DataFrame(dict(method=["ER", "CBR", "BI"], selection=["", "", "bottom"], settings=["", "", "refresh=2"]))
    spread = cells.assign(std=[1.0, 1.0, np.nan], published_std=2.0)  # one seed of BI
    parts = [spread.assign(metric="A", difference=[0, 3.1, 0]), spread.assign(metric="F", difference=[0, -2.9, 0])]
    counted = results.near_counts(pd.concat(parts)).to_numpy().tolist()
    assert counted == [["everything rescored", "ER and CBR", 2, 1, 2]]
    assert results.near_counts(pd.concat(parts)[2:3]).empty  # one seed


# Which runs count


def test_the_newest_version_of_the_images_counts_and_another_size_does_not():
    runs = Runs(committed()).rows(Config(dataset="bloodcell", memory_size=40, population="reservoir"))["record"][:2]
    data = runs.iloc[0].data | {"fingerprint": "larger"}
    changed = [dataclasses.replace(r, data=data, date="2100-01-01") for r in runs]
    assert of_one_version(as_table([*changed, *runs]))["fingerprint"].tolist() == ["larger"] * 2
    larger = [dataclasses.replace(r, config=r.config.replace(image_size=size)) for r in changed for size in (56, 64)]
    assert of_one_version(as_table([*runs, *larger]))["fingerprint"].tolist() == ["12891449f0e728a0"] * 2
    assert len(of_one_version(as_table(larger))) == 4  # A store that has no other.


def test_both_runs_of_a_pair_are_on_one_stream_and_one_version_of_its_images():
    records = changed_by([-0.2, -0.1], [0, 1], score="BI")
    er, bi = records[::2], records[1::2]
    one = Comparison("", Config(score="BI"), ER, comparisons.BLOODCELL)
    assert len(estimates(frame(*records), [one])) == len(reductions(frame(*records))) == 2
    again = [dataclasses.replace(r, date="2025-04-01") for r in records]  # A run that was measured twice counts once.
    assert len(reductions(frame(*records, *again))) == 2
    others = [dataclasses.replace(r, data=r.data | {"fingerprint": "other"}) for r in bi]
    for changed in (others, [dataclasses.replace(r, config=r.config.replace(n_tasks=2)) for r in bi]):
        assert estimates(frame(*er, *changed), [one]).empty and reductions(frame(*er, *changed)).empty


# Costs and memories


def test_times_per_batch_are_means_over_the_stream():
    times = pd.read_csv(FIGURES / "beside_naive.csv")
    xeon = times[times["processor"].str.contains("Xeon")].groupby(["variant", "memory_size"])["whole_ms"].mean()
    ms = xeon["BI refresh 1", 500]
    row = one_row(costs.by_processor(times), **{"ms per batch": "BI"})
    assert row["Intel Xeon, memory 500"] == f"{round(ms)} ({ms / xeon['ER', 500]:.1f} × ER)"


def test_whole_runs_are_compared_with_er_on_one_machine_and_with_the_papers_ratios_of_total_times():
    er, cbr, bi = paper.grid("table4", seeds=[0])
    seconds = {er: 12.0, cbr: 16.0, bi: 32.0, bi.replace(refresh=2): 24.0}
    runs = [record_with(config, seconds=seconds[config]) for config in seconds]
    runs.append(record_with(cbr.replace(seed=1), seconds=3.0, environment={"device": "cuda"}))
    table = costs.whole_runs(frame(*runs))
    assert table["method"].tolist() == ["ER", "CBR", "BI bottom", "BI bottom, `refresh=2`", "CBR"]
    assert table["per batch [ms]"].tolist() == [2000.0, 2800.0, 6000.0, 4400.0, 200.0]
    assert table["times ER"].tolist() == pytest.approx([1.0, 1.4, 3.0, 2.2, np.nan], nan_ok=True)
    assert table["times ER, paper"].tolist()[:2] == [1, 60 / 42] and table["minutes"][0] == 12 / 60


def test_times_by_part_are_the_means_over_the_stream_and_compared_with_er():
    tasks = [("ER", "1", 9.0, np.nan), ("ER", "mean", 8.0, np.nan), ("BI", "mean", 20.0, 0.58)]
    times = pd.DataFrame(tasks, columns=["method", "task", "whole_ms", "share_of_ceiling"])
    parts = dict(training_ms=7.0, views_ms=0.0, forwards_ms=9.0, selection_ms=1.0, processor="AMD EPYC")
    machines = {500: "a GPU", 1000: "cpu"}
    table = costs.by_part(pd.concat([times.assign(memory_size=m, device=d, **parts) for m, d in machines.items()]))
    assert table["times ER"].tolist() == [1.0, 2.5] * 2 and table["device"].tolist() == ["a GPU"] * 2 + ["AMD EPYC"] * 2
    assert table["share of the fastest passes"].tolist() == ["", "58 %"] * 2


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((-2.5, -3.1, -2.0), "−2.5 [−3.1, −2.0]"),
        ((-0.04, -2.1, 2.02), "0.0 [−2.1, +2.0]"),
        ((0.04, -0.04, 0.12), "0.0 [0.0, +0.1]"),
        ((1.0, 0.04, 1.96), "+1.0 [+0.0, +2.0]"),  # The sign says that the interval excludes 0.
        ((-1.0, -1.96, -0.04), "−1.0 [−2.0, −0.0]"),
        ((0.0, 0.0, 0.0), "0.0 [0.0, 0.0]"),
        ((np.float64(0.15), np.nan, np.nan), "+0.1"),  # The double is below 0.15.
    ],
)
def test_a_number_rounded_to_zero_has_a_sign_only_if_its_interval_excludes_0(numbers, text):
    assert with_interval(*numbers) == text
    assert number(-0.04) == "0.0" and number(np.nan) == interval(np.nan, np.nan) == ""


def test_tables_are_written_only_between_their_marks():
    page = "a\n<!-- one -->\nold\n<!-- /one -->\nb\n<!-- note -->\n"
    table = pd.DataFrame({"x": [1.25]})
    written = pages.with_tables(page, {"one": table})
    assert written == f"a\n<!-- one -->\n{markdown(table, 1)}<!-- /one -->\nb\n<!-- note -->\n"
    with pytest.raises(KeyError):
        pages.with_tables(page, {})


# The pages


def blocks_of_code(language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return [code for name, code in fenced if name == language]


def commands():
    text = README.read_text(encoding="utf-8")
    lines = "\n".join(blocks_of_code("")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(ucl [^`]+)`", text)
    of_help = re.sub(r"\\\n +", "", "\n".join(texts.EXAMPLES.values())).splitlines()
    lines += [line.strip().partition("  ")[0] for line in of_help if line.startswith("  ")]
    for line in lines:
        words = shlex.split(line, comments=True) if line.startswith(("ucl ", "sbatch ")) else []
        if words[:1] == ["sbatch"]:
            words = shlex.split(words[words.index("--wrap") + 1].replace("$SLURM_ARRAY_TASK_ID", "7"))
        if words[:1] == ["ucl"] and "--help" not in words and words != ["ucl", "run", "--published-code"]:
            yield words[1:]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_can_be_parsed(words):
    assert callable(parser().parse_args(words).command)


@pytest.mark.parametrize("source", blocks_of_code("python"), ids=["run", "score"])
def test_each_python_block_compiles(source):
    assert ast.parse(source).body


@pytest.mark.parametrize("room", sorted(path.parent.name for path in (ROOT / "ucl").glob("*/__init__.py")))
def test_the_map_of_rooms_has_each(room):
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    map_of_rooms = contributing.partition("## Where things are")[2].partition("##")[0]
    assert f"`ucl/{room}`" in map_of_rooms
