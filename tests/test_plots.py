"""Readable figures: the values of records, one colour per method everywhere, no overlapping text."""

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import made_up
import matplotlib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import diverged, frame

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D
from PIL import Image

import ucl
from ucl import Config, InputError, plots
from ucl.catalogue import PAPER, WITHOUT_SCORE
from ucl.evidence.run_measures import reductions
from ucl.plots import style
from ucl.plots.images import tiles

NAN = float("nan")
ORDERED = ["ER", "CBR", "A-GEM", "Finetune", "BI bottom", "BI top"]
ALL_LABELS = [*ORDERED[:4], *(f"{score} {k}" for score in PAPER[4:] for k in ("bottom", "step", "top"))]
LONG = "immature granulocytes(myelocytes, metamyelocytes and promyelocytes)"
BLOOD_CELLS = ["neutrophil", "eosinophil", LONG, "platelet", "erythroblast", "monocyte", "basophil", "lymphocyte"]
TUMOURS = [
    f"{tissue} carcinoma of the lung, {grade}"
    for tissue in ("squamous cell", "adenosquamous")
    for grade in ("well differentiated", "moderately differentiated", "poorly differentiated", "stage I", "stage II")
]


@pytest.fixture(autouse=True)
def unchanged_settings():
    """Check that no figure changes matplotlib's settings."""
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def record_of(label, seed=0, n_tasks=3, dataset="digits", accuracy=None, **changed):
    """A record like that of a run with two classes per task; `changed` are further fields of `Config`."""
    name, _, selection = label.partition(" ")
    fields = WITHOUT_SCORE[label].fields if label in WITHOUT_SCORE else dict(score=name, selection=selection)
    draw = np.random.default_rng([seed, *label.encode()])
    drawn = np.where(np.tri(n_tasks, dtype=bool), draw.uniform(0.05, 1, (n_tasks, n_tasks)), NAN)
    n_classes = 2 * n_tasks
    return made_up.record_of(
        Config(dataset=dataset, n_tasks=n_tasks, seed=seed, **fields, **changed),
        drawn if accuracy is None else np.array(accuracy),
        class_recall=draw.uniform(0, 1, (n_tasks, n_classes)),
        classes=[f"class {c}" for c in range(n_classes)],
        class_order=list(range(n_classes)),
        memory={
            "position": list(range(30)),
            "label": [c % n_classes for c in range(30)],
            "score": [0.5] * 30,
            "confidence": draw.uniform(0.2, 1, 30).tolist(),
            "bregman_information": draw.exponential(1, 30).tolist(),
        },
    )


def records_of(labels=tuple(ORDERED), seeds=(0, 1), **facts):
    return [record_of(label, seed, **facts) for seed in seeds for label in labels]


CIFAR10 = dict(dataset="cifar10", n_tasks=5, memory_size=500)
"""A stream of the paper."""


@cache
def gains():
    """How much less each score forgets than ER, with two values of `refresh`."""
    labels = ["ER", *ALL_LABELS[4:]]
    return reductions(frame(*(run for n in (1, 2) for run in records_of(labels, refresh=n, **CIFAR10))))


