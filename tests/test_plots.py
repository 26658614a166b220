"""Readable figures: units on the axes, one colour per method everywhere, no overlapping text."""

import itertools
import math
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import font_manager

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

import ucl
from ucl import Config, InputError, Record, plots
from ucl.plots import style
from ucl.records import Anytime

NAN = float("nan")
WAYS = {
    "Finetune": dict(method="finetune"),
    "ER": dict(population="reservoir"),
    "CBR": dict(population="class-balanced"),
    "A-GEM": dict(method="agem"),
    "BI bottom": dict(selection="bottom"),
    "BI top": dict(selection="top"),
}
ORDERED = ["ER", "CBR", "A-GEM", "Finetune", "BI bottom", "BI top"]
ALL_LABELS = [
    *ORDERED[:4],
    *(f"{score} {kept}" for score in plots.PAPER[4:] for kept in ("bottom", "step", "top")),
]
BLOOD_CELLS = [
    "neutrophil",
    "eosinophil",
    "immature granulocytes(myelocytes, metamyelocytes and promyelocytes)",
    "platelet",
    "erythroblast",
    "monocyte",
    "basophil",
    "lymphocyte",
]


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


def record_of(label, seed=0, n_tasks=3, dataset="digits", accuracy=None):
    """A record like that of a run with two classes per task."""
    name, _, selection = label.partition(" ")
    way = WAYS[label] if label in WAYS else dict(score=name, selection=selection)
    draw = np.random.default_rng([seed, *label.encode()])
    drawn = np.where(np.tri(n_tasks, dtype=bool), draw.uniform(0.05, 1, (n_tasks, n_tasks)), NAN)
    n_classes = 2 * n_tasks
    return Record(
        config=Config(dataset=dataset, n_tasks=n_tasks, seed=seed, **way),
        accuracy=drawn if accuracy is None else np.array(accuracy),
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
        timing={"total": 12.0, "training": 6.5, "memory": None, "evaluation": 2.0, "batches": 5},
        environment={"device": "cpu"},
        data={"name": dataset, "fingerprint": "0123456789abcdef", "training_images": 60},
        date="2025-03-01T12:00:00+00:00",
    )


def records_of(labels=tuple(WAYS), seeds=(0, 1), **facts):
    return [record_of(label, seed, **facts) for seed in seeds for label in labels]


def with_curves(records, batches=(5, 10, 15, 20, 25, 30)):
    """The same records, tested twice in each of three tasks; some of 20 validation images per task are correct."""
    tested = []
    for record in records:
        draw = np.random.default_rng([record.config.seed, *record.config.label.encode()])
        correct = draw.integers(2, 21, (len(batches), 3)).astype(float)
        correct[np.repeat(~np.tri(3, dtype=bool), 2, axis=0)] = NAN
        anytime = Anytime(np.array(batches), correct, np.array([20] * 3))
        tested.append(replace(record, anytime=anytime, config=record.config.replace(evaluate_every=5)))
    return tested


def table_of(records):
    return pd.DataFrame([record.summary() for record in records])


