"""Tables of measured and published numbers: made from records as DataFrames, saved as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ucl import naming
from ucl.catalogue import method_and_selection
from ucl.errors import one_of
from ucl.evidence import paper
from ucl.evidence.averages import METRICS, NOTES, averaged, without_empty_notes
from ucl.evidence.run_measures import SETTINGS, Runs
from ucl.evidence.table_formats import latex, markdown

NOTE = (
    "Last accuracy A (higher is better) and last forgetting F (lower is better) in per cent. Above: measured, mean ± "
    "sample standard deviation over n seeds; below: as printed in the paper, mean ± population standard deviation over "
    "three seeds. Verdict: near if the means differ by at most the sum of both standard deviations, otherwise differs; "
    "none for a single seed. — not measured. Seeds 0 to 4 (CIFAR: 0 to 2) are exploratory, see PROTOCOL.md."
)
SETTINGS_NOTE = (
    "Settings: empty, the paper's text, where every stored image of a batch's classes is rescored at each batch; "
    "refresh=2, two stored images per class; published settings, those of the reference implementation, but with all "
    "test images of a long-tailed stream; there, all seeds count; projected=replay, A-GEM on the gradient of replay."
)
_SETTINGS = {**SETTINGS, "projected=replay": {"projected": "replay"}}  # the last one of A-GEM only
_SELECTIONS = {"": "random", "top": "top", "step": "step", "bottom": "bottom"}  # in the paper's order


def with_published(records: pd.DataFrame | Runs, grid: str, **fields: Any) -> pd.DataFrame:
    """Measured and published numbers, one row per cell and metric of a table of the paper.

    A run counts if it is an experiment of the table, at any seed, see `ucl.evidence.run_measures.Runs`.

    Args:
        grid: a name in `ucl.paper.GRIDS`.
        fields: of `Config`, for all runs.

    Returns:
        Columns grid, dataset, memory_size, method, selection, settings (what differs from the defaults), metric ("A",
        "F"), n (seeds measured, may be 0), mean and sample std of the n, published_mean and published_std (as printed:
        the population std of three seeds), difference (mean less published_mean), all in per cent, and data, the
        fingerprint of the images measured on. Two columns are present only if needed: arithmetic, if runs were scored
        in more than one, and left_out, how many runs failed (`Record.failure`) and do not count.
    """
    runs, rows = records if isinstance(records, Runs) else Runs(records), []
    for config in paper.grid(grid, seeds=[0], **fields):
        stream, (method, selection) = (config.dataset, config.memory_size), method_and_selection(config.label)
        of_cell = runs.rows(config)
        averages = averaged(of_cell)
        for metric in METRICS:
            printed = [paper.printed(stream, config.label, metric, number) for number in ("mean", "std")]
            rows.append(
                {
                    "grid": grid,
                    "dataset": config.dataset,
                    "memory_size": config.memory_size,
                    "method": method,
                    "selection": selection,
                    "settings": naming.settings(config),
                    "metric": metric,
                    "n": averages["n"],
                    "mean": averages[metric],
                    "std": averages[f"{metric}_std"],
                    "published_mean": printed[0],
                    "published_std": printed[1],
                    "difference": averages[metric] - printed[0],
                    "data": of_cell["fingerprint"].iloc[0] if len(of_cell) else "",
                    **{note: averages[note] for note in NOTES},
                }
            )
    return without_empty_notes(pd.DataFrame(rows))


def in_all_settings(records: pd.DataFrame, grid: str, seeds: Sequence[int]) -> pd.DataFrame:
    """`with_published` with each of `_SETTINGS`: what was measured, and a row without runs for each other cell.

    Args:
        seeds: those that count; with published settings, which were planned for other seeds, all count.
    """
    at_all, at_seeds, parts = Runs(records), Runs(records[records["seed"].isin(seeds)]), []
    for name, fields in _SETTINGS.items():
        table = with_published(at_all if name == "published settings" else at_seeds, grid, **fields)
        other = table[(table["n"] > 0) & (table["settings"] != "")].assign(settings=name)
        parts.append(other if fields else table)
    order = list(parts[0]["method"].unique())
    rows = pd.concat(parts).sort_values("method", key=lambda column: column.map(order.index), kind="stable")
    measured = rows.groupby(paper.CELL)["n"].transform("max") > 0
    table = rows[(rows["n"] > 0) | ~measured].reset_index(drop=True)
    return table.fillna({note: "" for note in NOTES if note in table})


def verdict(table: pd.DataFrame) -> pd.Series:
    """Of each row of `with_published`, "near" the paper's or "differs"; "" with fewer than two seeds.

    Two means are near if they differ by at most the sum of both standard deviations; the measured one is the sample's.
    """
    spread = table["std"] + table["published_std"]
    words = (table["difference"].abs() <= spread).map({True: "near", False: "differs"})
    return words.where(spread.notna(), "")


def layout(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `with_published` in the paper's layout: methods and metrics down, the other columns of a cell across.

    Returns:
        Text cells, "12.30 ± 1.20 (n=3, near)" above "paper 14.10 ± 0.90", with the `verdict`; without it and ± for
        a single seed, "—" if nothing was measured, empty if the table has no such run. Data sets and selections are
        column levels if there are several; settings are a row level if any differ from the defaults.
    """
    judged = table.assign(verdict=verdict(table)).to_dict("records")
    cells = table.assign(
        text=[f"{_measured(row)}\npaper {row['published_mean']:.2f} ± {row['published_std']:.2f}" for row in judged],
        selection=pd.Categorical(table["selection"].map(_SELECTIONS), list(_SELECTIONS.values())),
    )
    for name in ("dataset", "method", "settings", "metric"):  # in the order of the table
        cells[name] = pd.Categorical(cells[name], cells[name].unique())
    n_selections = table.loc[table["selection"] != "", "selection"].nunique()
    several = {"dataset": table["dataset"].nunique() > 1, "selection": n_selections > 1}
    levels = [level for level in ("dataset", "memory_size", "selection") if several.get(level, True)]
    rows = [level for level in ("method", "settings", "metric") if level != "settings" or table["settings"].any()]
    wide = (
        cells.set_index([*rows, *levels])["text"]
        .unstack(levels)
        .dropna(axis="columns", how="all")
        .sort_index(axis="columns")
        .astype(object)
        .fillna("")
    )
    wide.columns = wide.columns.map(lambda key: tuple(map(str, key)) if isinstance(key, tuple) else str(key))
    sizes = {str(size): f"M={size}" for size in table["memory_size"]}
    return wide.rename(columns=sizes, level="memory_size" if len(levels) > 1 else None).rename_axis(columns=levels)


