"""figures/RESULTS.md, made from records, the paper's numbers and the committed tables of the other notebooks.

`page` puts the sections together; each is a function of records or of one table, in this module or in `coverage`,
`all_results`, `comparisons`, `hypotheses`, `leaderboard`, `claims` and `costs`. Code chooses each sentence whose truth
depends on numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ucl.catalogue import PAPER_SCORES, method_order
from ucl.evidence import paper
from ucl.evidence.run_measures import COMPARATORS, effects_of_scores
from ucl.report import all_results, basis, claims, comparisons, costs, coverage, hypotheses, kept, leaderboard
from ucl.report.finding import with_headlines_pairs
from ucl.report.markdown import number, table, with_interval

CSVS = (
    "beside_naive",
    "benchmark_gpu",
    "benchmark_updates",
    "claims",
    "leaderboard_costs",
    "memory_autopsy",
    "memory_autopsy_effects",
    "memory_autopsy_remedies",
    "memory_swap_effects",
    "readings_effects",
    "repeatability",
    "scoring_cost_precision",
    "soak",
    "table4_runtime",
    "table4_runtime_refresh",
)


def read_csvs(folder: str | Path) -> dict[str, pd.DataFrame]:
    """The tables of `CSVS` in a folder; an empty table if its file does not exist."""
    paths = {name: Path(folder) / f"{name}.csv" for name in CSVS}
    return {name: pd.read_csv(path) if path.is_file() else pd.DataFrame() for name, path in paths.items()}


def of_one_version(records: pd.DataFrame) -> pd.DataFrame:
    """For each data set, the records on the version of its images that most of its records were measured on.

    Images of another size (`Config.image_size`) are another version, which counts only if there is no other.
    """
    if records.empty:
        return records
    resized = pd.Series([record.config.image_size is not None for record in records["record"]], index=records.index)
    usual = records[~resized | resized.groupby(records["dataset"]).transform("all")]
    most = usual.groupby("dataset")["fingerprint"].agg(lambda prints: prints.mode().iloc[0])
    return records[records["fingerprint"] == records["dataset"].map(most)]


def effects(records: pd.DataFrame) -> pd.DataFrame:
    """Each score with bottom-k compared with CBR and with ER on the paper's streams, see `effects_of_scores`."""
    tables = [effects_of_scores(records, paper.streams(), PAPER_SCORES, other) for other in reversed(COMPARATORS)]
    return pd.concat(tables, ignore_index=True)


def page(
    records: pd.DataFrame,
    csvs: Mapping[str, pd.DataFrame],
    store: str | Path | None = None,
    output: str | Path | None = None,
) -> str:
    """figures/RESULTS.md.

    Args:
        records: all records, on any version of the images.
        csvs: see `read_csvs`.
        store, output: the folders that the page names, see `ucl.report.basis.basis`.
    """
    used = of_one_version(records)
    cells, of_scores = coverage.coverage(used), effects(used)
    sections = {
        "Results": basis.basis(records, used, of_scores, store, output),
        "Coverage": _coverage(cells),
        "The hypotheses of the protocol": hypotheses.section(used),
        "Differences from CBR and ER": _differences(used, of_scores),
        "All results": _all_results(used),
        "The choices of the reference implementation": _choices(used),
        "Readings and repeatability": readings(csvs["readings_effects"])
        + "\n"
        + _repeatability(used, csvs["repeatability"]),
        "Leaderboard": leaderboard.section(used, csvs["leaderboard_costs"]) + "\n" + _more_updates(used),
        "What memories keep": kept.of_kept(csvs["memory_autopsy_effects"])
        + "\n### Why so many recent images\n\n"
        + kept.of_remedies(csvs["memory_autopsy_remedies"]),
        "What memories change": kept.of_swap(csvs["memory_swap_effects"]),
        "The paper's claims": claims.section(csvs["claims"]),
        "Costs": _costs(used, csvs, alone=store is None),
        "Kills and hostile inputs": _soak(csvs["soak"]),
        "What was not measured": _not_measured(cells),
    }
    parts = [f"{'#' if title == 'Results' else '##'} {title}\n\n{text.strip()}\n" for title, text in sections.items()]
    return "\n".join(parts)