def stream_of(names, n_tasks):
    tasks = [1 + c * n_tasks // len(names) for c in range(len(names))]
    return pd.DataFrame({"class": names, "task": tasks, "images": range(200, 200 - len(names), -1)})


def counts_of(names):
    """A memory of 40, full after 4 batches, whose classes come one after another."""
    shares = {t: min(40, 10 * t) / (1 + min(t // 5, len(names) - 1)) for t in range(1, 51)}
    rows = [[(t >= 5 * c) * share for c in range(len(names))] for t, share in shares.items()]
    return pd.DataFrame(rows, index=range(1, 51), columns=names)


def batches_of_classes(names):
    """A stream of 40 batches of 10 images, in which a class comes every few batches."""
    rows = [[10 if batch % len(names) == c else 0 for c in range(len(names))] for batch in range(40)]
    return pd.DataFrame(rows, columns=names)


def pictures(n, channels=3, side=8):
    return np.random.default_rng(n).integers(0, 256, (n, side, side, channels), dtype=np.uint8)


DIGITS = [str(c) for c in range(10)]
HUNDRED = [f"class {c}" for c in range(100)]
PLANE = np.linspace(0, 1, 25).reshape(5, 5)
ENDS = [10, 20, 30, 40]
FIGURES = {
    "score_distributions": lambda: plots.score_distributions(records_of(ORDERED[:3] + ORDERED[4:])),
    "memory_samples": lambda: plots.memory_samples({'ER: "3"': pictures(12), 'BI top: "3"': pictures(3)}),
    "scored_images": lambda: plots.scored_images(
        pictures(12), np.geomspace(1e-5, 4e3, 12), ["new"] * 12, [True, False] * 6
    ),
    "memory_over_time": lambda: plots.memory_over_time(counts_of(DIGITS), ENDS),
    "class_shares": lambda: plots.class_shares(
        dict.fromkeys(("clear", "gradual", "blurry"), batches_of_classes(DIGITS)),
        dict.fromkeys(("clear", "gradual", "blurry"), ENDS),
    ),
    "relative_improvement": lambda: plots.paper.relative_improvement(gains()),
    "task_accuracy": lambda: plots.paper.task_accuracy(frame(*records_of(), *records_of(dataset="bloodcell"))),
    "memories": lambda: plots.paper.memories(
        {label: {"least\nuncertain": pictures(10), "most": pictures(7)} for label in ("CBR, 50 in memory", "BI bottom")}
    ),
    "view_grid": lambda: plots.paper.view_grid(np.full((2, 13, 8, 8, 3), 0.5), ucl.views.VIEWS),
    "maps": lambda: plots.paper.maps(
        {"confidence": PLANE, "BI [nats]": PLANE}, np.zeros((3, 2)), np.arange(3), (-8, 8, -7, 9)
    ),
}
CROWDED = {  # the longest names and largest numbers of the paper's data sets
    "20 tasks in a matrix": lambda: plots.accuracy_matrices(records_of(["ER", "CBR"], n_tasks=20, seeds=[0])),
    "10 tasks all at 100 %": lambda: plots.accuracy_matrices(
        [record_of("ER", n_tasks=10, accuracy=np.where(np.tri(10), 1, NAN))]
    ),
    "20 tasks over the stream": lambda: plots.accuracy_over_stream(records_of(n_tasks=20)),
    "all methods over a stream with balanced accuracy": lambda: plots.accuracy_over_stream(
        records_of(ALL_LABELS, dataset="bloodcell", seeds=[0])
    ),
    "all methods' accuracy": lambda: plots.accuracy_and_forgetting(records_of(ALL_LABELS)),
    "all methods on 100 classes": lambda: plots.class_recall(records_of(ALL_LABELS, n_tasks=50)),
    "all methods task by task": lambda: plots.paper.task_accuracy(frame(*records_of(ALL_LABELS, n_tasks=10))),
    "blood cells": lambda: plots.stream_classes(stream_of(BLOOD_CELLS, 4)),
    "tumours over time": lambda: plots.class_shares({"clear": batches_of_classes(TUMOURS)}, {"clear": ENDS}),
    "tumours in a memory": lambda: plots.paper.memories({"CBR": dict.fromkeys(TUMOURS, pictures(1))}, columns=1),
    "100 classes in 20 tasks": lambda: plots.stream_classes(stream_of(HUNDRED, 20)),
    "100 classes over time": lambda: plots.memory_over_time(counts_of(HUNDRED), ENDS),
}


def texts(figure):
    """All texts that a reader sees."""
    unseen = set()
    for ax in figure.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            margin = 1e-9 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not (ax.axison and low - margin <= tick.get_loc() <= high + margin):
                    unseen |= {tick.label1, tick.label2}
            if not ax.axison:
                unseen.add(axis.label)
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in unseen]


def corners(text):
    """Corners, in pixels, of the box around a text, half a pixel inside; the box is rotated with the text."""
    box, angle = text.get_window_extent(), text.get_rotation()
    text.set_rotation(0)
    straight = text.get_window_extent().padded(-0.5)
    text.set_rotation(angle)
    middle = [(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2]
    to_middle = np.subtract(middle, [(straight.x0 + straight.x1) / 2, (straight.y0 + straight.y1) / 2])
    turned = Affine2D().translate(*to_middle).rotate_deg_around(*middle, angle)
    return turned.transform(straight.corners()[[0, 1, 3, 2]])


def assert_readable(figure):
    """Check that no texts overlap, that the edge cuts off no text, and that no legend covers axes."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    boxes = [(text.get_text(), corners(text)) for text in texts(figure)]
    assert boxes
    areas = [(text, Outline([*box, box[0]])) for text, box in boxes]
    clashes = [(a, b) for (a, x), (b, y) in itertools.combinations(areas, 2) if x.intersects_path(y)]
    cut = [name for name, box in boxes if (box < -2).any() or (box > np.array([width, height]) + 2).any()]
    covered = [ax for legend in figure.legends for ax in figure.axes if legend.get_window_extent().overlaps(ax.bbox)]
    assert (clashes, cut, covered) == ([], [], [])


def words_in(figure):
    figure.canvas.draw()
    return {text.get_text() for text in texts(figure)}


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("name", [*FIGURES, *CROWDED])
def test_no_text_overlaps_another_or_the_edge_and_axes_have_names(name):
    figure = (FIGURES | CROWDED)[name]()
    assert_readable(figure)
    shown = [ax for ax in figure.axes if ax.axison and (ax.lines or ax.patches)]
    assert all(ax.get_xlabel() or ax.get_title() for ax in shown)


# Names of classes and methods


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("ab ", max_size=43).map(str.rstrip), max_size=20), st.integers(10, 30))
def test_different_names_have_different_texts_of_at_most_some_length(names, length):
    texts = style.shortened(names, length)
    assert len(set(zip(names, texts, strict=True))) == len(set(texts)) == len(set(names))
    assert max(map(len, texts), default=0) <= length
    assert all(text == name for name, text in zip(names, texts) if len(name) <= length)


def of_classes(names):
    """The figures that name classes."""
    record = replace(record_of("ER"), classes=names[:6])
    return [
        plots.class_recall([record]),
        plots.stream_classes(stream_of(names, 3)),
        plots.memory_over_time(counts_of(names), ENDS),
        plots.scored_images(pictures(len(names)), np.ones(len(names)), names),
        plots.paper.memories({"ER": dict.fromkeys(names, pictures(1))}),
    ]


def test_the_classes_of_a_picture_have_different_names():
    for figure, n in zip(of_classes(TUMOURS), (6, 10, 10, 10, 10), strict=True):
        shown = [text.get_text() for text in texts(figure) if "…" in text.get_text()]
        assert len(set(shown)) == len(shown) == n, shown


def test_a_class_name_with_dollar_signs_is_not_a_formula():
    """matplotlib draws a formula between two dollar signs, and fails where it is not valid."""
    names = ["a$b$c", "$\\frac$ x"]
    for figure in of_classes([*names, *DIGITS]):
        figure.canvas.draw()
        shown = [text._preprocess_math(text.get_text()) for text in texts(figure) if "$" in text.get_text()]
        assert sorted(set(shown)) == [(name, False) for name in sorted(names)]


# What is drawn: each figure against the same numbers computed from the records


SOUND = records_of(seeds=(0, 1, 2))[::-1]  # not in the order of the figures
RECORDS = [*SOUND, *(diverged(record, 1) for record in records_of(["ER", "BI top"], seeds=[3]))]


def forgetting(a):
    return np.mean([max(a[j, i] for j in range(len(a) - 1) if j >= i) - a[-1, i] for i in range(len(a) - 1)])


def points(ax, label):
    """Where the lines and dots of a method's colour are."""
    lines = [line for line in ax.lines if to_rgb(line.get_color()) == pytest.approx(plots.color(label))]
    return [np.asarray(line.get_xydata()) for line in lines]


def bars(ax, label):
    shown = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()) == pytest.approx(plots.color(label))]
    return [bar.get_height() if ax.get_xlabel() == "" else bar.get_width() for bar in shown]


def parts_of_f(run):
    retained = run.accuracy[-1, :-1].mean()
    return [retained, retained + forgetting(run.accuracy), run.accuracy[-1, -1]]


def heights_of(ax, label):
    return points(ax, label)[0][:, 1]


DRAWN = {  # a figure, its panel, what is drawn of a method, and the same of a run, in [0, 1]
    "seen": (plots.accuracy_over_stream, 0, heights_of, lambda r: np.nanmean(r.accuracy, 1)),
    "first": (plots.accuracy_over_stream, 1, heights_of, lambda r: r.accuracy[:, 0]),
    "A": (plots.accuracy_and_forgetting, 0, bars, lambda r: [r.accuracy[-1].mean()]),
    "F": (plots.accuracy_and_forgetting, 1, bars, lambda r: [forgetting(r.accuracy)]),
    "parts of F": (  # a line from retained to best, and the last of the marks
        plots.accuracy_and_forgetting,
        2,
        lambda ax, label: [*points(ax, label)[0][:, 0], points(ax, label)[-1][0, 0]],
        parts_of_f,
    ),
    "recall": (plots.class_recall, 0, lambda ax, label: points(ax, label)[0][:, 0], lambda r: r.class_recall[-1]),
    "best recall": (
        plots.class_recall,
        0,
        lambda ax, label: points(ax, label)[1][:, 0],
        lambda r: r.class_recall[:-1].max(0),
    ),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")  # old libraries warn about each other
def test_a_figure_shows_means_over_the_sound_runs_in_the_order_and_colours_of_the_methods(name):
    draw, panel, drawn, of_run = DRAWN[name]
    figure = draw(RECORDS)
    for label in ORDERED:
        expected = np.mean([of_run(record) for record in SOUND if record.config.label == label], axis=0)
        np.testing.assert_allclose(drawn(figure.axes[panel], label), 100 * expected, err_msg=label)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    names = names if draw is plots.accuracy_and_forgetting else legend_of(figure)
    assert names == ["ER (1 diverged)", *ORDERED[1:-1], "BI top (1 diverged)"]


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")
def test_distributions_are_the_shares_at_or_below_a_value():
    without = replace(record_of("Finetune", 3), memory={})
    unknown = replace(record_of("EN step"), memory={"confidence": [None] * 30, "bregman_information": [None] * 30})
    figure = plots.score_distributions([*RECORDS, without, diverged(record_of("EN top")), unknown])
    of_scores = ["EN step", "EN top (1 diverged)", "BI bottom", "BI top (1 diverged)"]
    assert legend_of(figure) == ["ER (1 diverged)", *ORDERED[1:4], *of_scores]
    for ax, column in zip(figure.axes, ("confidence", "bregman_information"), strict=True):
        for label in ORDERED:
            values = [r.memory[column] for r in SOUND if r.config.label == label]  # three seeds: 90 samples
            (curve,) = points(ax, label)
            np.testing.assert_allclose(curve[1:, 0], np.sort(np.concatenate(values)))
            np.testing.assert_allclose(curve[1:, 1], np.arange(1, 91) / 90)
    assert figure.axes[1].get_xlim()[0] == 0


HAND_MADE = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.1, 0.4, 1.0]]  # A = 50 %, F = (80 + 40) / 2 %


def test_an_accuracy_matrix_shows_its_per_cents_and_nothing_above_the_diagonal():
    figure = plots.accuracy_matrices([record_of("ER", accuracy=HAND_MADE), record_of("BI bottom")])
    ax = figure.axes[0]
    assert ax.get_title() == "ER\nA 50.0 %, F 60.0 %"
    assert [t.get_text() for t in ax.texts] == ["90", "50", "80", "10", "40", "100"]
    shown = ax.collections[0].get_array().reshape(3, 3)
    np.testing.assert_allclose(shown.filled(NAN), 100 * np.array(HAND_MADE))
    clims = {collection.get_clim() for ax in figure.axes[:2] for collection in ax.collections}
    assert clims == {(0, 100)}  # one scale for all, and the colour bar's


def test_a_matrix_is_the_mean_over_the_sound_runs():
    runs = [record for record in RECORDS if record.config.label == "ER"]
    *sound, failed = runs
    ax = plots.accuracy_matrices(runs).axes[0]
    a, f = (100 * np.mean([measure(r.accuracy) for r in sound]) for measure in (lambda a: a[-1].mean(), forgetting))
    assert ax.get_title() == f"ER, n = 3, 1 diverged\nA {a:.1f} %, F {f:.1f} %"
    drawn = ax.collections[0].get_array().reshape(3, 3)
    np.testing.assert_allclose(drawn.filled(NAN), 100 * np.mean([record.accuracy for record in sound], axis=0))
    assert plots.accuracy_matrices([failed]).axes[0].get_title() == "ER\ndiverged"
    assert all(len(line.get_xdata()) == 0 for line in plots.accuracy_over_stream([failed]).axes[0].lines)


def test_bands_are_sample_deviations_and_dots_are_seeds():
    records = [record for record in SOUND if record.config.label == "ER"]
    first = plots.accuracy_over_stream(records).axes[1]
    of_second_task = [100 * record.accuracy[1, 0] for record in records]
    mean, std = np.mean(of_second_task), np.std(of_second_task, ddof=1)
    band = first.collections[0].get_paths()[0].vertices
    assert sorted({round(y, 6) for x, y in band if x == 2}) == pytest.approx([mean - std, mean + std])
    (dots,) = (line for line in plots.accuracy_and_forgetting(records).axes[1].lines if line.get_linestyle() == "None")
    assert sorted(dots.get_xdata()) == pytest.approx(sorted(100 * forgetting(r.accuracy) for r in records))


def test_classes_have_the_order_of_the_stream_if_all_runs_share_it():
    records = records_of(["ER"], class_order="size")
    for record in records:
        record.class_order = [5, 3, 1, 0, 2, 4]
        record.class_recall[0, 2:] = NAN  # Most classes come later.
        record.class_recall[:, 4] = NAN  # The test set has no image of this class.

    def shown():
        ax = plots.class_recall(records).axes[0]
        last, best = (where[:, 0] for where in points(ax, "ER")[:2])
        highest = [100 * pd.DataFrame(r.class_recall[:-1]).max()[r.class_order] for r in records]
        return [label.get_text()[-1] for label in ax.get_yticklabels()], ax.get_ylabel(), last, best, highest

    names, label, recall, best, highest = shown()
    assert names == [*"531024"] and label == "classes in the order of the stream, largest first"
    np.testing.assert_allclose(recall, np.mean([100 * r.class_recall[-1, r.class_order] for r in records], axis=0))
    np.testing.assert_allclose(best, np.mean(highest, axis=0))
    records[1].class_order = records[1].class_order[::-1]
    names, label, recall, *_ = shown()
    assert names == [*"012345"] and label == "classes"
    np.testing.assert_allclose(recall, np.mean([100 * r.class_recall[-1] for r in records], axis=0))


# Which runs can be averaged


AVERAGING = [plots.accuracy_over_stream, plots.accuracy_and_forgetting, plots.class_recall]
AVERAGING += [plots.score_distributions, plots.paper.task_accuracy]


@pytest.mark.parametrize("draw", AVERAGING, ids=lambda f: f.__name__)
def test_no_mean_is_taken_over_runs_that_differ_in_more_than_the_seed(draw):
    *records, er = records_of(["BI bottom", "mine:score top", "ER"])
    other_source = {"environment": er.environment | {"source": "bb"}, "config": records[1].config.replace(seed=1)}
    for change in {"config": er.config.replace(lr=0.2)}, {"data": er.data | {"fingerprint": "bb"}}, other_source:
        with pytest.raises(InputError):
            draw([*records, replace(er, **change)])
    newest = replace(er, data=er.data | {"fingerprint": "zz"}, date="2026-01-01")
    with pytest.raises(InputError, match="fingerprint=zz"):
        draw([*records, newest])
    further = replace(er, config=er.config.replace(seed=2, readings=True))  # further tests change no result
    draw(frame(*records, er, further))


# Images, streams and memories


def test_tiles_are_the_images_line_by_line_on_white():
    for images in (pictures(5), pictures(5, channels=1)):
        picture = tiles(images, columns=3, lines=2, side=8)
        assert picture.shape == (20, 30, 3)
        for n, image in enumerate(images):
            top, left = 10 * (n // 3), 10 * (n % 3)
            cell = np.pad(np.broadcast_to(image, (8, 8, 3)), [(1, 1), (1, 1), (0, 0)], constant_values=255)
            assert (picture[top : top + 10, left : left + 10] == cell).all()
        assert (picture[10:, 20:] == 255).all()


def test_scored_images_are_the_images_and_a_frame_marks_those_that_stay():
    images, stays = pictures(5, channels=1), [True, False, True, False, False]
    figure = plots.scored_images(images, [0.1, 0.25, 0.5, 1, 20], [*"abcde"], stays, columns=3)
    drawn, empty = figure.axes[:5], figure.axes[5:]
    for image, ax in zip(images, drawn, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), image[..., 0])
    assert [ax.get_xlabel() for ax in drawn] == ["0.100", "0.250", "0.500", "1.000", "20.000"]
    assert [ax.spines["left"].get_visible() for ax in drawn] == stays
    assert [ax.images[0].get_alpha() is None for ax in drawn] == stays
    assert len(empty) == 1 and not empty[0].axison
    for ax in plots.scored_images(images[:2], [0, 1], "ab").axes:  # without a decision
        assert not ax.spines["left"].get_visible() and ax.images[0].get_alpha() is None


def test_the_stream_has_a_bar_per_class_and_a_shade_per_task():
    figure = plots.stream_classes(stream_of(DIGITS, 5))
    (ax,) = figure.axes
    assert [bar.get_height() for bar in ax.patches] == list(range(200, 190, -1))
    assert [t.get_text() for t in ax.get_xticklabels()] == DIGITS
    shades = [to_rgb(bar.get_facecolor()) for bar in ax.patches]
    assert len(set(shades)) == 5 and shades[0::2] == shades[1::2]
    assert legend_of(figure) == [f"task {t}" for t in range(1, 6)]
    assert [to_rgb(h.get_facecolor()) for h in figure.legends[0].legend_handles] == shades[::2]


def test_the_memory_over_time_stacks_up_to_what_it_holds():
    counts = counts_of(DIGITS)
    figure = plots.memory_over_time(counts, [10, 20])
    (ax,) = figure.axes
    edge = ax.collections[-1].get_paths()[0].vertices  # the uppermost area
    upper = {x: max(height for position, height in edge if position == x) for x in (1, 25, 50)}
    for x, y in upper.items():
        assert y == pytest.approx(max(counts.loc[max(1, x - 1)].sum(), counts.loc[x].sum()))
    assert [line.get_xdata()[0] for line in ax.lines] == [10, 20]
    assert legend_of(figure) == DIGITS
    assert ax.get_xlim() == (1, 50)
    assert [line.get_xdata()[0] for line in plots.memory_over_time(counts, [10, 50]).axes[0].lines] == [10]


def test_shares_of_the_classes_add_up_and_end_with_the_stream():
    counts = pd.DataFrame([[10, 0]] * 20 + [[5, 5]] * 20, columns=["a", "b"])
    (ax,) = plots.class_shares({"mixed": counts}, {"mixed": [20, 40]}).axes
    assert ax.get_xlim() == (0, 40) and ax.get_ylim() == (0, 100)
    assert [line.get_xdata()[0] for line in ax.lines] == [20]
    lower, upper = (area.get_paths()[0].vertices for area in ax.collections)
    assert lower[:, 1].max() == 100 and set(upper[upper[:, 0] < 20][:, 1]) == {100}
    assert 50 in lower[lower[:, 0] > 20][:, 1]


def test_memories_are_the_images_in_rows_of_the_same_names():
    a, b = pictures(7), pictures(2, channels=1)
    panels = {"CBR": {"ig": a, "b": b}, "BI top": {"ig": a[:3], "b": []}}
    figure = plots.paper.memories(panels, columns=5)
    assert [ax.get_title() for ax in figure.axes] == ["CBR", "BI top"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["immature\ngranulocyte", "b"]
    for ax, rows in zip(figure.axes, ([a, b], [a[:3], []]), strict=True):
        picture = ax.images[0].get_array()
        for top, row, lines in zip((0, 21), rows, (2, 1), strict=True):  # the rows have 20 and 10 pixels, and 1 below
            assert (picture[top : top + 10 * lines] == tiles(row, 5, lines, 8)).all()
    assert figure.axes[0].get_yticks() == pytest.approx([10, 26])


# The paper's figures


def test_improvement_leaves_out_failures_and_seeds_at_which_experience_replay_forgets_nothing():
    better = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.6, 0.5, 1.0]]  # F = 30 %; ER has 60 %, 0 and -10 %
    er = HAND_MADE, *([[0.5, NAN, NAN], [0.5, 0.5, NAN], [kept, kept, 1.0]] for kept in (0.5, 0.6))
    records = [record_of("ER", seed, accuracy=a, **CIFAR10) for seed, a in enumerate(er)]
    records += [record_of("BI bottom", seed, accuracy=better, **CIFAR10) for seed in range(3)]
    records += [record_of("BI top", 3, **CIFAR10)]  # ER has no such seed
    records += [diverged(record_of("EN top", **CIFAR10))]
    (row,) = reductions(frame(*records)).to_dict("records")
    assert (row["label"], row["setting"], row["seed"]) == ("BI bottom", "everything rescored", 0)
    assert (row["F"], row["F_er"], row["reduction"]) == pytest.approx((30, 60, 50))