def save(table: pd.DataFrame, path: str | Path) -> Path:
    """Save any table: numbers in full as .csv, text for readers as .md or .tex (with booktabs); returns the path.

    For readers, a table of `with_published` has the paper's layout (see `layout`) and a note. In any other table,
    numbers have two decimals, and a column and its standard deviation, such as A and A_std, become one.
    """
    path = Path(path)
    if table.index.name is not None or not pd.api.types.is_integer_dtype(table.index):
        table = table.reset_index()  # Other indexes only number the rows.
    shown, note = table, ""
    if "published_mean" in table:
        shown = layout(table).reset_index()
        grids = "; ".join(paper.GRIDS[name] for name in table["grid"].unique())
        note = f"{grids}. {NOTE}" + (f" {SETTINGS_NOTE}" if set(table["settings"]) & set(_SETTINGS) else "")
    texts = {
        ".csv": lambda: table.to_csv(index=False, lineterminator="\n"),
        ".md": lambda: f"{note}\n\n{markdown(shown)}".lstrip(),
        ".tex": lambda: latex(shown, note),
    }
    one_of("output", path.suffix, texts, "ending of a table's file")
    text = texts[path.suffix]()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="backslashreplace"))
    return path


def _measured(row: dict[str, Any]) -> str:
    """The measured numbers of a cell of the layout."""
    n = f"n={row['n']}" if row["n"] else ""
    notes = [n, row["verdict"], row.get("arithmetic", ""), row.get("left_out", "")]
    in_brackets = ", ".join(filter(None, notes))
    spread = f" ± {row['std']:.2f}" if row["n"] > 1 else ""
    number = f"{row['mean']:.2f}{spread}" if row["n"] else "—"
    return f"{number} ({in_brackets})" if in_brackets else number
