"""Two methods compared on any records, by differences within pairs of runs of the same stream and seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ucl import naming
from ucl.config import FURTHER_TESTS
from ucl.errors import InputError, first_of, one_of
from ucl.evidence import filters
from ucl.evidence.averages import notes, without_empty_notes
from ucl.evidence.effects import ALL_STREAMS, NUMBERS, estimable, on_streams, streams_of, summary
from ucl.records import Record, as_table, failures
from ucl.records.measures import MEANINGS
from ucl.records.runs import changed_objects, in_words, latest, listed, varying

_KEYS = ["dataset", "images", "memory_size", "seed"]
_NOT_OF_THE_METHOD = {*naming.STREAM, *FURTHER_TESTS, "fingerprint"}


def compare(
    records: pd.DataFrame | Iterable[Record], first: str, second: str, measures: str | Sequence[str] = ("A", "F")
) -> pd.DataFrame:
    """One method minus another: the mean of the differences within pairs of runs, with its interval.

    The runs of a pair share the stream (data set, images, memory size, number of tasks and so on) and the seed. A field
    of the stream that both filters name, such as the memory size, may differ within a pair, except the data set; with
    the image size, the images differ. A method without a memory is paired with every memory size. Runs that failed
    (`Record.failure`) do not count, nor do pairs in which a run does not have the measure.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`.
        first, second: filters, see `ucl.where`. Each selects one method: its runs differ only in stream and seed.
        measures: a name in `Record.measures`, or several.

    Returns:
        One row per stream and measure. With several streams, one more row per measure over all of them with equal
        weights, without streams with a single pair unless all have one. Columns dataset (with what else differs from
        the stream's defaults), memory_size (<NA> without one), label and comparator (the methods' names), metric,
        streams, of_label and of_comparator (their means over the pairs), n (pairs), mean (of the differences), low and
        high (95 % interval by Student's t, over several streams the wider one of two, see
        `ucl.evidence.effects.summary`; NaN for a single pair) and detectable (the true difference that a two-sided
        test at 5 % finds with 80 % power), in percentage points. Columns that are present only if needed: left_out
        (what does not count), arithmetic (of the scoring passes, if several), evaluate_every (of anytime and
        worst_case, if several) and untested (see `ucl.results`).

    Raises:
        InputError: `records` are not records, a filter or a measure cannot be used, a filter selects no run or
            several methods, or no two runs make a pair; the message says what differs.
    """
    records = as_table(records).reset_index(drop=True)  # tables joined by pd.concat repeat their row labels
    measures = list(dict.fromkeys([measures] if isinstance(measures, str) else measures))
    for measure in measures:
        one_of("measure", measure, MEANINGS)
    sides = [one_method(records, text, name) for name, text in (("first", first), ("second", second))]
    if set(sides[0].index) & set(sides[1].index):
        raise InputError("second", second, f"selects runs that {first} selects, too; give two methods")
    labels = [naming.name_of(runs["record"].iloc[0].config) for runs in sides]
    if labels[0] == labels[1]:  # They differ only in the stream. The conditions that they do not share name them.
        parts = [filters.parts(text) for text in (first, second)]
        labels = [
            ", ".join([label, *(part for part in shown if part not in others)])
            for label, shown, others in zip(labels, parts, parts[::-1], strict=True)
        ]
    free = {*naming.STREAM, "source"} & {*filters.names(first)} & {*filters.names(second)}
    return between(sides[0], sides[1], labels, measures, free)


def one_method(records: pd.DataFrame, text: str, name: str) -> pd.DataFrame:
    """The runs of the one method that a filter selects, with the latest record of each run; otherwise InputError.

    Args:
        text: the filter, see `ucl.where`.
        name: of the argument that holds the filter, for messages.
    """
    runs = latest(filters.where(records, text, name=name))
    check_one_method(runs["record"], name, text)
    return runs


def check_one_method(runs: Iterable[Record], name: str, value: str) -> None:
    """Check that some runs differ in stream, seed and further tests alone.

    Raises:
        InputError: they do not. It names this value, and has conditions to add.
    """
    newest_first = sorted(runs, key=lambda record: record.date, reverse=True)
    if differing := varying(newest_first, _NOT_OF_THE_METHOD):
        field, values = next(iter(differing.items()))
        by_default = {not naming.settings(record.config) for record in newest_first}
        defaults = '"settings=" (the defaults) or ' if len(by_default) > 1 else ""
        advice = f'add a condition, such as {defaults}"{field}={listed(values[:1])}"'
        raise InputError(name, value, f"has runs of several methods, which differ in {in_words(differing)}; {advice}")


def check_unchanged(runs: Iterable[Record]) -> None:
    """Check that the runs of several methods share one version of the user objects that they have in common.

    Raises:
        InputError: the code of one has changed between the runs.
    """
    if changed := changed_objects(runs):
        reason = "its code has changed between these runs; measure the older ones again"
        raise InputError("", None, f"{first_of(changed)}: {reason}")


def between(
    one: pd.DataFrame, other: pd.DataFrame, names: Sequence[str], measures: Sequence[str], free: Iterable[str] = ()
) -> pd.DataFrame:
    """The table of `compare` for the runs of two methods.

    Args:
        one, other: rows of `ucl.load_records`, each run once; of one method each, see `check_one_method`.
        names: of the two methods.
        measures: names in `Record.measures`.
        free: fields of the stream that may differ within a pair.

    Raises:
        InputError: no two runs make a pair, or one has several partners; the message says what differs.
    """
    free = {*free} - {"dataset"}
    keys = [key for key in _KEYS if key != "images" or "image_size" not in free]  # another size makes other images
    sides = [_measured(runs, measures, free, name) for runs, name in zip((one, other), names, strict=True)]
    sides = [_with_each_size(*sides), _with_each_size(*sides[::-1])]
    sound = [side[~side["failed"]] for side in sides]
    pairs = sound[0].merge(sound[1], on=keys, suffixes=("", "_other"))
    if pairs.empty:
        why = _mismatch(keys, *sound)
        raise InputError("", None, f"no run of {names[0]} has a partner among those of {names[1]}: {why}")
    if "source" not in free:
        check_unchanged([*pairs["record"], *pairs["record_other"]])
    # A run on other images than its partner's is in no pair, unless their sizes differ.
    for runs in [pd.concat(sound)] if "images" in keys else sound:
        in_pairs = runs.merge(pairs[["dataset", "memory_size"]].drop_duplicates())
        for (dataset, _), images in in_pairs.groupby(["dataset", "memory_size"])["images"].unique().items():
            if len(images) > 1:
                advice = f"choose one, such as fingerprint={images[0]}"
                raise InputError("dataset", dataset, f"was measured on {len(images)} versions of its images; {advice}")
    streams = sorted({*streams_of(sides[0])} & {*streams_of(sides[1])})
    rows = []
    for group in [[stream] for stream in streams] + ([streams] if len(streams_of(pairs)) > 1 else []):
        dataset, size = group[0] if len(group) == 1 else (ALL_STREAMS, 0)
        parts = [on_streams(table, group) for table in (*sides, pairs)]
        for measure in measures:
            named = {"label": names[0], "comparator": names[1], "metric": measure}
            rows.append({"dataset": dataset, "memory_size": size or None, **named, **_row(names, measure, *parts)})
    return without_empty_notes(pd.DataFrame(rows).astype({"memory_size": "Int64"}))


def _row(
    names: Sequence[str], measure: str, one: pd.DataFrame, other: pd.DataFrame, pairs: pd.DataFrame
) -> dict[str, Any]:
    """The numbers of one measure over some streams, see `compare`; the tables are those of these streams."""
    pairs = pairs.assign(difference=pairs[measure] - pairs[f"{measure}_other"])
    measured = pairs.dropna(subset=["difference"])
    counted = estimable(measured)
    by_stream = counted.groupby(["dataset", "memory_size"])
    estimate = summary(counted, "difference")
    dropped = {
        f"pairs without {measure}": len(pairs) - len(measured),
        "pairs alone on their stream": len(measured) - len(counted),
    }
    left_out = [_left_out(one, pairs["record"], names[0]), _left_out(other, pairs["record_other"], names[1])]
    left_out += [f"{reason}: {n}" for reason, n in dropped.items() if n]
    return {
        "streams": by_stream.ngroups,
        "of_label": by_stream[measure].mean().mean(),
        "of_comparator": by_stream[f"{measure}_other"].mean().mean(),
        **{name: estimate[name] for name in NUMBERS},
        **notes([*counted["record"], *counted["record_other"]], [measure]),
        "left_out": ", ".join(filter(None, left_out)),
    }


def _measured(runs: pd.DataFrame, measures: Sequence[str], free: set[str], name: str) -> pd.DataFrame:
    """One row per run: `_KEYS`, whether it failed, its measures in per cent, and its record.

    The memory size is 0 for methods without a memory, and if the memory size may differ within a pair.

    Raises:
        InputError: two runs have equal keys, because they differ in a field that may differ within a pair.
    """
    table = pd.DataFrame({measure: 100 * runs[measure].astype(float) for measure in measures})
    table = table.assign(record=runs["record"], images=runs["fingerprint"], seed=runs["seed"], memory_size=0)
    table["dataset"] = [naming.stream_of(record.config, free) for record in runs["record"]]
    table["failed"] = [bool(record.failure) for record in runs["record"]]
    if "memory_size" not in free:
        table["memory_size"] = [record.config.relevant.get("memory_size", 0) for record in runs["record"]]
    repeated = table[table.duplicated(_KEYS, keep=False)]
    if len(repeated):
        reason = f"has several runs per stream and seed, which differ in {in_words(varying(repeated['record']))}"
        raise InputError("", None, f"{name}: {reason}; choose one value of each")
    return table


def _with_each_size(side: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The runs of a method; runs without a memory are repeated for each memory size of the other method."""
    memoryless = side["memory_size"] == 0
    sizes = other.loc[other["memory_size"] > 0, ["dataset", "memory_size"]].drop_duplicates()
    if not memoryless.any() or sizes.empty:
        return side
    return pd.concat([side[~memoryless], side[memoryless].drop(columns="memory_size").merge(sizes, on="dataset")])


def _left_out(side: pd.DataFrame, paired: pd.Series, name: str) -> str:
    """Which runs of a method are in no pair, such as "1 diverged of ER, 2 of ER without a partner"; "" without any."""
    runs = {id(record): record for record in side["record"]}  # without a memory, a run has a row per memory size
    failed, unpaired = failures(runs.values()), runs.keys() - {*map(id, paired)}
    n_unpaired = sum(not runs[run].failure for run in unpaired)
    texts = [f"{failed} of {name}" if failed else "", f"{n_unpaired} of {name} without a partner" if n_unpaired else ""]
    return ", ".join(filter(None, texts))


def _mismatch(keys: Sequence[str], one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Why no two runs make a pair: the first key without a common value, and its values in both methods' runs."""
    if one.empty or other.empty:
        return "all runs of one of them failed"
    for key in keys:
        values, others = ({*side[key]} for side in (one, other))
        if values.isdisjoint(others):
            return f"{key} is {listed(values)} and {listed(others)}"
        one, other = one[one[key].isin(others)], other[other[key].isin(values)]
    return "their streams have no seed in common"