def test_figure_1_has_the_papers_bars_next_to_those_of_the_runs():
    bottom, top = plots.paper.relative_improvement(gains()).axes
    assert bottom.get_title() == "cifar10, memory 500: bottom-k" and bottom.get_ylim() == top.get_ylim()
    heights = [bar.get_height() for bar in bottom.patches[:3]]
    of_lc = gains().query("label == 'LC bottom'").groupby("setting")["reduction"].mean()
    assert heights == pytest.approx([100 * (1 - 53.11 / 74.92), *of_lc[["everything rescored", "refresh=2"]]])


@pytest.mark.parametrize("exact, fewer, chosen", [(1, 2, 2.0), (2, 2, 1.0), (2, 1, 1.0), (0, 1, 2.0)])
def test_the_setting_with_more_runs_is_drawn_and_baselines_stay(exact, fewer, chosen):
    records = [record_of("BI bottom", seed) for seed in range(exact)]
    records += [record_of("BI bottom", seed, refresh=2) for seed in range(fewer)]
    again = [replace(record, date="2025-04-01") for record in records[:1]] * 2  # A run counts once.
    left = plots.paper.most_measured(frame(record_of("ER"), *records, *again))
    assert list(left["label"]) == ["ER"] + ["BI bottom"] * max(exact, fewer)
    assert set(left["refresh"].dropna()) == {chosen}