def stream_of(names, n_tasks):
    tasks = [1 + c * n_tasks // len(names) for c in range(len(names))]
    return pd.DataFrame({"class": names, "task": tasks, "images": range(200, 200 - len(names), -1)})


def counts_of(names):
    """A memory of 40, full after 4 batches, whose classes come one after another."""
    rows = [
        [(t >= 5 * c) * min(40, 10 * t) / (1 + min(t // 5, len(names) - 1)) for c in range(len(names))]
        for t in range(1, 51)
    ]
    return pd.DataFrame(rows, index=range(1, 51), columns=names)


def batches_of_classes(names):
    """A stream of 40 batches of 10 images, in which a class comes every few batches."""
    rows = [[10 if batch % len(names) == c else 0 for c in range(len(names))] for batch in range(40)]
    return pd.DataFrame(rows, columns=names)


def pictures(n, channels=3, side=8):
    return np.random.default_rng(n).integers(0, 256, (n, side, side, channels), dtype=np.uint8)


DIGITS = [str(c) for c in range(10)]
PLANE = np.linspace(0, 1, 25).reshape(5, 5)
FIGURES = {
    "accuracy_matrices": lambda: plots.accuracy_matrices(records_of(seeds=[0])[:4]),
    "one accuracy matrix": lambda: plots.accuracy_matrices([record_of("ER")]),
    "accuracy_over_stream": lambda: plots.accuracy_over_stream(records_of()),
    "accuracy_and_forgetting": lambda: plots.accuracy_and_forgetting(records_of()),
    "class_recall": lambda: plots.class_recall(records_of()),
    "memory_samples": lambda: plots.memory_samples({'ER: "3"': pictures(12), 'BI top: "3"': pictures(3)}),
    "scored_images": lambda: plots.scored_images(
        pictures(12), np.geomspace(1e-5, 4e3, 12), ["new"] * 12, [True, False] * 6
    ),
    "score_distributions": lambda: plots.score_distributions(records_of(ORDERED[:3] + ORDERED[4:])),
    "stream_classes": lambda: plots.stream_classes(stream_of(DIGITS, 5)),
    "memory_over_time": lambda: plots.memory_over_time(counts_of(DIGITS), [10, 20, 30, 40]),
    "class_shares": lambda: plots.class_shares(
        {title: batches_of_classes(DIGITS) for title in ("clear", "gradual", "blurry")},
        {title: [10, 20, 30, 40] for title in ("clear", "gradual", "blurry")},
    ),
    "accuracy_over_batches": lambda: plots.accuracy_over_batches(with_curves(records_of())),
    "relative_improvement": lambda: plots.paper.relative_improvement(table_of(records_of(["ER", *ALL_LABELS[4:]]))),
    "task_accuracy": lambda: plots.paper.task_accuracy(table_of(records_of() + records_of(dataset="bloodcell"))),
    "memories": lambda: plots.paper.memories(
        {label: {"least\nuncertain": pictures(10), "most": pictures(7)} for label in ("CBR, 50 in memory", "BI bottom")}
    ),
    "view_grid": lambda: plots.paper.view_grid(np.full((12, 2, 8, 8, 3), 0.5), ucl.views.VIEWS, pictures(2)),
    "maps": lambda: plots.paper.maps(
        {"confidence": PLANE, "BI [nats]": PLANE}, np.zeros((3, 2)), np.arange(3), (-8, 8, -7, 9)
    ),
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
    """Corners, in pixels, of the box around a text; the box is rotated with the text."""
    box, angle = text.get_window_extent(), math.radians(text.get_rotation())
    text.set_rotation(0)
    straight = text.get_window_extent()
    text.set_rotation(math.degrees(angle))
    along = np.array([math.cos(angle), math.sin(angle)]) * straight.width / 2
    across = np.array([-math.sin(angle), math.cos(angle)]) * straight.height / 2
    centre = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    return centre + np.array([along + across, along - across, -along - across, across - along])


def overlap(a, b, slack=1.0):
    """Whether two rotated boxes overlap by more than a pixel, by the separating axis theorem."""
    for box in (a, b):
        for side in (box[1] - box[0], box[2] - box[1]):
            at = side / np.linalg.norm(side)
            if min((a @ at).max(), (b @ at).max()) - max((a @ at).min(), (b @ at).min()) <= slack:
                return False
    return True


def assert_readable(figure):
    """Check that no texts overlap, that the edge cuts off no text, and that no legend covers axes."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    boxes = [(text.get_text(), corners(text)) for text in texts(figure)]
    assert boxes
    clashes = [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if overlap(x, y)]
    cut = [name for name, box in boxes if (box < -2).any() or (box > np.array([width, height]) + 2).any()]
    covered = [ax for legend in figure.legends for ax in figure.axes if legend.get_window_extent().overlaps(ax.bbox)]
    assert (clashes, cut, covered) == ([], [], [])


def words(figure):
    return {text.get_text() for text in texts(figure)}


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


# What is written


CROWDED = {
    "20 tasks in a matrix": lambda: plots.accuracy_matrices(records_of(["ER", "CBR"], n_tasks=20, seeds=[0])),
    "10 tasks all at 100 %": lambda: plots.accuracy_matrices(
        [record_of("ER", n_tasks=10, accuracy=np.where(np.tri(10), 1, NAN))]
    ),
    "20 tasks over the stream": lambda: plots.accuracy_over_stream(records_of(n_tasks=20)),
    "all methods over the stream": lambda: plots.accuracy_over_stream(records_of(ALL_LABELS)),
    "all methods over a stream with balanced accuracy": lambda: plots.accuracy_over_stream(
        records_of(ALL_LABELS, dataset="bloodcell", seeds=[0])
    ),
    "all methods' accuracy": lambda: plots.accuracy_and_forgetting(records_of(ALL_LABELS)),
    "all methods on 100 classes": lambda: plots.class_recall(records_of(ALL_LABELS, n_tasks=50)),
    "all methods' distributions": lambda: plots.score_distributions(records_of(ALL_LABELS)),
    "all methods task by task": lambda: plots.paper.task_accuracy(table_of(records_of(ALL_LABELS))),
    "blood cells": lambda: plots.stream_classes(stream_of(BLOOD_CELLS, 4)),
    "blood cells over time": lambda: plots.memory_over_time(counts_of(BLOOD_CELLS), [20, 40]),
    "tumours in a memory": lambda: plots.paper.memories({"CBR": dict.fromkeys(TUMOURS, pictures(1))}, columns=1),
    "a batch of tumours": lambda: plots.memory_samples({f"the batch: {', '.join(TUMOURS)}": pictures(10)}),
    "blood cells in memory": lambda: plots.memory_samples({f'BI bottom: "{BLOOD_CELLS[2]}" in memory': pictures(10)}),
    "blood cells in three memories": lambda: plots.paper.memories(
        {label: {name: pictures(5) for name in BLOOD_CELLS} for label in ("CBR", "BI bottom", "BI top")}
    ),
    "blood cells with scores": lambda: plots.scored_images(pictures(8), np.full(8, -1.23e-5), BLOOD_CELLS),
    "100 classes in 20 tasks": lambda: plots.stream_classes(stream_of([f"class {c}" for c in range(100)], 20)),
    "100 classes over time": lambda: plots.memory_over_time(counts_of([f"class {c}" for c in range(100)]), [10, 20]),
}


@pytest.mark.parametrize("name", CROWDED)
def test_a_crowded_figure_stays_readable(name):
    """The longest names and largest numbers of the paper's data sets."""
    assert_readable(CROWDED[name]())


AXES = {
    "accuracy_matrices": {"tested on task", "after learning task", "accuracy [%]"},
    "accuracy_over_stream": {
        "tasks learnt",
        "accuracy [%]",
        "Accuracy on all tasks seen so far",
        "mean ± std, n = 2",
    },
    "accuracy_and_forgetting": {"last accuracy A [%]", "last forgetting F [%]", "accuracy [%]", "last task"},
    "class_recall": {
        "recall at the end of the stream [%]",
        "classes in the order of the stream",
        "class 5",
        "digits: 60 training images",
    },
    "score_distributions": {
        "share of images\nwith at most this value",
        "confidence (mean of 12 views)",
        "Bregman Information [nats]\n(logarithmic above 0.1)",
    },
    "stream_classes": {"training images", "classes in the order of the stream", "task 1", "task 5"},
    "memory_over_time": {"images in memory", "batches seen (dashed: a task ends)", "class"},
    "class_shares": {
        "share of the images [%]",
        "batches of the stream\n(dashed: a task ends)",
        "class",
        "clear",
        "gradual",
        "blurry",
    },
    "accuracy_over_batches": {
        "accuracy [%]",
        "batches learnt\n(vertical line: the last test of a task)",
        "Accuracy on all tasks begun so far",
        "Accuracy on the first task",
        "mean ± std, n = 2",
    },
    "memory_samples": {'ER: "3"', 'BI top: "3"'},
    "scored_images": {"new", "1e-05", "4e+03"},
    "relative_improvement": {
        "reduction of F against ER [%]\n(below 0: forgets more)",
        "digits, memory 50\neverything rescored, n = 2",
    },
    "task_accuracy": {
        "accuracy [%]",
        "task, in the order of the stream",
        "bloodcell, memory 40\nscores: everything rescored, n = 2",
    },
    "memories": {"CBR, 50 in memory", "BI bottom", "least\nuncertain", "most"},
    "view_grid": {"original", *(name.replace(" ", "\n", 1) for name in ucl.views.VIEWS)},
    "maps": {"confidence", "BI [nats]", "$x_1$", "$x_2$"},
}


@pytest.mark.parametrize("name", FIGURES)
def test_axes_say_what_they_show_and_no_text_lies_upon_another_or_off_the_edge(name):
    figure = FIGURES[name]()
    assert words(figure) >= AXES.get(name, set())
    assert_readable(figure)


def test_every_public_figure_is_looked_at_here():
    made = {
        name
        for module in (plots.accuracy, plots.memory, plots.paper)
        for name, function in vars(module).items()
        if getattr(function, "__module__", "") == module.__name__ and function.__annotations__.get("return") == "Figure"
    }
    assert made == set(AXES) == set(FIGURES) - {"one accuracy matrix"}


# Names of classes and methods


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.text("ab …(1)", max_size=40), st.text("ab", max_size=3)).map("".join), max_size=20),
    st.integers(10, 30),
)
def test_different_names_have_different_texts_of_at_most_some_length(names, length):
    texts = style.shortened(names, length)
    assert len(set(zip(names, texts, strict=True))) == len(set(texts)) == len(set(names))
    assert max(map(len, texts), default=0) <= length
    # Only a name that looks like the text of another one is changed although it is short.
    assert all(text == name for name, text in zip(names, texts) if len(name) <= length and not {*"…("} & {*name})


@pytest.mark.parametrize(
    ("names", "texts"),
    [
        (BLOOD_CELLS[1:3], ["eosinophil", "immature granulocytes…"]),
        (TUMOURS[:3:2], ["squamou…well differen…", "squamou…poorly differ…"]),
        (TUMOURS[3:5], ["squamou…lung, stage I", "squamou…lung, stage II"]),
        (["a" * 30 + "b" * n for n in range(2)] + ["c"] * 2, [f"aaaaaaa…{'a' * 14}", f"aaaaaaa…{'a' * 13}b", "c", "c"]),
        ([f"{'a' * 40}{c}{'b' * 40}" for c in "aab"], ["aaaaaaa…aaaaaaaabbbbb…"] * 2 + ["aaaaaaa…aaaaaaabbbbbb…"]),
    ],
)
def test_names_that_are_cut_show_where_they_differ(names, texts):
    assert style.shortened(names) == texts


def test_the_classes_of_a_picture_have_different_names():
    record = replace(record_of("ER"), classes=TUMOURS[:6])
    counts, ends, memories = batches_of_classes(TUMOURS), [20, 40], {"ER": dict.fromkeys(TUMOURS, pictures(1))}
    shown = [
        [text.get_text() for text in plots.class_recall([record]).axes[0].get_yticklabels()],
        [text.get_text() for text in plots.stream_classes(stream_of(TUMOURS, 5)).axes[0].get_xticklabels()],
        [ax.get_title() for ax in plots.scored_images(pictures(10), np.ones(10), TUMOURS).axes],
        legend_of(plots.memory_over_time(counts_of(TUMOURS), ends)),
        legend_of(plots.class_shares({"clear": counts}, {"clear": ends})),
        [text.get_text() for ax in plots.paper.memories(memories).axes for text in ax.texts],
    ]
    for names in shown:
        assert len(set(names)) == len(names) >= 6, names


def test_a_name_may_begin_with_an_underscore():
    """matplotlib leaves such labels out of a legend that it collects itself."""
    names = ["_suspicious", *DIGITS]
    classes = [
        plots.memory_over_time(counts_of(names), [20, 40]),
        plots.class_shares({"clear": batches_of_classes(names)}, {"clear": [20, 40]}),
    ]
    assert [legend_of(figure) for figure in classes] == [names[::-1]] * 2
    records = with_curves(records_of(["ER", "_mine:score bottom"]))
    for draw in (plots.accuracy_over_stream, plots.accuracy_over_batches, plots.score_distributions):
        assert legend_of(draw(records)) == ["ER", "_mine:score bottom"]


def test_long_names_of_classes_leave_room_for_the_axes():
    """The figure is widened by what its legend needs, and keeps its width next to short names."""
    short, long = (
        plots.class_shares({"clear": batches_of_classes(names)}, {"clear": [20, 40]}) for names in (DIGITS, TUMOURS)
    )
    assert_readable(long)
    assert short.get_figwidth() == pytest.approx(4.7) and long.axes[0].get_window_extent().width / long.dpi > 2


@pytest.mark.parametrize(
    "names",
    [
        [f"long name {n} of a score\nof the user's own,\nin three lines" for n in range(8)],
        ["a name\nin two lines", *map(str, range(25))],
    ],
    ids=["all", "one"],
)
def test_a_legend_of_names_in_several_lines_fits_and_leaves_room_for_the_axes(names):
    with plt.rc_context(style.STYLE):
        figure, ax = plt.subplots(figsize=(6, 3))
        style.legend(figure, [plt.Line2D([], []) for _ in names], names)
    assert legend_of(figure) == names
    assert_readable(figure)
    assert ax.get_window_extent().width / figure.dpi > 2


def test_a_long_title_leaves_the_images_their_size():
    sizes = []
    for title in ("the batch", f"the batch: {', '.join(TUMOURS)}"):
        figure = plots.memory_samples({title: pictures(10)})
        figure.canvas.draw()
        sizes.append(figure.subfigs[0].axes[0].get_window_extent().width)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


# What is drawn


HAND_MADE = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.1, 0.4, 1.0]]  # A = 50 %, F = (80 + 40) / 2 %


