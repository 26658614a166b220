"""Images with wrong labels are detected; ranks and means are checked by hand."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import run, save_bands

import ucl
from ucl import naming
from ucl.assembly import build_stream
from ucl.records import as_table
from ucl.studies.memory_autopsy import _halves, kept_traits, ranked, traits, with_remedies

pytestmark = pytest.mark.usefixtures("small_networks")


def test_images_with_wrong_labels_are_hard_untypical_and_disagree(tmp_path):
    n, path = 160, save_bands(tmp_path / "bands.npz", train=160)
    wrong, arrays = np.arange(0, n, 20), dict(np.load(path))
    arrays["train_labels"][wrong] = (arrays["train_labels"][wrong] + 1) % 4
    np.savez(path, **arrays)
    config = ucl.Config(dataset=path, n_tasks=4, memory_size=4, batch_size=5)
    table = traits(config, epochs=6, device="cpu", progress=False)
    assert table["position"].tolist() == list(range(n))
    is_wrong = table["position"].isin(wrong)
    assert table.loc[~is_wrong, "agrees"].mean() > 0.9 and table.loc[is_wrong, "agrees"].mean() < 0.2
    ranks = ranked(table)
    for trait in ("easy", "typical"):
        assert ranks.loc[is_wrong, trait].mean() < 0.2 and ranks.loc[~is_wrong, trait].mean() > 0.5


def test_the_two_halves_share_every_class_and_no_image():
    labels = np.repeat([0, 1, 2], [4, 7, 2])
    one, other = _halves(labels, 0)
    assert sorted([*one, *other]) == list(range(13))
    assert np.bincount(labels[one]).tolist() == [2, 4, 1] and np.bincount(labels[other]).tolist() == [2, 3, 1]


def test_ranks_are_within_the_class():
    table = pd.DataFrame({"position": range(6), "label": [0, 0, 0, 0, 1, 1], "agrees": True})
    table = table.assign(loss=[4.0, 3, 2, 1, 9, 8], typicality=[0.1, 0.3, 0.2, 0.4, 0.5, 0.9])
    ranks = ranked(table)
    assert ranks["easy"].tolist() == [0.125, 0.375, 0.625, 0.875, 0.25, 0.75]
    assert ranks["typical"].tolist() == [0.125, 0.625, 0.375, 0.875, 0.25, 0.75]


def test_means_over_the_kept_images_give_classes_equal_weights():
    stream = dict(dataset="digits", n_tasks=2, imbalance=0.1, validation=0.5)
    config = ucl.Config(memory_size=10, population="reservoir", **stream)
    record = run(config)
    positions, labels = (np.array(record.memory[name]) for name in ("position", "label"))
    everything = np.arange(2000)
    given = np.full(2000, -1)
    given[positions] = labels
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"position": everything, "label": given, "agrees": draw.random(2000) < 0.7})
    table = table.assign(loss=draw.random(2000), typicality=draw.random(2000))
    data = ucl.datasets.load("digits")
    row = kept_traits(as_table([record]), table, data).iloc[0]
    ranks = ranked(table)
    by_class = [ranks.loc[positions[labels == c], "easy"].mean() for c in np.unique(labels)]
    assert row["easy"] == pytest.approx(np.mean(by_class)) and row["n"] == 10
    assert (row["method"], row["settings"], row["seed"]) == ("ER", naming.settings(config), 0)
    tasks = [task.positions.tolist() for task in build_stream(config, data)]
    last = {p for positions_in in tasks for index, p in enumerate(positions_in) if index >= 0.9 * len(positions_in)}
    assert row["recent"] == pytest.approx(len(last & set(positions.tolist())) / 10)


def test_runs_with_a_remedy_are_paired_with_the_same_runs_without_it():
    rows = [
        ("BI bottom", "", 0, 0.9),
        ("BI bottom", "", 1, 0.7),
        ("BI bottom", "", 2, 0.0),  # without a partner
        ("BI bottom", "view_draws=fixed", 0, 0.5),
        ("BI bottom", "view_draws=fixed", 1, 0.4),
        ("BI bottom", "view_draws=batch", 0, 0.1),  # not a remedy
        ("BI bottom", "refresh=2, smoothing=0.2", 0, 0.3),  # without the same run
        ("EN bottom", "refresh=2", 0, 0.6),
        ("EN bottom", "n_draws=4, refresh=2", 0, 0.5),
    ]
    kept = pd.DataFrame(rows, columns=["method", "settings", "seed", "recent"])
    kept = kept.assign(dataset="cifar10", memory_size=500, easy=0.5, typical=0.5, agrees=kept["recent"] / 2)
    table = with_remedies(kept.replace({"settings": {"": np.nan}}))  # as the committed table is read
    recent = table[table["measure"] == "recent"].set_index(["method", "settings", "remedy"])
    assert list(recent.index) == [("BI bottom", "", "view_draws=fixed"), ("EN bottom", "refresh=2", "n_draws=4")]
    bi, en = recent.iloc[0], recent.iloc[1]
    interval = scipy.stats.ttest_rel([0.5, 0.4], [0.9, 0.7]).confidence_interval()
    assert [bi["n"], bi["without"], bi["mean"]] == pytest.approx([2, 0.8, -0.35])
    assert [bi["low"], bi["high"]] == pytest.approx(list(interval))
    assert [en["n"], en["without"], en["mean"]] == pytest.approx([1, 0.6, -0.1]) and np.isnan(en["low"])
    agrees = table[table["measure"] == "agrees"]["mean"]
    assert list(agrees) == pytest.approx([-0.175, -0.05])
    assert with_remedies(kept[kept["settings"] == ""]).empty
