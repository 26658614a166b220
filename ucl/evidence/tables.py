"""Tables: records in, a DataFrame out, saved as CSV, Markdown and LaTeX. Measured and published numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ucl.errors import InputError
from ucl.evidence import paper
from ucl.records import MEASURES
from ucl.records.runs import apart_from_failures, latest, matching

METRICS = {"A": "last_accuracy", "F": "last_forgetting"}
NOTE = (
    "Last accuracy A (higher is better) and last forgetting F (lower is better) in per cent. Above: measured, mean ± "
    "sample standard deviation over n seeds; below: as printed in the paper, mean ± population standard deviation over "
    "three seeds. — not measured. Seeds 0 to 4 (CIFAR: 0 to 2) are exploratory, see PROTOCOL.md."
)
_CELL = ["dataset", "memory_size", "method", "selection", "metric"]
_NOTES = ["arithmetic", "left_out"]  # columns that are there where some row needs them
_KEPT = {"": "random", "top": "top", "step": "step", "bottom": "bottom"}  # in the paper's order
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_~|[]"} | {"&": "&amp;", "<": "&lt;", "\n": "<br>"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "—": "---", "…": r"\ldots{}"}
)


def compare(records: pd.DataFrame, published: pd.DataFrame, grid: str, **fields: Any) -> pd.DataFrame:
    """Measured and published numbers, one row per cell and metric of a table of the paper.

    A run counts where it is the very experiment of the table, at any seed: see `ucl.records.runs.matching`.

    Args:
        records: see `ucl.load_records`.
        published: see `ucl.paper.published`.
        grid: a name in `ucl.paper.GRIDS`.
        fields: further fields of the runs, as given to `ucl.paper.grid`.

    Returns:
        Columns grid, dataset, memory_size, method, selection, settings (what differs from the defaults), metric ("A",
        "F"), n (seeds measured), mean and sample std of the n, published_mean and published_std (as printed: the
        population std of three seeds), difference (mean less published_mean), all in per cent, and data, the
        fingerprint of the images measured on: runs on other images have a row of their own. Where nothing was measured
        n is 0 and the numbers are NaN. Further columns are there only where a row needs them: arithmetic, where runs
        were scored in more than one, and left_out, how many runs failed (`Record.failure`) and do not count.

    Raises:
        InputError: see `ucl.paper.grid`.
    """
    experiments = paper.grid(grid, seeds=[0], **fields)
    runs = matching(records, experiments)
    rows = []
    for index, config in enumerate(experiments):
        of_cell = runs[runs["experiment"] == index]
        method, _, selection = config.label.partition(" ")
        of_images = list(of_cell.groupby("fingerprint")) if len(of_cell) else [("", of_cell)]
        for (data, own), (metric, column) in itertools.product(of_images, METRICS.items()):
            cell = (config.dataset, config.memory_size, method, selection, metric)
            own, left_out = apart_from_failures(own)
            numbers = (len(own), *_mean_and_std(own[column]))
            rows.append((grid, *cell, paper.settings(config), *numbers, data, _arithmetic(own), left_out))
    columns = ["grid", *_CELL, "settings", "n", "mean", "std", "data", *_NOTES]
    measured = pd.DataFrame(rows, columns=columns)
    printed = published[[*_CELL, "mean", "std"]].rename(columns={"mean": "published_mean", "std": "published_std"})
    table = measured.merge(printed, on=_CELL, how="left", validate="many_to_one")
    table["difference"] = table["mean"] - table["published_mean"]
    first = ["grid", *_CELL[:4], "settings", "metric", "n", "mean", "std", "published_mean", "published_std"]
    return _without_empty_notes(table[[*first, "difference", "data", *_NOTES]])


def apart(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a comparison that differ from the paper by more than both standard deviations together.

    The measured one is the sample standard deviation, the paper's stays as it is printed.

    Args:
        table: see `compare`. A cell of a single seed has no spread, and is left out.
    """
    measured = table[table["n"] > 1]
    return measured[measured["difference"].abs() > measured["std"] + measured["published_std"]]


