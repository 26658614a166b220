"""RESULTS.md and the README: all numbers come from the committed records; some are computed again by scipy."""

import ast
import dataclasses
import io
import itertools
import re
import shlex
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import ucl
from ucl.cli import texts
from ucl.cli.verbs import parser
from ucl.config import Config
from ucl.evidence import claims, hypotheses, leaderboard, paper, tables
from ucl.evidence.effects import Effect, Interval
from ucl.evidence.run_measures import (
    SETTINGS,
    between_readings,
    by_reading,
    effects_of_scores,
    measures,
    moved_by_scoring,
)
from ucl.records import as_table
from ucl.records.runs import matching
from ucl.report import (
    all_results,
    basis,
    comparisons,
    costs,
    coverage,
    finding,
    finding_pairs,
    kept,
    markdown,
    readme,
    results,
)
from ucl.report.markdown import interval, judged, number, with_interval
from ucl.reproduction.session import open_session

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@cache
def committed():
    """The committed records, read once."""
    return ucl.load_records(ROOT / "figures" / "runs")


@cache
def effects():
    return results.effects(committed())


@cache
def means():
    return all_results.all_results(committed())


@cache
def page():
    return results.page(committed(), results.read_csvs(ROOT / "figures"))


def runs(label, dataset, memory_size, **fields):
    """Committed runs chosen by hand: by their label, and by all fields that are not at their default.

    Of a run that was measured twice, the record with readings counts.
    """
    plain = Config(dataset=dataset, memory_size=memory_size)
    chosen = [
        record
        for record in committed()["record"]
        if (record.config.label, record.config.dataset, record.config.memory_size) == (label, dataset, memory_size)
        and all(
            getattr(record.config, name) == fields.get(name, getattr(plain, name))
            for name in (
                *paper.PUBLISHED_CODE,
                "refresh",
                "precision",
                "smoothing",
                "n_draws",
                "lr",
                "updates",
                "model",
            )
        )
    ]
    table = pd.DataFrame(
        {
            "seed": [record.config.seed for record in chosen],
            "A": [100 * record.last_accuracy for record in chosen],
            "F": [100 * record.last_forgetting for record in chosen],
        }
    )
    table["readings"] = [bool(record.readings) for record in chosen]
    table = table.sort_values(["seed", "readings"]).drop_duplicates("seed", keep="last")
    return table.drop(columns="readings").set_index("seed")


# RESULTS.md


def test_the_committed_page_is_made_from_the_committed_records_and_tables():
    assert (ROOT / "figures" / "RESULTS.md").read_text(encoding="utf-8") == page()


def test_the_committed_effects_are_those_of_the_records():
    table = pd.read_csv(ROOT / "figures" / "effects.csv")
    pd.testing.assert_frame_equal(table, effects(), check_dtype=False, rtol=0, atol=6e-5)


