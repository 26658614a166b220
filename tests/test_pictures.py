"""Pictures by name: what they draw, in which order and colours, and what they refuse."""

import re
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up import diverged, frame
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from test_plots import ORDERED, assert_readable, record_of, records_of, words_in

import ucl
from ucl import InputError, plots
from ucl.catalogue import PICTURES

RUNS = frame(*records_of(seeds=(0, 1, 2))[::-1])  # out of order


@pytest.mark.parametrize("name", [name for name in PICTURES if name not in ("confusion", "differences")])
def test_each_picture_has_each_method_and_the_stream_and_needs_a_run(name):
    text = "\n".join(words_in(ucl.plot(RUNS, name)))
    assert [part for part in (*ORDERED, "digits", "memory 50") if part not in text] == []
    with pytest.raises(InputError, match="nothing to draw"):
        ucl.plot([], name)


def with_predictions(folder, n_tasks, per_task, names, seed=0):
    """A record whose network predicts the next class of the latest task for a third of the images of each class."""
    order = np.random.default_rng(0).permutation(n_tasks * per_task)
    labels, tasks = np.repeat(order, 3), np.repeat(np.arange(n_tasks), 3 * per_task)
    predictions = np.array([np.where(tasks <= t, labels, -1) for t in range(n_tasks)])
    for t, row in enumerate(predictions):
        wrong = np.flatnonzero(tasks <= t)[::3]
        row[wrong] = order[t * per_task + (wrong // 3 + 1) % per_task]
    recall = np.array([[(row == labels)[labels == c].mean() for c in range(len(order))] for row in predictions])
    recall[np.array([[tasks[labels == c][0] > t for c in range(len(order))] for t in range(n_tasks)])] = np.nan
    record = replace(record_of("ER", seed, n_tasks), class_recall=recall, classes=names, class_order=order.tolist())
    file = folder / f"{seed}.npz"
    np.savez(file, predictions=predictions, labels=labels, key=record.config.key)
    return replace(record, files={"predictions": str(file)})


LONG = ["immature granulocytes (myelocytes)", "immature granulocytes (band cells)", *map(str, range(6))]


@pytest.mark.parametrize(("n_tasks", "per_task"), [(4, 2), (1, 6), (8, 4)])
def test_a_confusion_has_numbers_and_names_that_can_be_read(tmp_path, n_tasks, per_task):
    n_classes, names = n_tasks * per_task, (LONG * 4)[: n_tasks * per_task]
    figure = ucl.plot([with_predictions(tmp_path, n_tasks, per_task, names, seed) for seed in range(2)], "confusion")
    assert_readable(figure)
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 7
    large, shown = figure.axes[-2], {"67", "33"} if n_classes <= 30 else set()
    assert {text.get_text() for text in large.texts} - {""} == shown and "n = 2" in large.get_title()
    assert len(large.get_yticklabels()) == (n_classes if n_classes <= 30 else 0)
    assert len(figure.axes) == 2 + min(n_tasks - 1, 5) and figure.get_figwidth() == 5.5


def test_a_confusion_shows_one_method_whose_runs_have_predictions(tmp_path):
    record = with_predictions(tmp_path, 2, 2, LONG[:4])
    for records in ([record_of("ER", n_tasks=2)], [record, record_of("BI top", n_tasks=2)]):
        with pytest.raises(InputError):
            ucl.plot(records, "confusion")


def test_a_line_of_a_class_is_its_mean_fall_over_the_seeds_in_which_an_earlier_task_has_it():
    learnt_last = np.array([[0.9, np.nan, 0.8], [0.1, 0.6, 0.2]])  # class 1 is of the last task
    learnt_first = np.array([[np.nan, 0.7, 0.6], [0.9, 0.4, 0.3]])  # class 0 is
    runs = [
        replace(record_of("ER", seed, n_tasks=2), class_recall=recall, classes=[*"abc"], class_order=[*order])
        for seed, (recall, order) in enumerate([(learnt_last, (0, 2, 1)), (learnt_first, (2, 1, 0))])
    ]
    for records, ends in ((runs, [(10, 90), (40, 70), (25, 70)]), (runs[:1], [(10, 90), (20, 80)])):
        (lines,) = [c for c in ucl.plot(records, "classes").axes[0].collections if isinstance(c, LineCollection)]
        np.testing.assert_allclose([segment[:, 0] for segment in lines.get_segments() if len(segment)], ends)


def test_a_method_of_which_all_runs_failed_has_a_row_without_circles():
    figure = ucl.plot([record_of("ER"), diverged(record_of("EN top"))], "classes")
    assert len(figure.axes[0].collections) == 2


def test_differences_have_each_method_except_the_one_that_is_subtracted():
    of_cbr = RUNS["label"] == "CBR"
    joined = pd.concat([frame(*RUNS.loc[rows, "record"]) for rows in (of_cbr, ~of_cbr)])  # row labels repeat
    for runs in (RUNS, joined):
        figure = ucl.plot(runs, "differences", "label=CBR")
        named = sorted(figure.axes[1].texts, key=lambda text: text.get_window_extent().y0, reverse=True)
        assert [text.get_text() for text in named] == [f"{label}, n=3" for label in ORDERED if label != "CBR"]


def test_means_and_intervals_of_the_differences_are_where_compare_puts_them():
    """Differences that are equal on two streams: with the seed as cluster, the second stream adds nothing."""
    runs = frame(*(run for size in (20, 50) for run in records_of(("CBR", "ER"), (0, 1, 2), memory_size=size)))
    table = ucl.compare(runs, "label=ER", "label=CBR")
    for ax, metric in zip(ucl.plot(runs, "differences", "label=CBR").axes, "AF"):
        rows, limit = table[table["metric"] == metric], ax.get_xlim()[1] - 2
        of_er = [line for line in ax.lines if to_rgb(line.get_color()) == plots.color("ER")]
        dots = [x for line in of_er if line.get_marker() == "o" for x in line.get_xdata()]
        bars = [x for line in of_er if len(line.get_xdata()) == 2 for x in line.get_xdata()]
        assert len(rows) == 3 and dots == pytest.approx(rows["mean"].tolist())
        assert bars == pytest.approx(rows[["low", "high"]].clip(-limit, limit).to_numpy().ravel())
        assert np.ptp(rows[["low", "high", "detectable"]].to_numpy(), axis=0) == pytest.approx([0, 0, 0])


def test_versions_of_a_user_object_are_not_one_row():
    own, others = records_of(("mine:score top",), range(4)), records_of(("CBR", "ER"), range(4))
    for record in own:
        record.environment["source"] = "aa" if record.config.seed < 2 else "bb"
    with pytest.warns(UserWarning, match="source"):
        words = words_in(ucl.plot(frame(*own, *others), "differences", "label=CBR"))
    assert "ER, n=4" in words and not any("mine" in word for word in words)


def test_a_method_with_several_settings_is_a_row_each_also_without_forgetting():
    records = records_of(("CBR", "ER", "BI bottom"), evaluate_tasks="current")
    records += records_of(["ER"], evaluate_tasks="current", lr=0.01)
    for record in records:
        record.accuracy[1, 0] = np.nan
    words = words_in(ucl.plot(frame(*records), "differences", "label=CBR"))
    assert {"ER, n=2", "BI bottom, n=2", "ER, lr=0.01, n=2"} <= words


def test_differences_leave_out_streams_without_a_pair_and_a_mean_over_one_stream():
    """Streams with one pair do not count in the mean over all streams, as the variance of a single pair is unknown."""
    records = records_of(("CBR", "ER"))
    records += records_of(("CBR", "ER"), seeds=[0], memory_size=20)
    records += [record_of("CBR", memory_size=30), diverged(record_of("ER", memory_size=30))]
    figure = ucl.plot(frame(*records), "differences", "label=CBR")
    text = "\n".join(words_in(figure))
    assert "memory 20" in text and "memory 50" in text
    assert "all streams" not in text and "1 streams" not in text and "memory 30" not in text and "n=0" not in text


def test_long_names_of_streams_and_methods_leave_room_for_the_differences():
    """The name of a stream has all fields that differ from the defaults."""
    long = dict(dataset="path/to/a long name of a folder", class_order="size", balanced_accuracy=True, lr=0.01)
    long["scoring_batchnorm"] = "train"
    records = [run for size in (20, 40) for run in records_of(("CBR", "ER"), (0, 1, 2), memory_size=size, **long)]
    figure = ucl.plot(frame(*records), "differences", "label=CBR")
    assert_readable(figure)
    assert min(ax.get_window_extent().width / figure.dpi for ax in figure.axes) > 1.3  # inches
    assert max(len(line) for label in figure.axes[0].get_yticklabels() for line in label.get_text().split("\n")) <= 24


@pytest.mark.parametrize(
    ("shared", "change"),
    [
        ({}, dict(memory_size=10)),
        ({}, dict(dataset="my images")),
        ({}, dict(n_tasks=2)),
        ({}, dict(lr=0.01)),
        (dict(lr=0.02), dict(lr=0.01)),  # no run has the defaults
        ({}, dict(fingerprint="bb")),
        (dict(lr=0.02), dict(fingerprint="bb")),
    ],
)
def test_runs_that_cannot_share_a_picture_are_refused_with_conditions_that_work_in_a_shell(shared, change):
    records, (field,) = records_of(("ER", "BI bottom"), (0, 1, 2), n_tasks=5, **shared), change
    if field == "fingerprint":
        records[-2].data |= change
    else:
        records[-2].config = records[-2].config.replace(**change)
    with pytest.raises(InputError, match=field) as refusal:
        ucl.plot(frame(*records), "accuracy")
    conditions = re.findall(r"""--where ('.+?'|\S+)|(".+?")""", str(refusal.value).partition("such as ")[2])
    assert conditions
    for condition in map("".join, conditions):
        ucl.plot(ucl.where(frame(*records), *shlex.split(condition)), "accuracy")


def test_runs_without_a_memory_are_not_called_unmeasured():
    record = replace(record_of("Finetune"), memory={})
    with pytest.raises(InputError, match="has a memory"):
        ucl.plot(frame(record), "memory")


def test_a_balanced_accuracy_is_named_above_its_matrix():
    """It is the mean recall of the classes, not the mean of the last row."""
    record = record_of("ER", balanced_accuracy=True)
    a, f = 100 * np.mean(record.class_recall[-1]), 100 * record.last_forgetting
    title = ucl.plot(frame(record), "tasks").axes[0].get_title()
    assert title == f"ER\nA {a:.1f} % (balanced),\nF {f:.1f} %"


@pytest.mark.parametrize("ending", ["png", "pdf", "svg", "jpg"])
def test_a_figure_is_saved_as_its_ending_says_and_the_same_twice(tmp_path, ending):
    for name in "ab":
        plots.save(ucl.plot(RUNS, "accuracy"), tmp_path / f"{name}.{ending}")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}"]
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_run_with_further_tests_counts_once():
    """They test the same networks in other ways or at other times, and change no result."""
    records = records_of(["ER"])
    for further in (dict(readings=True), dict(evaluate_every=5)):
        records.append(replace(records[0], config=records[0].config.replace(**further), date="2025-04-01"))
    assert ucl.plot(frame(*records), "tasks").axes[0].get_title().startswith("ER, n = 2\n")


USER_SCORE = "my_uncertainty_scores_for_lesions:spread_of_top_probability_over_views(power=0.5)"


@pytest.mark.parametrize("picture", ["tasks", "accuracy", "forgetting", "classes", "memory"])
def test_the_long_name_of_a_user_score_leaves_room_for_the_axes(picture):
    figure = ucl.plot(records_of([f"{USER_SCORE} bottom", "ER"], (0, 1, 2)), picture)
    assert_readable(figure)
    if picture != "tasks":  # whose matrices are small
        assert min(ax.get_position().width * figure.get_figwidth() for ax in figure.axes) > 1  # inches