def test_task_accuracy_has_a_panel_per_data_set_and_memory_size_with_the_means_over_sound_runs():
    low = np.array(HAND_MADE) / 5
    records = [record_of("ER", accuracy=HAND_MADE, memory_size=size) for size in (50, 20)]
    records += [record_of("Finetune", dataset="bloodcell", accuracy=low), *records_of(["Finetune"])]  # in each panel
    records += [diverged(record_of("ER", 1))]
    figure = plots.paper.task_accuracy(frame(*records))
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["bloodcell\nn = 1", "digits, memory 20\nn = 1 to 2", "digits, memory 50\nn = 1 to 2", ""]
    assert [text.get_text() for text in figure.axes[0].texts] == ["2", "8", "20"]
    assert [text.get_text() for text in figure.axes[2].texts[:3]] == ["10", "40", "100"]
    assert [label.get_text() for label in figure.axes[2].get_yticklabels()] == ["ER", "Finetune"]
    assert_readable(figure)


# Methods: order and colour


def test_methods_come_in_the_order_of_the_papers_tables_each_once():
    assert plots.method_order(ALL_LABELS[::-1] * 2) == ALL_LABELS
    labels = ["ER", "CBR", "CBR redraw", "Joint", "ER-ACE", "OCS", "BI bottom", "BI bottom, published settings"]
    labels += ["mine:a bottom", "mine:a step", "mine:b top", *(f"mine:f(k={k}) bottom" for k in (0.5, 2))]
    assert plots.method_order(labels[::-1]) == labels
    assert plots.color("BI bottom, published settings") == plots.color("BI bottom")