def runs_of(grid, folder):
    """The committed runs of a grid, chosen as the notebooks choose them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The images need not be there.
        return open_session(grid, "published", ROOT / "figures" / "runs", folder, needs_runs=True).runs


def assert_committed(name, table, by):
    """Check that a committed CSV has the numbers of a table, in any order of rows."""
    computed = pd.read_csv(io.StringIO(table.to_csv(index=False)))
    there = pd.read_csv(ROOT / "figures" / name)[list(computed.columns)]
    computed, there = (rows.sort_values(by, ignore_index=True) for rows in (computed, there))
    pd.testing.assert_frame_equal(there, computed, check_dtype=False, rtol=0, atol=6e-5)


def test_the_committed_verdicts_on_the_claims_are_those_of_the_records():
    fewer = claims.verdicts(committed(), refresh=2)
    asked = {"everything rescored": claims.verdicts(committed()), "refresh=2": fewer[fewer["claim"] != 6]}
    counts = {name: claims.counts(table) for name, table in asked.items()}
    distances = {
        "everything rescored": claims.memory_distances(committed()),
        "refresh=2": claims.memory_distances(committed(), refresh=2),
    }
    cell = ["settings", "label", "comparator", "claim", "metric", "dataset", "memory_size"]
    for name, parts, by in (
        ("claims.csv", counts, ["claim", "settings"]),
        ("claims_differences.csv", asked, cell),
        ("claims_memories.csv", distances, ["settings", "score", "dataset", "memory_size"]),
    ):
        assert_committed(name, pd.concat(parts, names=["settings"]).reset_index("settings"), by)


def test_the_committed_readings_are_those_of_the_records(tmp_path):
    memories = [dict(population="reservoir"), dict(population="class-balanced")]
    memories += [dict(population="class-balanced", class_balancing="redraw")]
    memories += [dict(score="BI", **SETTINGS["published settings"])]
    cells = [(*stream, seed) for stream, seeds in hypotheses.PLANNED["readings"].items() for seed in seeds]
    grid = [
        Config(dataset=dataset, memory_size=size, seed=seed, readings=True, **memory)
        for (dataset, size, seed), memory in itertools.product(cells, memories)
    ]
    table = by_reading(runs_of(grid, tmp_path))
    assert_committed("readings.csv", table, ["dataset", "memory_size", "method", "reading", "seed"])
    bi = table[table["method"].str.startswith("BI")]
    differences = {
        "displaced": between_readings(table, "displaced"),
        "running": between_readings(bi, "running"),
        "memory+stream": between_readings(table, "memory+stream"),
    }
    differences = pd.concat(differences, names=["reading"]).reset_index("reading")
    assert_committed("readings_effects.csv", differences, ["reading", "dataset", "memory_size", "method", "metric"])


def test_a_row_of_results_is_the_mean_and_the_sample_standard_deviation():
    found = means()
    cell = found.query("dataset == 'bloodcell' and memory_size == 40 and method == 'BI bottom'")
    row = cell[cell["setting"] == "everything rescored"].iloc[0]
    own = runs("BI bottom", "bloodcell", 40)
    assert row["n"] == len(own) >= 5
    for metric in "AF":
        assert row[metric] == pytest.approx(own[metric].mean())
        assert row[f"{metric}_std"] == pytest.approx(own[metric].std(ddof=1))
    published = paper.published().query("dataset == 'bloodcell' and memory_size == 40 and method == 'BI'")
    a, f = (published[published["metric"] == m].iloc[0] for m in "AF")
    numbers = [f"{own[m].mean():.1f} ± {own[m].std(ddof=1):.1f}" for m in "AF"]
    numbers += [f"{one['mean']:.1f} ± {one['std']:.1f}" for one in (a, f)]
    early = (own.index < 5).sum()
    start = f"| bloodcell, 40 | BI bottom | everything rescored | {len(own)} | {early} | {' | '.join(numbers)} |"
    assert [line for line in page().splitlines() if line.startswith(start)]


def test_a_paired_difference_is_that_of_scipy():
    one, other = runs("EN bottom", "bloodcell", 160, refresh=2), runs("CBR", "bloodcell", 160)
    seeds = one.index.intersection(other.index)
    found = effects().query(
        "dataset == 'bloodcell' and memory_size == 160 and label == 'EN bottom' and setting == 'refresh=2'"
    )
    for metric in "AF":
        row = found[(found["metric"] == metric) & (found["comparator"] == "CBR")].iloc[0]
        test = stats.ttest_rel(one.loc[seeds, metric], other.loc[seeds, metric])
        bounds = test.confidence_interval(0.95)
        assert row["n"] == len(seeds) >= 5
        assert row["mean"] == pytest.approx((one.loc[seeds, metric] - other.loc[seeds, metric]).mean())
        assert (row["low"], row["high"]) == pytest.approx((bounds.low, bounds.high))


def test_the_detectable_difference_is_that_of_the_protocol():
    one, er = runs("RC bottom", "bloodcell", 40), runs("ER", "bloodcell", 40)
    gaps = (one["F"] - er["F"]).dropna()
    n = len(gaps)
    error = gaps.std(ddof=1) / np.sqrt(n)
    found = means().query("dataset == 'bloodcell' and memory_size == 40")
    (row,) = found[(found["method"] == "RC bottom") & (found["setting"] == "everything rescored")].to_dict("records")
    assert stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, row["detectable_F"] / error) == pytest.approx(0.8, abs=1e-4)


def test_the_pooled_difference_weighs_streams_alike():
    gaps = []
    for dataset, size in comparisons.CIFAR:
        one, er = runs("EN bottom", dataset, size, refresh=2), runs("ER", dataset, size)
        gaps.append((one["F"] - er["F"]).dropna())
    error = np.sqrt(sum(gap.var(ddof=1) / len(gap) for gap in gaps)) / len(gaps)
    (line,) = [line for line in page().splitlines() if line.startswith("| EN bottom minus ER | F |")]
    assert f"{np.mean([gap.mean() for gap in gaps]):+.1f}".replace("-", "−") in line
    low, high = (float(number.replace("−", "-")) for number in re.findall(r"\[(\S+), (\S+)\]", line)[0])
    freedoms = [len(gap) - 1 for gap in gaps]  # Welch-Satterthwaite is between the smallest of them and their sum.
    widest, narrowest = (stats.t.ppf(0.975, freedom) * error for freedom in (min(freedoms), sum(freedoms)))
    assert narrowest - 0.1 <= (high - low) / 2 <= widest + 0.1


def test_the_table_of_random_numbers_tells_new_numbers_from_kept_ones():
    sides = {
        "EN bottom": runs("EN bottom", "cifar10-lt", 200, refresh=2),
        "uniform": runs("uniform bottom", "cifar10-lt", 200, refresh=2),
        "uniform, kept numbers": runs("uniform bottom", "cifar10-lt", 200, refresh=2, smoothing=1e-9),
    }
    assert all(len(side) >= 4 for side in sides.values())
    for one, other in (
        ("EN bottom", "uniform"),
        ("EN bottom", "uniform, kept numbers"),
        ("uniform, kept numbers", "uniform"),
    ):
        gaps = (sides[one] - sides[other]).dropna()
        start = f"| cifar10-lt, 200 | {one} minus {other} | {len(gaps)} |"
        (line,) = [line for line in page().splitlines() if line.startswith(start)]
        for metric in "AF":
            assert f"{gaps[metric].mean():+.1f} [".replace("-", "−") in line


def test_a_remedy_is_compared_with_the_same_seeds_without_it():
    plain, smoothed = (runs("BI bottom", "bloodcell", 40, smoothing=smoothing) for smoothing in (1.0, 0.2))
    gaps = (smoothed - plain).dropna()
    start = f"| bloodcell, 40 | BI bottom | everything rescored | `smoothing=0.2` | {len(gaps)} |"
    (line,) = [line for line in page().splitlines() if line.startswith(start)]
    assert len(gaps) and f"{gaps['F'].mean():+.1f}".replace("-", "−") in line


def test_er_with_more_training_steps_is_compared_with_er_and_with_bi():
    plain, more = (runs("ER", "bloodcell", 40, updates=updates) for updates in (1, 4))
    scored = runs("BI bottom", "bloodcell", 40)
    for text, gaps in (("ER, 4 updates, minus ER", more - plain), ("BI minus ER, 4 updates", scored - more)):
        f = gaps.dropna()["F"]
        start = f"| bloodcell, 40 | everything rescored | {text} | {len(f)} |"
        (line,) = [line for line in page().splitlines() if line.startswith(start)]
        assert len(f) and f" {f.mean():+.1f} [".replace("-", "−") in line
    assert comparisons.of_updates(committed()[:0]) == "No record.\n"


def test_memories_of_a_network_with_groupnorm_are_compared_with_its_cbr():
    base = Config(dataset="bloodcell", memory_size=40, population="class-balanced")
    plain = [r for r in committed()["record"] if r.config.seedless.key == base.key and r.config.seed < 4]

    def of(points, **fields):
        """The same runs by another memory with GroupNorm, A higher by some points."""
        network = dict(fields, model="slim_resnet18_groupnorm")
        shifted = [r.class_recall + points * (1 + r.config.seed) / 100 for r in plain]
        return [
            dataclasses.replace(r, config=base.replace(**network, seed=r.config.seed), class_recall=recall)
            for r, recall in zip(plain, shifted, strict=True)
        ]

    records = as_table(
        [
            *plain,
            *of(0),
            *of(2, population="uncertainty", score="EN"),
            *of(0, population="uncertainty", score="ucl.scorers:uniform"),
            *of(9, population="reservoir")[:1],
        ]
    )
    er, cbr, random, entropy = comparisons.of_groupnorm(records).splitlines()[2:]
    a = [100 * r.last_accuracy for r in plain]
    assert cbr.startswith(f"| CBR | 4 | {np.mean(a):.1f} ± {np.std(a, ddof=1):.1f} |") and cbr.endswith("|  |  |  |  |")
    gap = stats.t.interval(0.95, 3, 5, stats.sem([2, 4, 6, 8]))
    assert entropy.startswith("| EN bottom | 4 |") and f"| +5.0 [+{gap[0]:.1f}, +{gap[1]:.1f}] |" in entropy
    assert er.startswith("| ER | 1 |") and "| +9.0 |" in er
    assert random.startswith("| uniform | 4 |")
    assert comparisons.of_groupnorm(committed()[:0]) == "No record.\n"


def test_the_coverage_map_has_the_papers_cells_and_their_runs():
    cells = coverage.coverage(committed())
    published = paper.published()
    names = ["dataset", "memory_size", "method", "selection"]
    assert len(cells) == len(published) / 2 == 156
    assert set(cells[names].itertuples(index=False)) == set(published[names].itertuples(index=False))
    settings = {"everything rescored": {}, "refresh=2": {"refresh": 2}, "published settings": paper.PUBLISHED_CODE}
    for (dataset, size, label), setting in {
        ("cifar10", 500, "BI top"): "refresh=2",
        ("bloodcell", 40, "LC bottom"): "published settings",
        ("cifar100", 2000, "ER"): "everything rescored",
        ("cifar10-lt", 200, "EN bottom"): "everything rescored",
        ("cifar10", 1000, "BI step"): "everything rescored",
    }.items():
        method, _, selection = label.partition(" ")
        place = dict(zip(names, (dataset, size, method, selection), strict=True))
        (row,) = cells[(cells[names] == pd.Series(place)).all(axis=1)].to_dict("records")
        assert row[setting] == len(runs(label, dataset, size, **settings[setting]))
    there = coverage.measured(cells).any(axis=1)
    assert f"{(~there).sum()} of the paper's 156 cells have no run" in page()
    missing = coverage.not_measured(cells)
    counts = [int(line.split("|")[3]) for line in missing.splitlines()[2:]]
    assert sum(counts) == (~there).sum()


def test_the_coverage_map_has_a_row_for_each_method_with_runs():
    cells = coverage.coverage(committed())
    cifar10 = cells[cells["dataset"] == "cifar10"]
    has_runs = coverage.measured(cifar10).any(axis=1)
    methods = (cifar10["method"] + " " + cifar10["selection"]).str.strip()[has_runs]
    rows = coverage.map_of(cifar10).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == methods.drop_duplicates().tolist()
    nothing = coverage.coverage(committed()[:0])
    assert coverage.map_of(nothing[nothing["dataset"] == "cifar10"]) == "No record.\n"


def test_a_setting_that_cannot_show_has_no_count():
    cells = coverage.coverage(committed()[:0]).set_index(["dataset", "memory_size", "method", "selection"])
    assert pd.isna(cells.loc[("cifar10", 500, "ER", ""), "refresh=2"])
    assert cells.loc[("cifar10", 500, "BI", "top"), "refresh=2"] == 0


def test_a_record_without_a_processor_is_counted():
    first, *others = committed()["record"][:3]
    facts = {name: value for name, value in first.environment.items() if name != "processor"}
    records = as_table([dataclasses.replace(first, environment=facts), *others])
    assert "| processors | " in basis.basis(records, records, results.effects(records))


def test_the_page_names_the_folders_that_it_is_made_from():
    few = committed()[:2]
    of_scores = results.effects(few)
    assert "from the records in `figures/runs/` and the tables in `figures/`.\n" in basis.basis(few, few, of_scores)
    text = basis.basis(few, few, of_scores, "own/runs/", "own")
    assert "from the records in `own/runs/` and the tables in `own/`.\n" in text


def test_the_page_has_the_records_and_core_hours():
    on_cpus = [record for record in committed()["record"] if record.environment["device"] == "cpu"]
    hours = sum(record.timing["total"] * record.environment["threads"] for record in on_cpus) / 3600
    rows = [line for line in page().splitlines() if line.startswith("|")]
    assert f"| records | {len(committed())} |" in rows
    assert any(line.startswith("| core hours") and line.endswith(f"| {hours:.0f} |") for line in rows)


def test_the_page_counts_the_verdicts_on_each_claim():
    for row in pd.read_csv(ROOT / "figures" / "claims.csv").itertuples():
        lines = [line for line in page().splitlines() if line.startswith(f"| {row.claim}. {row.statement} |")]
        assert any(f" | {row.differences} | {row.reproduced} | {row.excluded} | " in line for line in lines)


def test_the_page_has_the_times_as_measured():
    times = pd.read_csv(ROOT / "figures" / "beside_naive.csv")
    xeon = times[times["processor"].str.contains("Xeon")]
    mean_ms = xeon.groupby(["variant", "memory_size"])["whole_ms"].mean()
    ratio = mean_ms["BI refresh 1", 500] / mean_ms["ER", 500]
    assert f"{mean_ms['BI refresh 1', 500]:.0f} ms, {ratio:.1f} × ER" in page()
    runs_of_a_size, batches = 54, 4750  # 6 scores of views, 3 selections, 3 seeds
    hours = [runs_of_a_size * batches * mean_ms[way].sum() / 3.6e6 for way in ("BI refresh 1", "BI refresh 2")]
    assert f"| Intel Xeon | 108 | {hours[0]:.0f} h | {hours[1]:.0f} h |" in page()


def test_without_records_the_page_and_the_blocks_are_there_and_empty():
    empty = results.page(committed()[:0], {name: pd.DataFrame() for name in results.CSVS})
    assert "There is no record" in empty and "No run of the leaderboard has a record yet" in empty
    assert "156 of the paper's 156 cells have no run" in empty
    blocks = readme.blocks(committed()[:0], effects()[:0], dict.fromkeys(results.CSVS, pd.DataFrame()))
    assert list(blocks) == ["finding", "differences", "practice", "limits"]


def test_kills_and_hostile_inputs_are_counted_from_their_table():
    rows = [("run", 501, 0, 690, True), ("archive", 1500, 2, 451, False), ("config", 3000, 0, 9, False)]
    soak = pd.DataFrame(rows, columns=["kind", "tried", "failures", "seconds", "is_kill"]).assign(seed=4, commit="abc")
    tables = {name: pd.DataFrame() for name in results.CSVS} | {"soak": soak}
    text = results.page(committed()[:0], tables)
    assert "seed 4, commit abc" in text and "| hostile inputs | archive | 1,500 | 2 | 451 |" in text


def test_times_on_a_gpu_are_the_means_over_the_stream_and_compared_with_er():
    tasks = [
        ("ER", "1", 9.0, np.nan),
        ("ER", "mean", 8.0, np.nan),
        ("MC", "mean", 24.0, 0.7),
        ("BI", "mean", 20.0, 0.58),
    ]
    times = pd.DataFrame(tasks, columns=["method", "task", "whole_ms", "share_of_ceiling"]).assign(
        memory_size=500, training_ms=7.0, views_ms=0.0, forwards_ms=9.0, selection_ms=1.0, repeats=3, device="a GPU",
        torch="2.11", commit="abcdef0123", scoring_precision="bfloat16", ceiling_images_per_s=377_449.0,
    )  # fmt: skip
    text = costs.on_gpu(times)
    assert [[*line.split("|")[1:3], line.split("|")[-2]] for line in text.splitlines()[4:7]] == [
        [" ER, memory 500 ", " 8.0 ", " 1.0 "],
        [" MC, memory 500 ", " 24.0 ", " 3.0 "],
        [" BI, memory 500 ", " 20.0 ", " 2.5 "],
    ]
    assert (
        text.startswith("a GPU, torch 2.11, commit abcdef0, ")
        and "Of that, whole memory updates (views, passes and selection) reach: MC 70 %, BI 58 %." in text
        and "377,449 images" in text
    )
    two_sizes = pd.concat([times, times.assign(memory_size=1000, whole_ms=2 * times["whole_ms"])])
    text = costs.on_gpu(two_sizes)
    assert text.count(" | 2.5 |") == 2 and "BI with 500 58 %" in text and "BI with 1000 58 %" in text


def test_whole_runs_are_compared_with_er_beside_the_papers_ratio():
    exact = pd.DataFrame({"method": ["ER", "CBR", "BI bottom"], "n": [3, 0, 1], "milliseconds": [60.0, np.nan, 1200.0]})
    exact = exact.assign(
        device="cpu", processor="AMD EPYC", threads=2, seconds=300 * exact["milliseconds"] / 60,
        times_er=exact["milliseconds"] / 60, published_times_er=[1.0, 1.43, 3.14],
    )  # fmt: skip
    two = exact.assign(milliseconds=[60.0, np.nan, 120.0], times_er=[1.0, np.nan, 2.0], seconds=[300.0, np.nan, 600.0])
    lines = costs.of_whole_runs(exact, two).splitlines()[2:]
    of_paper = [
        "| AMD EPYC | 2 | ER | 3 | 60 | 1.0 | 5 | 1.0 |",
        "| AMD EPYC | 2 | BI bottom | 1 | 1200 | 20.0 | 100 | 3.1 |",
    ]
    assert lines == [*of_paper, "| AMD EPYC | 2 | BI bottom, `refresh=2` | 1 | 120 | 2.0 | 10 |  |"]
    assert costs.of_whole_runs(exact, pd.DataFrame()).splitlines()[2:] == of_paper
    tables = {name: pd.DataFrame() for name in results.CSVS} | {"table4_runtime": exact}
    ours, theirs = (results.page(committed()[:0], tables, store=store) for store in (None, "mine"))
    assert "(`figures/alone/`)" in ours and "Other programs may have run" not in ours
    assert "(`figures/alone/`)" not in theirs and "Other programs may have run" in theirs


@pytest.mark.parametrize(("name", "refresh"), [("table4_runtime", 1), ("table4_runtime_refresh", 2)])
def test_the_committed_times_of_whole_runs_are_those_of_the_records(name, refresh):
    alone = ucl.load_records(ROOT / "figures" / "alone")
    assert_committed(f"{name}.csv", tables.runtimes(alone, refresh=refresh), ["processor", "method"])


def test_times_of_updates_are_compared_with_the_smallest_memory_of_their_image_size():
    rows = [(32, 500, 0.5, 0.1), (32, 50_000, 1.25, 0.3), (224, 500, 2.0, 0.1), (224, 2000, 3.0, 0.1)]
    times = pd.DataFrame(rows, columns=["image_size", "memory_size", "update_ms", "sorting_ms"])
    lines = costs.of_updates(times.assign(processor="AMD EPYC")).splitlines()[2:]
    assert [line.split("|")[3:6] for line in lines] == [
        [" 500 ", " 0.50 ", " 1.0 "],
        [" 50,000 ", " 1.25 ", " 2.5 "],
        [" 500 ", " 2.00 ", " 1.0 "],
        [" 2,000 ", " 3.00 ", " 1.5 "],
    ]


def test_the_page_has_a_leaderboard_of_records_and_times():
    cbr = Config(dataset="bloodcell", memory_size=40, population="class-balanced")
    plain = [r for r in committed()["record"] if r.config.seedless.key == cbr.key and r.config.seed < 5]

    def shifted(points, **fields):
        """The same runs by another policy, with a higher A."""
        return [
            dataclasses.replace(r, config=r.config.replace(**fields), class_recall=r.class_recall + points / 100)
            for r in plain
        ]

    records = as_table([*plain, *shifted(2, population="gss"), *shifted(5, updates=2), *shifted(1, updates=4)])
    names = {"CBR": 20, "CBR updates=2": 41, "CBR updates=4": 80, "CBR updates=8": 160, "GSS": 79}
    facts = dict(dataset="bloodcell", memory_size=40, task="mean", repeats=3, processor="p", threads=1, load=0.5)
    facts |= dict(cores=2, commit="abcdef01+")
    times = pd.DataFrame([dict(method=name, whole_ms=ms, **facts) for name, ms in names.items()])
    tables = {name: pd.DataFrame() for name in results.CSVS} | {"leaderboard_costs": times}
    text = results.page(records, tables).partition("\n## Leaderboard\n")[2].partition("\n## ")[0]
    measured = text.partition("### Published")[0].splitlines()
    rows = {line.split(" | ")[0]: line.split(" | ") for line in measured if line.startswith("| ")}
    gss = rows["| GSS"]
    assert gss[1] == str(len(plain)) == "5" and gss[4] == "+2.0 [+2.0, +2.0]"
    assert gss[9:] == ["79", "−3.0 [−3.0, −3.0]", "2 |"]
    assert "load at the start 0.5 (p, 2 cores), threads: 1, commit abcdef0, with changes)." in text
    assert [name for name in rows if name.startswith("| CBR")] == ["| CBR, 2 updates", "| CBR, 4 updates", "| CBR"]
    assert "| BI bottom" not in rows and "No record yet: ER; LARS; " in text
    assert "3 of 3 intervals of A minus CBR exclude 0" in text


def test_the_committed_leaderboard_is_that_of_the_records():
    csvs = results.read_csvs(ROOT / "figures")
    found = leaderboard.gaps(results.of_one_version(committed()), csvs["leaderboard_costs"], ("bloodcell", 40))
    table = pd.read_csv(ROOT / "figures" / "leaderboard.csv")
    pd.testing.assert_frame_equal(table, found, check_dtype=False, rtol=0, atol=6e-5)


def test_readings_appear_once_there_are_some():
    row = dict(reading="displaced", dataset="bloodcell", memory_size=40, method="ER", metric="F", n=10)
    table = pd.DataFrame([{**row, "mean": -20.04, "low": -25.0, "high": -15.0, "detectable": 6.0}])
    assert "| displaced | bloodcell, 40 | ER | F | 10 | −20.0 [−25.0, −15.0] | 6.0 |" in results.readings(table)
    assert "no run with all readings" in results.readings(table[:0])


# Which runs count


def test_the_finding_names_the_streams_that_it_has():
    """Without EN on three of the four CIFAR streams, neither their number nor the paper's value is that of four."""
    records = committed()
    kept = [r.config.score != "EN" or r.config.dataset in ("bloodcell", "cifar10-lt") for r in records["record"]]
    (row,) = re.findall(r"\| EN minus CBR, `refresh=2` \|.*", finding.finding(records[kept])["differences"])
    assert re.search(r"\| cifar10-lt 200, n = \d+, incomplete \|", row) and "CIFAR streams" not in row
    printed = paper.published().query("dataset == 'cifar10-lt' and memory_size == 200 and metric == 'F'")
    printed = printed.set_index(["method", "selection"])["mean"]
    in_paper = f"{printed['EN', 'bottom'] - printed['CBR', '']:+.1f}".replace("-", "−")
    assert re.search(rf"\| {in_paper}, \w+ \|$", row)