def test_an_accuracy_matrix_shows_its_per_cents_and_nothing_above_the_diagonal():
    figure = plots.accuracy_matrices([record_of("ER", accuracy=HAND_MADE), record_of("BI bottom")])
    ax = figure.axes[0]
    assert ax.get_title() == "ER\nA 50.0 %, F 60.0 %"
    assert [t.get_text() for t in ax.texts] == ["90", "50", "80", "10", "40", "100"]
    shown = ax.collections[0].get_array().reshape(3, 3)
    np.testing.assert_allclose(shown.filled(NAN), 100 * np.array(HAND_MADE))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "3"]
    clims = {collection.get_clim() for ax in figure.axes[:2] for collection in ax.collections}
    assert clims == {(0, 100)}  # one scale for all, and the colour bar's


def test_lines_are_means_over_seeds_and_bands_their_sample_deviation():
    other = [[0.7, NAN, NAN], [0.1, 0.8, NAN], [0.5, 0.4, 1.0]]
    records = [record_of("ER", seed, accuracy=a) for seed, a in enumerate((HAND_MADE, other))]
    figure = plots.accuracy_over_stream(records)
    seen, first = figure.axes
    np.testing.assert_allclose(seen.lines[0].get_xydata(), [(1, 80), (2, (65 + 45) / 2), (3, (50 + 190 / 3) / 2)])
    np.testing.assert_allclose(first.lines[0].get_xydata(), [(1, 80), (2, 30), (3, 30)])
    band = first.collections[0].get_paths()[0].vertices
    spread = np.std([50, 10], ddof=1)
    assert sorted({round(y, 6) for x, y in band if x == 2}) == pytest.approx([30 - spread, 30 + spread])
    assert seen.get_ylim() == first.get_ylim() == (0, 102)


