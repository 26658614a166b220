"""Every number of the README's results comes from the committed records and the paper's tables."""

import itertools
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

import ucl
from ucl import paper, plots, tables
from ucl.benchmarks.report import short_name
from ucl.config import Config
from ucl.records.runs import matching

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "as in the paper's text": {},
    "with `refresh=2`": {"refresh": 2},
    "as in the published implementation": paper.PUBLISHED_CODE,
}
DATASETS = ("bloodcell", "cifar10", "cifar10-lt", "cifar100", "cifar100-lt")
WAYS = [
    {"population": "reservoir"},
    {"population": "class-balanced"},
    {"method": "agem"},
    {"method": "finetune"},
    *({"score": score, "selection": kept} for score in plots.ORDER[4:] for kept in ("bottom", "top")),
]


@cache
def committed():
    """The committed records, read once."""
    return ucl.load_records(ROOT / "figures" / "runs")


@cache
def results_of_readme():
    """The rows as the README must have them: what is measured, beside what is published."""
    published = paper.published()
    sizes = published.groupby("dataset")["memory_size"].unique()
    experiments = {}
    for dataset, size, name, way in itertools.product(DATASETS, (0, 1), SETTINGS, WAYS):
        if not (way.get("method") == "finetune" and size):  # without a memory, its size is nobody's
            config = Config(dataset=dataset, memory_size=int(sorted(sizes[dataset])[size]), **way)
            config = config.replace(**SETTINGS[name])
            experiments.setdefault(config.key, (config, name))  # settings that can't show are not told twice
    runs = matching(committed(), [config for config, _ in experiments.values()])
    rows = []
    for place, (config, name) in enumerate(experiments.values()):
        found = runs[runs["experiment"] == place]
        if not len(found):
            continue
        row = tables.results(found).iloc[0]
        method, _, selection = config.label.partition(" ")
        cell = published[
            (published["dataset"] == config.dataset)
            & (published["memory_size"] == config.memory_size)
            & (published["method"] == method)
            & (published["selection"] == selection)
        ].set_index("metric")
        printed = [f"{cell.loc[m, 'mean']:.1f} ± {cell.loc[m, 'std']:.1f}" if len(cell) else "" for m in ("A", "F")]
        measured = [f"{row[m]:.1f}" + (f" ± {row[m + '_std']:.1f}" if row["n"] > 1 else "") for m in ("A", "F")]
        memory = "none" if config.method == "finetune" else config.memory_size
        told = [f"{config.dataset}, {memory}", config.label, name, str(row["n"]), *measured, *printed]
        rows.append(f"| {' | '.join(told)} |")
    return rows


@pytest.mark.parametrize("row", results_of_readme())
def test_the_readme_has_every_result_that_is_measured(row):
    assert row in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_readme_has_no_result_that_is_not_measured():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("| bloodcell", "| cifar10"))] == results_of_readme()


def test_the_readme_tells_the_compute_behind_the_records():
    runs = committed()
    hours = sum(record.timing["total"] for record in runs["record"]) / 3600
    told = f"The {len(runs)} records took {hours:.0f} hours of a core, some while other work ran beside them."
    assert told in (ROOT / "README.md").read_text(encoding="utf-8")


CIFAR_STREAMS = {"cifar10": 500, "cifar10-lt": 200, "cifar100": 1000, "cifar100-lt": 500}


def measures(runs):
    """A, F and what is kept of earlier tasks, in per cent."""
    values = runs[["last_accuracy", "last_forgetting", "kept_accuracy"]]
    return 100 * values.set_axis(["A", "F", "kept"], axis=1).astype(float)


def interval(values):
    """Of the mean, at 95 %."""
    return stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))


def on_cifar_streams(way):
    """The measures of a way, a row a data set and seed."""
    own = matching(committed(), [Config(dataset=d, memory_size=size, **way) for d, size in CIFAR_STREAMS.items()])
    return measures(own.set_index(["dataset", "seed"]))


def gains(better, other):
    """By how many points A is higher, F lower and more is kept."""
    sides = [on_cifar_streams(way) for way in (better, other)]
    assert len(sides[0]) == len(sides[1]) == 12
    return (sides[0] - sides[1]) * [1, -1, 1]


ER, CBR = {"population": "reservoir"}, {"population": "class-balanced"}
EN, BI = ({"score": score, "refresh": 2} for score in ("EN", "BI"))


def prose():
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (EN | {"selection": "top"}, "than with top-k, by {A:.1f} and {F:.1f} points on average"),
        (CBR, "random and class-balanced too, by {A:.1f} and {F:.1f} (95 % intervals"),
        (BI, "than BI with bottom-k, by {A:.1f} and {F:.1f}"),
    ],
    ids=["top", "CBR", "BI"],
)
def test_the_readme_tells_what_entropy_gains_at_each_seed_of_the_cifar_streams(other, words):
    gain = gains(EN, other)
    assert (gain > 0).all(axis=None)
    assert words.format(**gain.mean()) in prose()