def test_no_sentence_is_made_of_what_is_not_there():
    few = committed()[:0]
    assert comparisons.of_cheaper_scoring(few) == "No record.\n"
    assert " are from " not in readme.limits(few, pd.DataFrame())
    one_processor = committed()[[r.processor == "AMD EPYC" for r in committed()["record"]]]
    assert "kinds" not in readme.limits(one_processor, effects()[:0])
    assert " kinds." in readme.limits(committed(), pd.DataFrame())  # No cell of the paper is measured: no pair.
    own = effects().query("metric == 'F'")
    apart = f"; {(own['n'] - own['same_processor']).sum()} of {own['n'].sum()} pairs in [effects.csv]"
    assert f" kinds{apart}(figures/effects.csv) join two kinds." in readme.limits(committed(), effects())


def test_a_gpu_is_another_processor_than_its_host():
    en = Config(dataset="bloodcell", memory_size=40, score="EN", refresh=2)
    own = matching(committed(), [en, en.replace(population="class-balanced")])["record"]
    alike = [dataclasses.replace(r, environment=r.environment | {"processor": "p", "device": "cpu"}) for r in own]
    apart = [on_gpu(record) if record.config.uses_scores else record for record in alike]
    together, mixed = (effects_of_scores(as_table(of), [("bloodcell", 40)], ["EN"]) for of in (alike, apart))
    assert together["n"].tolist() == together["same_processor"].tolist() == mixed["n"].tolist()
    assert together["n"].min() > 0 and mixed["same_processor"].tolist() == [0, 0]
    few = sum(record.config.uses_scores for record in apart)
    assert (
        f" {few} of {len(apart)} records, all scored, are from a GPU (a GPU), the others from CPUs."
        in readme.limits(as_table(apart), pd.DataFrame())
    )