def test_curves_between_task_ends_are_means_over_seeds_and_their_tests_are_in_order():
    records = with_curves(records_of(["BI top", "ER"]))
    later = np.array([5, 10, 15, 20, 25, 31])  # the stream of another seed may be a batch longer
    records[2] = replace(records[2], anytime=replace(records[2].anytime, batches=later))
    seen, first = plots.accuracy_over_batches(records).axes
    task_ends = [line.get_xdata()[0] for line in seen.lines[:2]]
    assert task_ends == [10, 20]
    er, top = seen.lines[2:]
    assert [line.get_label() for line in (er, top)] == ["ER", "BI top"]
    assert to_rgb(er.get_color()) == pytest.approx(plots.color("ER"))
    assert top.get_xdata().tolist() == [5, 10, 15, 20, 25, 30.5]
    a = np.mean([100 * r.anytime.accuracy for r in records if r.config.label == "ER"], axis=0)
    np.testing.assert_allclose(er.get_ydata(), [np.nanmean(row) for row in a])
    np.testing.assert_allclose(first.lines[2].get_ydata(), a[:, 0])


def test_records_tested_after_each_task_only_have_no_curve():
    with pytest.raises(InputError, match="evaluate_every") as refusal:
        plots.accuracy_over_batches(records_of(["ER"]))
    assert "\n" not in str(refusal.value)


def test_shares_of_the_classes_add_up_and_end_with_the_stream():
    counts = pd.DataFrame([[10, 0]] * 20 + [[5, 5]] * 20, columns=["a", "b"])
    (ax,) = plots.class_shares({"mixed": counts}, {"mixed": [20, 40]}).axes
    assert ax.get_xlim() == (0, 40) and ax.get_ylim() == (0, 100)
    assert [line.get_xdata()[0] for line in ax.lines] == [20]
    lower, upper = (area.get_paths()[0].vertices for area in ax.collections)
    assert lower[:, 1].max() == 100 and set(upper[upper[:, 0] < 20][:, 1]) == {100}
    assert 50 in lower[lower[:, 0] > 20][:, 1]


def test_bars_are_means_over_seeds_and_dots_are_seeds():
    other = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.3, 0.6, 1.0]]  # A = 63.3 %, F = 40 %
    records = [record_of("ER", seed, accuracy=a) for seed, a in enumerate((HAND_MADE, other))]
    last, forgotten, parts = plots.accuracy_and_forgetting([*records, record_of("BI top")]).axes
    assert last.patches[0].get_width() == pytest.approx((50 + 190 / 3) / 2)
    assert forgotten.patches[0].get_width() == pytest.approx(50)
    of_er = [x for x, y in forgotten.lines[0].get_xydata() if y == 0]
    assert sorted(of_er) == pytest.approx([40, 60])
    top, bottom = (last.transData.transform((0, place))[1] for place in (0, 1))
    assert top > bottom  # the first method is the uppermost
    line, *marks = parts.lines[:4]
    best, retained, last_task = 100 * np.array([(0.8 + 0.9) / 2, (0.1 + 0.4 + 0.3 + 0.6) / 4, 1.0])
    assert line.get_xdata().tolist() == pytest.approx([retained, best]) and best - retained == pytest.approx(50)
    assert [mark.get_xdata()[0] for mark in marks] == pytest.approx([best, retained, last_task])


def test_recalls_are_means_over_seeds_and_dots_are_seeds_in_the_order_of_the_stream():
    records = records_of(["ER", "BI bottom"], seeds=(0, 1, 2))
    for record in records:
        record.class_order = [5, 3, 1, 0, 2, 4]
        record.class_recall[-1, 4] = NAN  # the test set has no image of this class
    (ax,) = plots.class_recall(records).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"class {c}" for c in (5, 3, 1, 0, 2, 4)]
    for label, means, seeds in zip(("ER", "BI bottom"), ax.lines[:4:2], ax.lines[1:4:2], strict=True):
        own = np.array([100 * r.class_recall[-1, r.class_order] for r in records if r.config.label == label])
        np.testing.assert_allclose(means.get_xdata(), own.mean(0))
        np.testing.assert_allclose(seeds.get_xdata(), own.ravel())
        assert to_rgb(means.get_color()) == pytest.approx(plots.color(label))
        assert (np.round(means.get_ydata()) == range(6)).all()


def test_classes_have_the_order_of_their_labels_where_the_orders_of_the_streams_differ():
    records = records_of(["ER"])
    records[1].class_order = records[1].class_order[::-1]
    (ax,) = plots.class_recall(records).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"class {c}" for c in range(6)]
    assert ax.get_ylabel() == "classes"


def test_a_class_order_by_size_is_named():
    records = [replace(record, config=record.config.replace(class_order="size")) for record in records_of(["ER"])]
    assert plots.class_recall(records).axes[0].get_ylabel().endswith("of the stream, largest first")