def test_user_scores_differ_in_colour_and_keep_it(monkeypatch):
    monkeypatch.setattr(style, "_taken", {})
    names = [f"mine:spread(power={power}, scale=2)" for power in range(10)]
    assert len({plots.color(f"{name} bottom") for name in names}) == len({plots.color(name) for name in names}) == 10
    assert plots.dash(f"{names[0]} top") == plots.dash("BI top") != plots.dash(f"{names[0]} bottom")
    assert plots.color("mine:spread bottom") == plots.color("mine:spread bottom") != plots.color("mine:spread top")


def test_selections_differ_in_dash_as_well_as_in_shade():
    lines = plots.accuracy_over_stream(records_of(["BI bottom", "BI step", "BI top"])).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 3
    bottom, step, top = (np.array(plots.color(f"BI {selection}")) for selection in ("bottom", "step", "top"))
    assert (bottom >= step).all() and (step >= top).all() and (top > 0).any()


@pytest.mark.parametrize("score", PAPER[4:])
def test_thin_lines_of_top_k_have_a_contrast_of_three_with_white(score):
    """3:1 is the least contrast of WCAG 2.1 for lines and marks; dotted lines have less ink than solid ones."""
    luminance = ((lab(plots.color(f"{score} top"), "all cones")[0] + 16) / 116) ** 3
    assert 1.05 / (luminance + 0.05) > 3