def measured_twice():
    """Runs of one stream, and three of them measured again on another processor, with another A."""
    en = Config(dataset="bloodcell", memory_size=40, score="EN", refresh=2)
    own = [dataclasses.replace(record, readings={}) for record in matching(committed(), [en])["record"]]
    own = [dataclasses.replace(r, config=r.config.replace(readings=False)) for r in own]
    again = [on_gpu(dataclasses.replace(r, config=r.config.replace(readings=True))) for r in own[:3]]
    for record, gain in zip(again, (0.01, 0.02, 0.06), strict=True):
        record.accuracy, record.class_recall = record.accuracy.copy(), record.class_recall + gain
    return own, again


def test_the_page_says_how_runs_that_were_measured_twice_differ_and_what_only_ran_on_a_gpu():
    own, again = measured_twice()
    once, twice = as_table(own), as_table([*own, *again])
    text = basis.basis(twice, twice, results.effects(twice))
    mean, low, high = 3, *(3 + side * 4.303 * np.std([1, 2, 6], ddof=1) / 3**0.5 for side in (-1, 1))
    assert "3 runs were measured twice; the record with more kinds of tests counts, of equal ones the later" in text
    assert f"Its A minus the other's is +{mean}.0 [−{-low:.1f}, +{high:.1f}], its F 0.0 [0.0, 0.0] points." in text
    assert "Only runs with scores used a GPU, so there the machine differs with the method." in text
    assert "twice" not in basis.basis(once, once, results.effects(once))
    random = as_table([on_gpu(r) for r in committed()["record"] if not r.config.uses_scores][:3])
    assert "Only runs with scores" not in basis.basis(random, random, results.effects(random))