def test_names_have_the_characters_of_further_installed_fonts(tmp_path, monkeypatch):
    """A made-up font has a character that the default font lacks; without it the character is missing."""
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "cell"])
    builder.setupCharacterMap({ord("\N{CJK UNIFIED IDEOGRAPH-7D30}"): "cell"})
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0)), pen.lineTo((900, 0)), pen.lineTo((900, 900)), pen.closePath()
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "cell": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "cell": (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Made Up Cells", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "cells.ttf")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    record = replace(record_of("ER"), classes=["\N{CJK UNIFIED IDEOGRAPH-7D30}"] * 6)

    def draw():
        memories = plots.paper.memories({"ER": {record.classes[0]: pictures(2)}})
        for figure in (plots.class_recall([record]), plots.stream_classes(stream_of(record.classes, 3)), memories):
            plots.save(figure, tmp_path / "figure")

    monkeypatch.setitem(plots.STYLE, "font.family", style.font_families(["Made Up Cells"]))
    with pytest.warns(UserWarning, match="Glyph 32048 .* missing from (current )?font"):  # "current" in matplotlib 3.8
        draw()
    font_manager.fontManager.addfont(tmp_path / "cells.ttf")
    monkeypatch.setitem(plots.STYLE, "font.family", style.font_families(["Made Up Cells", "Not There"]))
    assert plots.STYLE["font.family"] == ["sans-serif", "Made Up Cells"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw()


@pytest.mark.parametrize("name", ["a$b$c", "$", "$\\frac$ x", "µ$_é"])
def test_a_class_name_with_dollar_signs_is_no_formula(name):
    """matplotlib draws a formula between two dollar signs, and fails where it is not valid."""
    record = record_of("ER")
    record.classes = [name, *record.classes[1:]]
    figures = [
        plots.class_recall([record]),
        plots.stream_classes(stream_of(record.classes, 3)),
        plots.memory_over_time(counts_of(record.classes), [20, 40]),
        plots.memory_samples({name: pictures(3)}),
        plots.scored_images(pictures(6), np.ones(6), record.classes),
    ]
    for figure in figures:
        shown = [text for text in texts(figure) if "$" in text.get_text()]
        assert shown, figure
        figure.canvas.draw()
        assert all(text._preprocess_math(text.get_text()) == (name, False) for text in shown)


def test_distributions_are_the_shares_at_or_below_a_value():
    records = records_of(["ER", "BI top"])  # two seeds of each: 60 samples
    confidence, information = plots.score_distributions(records).axes
    for ax, column in ((confidence, "confidence"), (information, "bregman_information")):
        values = np.sort(np.concatenate([r.memory[column] for r in records if r.config.label == "ER"]))
        x, y = ax.lines[0].get_data()
        np.testing.assert_allclose(x[1:], values)
        np.testing.assert_allclose(y[1:], np.arange(1, 61) / 60)
    assert information.get_xlim()[0] == 0


def test_a_memory_that_is_none_has_no_distribution():
    figure = plots.score_distributions([record_of("ER"), replace(record_of("Finetune"), memory={})])
    assert legend_of(figure) == ["ER"]


def test_runs_with_and_without_readings_are_of_one_method():
    one, other = records_of(("ER",))
    read = replace(other, config=other.config.replace(readings=True))
    assert "mean ± std, n = 2" in words(plots.accuracy_over_stream([one, read]))


@pytest.mark.parametrize("draw", [plots.accuracy_over_stream, plots.accuracy_and_forgetting, plots.score_distributions])
def test_no_mean_is_taken_over_two_versions_of_the_images_or_of_a_score(draw):
    records = records_of(("ER", "BI bottom"))
    records[-1].data["fingerprint"] = "bb"
    with pytest.raises(InputError, match=r"0123456789abcdef and bb; .* --where fingerprint=0123456789abcdef$"):
        draw(records)
    records = records_of(("mine:score bottom",))
    records[-1].environment["score_source"] = "bb"
    with pytest.raises(InputError, match="differ in source "):
        draw(records)


def test_no_score_is_compared_with_a_random_memory_on_other_images():
    records = records_of(("ER", "BI bottom", "BI top"))
    for record in records:
        if record.config.label == "ER":
            record.data["fingerprint"] = "bb"
    with pytest.raises(InputError, match="fingerprint"):
        plots.paper.relative_improvement(table_of(records))


@pytest.mark.parametrize(
    "draw",
    [
        plots.accuracy_over_stream,
        plots.accuracy_and_forgetting,
        plots.class_recall,
        plots.score_distributions,
        lambda records: plots.paper.relative_improvement(table_of(records)),
        lambda records: plots.paper.task_accuracy(table_of(records)),
    ],
)
def test_mixed_arithmetics_are_named_above_a_figure(draw):
    records, note = records_of(("ER", "BI bottom")), "BI bottom scored in bfloat16 and float32"
    figure = draw(records)
    assert figure.get_suptitle() == "" and note not in words(figure)
    for record in records:
        record.environment["scoring_precision"] = "float32" if record.config.seed else "bfloat16"
    figure = draw(records)
    assert_readable(figure)
    (drawn,) = (text for text in texts(figure) if text.get_text() == note)
    assert drawn.get_window_extent().y0 > max(ax.bbox.y1 for ax in figure.axes)


def test_no_mean_is_taken_over_runs_that_differ_in_more_than_the_seed():
    records = records_of(["ER", "BI bottom", "BI top"])
    other = replace(records[1], config=records[1].config.replace(refresh=2, scoring_batchnorm="train"))
    mixed, sizes = [*records, other], replace(records[0], config=records[0].config.replace(memory_size=20))
    for draw in (plots.accuracy_over_stream, plots.accuracy_and_forgetting, plots.score_distributions):
        with pytest.raises(InputError, match=r"BI bottom.*refresh \(1, 2\), scoring_batchnorm"):
            draw(mixed)
        with pytest.raises(InputError, match=r"ER.*memory_size"):
            draw([*records, sizes])
    for draw in (plots.paper.relative_improvement, plots.paper.task_accuracy):
        with pytest.raises(InputError, match=r"BI bottom.*scoring_batchnorm"):
            draw(table_of(mixed))
        draw(table_of([*records, sizes]))  # one panel per size


def test_memory_samples_are_the_very_images():
    grey, few = pictures(7, channels=1), pictures(2)
    figure = plots.memory_samples({"grey": grey, "few": few, "none": few[:0]}, columns=4)
    upper, lower, none = figure.subfigs
    assert [part.get_suptitle() for part in figure.subfigs] == ["grey", "few", "none"]
    shown = [ax.images[0] for ax in upper.axes if ax.images]
    assert len(upper.axes) == 8 and len(shown) == 7  # two rows of four
    for image, drawn in zip(grey, shown, strict=True):
        np.testing.assert_array_equal(drawn.get_array(), image[..., 0])
        assert (drawn.get_clim(), drawn.get_cmap().name) == ((0, 255), "gray")  # black is 0, not the darkest pixel
    for image, ax in zip(few, lower.axes, strict=False):
        np.testing.assert_array_equal(ax.images[0].get_array(), image)
    assert not any(ax.images for ax in none.axes)
    assert not any(ax.axison for ax in figure.axes)


def test_scored_images_are_the_very_images_and_a_frame_marks_what_stays():
    images = pictures(5, channels=1)
    figure = plots.scored_images(images, [0.1, 0.25, 0.5, 1, 20], stays=[True, False, True, False, False], columns=3)
    drawn, empty = figure.axes[:5], figure.axes[5:]
    for image, ax in zip(images, drawn, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), image[..., 0])
    assert [ax.get_xlabel() for ax in drawn] == ["0.1", "0.25", "0.5", "1", "20"]
    assert [ax.spines["left"].get_visible() for ax in drawn] == [True, False, True, False, False]
    assert [ax.images[0].get_alpha() is None for ax in drawn] == [True, False, True, False, False]
    assert len(empty) == 1 and not empty[0].axison


def test_scored_images_without_a_decision_are_neither_framed_nor_pale():
    for ax in plots.scored_images(pictures(2), [0, 1]).axes:
        assert not ax.spines["left"].get_visible() and ax.images[0].get_alpha() is None


def test_the_stream_has_a_bar_a_class_and_a_shade_a_task():
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
    upper = {x: max(y for at, y in edge if at == x) for x in (1, 25, 50)}
    for x, y in upper.items():
        assert y == pytest.approx(max(counts.loc[max(1, x - 1)].sum(), counts.loc[x].sum()))
    assert [line.get_xdata()[0] for line in ax.lines] == [10, 20]
    assert legend_of(figure) == DIGITS[::-1]  # the uppermost area first
    assert ax.get_xlim() == (1, 50)
    assert [line.get_xdata()[0] for line in plots.memory_over_time(counts, [10, 50]).axes[0].lines] == [10]


def test_a_line_separates_neighbouring_classes_whose_shades_are_similar():
    shares = plots.class_shares({"clear": batches_of_classes(DIGITS)}, {"clear": [20, 40]})
    for figure in (plots.memory_over_time(counts_of(DIGITS), [10, 20]), shares):
        for band in figure.axes[0].collections:
            assert to_rgb(band.get_edgecolor()[0]) == (1, 1, 1) and band.get_linewidth()[0] > 0


def test_improvement_is_relative_to_experience_replay_at_the_same_seed():
    better = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.6, 0.5, 1.0]]  # F = 30 %; ER has 60 %
    records = [record_of("ER", 0, accuracy=HAND_MADE), record_of("BI bottom", 0, accuracy=better)]
    figure = plots.paper.relative_improvement(table_of([*records, record_of("BI top", seed=1)]))
    (ax,) = figure.axes
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([50])  # no ER at seed 1: no bar
    assert [t.get_text() for t in ax.get_xticklabels()] == ["BI bottom"]