def test_the_readme_tells_how_sure_that_is():
    gain = gains(EN, CBR)
    a, f = (interval(gain[metric]) for metric in "AF")
    assert f"(95 % intervals {a[0]:.1f} to {a[1]:.1f} and {f[0]:.1f} to {f[1]:.1f})" in prose()


def test_the_readme_tells_what_bi_gains_on_the_cifar_streams():
    gain = gains(BI, ER)
    for metric in "AF":
        low, high = interval(gain[metric])
        assert low < 0 < high
    assert "({A:.1f} and {F:.1f} points worse, within the intervals)".format(**-gain.mean()) in prose()
    assert (gain.loc["cifar100"] < 0).all(axis=None)  # "on CIFAR-100 it is behind ER at each seed"
    beside_top = gains(BI, BI | {"selection": "top"}).groupby("dataset").mean()
    assert (beside_top.loc[["cifar100", "cifar100-lt"]] < 0).all(axis=None)


def test_the_readme_tells_what_scoring_everything_changes():
    exact = on_cifar_streams(EN | {"refresh": 1})
    assert set(exact.index) == {("cifar10-lt", 0), ("cifar10-lt", 1)}
    means = [side.loc[exact.index, m].mean() for side in (exact, *map(on_cifar_streams, (EN, CBR))) for m in "AF"]
    words = "have an A of {:.1f} and an F of {:.1f}, with `refresh=2` {:.1f} and {:.1f}, CBR {:.1f} and {:.1f}."
    assert words.format(*means) in prose()


def test_the_readme_tells_less_forgetting_than_er_beside_the_papers():
    means = paper.published().query("metric == 'F'")
    means = means.set_index(["method", "selection", "dataset", "memory_size"])["mean"]
    told = []
    for score, way in (("EN", EN), ("BI", BI)):
        measured = gains(way, ER)["F"]
        told += [round(measured[name].mean()) for name in CIFAR_STREAMS]
        told += [
            round(means["ER", "", name, size] - means[score, "bottom", name, size])
            for name, size in CIFAR_STREAMS.items()
        ]
    words = (
        "EN with bottom-k forgets {}, {}, {} and {} points less on the four streams (in the paper {}, {}, {} and {})"
    )
    assert (words + ", BI {}, {}, {} and {} ({}, {}, {} and {}).").format(*told) in prose()


def test_the_readme_tells_what_the_published_settings_do_to_other_scores():
    printed = paper.published().query("dataset == 'bloodcell' and memory_size == 40 and metric == 'F'")
    printed = printed.set_index(["method", "selection"])["mean"]
    told = []
    for score in ("EN", "LC"):
        own = Config(dataset="bloodcell", memory_size=40, score=score, **paper.PUBLISHED_CODE)
        (f,) = matching(committed(), [own])["last_forgetting"]
        told.append((100 * f, printed[score, "bottom"]))
    (en, en_printed), (lc, lc_printed) = told
    assert f"({en:.0f} and {lc:.0f} points; the paper {en_printed:.0f} and {lc_printed:.0f})" in prose()


def test_the_readme_tells_what_the_published_settings_do_on_long_tailed_cifar10():
    def told(**way):
        config = Config(dataset="cifar10-lt", memory_size=200, seed=0, **way)
        return measures(committed()[committed()["key"] == config.key]).squeeze()

    printed = paper.published().query("dataset == 'cifar10-lt' and memory_size == 200 and selection == 'bottom'")
    printed = printed[printed["method"] == "BI"].set_index("metric")["mean"]
    er, everything = told(**ER), told(score="BI", **paper.PUBLISHED_CODE)
    bi, control = (told(score=s, refresh=2, **paper.PUBLISHED_CODE) for s in ("BI", "ucl.scorers:uniform"))
    modes = {}
    for fields in ({}, paper.PUBLISHED_CODE):
        config = Config(dataset="cifar10-lt", memory_size=200, score="ucl.scorers:uniform", refresh=2, **fields)
        (modes[len(fields)],) = committed()[committed()["key"] == config.key]["record"]
    evaluating, training = (modes[n] for n in sorted(modes))
    assert len(set(evaluating.memory["position"])) == 200
    assert set(evaluating.memory["position"]) == set(training.memory["position"])
    best_of_er, best = (side.F + side.kept for side in (er, everything))
    for words in (
        f"an A of {everything.A:.1f} and an F of {everything.F:.1f} (the paper {printed.A:.1f} and {printed.F:.1f}), "
        f"ER at this seed {er.A:.1f} and {er.F:.1f}.",
        f"the tests read {best:.0f} % at best beside {best_of_er:.0f} %, "
        f"but more is kept, {everything.kept:.0f} % beside {er.kept:.0f} %.",
        f"With `refresh=2` BI has {bi.A:.1f} and {bi.F:.1f} there and keeps {bi.kept:.0f} %;",
        f"a random number in its place has {control.A:.1f} and {control.F:.1f}, "
        f"and keeps {control.kept:.0f} % as well.",
        f"an A of {100 * evaluating.last_accuracy:.1f} and an F of {100 * evaluating.last_forgetting:.1f} (two runs",
    ):
        assert words in prose()