@pytest.mark.parametrize(
    ("fields", "n", "words"),
    [
        (dict(memory_size=160), 1, "4 runs .* points in the 3 of streams with at least two\\."),
        (dict(method="finetune"), 3, "6 runs .* points\\."),  # Without a memory, they are of one stream all the same.
    ],
)
def test_a_stream_with_one_run_measured_twice_does_not_undo_the_interval_of_the_others(fields, n, words):
    own, again = measured_twice()
    of_another = [dataclasses.replace(r, config=r.config.replace(**fields)) for r in (*own[:n], *again[:n])]
    twice = as_table([*own, *again, *of_another])
    text = basis.basis(twice, twice, effects())
    (sentences,) = re.findall(r"\d+ runs? w\w+ measured twice; .*? points[^.]*\.", text)
    assert re.fullmatch(words, sentences) and "other's is +3.0 [−" in sentences


def test_a_failed_run_that_was_measured_twice_is_not_among_them():
    (own,), (again,) = (of[:1] for of in measured_twice())
    failed = [dataclasses.replace(record, diverged_after=1) for record in (own, again)]
    assert "twice" not in basis.basis(as_table(failed), as_table(failed), effects())


def test_a_store_made_on_a_gpu_alone_is_not_compared_with_another_machine():
    scored = as_table([on_gpu(r) for r in committed()["record"] if r.config.uses_scores][:3])
    assert "Only runs with scores" not in basis.basis(scored, scored, effects())