@pytest.mark.parametrize("nothing", [0.5, 0.6])  # F of ER is 0, or -10 %
@pytest.mark.filterwarnings("error")
def test_improvement_leaves_out_seeds_at_which_experience_replay_forgets_nothing(nothing):
    better = [[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.6, 0.5, 1.0]]  # F = 30 %; ER has 60 %
    kept = [[0.5, NAN, NAN], [0.5, 0.5, NAN], [nothing, nothing, 1.0]]
    records = [record_of("ER", seed, accuracy=own) for seed, own in enumerate((HAND_MADE, kept))]
    records += [record_of("BI bottom", seed, accuracy=better) for seed in (0, 1)]
    (ax,) = plots.paper.relative_improvement(table_of(records)).axes
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([50])
    assert ax.get_title().endswith(", n = 1")


def refreshed(record, refresh):
    return replace(record, config=record.config.replace(refresh=refresh))


def test_improvement_has_a_panel_per_setting_and_one_scale_per_data_set():
    scored = [record_of("BI bottom", seed) for seed in (0, 1)]
    records = [record_of("ER", 0), record_of("ER", 1), *scored, refreshed(scored[0], 2)]
    exact, fewer = plots.paper.relative_improvement(table_of(records)).axes
    assert exact.get_title() == "digits, memory 50\neverything rescored, n = 2"
    assert fewer.get_title() == "digits, memory 50\nrefresh=2, n = 1"
    assert exact.get_ylim() == fewer.get_ylim()


@pytest.mark.parametrize("exact, fewer, chosen", [(1, 2, 2.0), (2, 2, 1.0), (2, 1, 1.0), (0, 1, 2.0)])
def test_of_two_settings_the_one_with_more_runs_is_drawn_and_baselines_stay(exact, fewer, chosen):
    records = [record_of("BI bottom", seed) for seed in range(exact)]
    records += [refreshed(record_of("BI bottom", seed), 2) for seed in range(fewer)]
    left = plots.paper.most_measured(table_of([record_of("ER"), *records]))
    assert list(left["label"]) == ["ER"] + ["BI bottom"] * max(exact, fewer)
    assert set(left["refresh"].dropna()) == {chosen}
    only = table_of([record_of("ER")])
    assert list(plots.paper.most_measured(only)["label"]) == ["ER"]


def test_memories_are_the_very_images_in_rows_of_the_same_names():
    panels = {"CBR": {"a": pictures(7), "b": pictures(2, channels=1)}, "BI top": {"a": pictures(3), "b": []}}
    figure = plots.paper.memories(panels, columns=5)
    shown = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert len(shown) == 7 + 2 + 3
    assert all((image == own).all() for image, own in zip(shown[:7], pictures(7), strict=True))
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["a", "b"]


@pytest.mark.parametrize("name", ["ig", BLOOD_CELLS[2]])
def test_immature_granulocytes_have_their_name_whichever_file_they_are_from(name):
    figure = plots.paper.memories({"ER": {"platelet": pictures(2), name: pictures(2)}})
    names = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert names == ["platelet", "immature\ngranulocyte"]


def test_task_accuracy_is_the_last_row_of_the_matrices():
    figure = plots.paper.task_accuracy(table_of([record_of("ER", accuracy=HAND_MADE)]))
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([10, 40, 100])
    assert not figure.axes[0].texts


def of_memory(record, size):
    return replace(record, config=record.config.replace(memory_size=size))


def test_task_accuracy_has_a_row_and_a_scale_a_data_set_and_a_panel_a_memory():
    low = np.array(HAND_MADE) / 5  # 20 % at most
    records = [of_memory(record_of("ER", accuracy=HAND_MADE), size) for size in (50, 20)]
    figure = plots.paper.task_accuracy(table_of([*records, record_of("ER", dataset="bloodcell", accuracy=low)]))
    titles = [[ax.get_title() for ax in figure.axes if ax.get_subplotspec().rowspan.start == row] for row in (0, 1)]
    panels = [[title.partition("\n")[0] for title in row] for row in titles]
    assert panels == [["bloodcell, memory 40", ""], ["digits, memory 20", "digits, memory 50"]]
    assert titles[0][0].endswith("\nn = 1")
    one, none, *others = figure.axes
    assert one.get_ylim() == (0, pytest.approx(22)) and not none.axison
    assert [ax.get_ylim() for ax in others] == [(0, 102)] * 2
    assert_readable(figure)


def test_task_accuracy_has_a_method_without_a_memory_in_each_panel_of_its_data_set():
    records = [of_memory(record_of("ER"), size) for size in (50, 20)] + records_of(["Finetune"])
    records.append(record_of("Finetune", dataset="bloodcell"))
    figure = plots.paper.task_accuracy(table_of(records))
    titles = [ax.get_title() for ax in figure.axes if ax.axison]
    assert titles == ["bloodcell\nn = 1", "digits, memory 20\nn = 1 to 2", "digits, memory 50\nn = 1 to 2"]
    assert [len(ax.patches) for ax in figure.axes if ax.axison] == [3, 6, 6]  # three tasks