# Machado, Oliveira & Fernandes (2009), severity 1: linear RGB as seen without one kind of cone.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def lab(color, sight):
    """CIELAB (D65) of an sRGB colour as seen; a difference of 2.3 is just noticeable."""
    color = np.asarray(color)
    linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(SIGHT[sight] @ linear, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_neighbouring_methods_and_gss_differ_for_every_kind_of_sight(sight):
    pairs = [*itertools.combinations(ORDERED, 2), *itertools.combinations(WITHOUT_SCORE, 2)]
    pairs += [("GSS", name) for name in {*PAPER, *WITHOUT_SCORE, "BI top", "EN top", "uniform bottom"} - {"GSS"}]
    near = {(a, b): math.dist(lab(plots.color(a), sight), lab(plots.color(b), sight)) for a, b in pairs}
    assert min(near.values()) > 10, min(near, key=near.get)
    colors = [lab(plots.color(label), "all cones") for label in (*ALL_LABELS, "mine:score bottom", "mine:score top")]
    assert min(math.dist(a, b) for a, b in itertools.combinations(colors, 2)) > 2.3


# On disk


def test_saving_makes_the_folder_and_returns_the_path_of_the_png(tmp_path):
    figure = plots.accuracy_matrices([record_of("ER")])
    path = plots.save(figure, str(tmp_path / "deep" / "v1.2 matrix"))
    assert path == tmp_path / "deep" / "v1.2 matrix.png"
    assert {p.name for p in Path(tmp_path, "deep").iterdir()} == {"v1.2 matrix.png", "v1.2 matrix.pdf"}
    with Image.open(path) as image:
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10
        assert image.size == tuple(round(200 * inches) for inches in figure.get_size_inches())  # 200 dots per inch
    pdf = (path.parent / "v1.2 matrix.pdf").read_bytes()
    assert b"/Subtype /Type3" not in pdf and b"/Type0" in pdf  # journals refuse Type 3 fonts