def test_images_of_another_size_are_no_version_of_the_papers_images():
    own = matching(committed(), [Config(dataset="bloodcell", memory_size=40, population="reservoir")])["record"][:2]
    data = own.iloc[0].data | {"fingerprint": "larger"}
    larger = [
        dataclasses.replace(r, data=data, config=r.config.replace(image_size=size)) for r in own for size in (56, 64)
    ]
    assert results.of_one_version(as_table([*own, *larger]))["fingerprint"].tolist() == ["12891449f0e728a0"] * 2
    assert len(results.of_one_version(as_table(larger))) == 4  # A store that has no other.


def test_runs_on_another_stream_take_no_seed_from_those_that_the_protocol_plans():
    planned = finding_pairs.planned(committed())
    other = [dataclasses.replace(r, config=r.config.replace(n_tasks=2)) for r in planned["record"][:3]]
    assert len(planned) and finding_pairs.planned(as_table(other)).empty


def on_gpu(record):
    return dataclasses.replace(record, environment=record.environment | {"device": "a GPU"})


def test_a_stream_with_a_single_pair_does_not_undo_the_interval_of_the_others():
    records = committed()
    config = [(r.config.dataset, r.config.score, r.config.seed) for r in records["record"]]
    few = records[[dataset != "cifar100" or score != "EN" or seed == 40 for dataset, score, seed in config]]
    row = r"\| EN minus CBR, `refresh=2` \| \S+ \[.*\] \| .* seeds on 3 CIFAR streams, incomplete;"
    assert re.search(row, finding.finding(few)["differences"])


def test_networks_that_diverged_do_not_count():
    config = Config(dataset="bloodcell", memory_size=40, population="reservoir")
    (own,) = measures(committed(), [config])
    first, *others = [r for r in committed()["record"] if r.config.seedless.key == config.key]
    broken = as_table([dataclasses.replace(first, diverged_after=1), *others])
    (left,) = measures(broken, [config])
    assert len(own) == len(left) + 1 and set(own["seed"]) - set(left["seed"]) == {first.config.seed}


def test_an_experiment_that_is_asked_for_twice_is_there_twice():
    config = Config(dataset="bloodcell", memory_size=40, population="reservoir")
    one, two = measures(committed(), [config, config.replace(refresh=2)])  # ER scores nothing
    assert len(one) and one.equals(two)


def test_of_two_versions_of_the_images_the_more_frequent_counts():
    three = committed()[committed()["dataset"] == "bloodcell"][:3].copy()
    three.iloc[0, three.columns.get_loc("fingerprint")] = "other"
    assert len(results.of_one_version(three)) == 2


# Words that depend on numbers


def effect_of(mean, low, high, clustered=None):
    return Effect(5, 1, mean, Interval(low, high), Interval(*(clustered or (low, high))), 7.0, 8.0)


@pytest.mark.parametrize(
    ("moved", "word"),
    [
        ([-20, -22, -21, -19], "on"),  # clearly beyond half of -25
        ([-5, -35, -2, -40], "undecided on"),  # on average -20.5, but the interval reaches half
        ([-8, -9, -8, -7], "not on"),  # a clear effect, less than half
        ([20, 22, 21, 19], "not on"),
        ([-20], ""),  # no interval
    ],
)
def test_the_headline_stands_on_the_whole_interval_of_the_same_stream(moved, word):
    def pairs(values, dataset="bloodcell"):
        return pd.DataFrame(
            {"dataset": dataset, "memory_size": 40, "seed": range(len(values)), "F": values, "A": values}
        )

    minus_er, elsewhere = pairs([-25.0, -26, -24, -25]), pairs([-90.0, -91, -92], "cifar10")
    found = finding.headline(minus_er, pd.concat([pairs(moved), elsewhere]))
    assert bool(found) is (word == "on") and ("(bloodcell 40, n = 4)" in found) is (word == "on")
    low, high = stats.ttest_1samp(minus_er["A"], 0).confidence_interval(0.95)
    in_a = f"BI minus ER is −25.0 [{low:.1f}, {high:.1f}] (bloodcell 40) points.".replace("-", "−")
    assert (in_a in found) is (word == "on")
    assert finding.headline(pairs([-25.0, 26, -24, 25]), pairs(moved)) == ""  # BI's F is not lower.
    assert finding.headline(minus_er, elsewhere) == ""
    of_two = finding.headline(
        pd.concat([pairs([-80.0, -81, -79], "cifar10"), minus_er]), pd.concat([pairs(moved), elsewhere])
    )
    rest = {"on": "; bloodcell 40, n = 4", "": ""}.get(word, f"; {word} bloodcell 40, n = 4")
    assert f"(cifar10 40, n = 3{rest})" in of_two


def test_half_of_the_whole_effect_is_not_taken_for_known():
    """The passes do -24 and half of the whole effect is -20, but the whole effect varies too much to say so."""

    def pairs(values, dataset):
        return pd.DataFrame(
            {"dataset": dataset, "memory_size": 40, "seed": range(len(values)), "F": values, "A": values}
        )

    sure, unsure = pairs([-50.0, -51, -49], "cifar10"), pairs([-50.0, -30, -40], "bloodcell")
    moved = pd.concat([pairs([-45.0, -46, -44], "cifar10"), pairs([-23.0, -24, -25], "bloodcell")])
    assert "(cifar10 40, n = 3; undecided on bloodcell 40, n = 3)" in finding.headline(pd.concat([sure, unsure]), moved)