def test_a_bar_of_no_height_differs_from_one_that_is_not_there():
    nothing = [[0.9, NAN, NAN], [0.0, 0.8, NAN], [0.0, 0.004, 1.0]]
    records = [record_of("ER", accuracy=HAND_MADE), record_of("A-GEM", accuracy=nothing), record_of("BI top")]
    (ax,) = plots.paper.task_accuracy(table_of(records)).axes
    bars = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()) == pytest.approx(plots.color("A-GEM"))]
    assert [mark.get_text() for mark in ax.texts] == ["0", "0"]
    for mark, bar in zip(ax.texts, bars[:2], strict=True):
        assert mark.xy[0] == pytest.approx(bar.get_x() + bar.get_width() / 2)
        assert to_rgb(mark.get_color()) == pytest.approx(plots.color("A-GEM"), abs=0.05)


def test_the_mark_of_a_bar_of_no_height_can_be_read_on_white():
    records = [record_of(label, accuracy=0 * np.array(HAND_MADE)) for label in ALL_LABELS]
    marks = plots.paper.task_accuracy(table_of(records)).axes[0].texts
    assert len(marks) == 3 * len(ALL_LABELS)
    assert all(lab(to_rgb(mark.get_color()), "all cones")[0] < 80 for mark in marks)


def test_marks_of_bars_of_no_height_do_not_touch():
    records = records_of(ALL_LABELS, seeds=[0], n_tasks=5, accuracy=np.where(np.tri(5), 0.001, NAN))
    figure = plots.paper.task_accuracy(table_of([of_memory(r, size) for r in records for size in (50, 20)]))
    assert all(len(ax.texts) == 5 * len(ALL_LABELS) for ax in figure.axes)
    assert_readable(figure)


def test_figures_of_no_record_yet_are_empty_and_do_not_fail():
    none = table_of([record_of("ER")]).iloc[:0]
    for figure in (plots.paper.relative_improvement(none), plots.paper.task_accuracy(none)):
        assert not any(ax.patches for ax in figure.axes)


# Methods: order and colour


def drawn_methods(records):
    """For each figure of methods: label -> colour, in the order of the figure."""
    table = table_of(records)
    lines, bars = plots.accuracy_over_stream(records), plots.accuracy_and_forgetting(records)
    curves, tasks = plots.score_distributions(records), plots.paper.task_accuracy(table)
    for ax in (*lines.axes, *curves.axes):
        yield {line.get_label(): to_rgb(line.get_color()) for line in ax.lines if line.get_label()[0] != "_"}
    for figure in (lines, curves):
        handles = figure.legends[0].legend_handles
        yield {name: to_rgb(h.get_color()) for name, h in zip(legend_of(figure), handles, strict=True)}
    names = [t.get_text() for t in bars.axes[0].get_yticklabels()]
    for ax in bars.axes[:2]:
        yield {name: to_rgb(bar.get_facecolor()) for name, bar in zip(names, ax.patches, strict=True)}
    handles = tasks.legends[0].legend_handles
    yield {name: to_rgb(h.get_facecolor()) for name, h in zip(legend_of(tasks), handles, strict=True)}


def test_a_method_has_the_same_colour_and_place_in_every_figure():
    shuffled = records_of()[::-1]
    found = list(drawn_methods(shuffled))
    assert len(found) == 9
    for colors in found:
        assert list(colors) == ORDERED
        assert colors == {label: pytest.approx(plots.color(label)) for label in ORDERED}
    matrices = plots.accuracy_matrices(shuffled).axes[: len(ORDERED)]  # their colours show accuracies
    assert [ax.get_title().partition(",")[0] for ax in matrices] == ORDERED


def test_improvement_has_the_colours_too():
    (ax,) = plots.paper.relative_improvement(table_of(records_of(["EN top", "BI top", "ER", "EN bottom"]))).axes
    names = [t.get_text() for t in ax.get_xticklabels()]
    assert names == ["EN bottom", "EN top", "BI top"]
    assert [to_rgb(bar.get_facecolor()) for bar in ax.patches] == [pytest.approx(plots.color(name)) for name in names]


def test_methods_come_in_the_order_of_the_papers_tables_each_once():
    assert plots.method_order(ALL_LABELS[::-1] * 2) == ALL_LABELS
    assert plots.method_order(["mine:b top", "mine:a step", "BI bottom", "mine:a bottom", "ER"]) == [
        "ER",
        "BI bottom",
        "mine:a bottom",
        "mine:a step",
        "mine:b top",
    ]
    assert plots.method_order([]) == []
    labels = ["CBR", "CBR redraw", "BI bottom", "BI bottom, published settings", "mine:a"]
    assert plots.method_order(labels[::-1]) == labels
    assert plots.color("BI bottom, published settings") == plots.color("BI bottom")
    values = [f"mine:f(k={k}) bottom" for k in (0.5, 2, 10)]
    assert plots.method_order(values[::-1]) == values


def test_scores_of_the_users_own_differ_in_colour_and_keep_it(monkeypatch):
    monkeypatch.setattr(style, "_taken", {})
    names = [f"mine:spread(power={power}, scale=2)" for power in range(7)]
    assert len({plots.color(f"{name} bottom") for name in names}) == len({plots.color(name) for name in names}) == 7
    assert plots.dash(f"{names[0]} top") == plots.dash("BI top") != plots.dash(f"{names[0]} bottom")
    assert plots.color("mine:spread bottom") == plots.color("mine:spread bottom") != plots.color("mine:spread top")


@pytest.mark.parametrize(
    "draw",
    [plots.accuracy_over_stream, plots.accuracy_and_forgetting, plots.class_recall, plots.score_distributions],
    ids=lambda f: f.__name__,
)
def test_a_figure_of_nothing_says_so(draw):
    with pytest.raises(ucl.InputError, match="none of these runs is measured"):
        draw([])


def test_no_two_methods_share_a_colour():
    colors = [plots.color(label) for label in (*ALL_LABELS, "mine:score bottom", "mine:score top")]
    assert all(0 <= part <= 1 for color in colors for part in color)
    closest = min(math.dist(a, b) for a, b in itertools.combinations(colors, 2))
    assert closest > 0.02


def test_selections_differ_in_dash_as_well_as_in_shade():
    lines = plots.accuracy_over_stream(records_of(["BI bottom", "BI step", "BI top"])).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 3
    bottom, step, top = (np.array(plots.color(f"BI {kept}")) for kept in ("bottom", "step", "top"))
    assert (bottom >= step).all() and (step >= top).all() and (top > 0).any()


@pytest.mark.parametrize("score", plots.PAPER[4:])
def test_thin_lines_of_top_k_have_a_contrast_of_three_with_white(score):
    """3:1 is the least contrast of WCAG 2.1 for lines and marks; dotted lines have less ink than solid ones."""
    luminance = ((lab(plots.color(f"{score} top"), "all cones")[0] + 16) / 116) ** 3
    assert 1.05 / (luminance + 0.05) > 3