def _coverage(cells: pd.DataFrame) -> str:
    scored = coverage.measured(cells[cells["selection"] != ""])
    of_dataset = [f"**{dataset}**\n\n{coverage.map_of(own)}" for dataset, own in cells.groupby("dataset", sort=False)]
    return (
        f"The paper's Tables 1 to 3 have {len(cells)} cells: data set, memory size, method and selection. "
        "*Everything rescored* is the setting of the paper's text: at each batch all stored images of its classes are "
        "rescored. With `refresh=2` two stored images per class are. *Published settings* are those of the reference "
        "implementation (`ucl.paper.PUBLISHED_CODE`), but with all test images of a long-tailed stream. The first "
        "table counts cells, the others count runs.\n\n"
        + coverage.summary(cells)
        + f"\nOf the {len(scored)} cells with a score, {scored['everything rescored'].sum()} have runs with "
        "everything rescored.\n"
        + "\n"
        + "\n".join(of_dataset)
        + "\nAn empty cell: `refresh` changes nothing without a score. A method without a row has no run: see "
        "[What was not measured](#what-was-not-measured).\n"
    )


def _differences(used: pd.DataFrame, of_scores: pd.DataFrame) -> str:
    return (
        "![Paired differences in A and F from CBR, per stream](effects.png)\n\n"
        "Bottom-k against class-balancing reservoir sampling (CBR; with published settings, CBR redraw) at the same "
        "seeds and settings. Filled circles: "
        "everything rescored. Open circles: `refresh=2`. Squares: published settings. Hollow diamonds: the paper. "
        "[The same against ER](effects_er.png). Both as numbers, also in [effects.csv](effects.csv); in parentheses "
        "the number of exploratory pairs:\n\n"
        f"{comparisons.table_of_effects(of_scores)}\n"
        "### EN with `refresh=2` against CBR on BloodCell\n\n"
        f"{comparisons.entropy_on_bloodcell(used)}\n"
        "### Over four CIFAR streams, `refresh=2`\n\n"
        "Mean of the streams' means: CIFAR-10 with 500 images, long-tailed CIFAR-10 with 200, CIFAR-100 with 1000 and "
        "long-tailed CIFAR-100 with 500. Streams share seeds, and the last column allows for that; a stream and its "
        "long-tailed twin share images, and no column allows for that. *Retained* is the mean accuracy at the end on "
        "all tasks but the last.\n\n"
        f"{comparisons.over_cifar(used)}\n"
        "### Random numbers as the score, `refresh=2`\n\n"
        "*uniform* draws new numbers at each rescoring. Rows with *kept numbers* are exploratory; H3 and H4 judge the "
        "planned pairs of the others. "
        "*uniform, kept numbers* keeps the first number of each image (`smoothing=1e-9`), so recent images have no "
        "advantage (column `recent` of [memory_autopsy.csv](memory_autopsy.csv)).\n\n"
        f"{comparisons.of_random_numbers(used)}\n"
        f"### In the README\n\n{with_headlines_pairs(used)}"
    )


def _all_results(used: pd.DataFrame) -> str:
    results = all_results.all_results(used)
    return (
        "*Default* is the setting of the paper's text for methods without a score. The paper's numbers are of three "
        "seeds. CBR with published settings is CBR redraw. The last two columns are the detectable differences from ER "
        "with the same settings.\n\n"
        f"{all_results.table_of_results(results)}\n"
        "The same runs, further measures in per cent. *Best* and *retained* are the mean accuracy on all tasks but the "
        "last, at their best and at the end; F is the difference. *Learning accuracy* is that on each task right after "
        "it was learnt. *Average* is the mean over the stream. The last column is the share of predictions at the end "
        "that name a class of the last task; older records did not count it.\n\n"
        f"{all_results.table_of_measures(results)}"
    )