def test_the_table_of_networks_tested_again_has_the_means_of_the_seeds_that_all_methods_have():
    bi, rows = "BI bottom, published settings", []
    seeds = {"ER": (1, 2, 3), "CBR redraw": (2, 3), bi: (2, 3, 4)}
    for method, reading in itertools.product(seeds, ("running", "training", "displaced")):
        for seed in seeds[method]:
            a = seed + 10 * list(seeds).index(method) + 100 * ("running", "training", "displaced").index(reading)
            rows.append(
                dict(dataset="cifar10-lt", memory_size=200, method=method, reading=reading, seed=seed, A=a, F=-a)
            )
    readings = pd.DataFrame(rows)
    lines = finding.networks_tested_again(readings).splitlines()[-3:]
    in_paper = paper.printed(("cifar10-lt", 200), "BI bottom", "F")
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == [
        ["cifar10-lt 200, n = 2", "ER", "−102.5", "−202.5", "−2.5", "76.2"],
        ["", "CBR redraw", "−112.5", "−212.5", "−12.5", "77.4"],
        ["", "BI bottom", "−122.5", "−222.5", "−22.5", f"{in_paper:.1f}"],
    ]
    of_a = moved_by_scoring(readings)[["A_training", "A_displaced", "A_running", "A_published"]]
    assert of_a.round(1).to_numpy().tolist() == [
        [102.5, 202.5, 2.5, 22.1],
        [112.5, 212.5, 12.5, 22.4],
        [122.5, 222.5, 22.5, 30.4],
    ]
    diverged = readings.assign(A=readings["A"].where((readings["seed"] != 2) | (readings["method"] != "ER")))
    assert finding.networks_tested_again(diverged) == ""  # Seed 3 alone is left.
    assert finding.networks_tested_again(readings[readings["seed"] != 3]) == ""  # A single seed has no mean.


def test_arithmetics_are_compared_by_what_was_computed_not_by_what_was_asked_for():
    """A machine without bfloat16 measures in float32 by default; another machine then measures in bfloat16."""
    cell = committed().query("dataset == 'bloodcell' and memory_size == 40 and score == 'BI' and refresh == 1")
    as_measured = comparisons.of_cheaper_scoring(cell)
    by_default = [
        dataclasses.replace(r, config=r.config.replace(precision="auto")) if r.arithmetic == "float32" else r
        for r in cell["record"]
    ]
    (row,) = [line for line in as_measured.splitlines() if "| BI bottom | float32 scores | 5 |" in line]
    assert row in comparisons.of_cheaper_scoring(as_table(by_default)).splitlines()
    own, other = runs("BI bottom", "bloodcell", 40, precision="float32"), runs("BI bottom", "bloodcell", 40)
    difference = (own["F"] - other["F"]).mean()
    assert f"{difference:+.1f} [".replace("-", "\N{MINUS SIGN}") in row


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
def test_what_is_rounded_to_zero_has_a_sign_only_where_an_interval_excludes_0(numbers, text):
    assert with_interval(*numbers) == text
    assert number(-0.04) == "0.0" and number(np.nan) == interval(np.nan, np.nan) == ""


def test_a_bar_in_a_cell_is_escaped_as_in_saved_tables():
    made = markdown.table(["a|b", "n"], [["`x|y`", 1]])
    assert made.splitlines() == [r"| a\|b | n |", "|---|---|", r"| `x\|y` | 1 |"]


def test_an_interval_in_words():
    assert judged(effect_of(-3, -5, -1)).endswith("excludes 0")
    assert "includes 0; detectable difference 7.0" in judged(effect_of(3, -1, 7))
    assert judged(effect_of(3, np.nan, np.nan)) == "n = 5, no interval"


# The README