def test_a_line_just_under_finetunes_is_seen():
    """A-GEM's line often is there. It is solid under open dashes, and its larger dots show as a rim."""
    records = [record_of(label, accuracy=0 * np.array(HAND_MADE)) for label in ("A-GEM", "Finetune")]
    for ax in plots.accuracy_over_stream(records).axes:
        under, upon = ax.lines
        assert (under.get_label(), upon.get_label()) == ("A-GEM", "Finetune")
        assert under.get_linestyle() == "-" != upon.get_linestyle()
        assert under.get_markersize() > upon.get_markersize()
        assert not under.get_clip_on() and under.get_zorder() > ax.spines["bottom"].get_zorder()  # at 0 %, on the axis


# Machado, Oliveira & Fernandes (2009), severity 1: linear RGB as seen without one kind of cone.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(color, sight):
    """CIELAB (D65) of an sRGB colour as seen; a difference of 2.3 is just noticeable."""
    color = np.asarray(color)
    linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(SIGHT[sight] @ linear, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colours_are_seen_as_cielab_says():
    assert lab((1, 1, 1), "all cones") == pytest.approx([100, 0, 0], abs=1e-6)
    assert lab((1, 0, 0), "all cones") == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert lab((0.5, 0.5, 0.5), "deuteranopia") == pytest.approx(lab((0.5, 0.5, 0.5), "all cones"), abs=0.01)
    red_and_green = math.dist(lab((0.8, 0.3, 0.2), "deuteranopia"), lab((0.5, 0.48, 0.1), "deuteranopia"))
    assert red_and_green < 10  # what the test below would catch


def test_rivals_come_after_the_baselines_and_before_the_scores():
    assert plots.method_order(["BI bottom", "OCS", "ER-ACE", "Finetune", "ER", "Joint"]) == [
        "ER", "Finetune", "Joint", "ER-ACE", "OCS", "BI bottom"
    ]  # fmt: skip
    assert {plots.dash(label) for label in plots.RIVALS} == {"-."}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("labels", [ORDERED, (*plots.PAPER[:4], *plots.RIVALS)], ids=["paper", "rivals"])
def test_neighbouring_methods_differ_for_every_eye(sight, labels):
    pairs = itertools.combinations(labels, 2)
    near = {(a, b): math.dist(lab(plots.color(a), sight), lab(plots.color(b), sight)) for a, b in pairs}
    assert min(near.values()) > 10, min(near, key=near.get)


@pytest.mark.parametrize("sight", SIGHT)
def test_gss_differs_from_every_other_method_for_every_eye(sight):
    others = [*plots.PAPER, *plots.RIVALS, "BI top", "EN top", "uniform bottom"]
    near = {name: math.dist(lab(plots.color("GSS"), sight), lab(plots.color(name), sight)) for name in others}
    del near["GSS"]
    assert min(near.values()) > 10, min(near, key=near.get)


# On disk


@pytest.mark.parametrize("name", ["accuracy_over_stream", "memory_samples"])
def test_a_figure_made_twice_is_the_same_to_the_byte(tmp_path, name):
    made = [plots.save(FIGURES[name](), tmp_path / copy) for copy in ("one", "two")]
    for kind, magic in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        one, two = (path.with_suffix(kind).read_bytes() for path in made)
        assert one == two and one.startswith(magic)


def test_saving_makes_the_folder_and_tells_the_path_of_the_png(tmp_path):
    path = plots.save(plots.accuracy_matrices([record_of("ER")]), str(tmp_path / "deep" / "v1.2 matrix"))
    assert path == tmp_path / "deep" / "v1.2 matrix.png"
    assert {p.name for p in Path(tmp_path, "deep").iterdir()} == {"v1.2 matrix.png", "v1.2 matrix.pdf"}
    with Image.open(path) as image:
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_a_saved_figure_is_fine_enough_to_print_and_its_letters_stay_letters(tmp_path):
    figure = plots.accuracy_matrices([record_of("ER")])
    path = plots.save(figure, tmp_path / "matrix")
    with Image.open(path) as image:
        assert image.size == tuple(round(200 * inches) for inches in figure.get_size_inches())  # 200 dots per inch
    pdf = path.with_suffix(".pdf").read_bytes()
    assert b"/Subtype /Type3" not in pdf and b"/Type0" in pdf  # journals refuse Type 3 fonts


# --- runs that failed ---


def diverged(record):
    """The same run with a network that diverged in the second task."""
    accuracy, recall = record.accuracy.copy(), record.class_recall.copy()
    accuracy[1:] = recall[1:] = NAN
    return replace(record, accuracy=accuracy, class_recall=recall, diverged_after=1)


MIXED = [record_of("ER"), diverged(record_of("ER", 1)), diverged(record_of("BI bottom")), record_of("CBR")]
NAMES = {"ER (1 diverged)", "BI bottom (1 diverged)", "CBR"}


def words_in(figure):
    figure.canvas.draw()
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()}


@pytest.mark.parametrize(
    "plot", [plots.accuracy_over_stream, plots.accuracy_and_forgetting, plots.class_recall, plots.score_distributions]
)
@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")  # old libraries warn about each other
def test_runs_that_failed_are_left_out_and_the_method_says_so(plot):
    figure = plot(MIXED)
    assert words_in(figure) >= NAMES


def test_the_mean_of_a_method_is_that_of_the_runs_that_did_not_fail():
    figure = plots.accuracy_and_forgetting(MIXED)
    lengths = [bar.get_width() for bar in figure.axes[0].patches]
    assert lengths[0] == pytest.approx(100 * MIXED[0].last_accuracy)


def test_where_all_runs_failed_a_figure_over_the_stream_has_empty_lines():
    figure = plots.accuracy_over_stream(MIXED[1:3])
    assert all(len(line.get_xdata()) == 0 for line in figure.axes[0].lines)


def test_a_matrix_of_a_run_that_failed_says_so():
    assert "ER\ndiverged" in words_in(plots.accuracy_matrices(MIXED[1:2]))
    both = plots.accuracy_matrices(MIXED[:2]).axes[0]
    assert both.get_title().startswith("ER, 1 diverged\nA ")
    drawn = both.collections[0].get_array().reshape(3, 3)
    np.testing.assert_allclose(np.tril(drawn.filled(0)), np.tril(100 * MIXED[0].accuracy))


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")  # old libraries warn about each other
def test_the_papers_figures_leave_out_runs_that_failed_and_say_so():
    runs = table_of([*MIXED, record_of("BI top")])
    assert words_in(plots.paper.task_accuracy(runs)) >= NAMES
    assert words_in(plots.paper.relative_improvement(runs)) >= {"BI bottom (1 diverged)", "BI top"}
