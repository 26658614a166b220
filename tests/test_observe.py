"""An observed memory is that of the run, its scores are those of the scorer; pictures and controls show its tables."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import run, unchanged
from test_plots import words_in

import ucl
from ucl import scorers
from ucl.assembly import build_model
from ucl.buffers import Buffer
from ucl.catalogue import SCORES
from ucl.machine.determinism import seed_for
from ucl.plots.held_images import explorer, held_images, images_of, labels, moments
from ucl.scorers import Scorer, ScoringPasses
from ucl.studies.observe import observe, scores_of

pytestmark = pytest.mark.usefixtures("small_networks")

BASE = ucl.Config(dataset="digits", n_tasks=2, imbalance=0.1, memory_size=10, validation=0.5)
FIELDS = [dict(population="reservoir"), dict(score="EN", refresh=2)]


@pytest.fixture(scope="module")
def observed(small_networks):
    configs = [BASE.replace(**fields) for fields in FIELDS]
    return {config.label: observe(config, device="cpu", progress=False) for config in configs}


@pytest.fixture(scope="module")
def runs(observed):
    return {label: run.moments for label, run in observed.items()}


@pytest.fixture(scope="module")
def data():
    return ucl.datasets.load("digits")


@pytest.mark.parametrize("fields", FIELDS)
def test_a_watched_memory_is_the_runs(fields, observed, monkeypatch):
    config, replayed = BASE.replace(**fields), []
    drawn_slots = Buffer.drawn_slots

    def counted(self, *arguments):
        slots = drawn_slots(self, *arguments)
        replayed.append(len(slots))
        return slots

    monkeypatch.setattr(Buffer, "drawn_slots", counted)
    record = run(config)
    watched = observed[config.label]
    table = watched.stays
    end = table[table["exit"].isna()].sort_values("position")
    held = pd.DataFrame({name: record.memory[name] for name in ("position", "label", "score")}).sort_values("position")
    assert end["position"].tolist() == held["position"].tolist() and end["label"].tolist() == held["label"].tolist()
    last = watched.moments[watched.moments["batch"] == record.timing["batches"]]
    assert last["position"].tolist() == record.memory["position"]
    if config.uses_scores:
        assert end["last_score"].tolist() == pytest.approx(held["score"].astype(float).tolist(), rel=1e-5, nan_ok=True)
    else:
        assert table["first_score"].isna().all()
    assert table["replays"].sum() == sum(replayed) > 0
    assert table["position"].is_unique  # each image comes once
    removed = table[table["exit"].notna()]
    assert (removed["exit"] > removed["entry"]).all()
    for batch in range(2, record.timing["batches"] + 1):
        is_held = (table["entry"] <= batch) & ~(table["exit"] <= batch)
        assert is_held.sum() == 10


def test_a_run_without_a_memory_is_refused():
    with pytest.raises(ucl.InputError):
        observe(BASE.replace(method="finetune"), device="cpu")


def test_moments_are_the_middle_and_the_end_of_each_task(runs):
    for table in runs.values():
        of_first, of_second = table.groupby("task")["batch"].unique()
        end, last = of_first[-1], of_second[-1]
        assert [*of_first, *of_second] == [math.ceil(end / 2), end, end + math.ceil((last - end) / 2), last]
        assert (table.groupby("batch").size() == 10).all() and (table["entry"] <= table["batch"]).all()
        assert not table.isna().any(axis=None)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_scores_are_those_of_the_scorer_called_directly_and_change_nothing(data, dropout):
    model = build_model(BASE.replace(dropout=dropout), data)
    images = torch.from_numpy(data.train_images[20:32]).movedim(-1, 1)
    positions = torch.arange(20, 32)
    with unchanged(model):
        scores = scores_of(model, images, positions, seed=3)
    assert (model.dropout_rate, model.dropout.p) == (dropout, dropout)
    assert list(scores) == [name for name, row in SCORES.items() if dropout or not row.dropout_passes]

    for name, given in scores.items():
        draw = torch.Generator().manual_seed(seed_for(3, "explored views"))
        passes = ScoringPasses(draw, 20 if SCORES[name].dropout_passes else 0, view_draws="fixed")
        expected = Scorer(scorers.SCORES[name], passes)(model, images, positions)
        assert given.tolist() == expected.tolist() and (name != "MC" or min(given) > 0), name


def test_a_diverged_network_has_no_scores(data):
    model = build_model(BASE.replace(dropout=0.2), data)
    model.linear.weight.data.fill_(float("nan"))
    images = torch.from_numpy(data.train_images[:4]).movedim(-1, 1)
    scores = scores_of(model, images, torch.arange(4))
    assert all(np.isnan(scores[name]).all() for name in ("LC", "EN", "BI", "MC"))


def test_the_picture_has_the_images_in_the_order_and_colours_of_their_values(runs, data):
    last = max(moments(runs))
    figure = held_images(runs, data.train_images, data.classes, last, "MS", "RC")
    values = pd.concat(runs.values())["RC"]
    low, high = values.min(), values.quantile(0.98)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [data.classes[c] for c in labels(runs)]
    middles, side = figure.axes[0].get_yticks(), data.image_size
    at_end = pd.concat(runs, names=["run"]).query("batch == @last")
    columns = max(5, at_end.groupby(["run", "label"]).size().max())  # images in a line
    assert columns <= 7
    for ax, table in zip(figure.axes, runs.values(), strict=False):
        picture = np.asarray(ax.images[0].get_array())
        pitch = picture.shape[1] // columns
        for label, middle in zip(labels(runs), middles, strict=True):
            row = images_of(table, last, label, "MS")
            assert row["MS"].is_monotonic_increasing
            colors = 255 * plt.get_cmap("viridis")((row["RC"].to_numpy() - low) / (high - low))
            for n, (position, color) in enumerate(zip(row["position"], colors, strict=True)):
                cell, edge = picture[round(middle - pitch / 2) :, n * pitch :][:pitch, :pitch], (pitch - side) // 2
                assert (cell[edge:-edge, edge:-edge] == data.train_images[position]).all()
                np.testing.assert_allclose(cell[edge - 1, edge - 1], color[:3], atol=1)


def test_a_memory_that_is_empty_until_a_task_ends_is_drawn_as_none(tiny):
    configs, bands = [tiny, tiny.replace(population="rainbow")], ucl.datasets.load(tiny.dataset)
    tables = {config.label: observe(config, device="cpu").moments for config in configs}
    assert list(moments(tables)) == tables["ER"]["batch"].unique().tolist() == [1, 2, 3, 4]
    assert tables["Rainbow"]["batch"].unique().tolist() == [2, 3, 4]
    figure = held_images(tables, bands.train_images, bands.classes, 1)
    assert "Rainbow, 0 images" in words_in(figure)


def test_each_control_changes_the_picture_and_leaves_no_figure_open(runs, data):
    shown = explorer(runs, data.train_images, data.classes)
    values = [min(moments(runs)), "entry", "RM", next(iter(labels(runs)))]
    *controls, picture = shown.children
    pictures = [picture.value]
    for control, value in zip(controls, values, strict=True):
        control.value = value
        pictures.append(picture.value)
    assert len(set(pictures)) == 5
    assert plt.get_fignums() == []