def blocks_of_code(language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return [code for name, code in fenced if name == language]


def test_the_readme_is_short():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150 and len(text.split()) <= 1700


def test_the_readmes_blocks_are_those_that_are_generated():
    text = README.read_text(encoding="utf-8")
    csvs = results.read_csvs(README.parent / "figures")
    blocks = readme.blocks(results.of_one_version(committed()), effects(), csvs)
    for name, block in blocks.items():
        assert f"<!-- {name} -->\n{block}<!-- /{name} -->" in text
    assert readme.with_blocks(text, blocks) == text


def test_blocks_are_written_between_their_marks_alone():
    text = "a\n<!-- finding -->\nold\n<!-- /finding -->\nb\n<!-- limits -->\n"
    new = readme.with_blocks(text, {"finding": "new\n", "limits": "x\n", "practice": "y\n"})
    assert new == "a\n<!-- finding -->\nnew\n<!-- /finding -->\nb\n<!-- limits -->\n"


@pytest.mark.parametrize("page", [README, ROOT / "figures" / "RESULTS.md"], ids=["README", "RESULTS"])
def test_every_link_and_picture_is_there(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    own = [link for link in links if not link.startswith("https://")]
    assert own and [link for link in own if not (page.parent / link.partition("#")[0]).exists()] == []


def commands():
    text = README.read_text(encoding="utf-8")
    lines = "\n".join(blocks_of_code("")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(ucl [^`]+)`", text)
    examples = [text for name, text in vars(texts).items() if name.endswith("_EXAMPLES")]
    of_help = re.sub(r"\\\n +", "", "\n".join(examples)).splitlines()
    lines += [line.strip().partition("  ")[0] for line in of_help if line.startswith("  ")]
    for line in lines:
        words = shlex.split(line, comments=True) if line.startswith(("ucl ", "sbatch ")) else []
        if words[:1] == ["sbatch"]:
            words = shlex.split(words[words.index("--wrap") + 1].replace("$SLURM_ARRAY_TASK_ID", "7"))
        if words[:1] == ["ucl"] and "--help" not in words and words != ["ucl", "run", "--published-code"]:
            yield words[1:]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_is_understood(words):
    assert callable(parser(words[0]).parse_args(words).command)


def test_there_are_commands_of_each_kind():
    assert {words[0] for words in commands()} >= {"run", "sweep", "status", "reproduce", "data"}


@pytest.mark.parametrize("source", blocks_of_code("python"), ids=["run", "score"])
def test_each_python_block_compiles(source):
    assert ast.parse(source).body


def test_the_table_of_methods_makes_valid_configurations():
    lines = README.read_text(encoding="utf-8").splitlines()
    start = lines.index("| method | configuration |") + 2
    chosen = re.findall(r"`(\w+=[^`]+)`", "\n".join(lines[start : lines.index("", start)]))
    fields = [{name: ast.literal_eval(value)} for name, _, value in (one.partition("=") for one in chosen)]
    labels = {Config(**one).label for one in fields}
    scores = {one["score"] for one in fields if "score" in one}
    assert {"ER", "CBR", "A-GEM", "Finetune"} <= labels and scores == set(ucl.scorers.SCORES)


@pytest.mark.parametrize("room", sorted(path.parent.name for path in (ROOT / "ucl").glob("*/__init__.py")))
def test_the_map_of_rooms_has_each(room):
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    map_of_rooms = contributing.partition("## Where things are")[2].partition("##")[0]
    assert f"`ucl/{room}`" in map_of_rooms


def test_the_table_of_kept_images_has_the_differences_of_the_notebook():
    csv = pd.read_csv(ROOT / "figures" / "memory_autopsy_effects.csv")
    one = csv[(csv["memory_size"] == 160) & (csv["method"] == "BI bottom") & (csv["measure"] == "easy")].iloc[0]
    text = f"{100 * one['mean']:+.1f} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]".replace("-", "−")
    (row,) = [line for line in page().splitlines() if line.startswith("| bloodcell | 160 | BI bottom | 5 | ")]
    assert text in row
    assert kept.of_kept(pd.DataFrame()).startswith("No table yet")


def test_a_random_score_has_one_name_on_the_page():
    assert "| uniform |" in page() and "uniform bottom" not in page()


def test_repeatability_has_the_scores_in_the_order_of_the_pictures():
    cells = [("b", "BI"), ("b", "EN"), ("a", "BI"), ("a", "LC")]
    scores = pd.DataFrame(cells, columns=["dataset", "score"]).assign(seed=0, spearman=0.5, overlap=0.5)
    both = pd.concat([scores.assign(setting=setting) for setting in ("1 draw", "2 draws")])
    rows = results._repeatability(committed()[:0], both).split("\n|---")[1].splitlines()[1:9]
    assert [row.split(" | ")[:3] for row in rows] == [
        [f"| {dataset}", score, setting]
        for dataset, own in (("a", ("LC", "BI")), ("b", ("EN", "BI")))
        for score in own
        for setting in ("1 draw", "2 draws")
    ]


def test_the_table_of_remedies_has_the_differences_of_the_notebook():
    csv = pd.read_csv(ROOT / "figures" / "memory_autopsy_remedies.csv")
    own = csv[(csv["memory_size"] == 40) & (csv["method"] == "BI bottom") & (csv["remedy"] == "view_draws=fixed")]
    own = own[own["dataset"] == "bloodcell"].set_index("measure")
    (row,) = re.findall(r"\| bloodcell \| 40 \| BI bottom \| everything rescored \| `view_draws=fixed` \|.*", page())
    cells = [str(own["n"].iloc[0]), f"{100 * own.loc['recent', 'without']:.1f}"]
    for name in ("recent", "easy", "typical", "agrees"):
        mean, low, high = (f"{100 * own.loc[name, column]:+.1f}" for column in ("mean", "low", "high"))
        cells.append(f"{mean} [{low}, {high}]".replace("-", "−"))
    assert row.endswith(f"| {' | '.join(cells)} |")
    assert kept.of_remedies(pd.DataFrame()) == "No such run has a record yet.\n"


def test_fixed_views_lower_the_share_of_recent_images_as_the_notebook_says():
    csv = pd.read_csv(ROOT / "figures" / "memory_autopsy_remedies.csv")
    fixed = csv[(csv["remedy"] == "view_draws=fixed") & (csv["measure"] == "recent")]
    assert len(fixed) >= 4 and (fixed["mean"] < 0).all()
    assert (fixed["without"] + fixed["mean"] > 3 * 0.1).all()
    kept_numbers = csv[(csv["remedy"] == "smoothing=1e-09") & (csv["measure"] == "recent")].iloc[0]
    assert kept_numbers["method"] == "uniform bottom"
    assert kept_numbers["without"] + kept_numbers["mean"] == pytest.approx(0.1, abs=0.02)


def test_the_table_of_swapped_memories_has_the_differences_of_the_notebook():
    csv = pd.read_csv(ROOT / "figures" / "memory_swap_effects.csv")
    one = csv[(csv["method"] == "BI bottom") & (csv["measure"] == "retained")].iloc[0]
    text = f"{one['mean']:+.1f} [{one['low']:+.1f}, {one['high']:+.1f}]".replace("-", "−")
    rows = page().partition("## What memories change")[2].partition("\n## ")[0].splitlines()
    (row,) = [line for line in rows if line.startswith(f"| bloodcell | 40 | BI bottom | {one['n']} | ")]
    assert text in row
    assert kept.of_swap(pd.DataFrame()).startswith("No table yet")


def test_the_readme_has_the_times_of_bi_over_those_of_er():
    rows = [("One", size, variant, ms) for size in (5, 9) for variant, ms in (("ER", 10.0), ("BI refresh 2", 15.0))]
    rows += [("One", 5, "BI refresh 1", 100.0), ("One", 9, "BI refresh 1", 250.0)]
    on_cpus = pd.DataFrame(rows, columns=["processor", "memory_size", "variant", "whole_ms"])
    in_paper = "the paper, 3.1.\n"
    expected = f"10.0 to 25.0 (`refresh=2`: 1.5 to 1.5) on one kind of CPU, memory 5 and 9; {in_paper}"
    assert readme.times(on_cpus, pd.DataFrame()).endswith(expected)
    on_gpu = pd.DataFrame({"task": "mean", "method": ["ER", "BI"], "whole_ms": [4.0, 9.0], "device": "a GPU"})
    on_gpu["memory_size"] = 7
    assert f"; 2.2 on a GPU, memory 7; {in_paper}" in readme.times(on_cpus, on_gpu)
    assert readme.times(pd.DataFrame(), on_gpu) == ""