def layout(table: pd.DataFrame) -> pd.DataFrame:
    """A comparison in the paper's layout: methods and metrics down, data sets, memory sizes and selections across.

    Args:
        table: see `compare`.

    Returns:
        Text cells, "12.30 ± 1.20 (n=3)" above "published 14.10 ± 0.90"; without a spread for a single seed, "—" where
        nothing was measured, empty where the table has no such run. A cell measured on several versions of the images
        has a line for each, with the fingerprint; one scored in several arithmetics names them. Data sets and
        selections are columns if there are several; what differs from the defaults is in the rows if
        anything does.
    """
    identity = [*_CELL, "settings"]
    of_row: dict[tuple, list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        of_row.setdefault(tuple(row[name] for name in identity), []).append(row)
    table = table.drop_duplicates(identity)
    kept = table["selection"].map(_KEPT)
    by_score = table.loc[table["selection"] != "", "selection"]
    several = {"dataset": table["dataset"].nunique() > 1, "selection": by_score.nunique() > 1}
    levels = [level for level in ("dataset", "memory_size", "selection") if several.get(level, True)]
    rows = [level for level in ("method", "settings", "metric") if level != "settings" or table["settings"].any()]
    cells = table.assign(
        cell=[_cell(rows_of_row) for rows_of_row in of_row.values()],
        selection=pd.Categorical(kept, list(_KEPT.values())),
        dataset=pd.Categorical(table["dataset"], table["dataset"].unique()),
    )
    columns = cells[levels].drop_duplicates().sort_values(levels)
    wide = cells.set_index([*rows, *levels])["cell"].unstack(levels)
    if len(levels) == 1:
        wide = wide[columns[levels[0]]]
        wide.columns = [f"M={size}" for size in wide.columns]
    else:
        wide = wide[[tuple(column) for column in columns.to_numpy()]]
        named = columns.assign(memory_size=[f"M={size}" for size in columns["memory_size"]])
        wide.columns = pd.MultiIndex.from_frame(named.astype(str))
    return wide.loc[list(dict.fromkeys(cells[rows].itertuples(index=False, name=None)))].fillna("")


def results(records: pd.DataFrame) -> pd.DataFrame:
    """Any records, own data sets and scores too, averaged over seeds.

    Args:
        records: see `ucl.load_records`.

    Returns:
        A row a data set, memory size, method and settings (what differs from the defaults, so that runs with other
        settings are never averaged), and version of the images and of a score of the user's own: n, mean and sample std
        (none for a single seed) of last accuracy A and last forgetting F, and the means of the other measures of
        `Record.measures`, in per cent, and of seconds. A measure that some of the n runs do not have is empty, such as
        last_share where the answers were not counted. A run that was measured more than once counts once, as measured
        last. Further columns are there only where they distinguish rows or describe them: data (fingerprint),
        source (hash of the source of the user's own objects), arithmetic (of the scoring passes, where a row has
        several) and left_out, how many runs failed (`Record.failure`) and do not count.
    """
    group = ["dataset", "memory_size", "label", "settings"]
    others = [name for name in MEASURES if name not in METRICS]
    columns = [*group, "n", "A", "A_std", "F", "F_std", *others, "seconds"]
    if records.empty:
        return pd.DataFrame(columns=columns)
    runs = latest(records)
    records_of_runs = list(runs["record"])
    runs = runs.assign(
        settings=[paper.settings(record.config) for record in records_of_runs],
        name=[record.config.dataset_name for record in records_of_runs],
        data=[record.version.images for record in records_of_runs],
        source=[record.version.source for record in records_of_runs],
    )
    rows = []
    for (name, *rest, data, source), all_own in runs.groupby(["name", *group[1:], "data", "source"], dropna=False):
        own, left_out = apart_from_failures(all_own)
        a, f = (_mean_and_std(own[column]) for column in METRICS.values())
        measures = pd.DataFrame([record.measures() for record in own["record"]], columns=list(MEASURES))
        means = (100 * measures[others].astype(float)).mean(skipna=False)
        dataset = all_own["dataset"].iloc[0] if all_own["dataset"].nunique() == 1 else name
        numbers = (len(own), *a, *f, *means, own["seconds"].mean())
        rows.append((dataset, *rest, *numbers, data, source, _arithmetic(own), left_out))
    table = pd.DataFrame(rows, columns=[*columns, "data", "source", *_NOTES])
    versions = table.groupby(group, dropna=False)[["data", "source"]].nunique().max()
    table = table.drop(columns=[column for column, n in versions.items() if n < 2])
    return _without_empty_notes(table).astype({"memory_size": "Int64"})


def beside(runs: pd.DataFrame, column: str, reference: Any) -> pd.DataFrame:
    """What a setting changes, seed by seed: A and F at each of its values and at a reference value.

    Args:
        runs: columns memory_size, seed, A, F (per cent) and `column`, a row a run.
        column: the setting.
        reference: the value of it that the others are compared with.

    Returns:
        A row a memory size and value: n, mean and sample std of A and F, pairs (seeds that the reference has too),
        mean and sample std of the paired differences from the reference; no std of a single one. Runs that
        diverged have no A, and runs whose column `collapsed` is true no valid one: neither counts.

    Raises:
        InputError: two runs differ in none of these columns, as where the images were measured in two versions.
    """
    runs = runs[runs["A"].notna() & ~runs.get("collapsed", pd.Series(False, runs.index)).astype(bool)]
    if runs.duplicated(["memory_size", "seed", column]).any():
        reason = "some are there twice, perhaps on two versions of the images; choose one by its fingerprint"
        raise InputError("runs", column, reason)
    keyed = runs.astype({"memory_size": int}).set_index(["memory_size", "seed", column])[["A", "F"]].astype(float)
    change = keyed - keyed.xs(reference, level=column).reindex(keyed.index.droplevel(column)).to_numpy()
    own, paired = (values.groupby(["memory_size", column]) for values in (keyed, change))
    n, pairs = own.size().rename("n"), paired["A"].count().rename("pairs")
    spread = own.std(ddof=1).add_suffix("_std")
    differences = paired.mean().add_suffix("_difference")
    spread_of_pairs = paired.std(ddof=1).add_suffix("_difference_std")
    return pd.concat([n, own.mean(), spread, pairs, differences, spread_of_pairs], axis=1).reset_index()


def runtimes(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """The paper's Table 4 as measured, a row a machine and method.

    Args:
        records: see `ucl.load_records`.
        fields: further fields of the runs, as given to `ucl.paper.grid`.

    Returns:
        Columns device, processor, threads, method, n, milliseconds a batch (learning and memory, without evaluation)
        and seconds in all, times_er (milliseconds over those of ER), and as published: seconds in all, milliseconds
        a batch that follow from them (the printed 220, 310 and 690 do not fit) and times_er. Where a machine has runs
        on several versions of the images, each has rows of its own, and a last column, data, is its fingerprint.
    """
    experiments = paper.grid("table4", seeds=[0], **fields)
    runs, _ = apart_from_failures(matching(records, experiments))
    machine = ["device", "processor", "threads"]
    environments = [[record.environment.get(name) for name in machine] for record in runs.get("record", [])]
    runs = runs.assign(**pd.DataFrame(environments, columns=machine, index=runs.index))
    if runs.empty:
        runs = runs.assign(fingerprint=None)
    machines = list(runs.groupby([*machine, "fingerprint"], dropna=False)) or [((None, None, None, ""), runs)]
    rows = []
    for (*name, data), on_machine in machines:
        er = np.nan
        for index, config in enumerate(experiments):
            own = on_machine[on_machine["experiment"] == index]
            ms, seconds = (own[c].mean() if len(own) else np.nan for c in ("seconds_per_batch", "seconds"))
            er = ms if config.label == "ER" else er
            total = paper.RUNTIMES[config.label][1]
            published = total, 1000 * total / paper.RUNTIME_BATCHES, total / paper.RUNTIMES["ER"][1]
            rows.append((*name, config.label, len(own), 1000 * ms, seconds, ms / er, *published, data))
    times = ["milliseconds", "seconds", "times_er"]
    times += ["published_seconds", "published_milliseconds", "published_times_er"]
    table = pd.DataFrame(rows, columns=[*machine, "method", "n", *times, "data"])
    return table if table["data"].nunique() > 1 else table.drop(columns="data")


def save(table: pd.DataFrame, path: str | Path) -> list[Path]:
    """Save a table: numbers in full as <path>.csv, text for readers as <path>.md and <path>.tex.

    A comparison is shown in the paper's layout (`layout`), with a note; any other table as it is, with two decimals.
    The same table gives the same bytes. The LaTeX needs the package booktabs.

    Returns:
        The three paths.
    """
    if table.index.name is None and pd.api.types.is_integer_dtype(table.index):
        table = table.reset_index(drop=True)  # in a part of a table these are indices in the whole
    shown, note = table, ""
    if "published_mean" in table:
        shown = layout(table)
        note = f"{'; '.join(paper.GRIDS[name] for name in table['grid'].unique())}. {NOTE}"
    if not isinstance(shown.index, pd.RangeIndex):
        shown = shown.reset_index()
    heads = [column if isinstance(column, tuple) else (column,) for column in shown.columns]
    rows = [[_text(value) for value in row] for row in shown.itertuples(index=False, name=None)]
    texts = {
        ".csv": table.to_csv(index=not isinstance(table.index, pd.RangeIndex), lineterminator="\n"),
        ".md": _markdown(heads, rows, note),
        ".tex": _latex(heads, rows, note),
    }
    paths = {Path(f"{path}{ending}"): text for ending, text in texts.items()}
    for file, text in paths.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return list(paths)


def _mean_and_std(shares: pd.Series) -> tuple[float, float]:
    """Mean and sample standard deviation in per cent; NaN without values, and no spread of a single one."""
    values = 100 * shares.astype(float)
    return float(values.mean()), float(values.std(ddof=1))


def _arithmetic(runs: pd.DataFrame) -> str:
    """The arithmetics of the scoring passes, where runs that are averaged had more than one."""
    names = sorted({record.arithmetic for record in runs["record"]} - {""}) if len(runs) else []
    return " and ".join(names) if len(names) > 1 else ""


def _without_empty_notes(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, without the columns of notes that no row has."""
    return table.drop(columns=[note for note in _NOTES if not table[note].any()])


def _cell(rows: list[dict[str, Any]]) -> str:
    """A cell of the layout from its rows: one for each version of the images."""
    lines = []
    for row in rows:
        spread = f" ± {row['std']:.2f}" if row["n"] > 1 else ""
        images = f"images {row['data']}" if len(rows) > 1 else ""
        notes = [images, row.get("arithmetic", ""), row.get("left_out", "")]
        said = ", ".join(filter(None, [f"n={row['n']}" if row["n"] else "", *notes]))
        number = f"{row['mean']:.2f}{spread}" if row["n"] else "—"
        lines.append(f"{number} ({said})" if said else number)
    published = f"published {rows[0]['published_mean']:.2f} ± {rows[0]['published_std']:.2f}"
    return "\n".join([*lines, published])


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _markdown(heads: Sequence[tuple], rows: Sequence[Sequence[str]], note: str) -> str:
    """A table in GitHub's Markdown, the note above it."""

    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(text.translate(_MARKDOWN) for text in texts)} |"

    titles = [" ".join(str(part) for part in head if part != "") for head in heads]
    table = [line(titles), "|" + " --- |" * len(titles), *map(line, rows)]
    return "\n".join([note, ""][: 2 * bool(note)] + table) + "\n"


def _latex(heads: Sequence[tuple], rows: Sequence[Sequence[str]], note: str) -> str:
    """A LaTeX table with booktabs: a floating one with a caption if there is a note, otherwise a bare tabular."""

    def cell(text: str) -> str:
        lines = text.translate(_LATEX).replace("published ", "").split("\n")
        above = r"\\".join(lines)
        return rf"\begin{{tabular}}[c]{{@{{}}c@{{}}}}{above}\end{{tabular}}" if len(lines) > 1 else above

    # A method without a selection spans top, step and bottom, as in the paper; a column of its own would be too wide.
    beside = {
        i: sum(h[:-1] == head[:-1] for h in heads) - 1 for i, head in enumerate(heads) if head[1:][-1:] == ("random",)
    }

    def line(row: Sequence[str]) -> str:
        cells = list(map(cell, row))
        for i, n in sorted(beside.items(), reverse=True):
            cells[i : i + n + 1 if cells[i] else i + 1] = [_span(n, cells[i])] * bool(cells[i])
        return " & ".join(cells) + r" \\"

    kept = [i for i in range(len(heads)) if i not in beside]
    header = []
    for level in range(len(heads[0])):
        equal = itertools.groupby(heads[i][: level + 1] for i in kept)
        titles = [(title[-1], len(list(same))) for title, same in equal]
        header.append(" & ".join(_span(n, str(title).translate(_LATEX)) for title, n in titles) + r" \\")
    columns = "".join("p{0.35\\linewidth}" if any(len(row[i]) > 60 for row in rows) else "l" for i in kept)
    tabular = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *header,
        r"\midrule",
        *map(line, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if not note:
        return "\n".join(tabular) + "\n"
    opening = [r"\begin{table}", r"\centering", r"\scriptsize", r"\setlength{\tabcolsep}{3pt}"]
    return "\n".join([*opening, rf"\caption{{{note.translate(_LATEX)}}}", *tabular, r"\end{table}"]) + "\n"


def _span(n: int, text: str) -> str:
    return text if n == 1 else rf"\multicolumn{{{n}}}{{c}}{{{text}}}"