def _choices(used: pd.DataFrame) -> str:
    return (
        "One choice at a time. The random number is a control: the views run as for BI, and their logits are ignored. "
        "[deviations.csv](deviations.csv) has ER and CBR, too; "
        "[deviations_unlike_the_paper.csv](deviations_unlike_the_paper.csv) lists the cells that differ from the "
        "paper's by more than both standard deviations together.\n\n"
        f"{comparisons.of_choices(used)}\n"
        "### Bottom-k and top-k under one reading\n\n"
        "Published settings, BloodCell, memory 40, with all runs that have the reading. The scoring passes of top-k "
        "move the statistics too; under one reading, what differs is the images that the memory keeps. CBR redraw does "
        "not score, so its `running` equals `training`.\n\n"
        f"{comparisons.of_selections(used)}\n"
        "### A network without running statistics\n\n"
        "Exploratory. With GroupNorm in place of BatchNorm, scoring cannot change what the test reads, and scores are "
        "the same in training mode and in evaluation mode. BloodCell, memory 40, everything rescored.\n\n"
        f"{comparisons.of_groupnorm(used)}"
    )


def readings(table_of_readings: pd.DataFrame) -> str:
    """Markdown: one network tested under two sets of BatchNorm statistics; a sentence if there is no such run.

    Args:
        table_of_readings: figures/readings_effects.csv.
    """
    if table_of_readings.empty:
        return "Readings: no run with all readings has a record yet (`notebooks/05_readings.ipynb`).\n"
    head = ["reading minus `training`", "data set, memory", "method", "measure", "n", "mean [95 %]", "detectable"]
    rows = []
    for row in table_of_readings.itertuples():
        numbers = (row.n, with_interval(row.mean, row.low, row.high), number(row.detectable))
        rows.append((row.reading, f"{row.dataset}, {row.memory_size}", row.method, row.metric, *numbers))
    return "Readings: the same networks under other BatchNorm statistics, in points.\n\n" + table(head, rows)


def _more_updates(used: pd.DataFrame) -> str:
    return (
        "### ER with more training steps\n\n"
        "Exploratory. Scoring takes time, in which ER can take several training steps per batch, each with its own "
        "images from the memory. On bloodcell, 4 steps take less time than BI. On cifar10, 3 steps take more time "
        "than BI with `refresh=2` (see [Costs](#costs)), so there ER has the advantage. Paired by seed, in "
        f"points.\n\n{comparisons.of_updates(used)}"
    )


def _repeatability(used: pd.DataFrame, scores: pd.DataFrame) -> str:
    if scores.empty:
        return "Repeatability: no table yet (`notebooks/repeatability.ipynb`).\n"
    order = method_order(scores["score"])
    groups = scores.groupby(["dataset", "score", "setting"], sort=False)
    in_order = sorted(groups, key=lambda group: (group[0][0], order.index(group[0][1])))
    rows = [
        (*name, len(own), own["seed"].nunique(), number(own["spearman"].mean(), 2), number(own["overlap"].mean(), 2))
        for name, own in in_order
    ]
    head = ["data set", "score", "setting", "networks", "seeds", "Spearman", "overlap"]
    return (
        "Repeatability (exploratory): two scorings of the same images by the same network, with independent views. "
        "Networks are those after each task. By chance the rank correlation is 0 and the overlap of the lower halves "
        "0.5; for RM, which has many equal scores, it is higher, as equal scores keep their order. "
        f"[The picture](repeatability.png).\n\n{table(head, rows)}\n"
        "Runs whose scores repeat better minus the same runs with the paper's scores, paired by seed, in points "
        f"(exploratory):\n\n{comparisons.of_remedies(used)}"
    )