EVERY_CHOICE = "scoring_batchnorm=train, view_draws=batch, view_space=normalized"
DEVIATIONS = {
    ("BI bottom", "default"): "the defaults, as in the paper's text",
    ("BI bottom", "view_draws=batch"): "a view is drawn once for all candidates of a class",
    ("BI bottom", "view_space=normalized"): "the views act on the normalised tensor",
    ("BI bottom", "scoring_batchnorm=train"): "BatchNorm in training mode while scoring",
    ("BI bottom", EVERY_CHOICE): "all three, as in the published implementation",
    ("ucl.scorers:uniform bottom", EVERY_CHOICE): "all three, and a **random number** in the place of BI",
    ("ER", "default"): "no scoring: ER",
}


def deviations_of_readme():
    """Its table of what each choice of the published implementation changes."""
    table = pd.read_csv(ROOT / "figures" / "deviations.csv").set_index(["label", "settings"])
    told = [(name, table.loc[way]) for way, name in DEVIATIONS.items()]
    return [
        f"| {name} | {row.n:.0f} | {row.A:.1f} ± {row.A_std:.1f} | {row.F:.1f} ± {row.F_std:.1f} "
        f"| {row.best:.1f} | {row.kept:.1f} |"
        for name, row in told
    ]


def test_the_readme_has_what_each_choice_changes():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| BI bottom, bloodcell, memory 40 | n | A | F | best | kept |") + 2
    assert lines[start : start + len(DEVIATIONS)] == deviations_of_readme()


def test_the_readme_has_the_verdict_on_each_claim():
    claims = pd.read_csv(ROOT / "figures" / "claims.csv")
    verdicts = claims.pivot(index=["claim", "statement"], columns="settings", values="verdict").fillna("")
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| claim | verdict | with `refresh=2` |") + 2
    told = [
        f"| {claim}. {statement} | {row['refresh=1']} | {row['refresh=2']} |"
        for (claim, statement), row in verdicts.iterrows()
    ]
    assert len(told) == 6 and lines[start : start + len(told)] == told


COSTS = {
    "naive": "BI, the slow way",
    "BI refresh 1 float32": "BI, float32",
    "BI refresh 1": "BI",
    "BI refresh 10": "BI, `refresh=10`",
    "BI refresh 2": "BI, `refresh=2`",
    "ER": "ER",
}


def costs_of_readme():
    """Its table of costs with its head: milliseconds a batch on each processor, and how many times those of ER."""
    table = pd.read_csv(ROOT / "figures" / "beside_naive.csv")
    means = table.groupby(["processor", "memory_size", "way"])["whole_ms"].mean()
    columns = [(processor, size) for processor in table["processor"].unique() for size in (500, 1000)]
    rows = [f"| a batch of ten images | {' | '.join(f'{short_name(p)}, memory {size}' for p, size in columns)} |"]
    rows.append("|---" * (1 + len(columns)) + "|")
    for way, name in COSTS.items():
        cells = [(means.get((*column, way)), means[(*column, "ER")]) for column in columns]
        told = [f"{ms:.0f} ms, {ms / er:.1f} × ER" if ms else "" for ms, er in cells]
        rows.append(f"| {name} | {' | '.join(told)} |")
    return rows


def test_the_readme_tells_what_table_1_costs_and_a_step_gains():
    table = pd.read_csv(ROOT / "figures" / "beside_naive.csv")
    xeon = table[table["processor"].str.contains("Xeon")]
    means = xeon.groupby(["way", "memory_size"])["whole_ms"].mean()
    runs, batches = 54, 4750  # of a memory size: 6 scores of views, 3 selections, 3 seeds
    exact, fast = (runs * batches * means[way].sum() / 3.6e6 for way in ("BI refresh 1", "BI refresh 2"))
    steps = xeon.groupby(["threads", "way"])["step_ms"].mean()
    one, two = (steps[threads, "plain step"] / steps[threads, "ER step"] for threads in (1, 2))
    text = prose()
    assert f"about {exact:.0f} hours, or {fast:.0f} with `refresh=2`" in text
    assert f"is {one:.2f} times as fast as a plain contiguous float32 step on one thread" in text
    assert f"and {two:.2f} times on two" in text


def test_the_readme_has_the_costs_as_measured():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    told = costs_of_readme()
    start = lines.index(told[0])
    assert lines[start : start + len(told)] == told