def _costs(used: pd.DataFrame, csvs: Mapping[str, pd.DataFrame], alone: bool) -> str:
    times, precision = csvs["beside_naive"], csvs["scoring_cost_precision"]
    whole_runs = _whole_runs(csvs["table4_runtime"], csvs["table4_runtime_refresh"], alone)
    if times.empty:
        return f"No times per batch yet (`tests/beside_naive.py` measures them).\n\n{whole_runs}"
    threads = " or ".join(str(n) for n in sorted(times.loc[times["variant"] == "ER", "threads"].unique()))
    rounds = " or ".join(str(n) for n in sorted(times["rounds"].unique()))
    text = (
        f"Learning a batch and updating a full memory, mean over the tasks of a stream in the shape of CIFAR-10, "
        f"n = {rounds} rounds per task, {threads} threads, all methods in turns in one process, {costs.load(times)} "
        f"(`tests/beside_naive.py`, [beside_naive.csv](beside_naive.csv)).\n\n{costs.per_batch(times)}\n"
        "By these times, the runs of Table 1 that score views (three seeds) would take:\n\n"
        f"{costs.of_table1(times)}\n"
        "A training step alone, compared with a plain contiguous float32 step:\n\n"
        f"{costs.of_training_step(times)}\n"
        f"{whole_runs}"
        "### What cheaper scoring changes\n\n"
        "Paired differences from scoring everything with the default arithmetic (bfloat16 where the processor is "
        "faster in it, otherwise float32), in points. [A and F by run, and times](scoring_cost_refresh.png).\n\n"
        f"{comparisons.of_cheaper_scoring(used)}"
    )
    if not precision.empty:
        text += f"\nImages kept by bfloat16 scores:\n\n{costs.of_bfloat16(precision)}"
    on_gpu = csvs["benchmark_gpu"]
    if not on_gpu.empty:
        text += f"\n### On a GPU\n\n{costs.on_gpu(on_gpu)}"
    updates = csvs["benchmark_updates"]
    if not updates.empty:
        text += (
            "\n### The memory update without scoring\n\n"
            "A full memory of ten classes, batches of ten images, `refresh=2`, random numbers as scores; medians, all "
            f"memories in turns (`ucl benchmark`).\n\n{costs.of_updates(updates)}"
        )
    return text


def _whole_runs(exact: pd.DataFrame, two: pd.DataFrame, alone: bool) -> str:
    if exact.empty or not exact["n"].any():
        return ""
    how = "Other programs may have run, too."
    if alone:
        how = (
            "These runs (`figures/alone/`) were made one after another with all cores, and no other program computed "
            "on the machine. The machine is virtual: its host may have been busy."
        )
    return (
        "### Table 4: whole runs\n\n"
        f"CIFAR-10 with a memory of 500, BI with bottom-k. {how} "
        "The time per batch is that of training and memory update, without evaluation. The paper names neither the "
        "memory size nor the processor. Its ratios are those of its total times, which its times per batch do not fit."
        f"\n\n{costs.of_whole_runs(exact, two)}\n"
    )


def _soak(soak: pd.DataFrame) -> str:
    if soak.empty:
        return "No table yet (`make soak` writes it).\n"
    trials = {True: "processes killed", False: "hostile inputs"}
    rows = [(trials[row.is_kill], row.kind, f"{row.tried:,}", row.failures, row.seconds) for row in soak.itertuples()]
    facts = soak.iloc[0]
    return (
        "A failure is a record lost or changed, a traceback, a child process left, or a run that does not resume to "
        f"the same record. `make soak`, seed {facts['seed']}, commit {facts['commit']}.\n\n"
        + table(["what", "kind", "tried", "failures", "seconds"], rows)
    )


def _not_measured(cells: pd.DataFrame) -> str:
    measured = coverage.measured(cells).any(axis=1)
    missing = f" The methods that are missing, by selection:\n\n{coverage.not_measured(cells)}"
    return (
        f"{int((~measured).sum())} of the paper's {len(cells)} cells have no run in any setting."
        f"{'' if measured.all() else missing}"
    )
