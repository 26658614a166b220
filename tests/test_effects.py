"""Paired differences: means, intervals and verdicts, compared with scipy and by simulation."""

import numpy as np
import pandas as pd
import pytest
from made_up import frame, record_of
from scipy import stats

from ucl import Config, plots
from ucl.evidence.effects import Interval, against_paper, by_stream, differences, n_exploratory, summary
from ucl.evidence.run_measures import by_reading
from ucl.records import Reading


def pairs(of_stream):
    rows = [(name, 10, seed, value) for name, values in of_stream.items() for seed, value in values.items()]
    return pd.DataFrame(rows, columns=["dataset", "memory_size", "seed", "A"])


def interval(estimate, by):
    return estimate[f"low_by_{by}"], estimate[f"high_by_{by}"]


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_detectable_difference_is_found_with_80_per_cent_power(n):
    values = np.random.default_rng(n).normal(size=n)
    estimate = summary(pairs({"x": dict(enumerate(values))}), "A")
    assert estimate["detectable"] == pytest.approx(estimate["detectable_by_stream"])
    noncentrality = estimate["detectable_by_stream"] / (values.std(ddof=1) / np.sqrt(n))
    # scipy's noncentral t is not accurate for one degree of freedom, so chance decides: 400,000 t statistics.
    draw = np.random.default_rng(0)
    t = (draw.normal(size=400_000) + noncentrality) / np.sqrt(draw.chisquare(n - 1, 400_000) / (n - 1))
    assert np.mean(np.abs(t) > stats.t.ppf(0.975, n - 1)) == pytest.approx(0.8, abs=0.003)


def test_rows_are_those_of_scipy_by_stream_and_over_all_streams():
    """The mean of two means is half the difference of one and the negated other, so half of scipy's Welch interval."""
    one, two = np.array([1.0, 2.0, 4.0]), np.array([10.0, -3.0, 5.0, 8.0])
    first, second, both = by_stream(pairs({"x": dict(enumerate(one)), "y": dict(enumerate(two, 1))}), "A", {})
    assert [row["dataset"] for row in (first, second, both)] == ["x", "y", "all streams"]
    for row, values in (first, one), (second, two):
        paired = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (row["n"], row["mean"]) == (len(values), pytest.approx(values.mean()))
        assert (row["low"], row["high"]) == pytest.approx((paired.low, paired.high))
    welch = stats.ttest_ind(one, -two, equal_var=False).confidence_interval(0.95)
    assert (both["n"], both["mean"]) == (7, pytest.approx((one.mean() + two.mean()) / 2))
    assert interval(both, "stream") == pytest.approx((welch.low / 2, welch.high / 2))
    assert interval(both, "seed") != pytest.approx(interval(both, "stream"))
    assert both["low"] == min(both["low_by_stream"], both["low_by_seed"])
    assert both["high"] == max(both["high_by_stream"], both["high_by_seed"])


def test_a_stream_with_a_single_pair_is_shown_and_left_out_of_the_mean_unless_all_have_one():
    *_, single, mean = by_stream(pairs({"x": {0: 1.0, 1: 2.0}, "y": {0: 50.0}}), "A", {("x", 10): 3.0, ("y", 10): 7.0})
    assert (single["n"], single["verdict"]) == (1, "not shown") and np.isnan(single["low"])
    assert (mean["n"], mean["mean"], mean["published"]) == (2, 1.5, 3.0) and not np.isnan(mean["low"])
    assert by_stream(pairs({"x": {0: 1.0}, "y": {0: 3.0}}), "A", {})[-1]["mean"] == 2.0


def test_the_mean_is_over_the_streams_that_the_paper_prints():
    """Streams without pairs have a row, too, and streams that it does not print have no verdict."""
    data = pairs({"x": {0: 1.0, 1: 2.0}, "y": {0: 50.0, 1: 60.0}})
    missing, printed, other, mean = by_stream(data, "A", {("w", 10): 5.0, ("x", 10): 3.0})
    assert (missing["n"], missing["verdict"]) == (0, "not shown")
    assert (other["verdict"], other["mean"]) == ("", 55.0) and np.isnan(other["published"])
    assert all(mean[name] == printed[name] for name in ("n", "mean", "low", "high", "published", "verdict"))
    assert by_stream(data[:0], "A", {("w", 10): 5.0, ("x", 10): 3.0})[-1]["published"] == 4.0


def independent(draw):
    """Four streams of four seeds and unequal variances."""
    return {name: dict(enumerate(1 + draw.normal(size=4) * sd)) for name, sd in zip("wxyz", (1, 2, 3, 4))}


def sharing_seeds(draw):
    """Four streams with three seeds in common and further ones in one each, as CIFAR has; a seed moves all alike."""
    seeds = {name: [0, 1, 2, *range(10 * i, 10 * i + n)] for i, (name, n) in enumerate(zip("wxyz", (4, 4, 1, 4)), 1)}
    of_seed = 1 + draw.normal(size=50)
    return {name: {s: of_seed[s] for s in listed} for name, listed in seeds.items()}


@pytest.mark.parametrize(("experiment", "by", "tolerance"), [(independent, "stream", 5), (sharing_seeds, "seed", 3)])
def test_an_interval_covers_the_truth_as_often_as_it_says(experiment, by, tolerance):
    """Check 400 experiments, within some standard errors."""
    draw = np.random.default_rng(1)
    intervals = [interval(summary(pairs(experiment(draw)), "A"), by) for _ in range(400)]
    covered = sum(low <= 1 <= high for low, high in intervals)
    assert 0.95 * 400 - tolerance * np.sqrt(400 * 0.95 * 0.05) < covered


def test_by_seed_streams_of_different_seeds_are_samples_and_streams_of_equal_seeds_are_one_sample():
    draw = np.random.default_rng(3)
    separate = {name: dict(enumerate(draw.normal(size=n), 10 * n)) for name, n in (("x", 3), ("y", 4), ("z", 10))}
    estimate = summary(pairs(separate), "A")
    assert interval(estimate, "seed") == pytest.approx(interval(estimate, "stream"))
    assert estimate["detectable"] == pytest.approx(estimate["detectable_by_stream"])
    values = draw.normal(size=(3, 6))
    together = {name: dict(enumerate(of_stream)) for name, of_stream in zip("xyz", values)}
    expected = stats.ttest_1samp(values.mean(0), 0).confidence_interval(0.95)
    assert interval(summary(pairs(together), "A"), "seed") == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("interval", "published", "expected"),
    [
        ((-40, -20), -36, "reproduced"),
        ((-40, -10), -36, "undecided"),
        ((-10, 5), -36, "excluded"),
        ((5, 40), -36, "excluded"),
        ((4, 6), 7, "reproduced"),
        ((-1, 1), 0, "undecided"),
        ((np.nan, np.nan), 7, "not shown"),
        ((np.nan, np.nan), np.nan, ""),
        ((4, 6), np.nan, ""),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_published_sign(interval, published, expected):
    assert against_paper(Interval(*interval), published) == expected


def test_pairs_share_stream_and_seed():
    one = pd.DataFrame({"dataset": "x", "memory_size": 10, "seed": [0, 1, 2], "A": [5, 6, 7], "F": [1, 1, 1]})
    two = pd.DataFrame({"dataset": "x", "memory_size": 10, "seed": [2, 1, 5], "A": [1, 2, 3], "F": [0, 2, 0]})
    table = differences(one, two)
    assert table[["seed", "A", "F"]].values.tolist() == [[1, 4, -1], [2, 6, 1]]
    with pytest.raises(pd.errors.MergeError):
        differences(pd.concat([one, one]), two)


def test_the_seeds_measured_before_the_protocol_are_exploratory():
    exploratory, others = [("bloodcell", 4), ("cifar10-lt", 2)], [("bloodcell", 5), ("cifar10-lt", 3), ("digits", 0)]
    runs = pd.DataFrame([*exploratory, *others], columns=["dataset", "seed"])
    assert n_exploratory(runs) == n_exploratory(runs[:2]) == 2


def test_a_row_per_reading_with_all_measures_and_the_shift():
    """A reading without a measured shift has NaN there, and a run that counted no answers has NaN as their share."""
    a, recall = np.array([[0.8, np.nan], [0.2, 0.6]]), np.array([[0.8, np.nan], [0.3, 0.5]])
    shares = np.array([[1, np.nan], [0.25, 0.75]])
    readings = {
        "displaced": Reading(a / 2, recall, shares, np.array([0.5, 1.5])),
        "thinned": Reading(a, recall, shares, np.full(2, np.nan)),
    }
    config = Config(dataset="bloodcell", population="reservoir", seed=10, readings=True)
    record = record_of(config, a, class_recall=recall, readings=readings)
    table = by_reading(frame(record)).set_index("reading")
    assert list(table.index) == ["running", "displaced", "thinned"]
    measures = ["A", "F", "best", "retained", "last"]
    assert table.loc["displaced", measures].tolist() == pytest.approx([40, 30, 40, 10, 30])
    assert table["last_share"].tolist()[1:] == [75, 75] and np.isnan(table.loc["running", "last_share"])
    assert table.loc["displaced", "shift"] == 1.5 and table.loc[["running", "thinned"], "shift"].isna().all()


def points(ax, marker, filled=None):
    """The positions of the single points of a kind."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines if filled in (None, line.get_mfc() != "white")]


def test_the_picture_of_differences_has_each_difference_and_the_papers():
    rows = [
        dict(setting=reading, dataset=dataset, memory_size=40, label=label, metric=metric, n=5, mean=mean + shift)
        for dataset, mean in (("bloodcell", 1.0), ("cifar10", 2.0))
        for reading, shift in (("displaced", 0.1), ("running", 0.2))
        for label in ("ER", "BI bottom")
        for metric in "AF"
    ]
    table = pd.DataFrame(rows).assign(low=lambda t: t["mean"] - 60, high=lambda t: t["mean"] + 3, comparator="training")
    table["published"] = np.where(table["setting"] == "running", -31, np.nan)
    for ax in plots.effects.forest(table).axes:
        assert [x for x, _ in points(ax, "o")] == pytest.approx([1.1, 1.1, 2.1, 2.1])
        assert [x for x, _ in points(ax, "s")] == pytest.approx([1.2, 1.2, 2.2, 2.2])
        assert [y for _, y in points(ax, "D")] == [y for _, y in points(ax, "s")]
        assert {x for x, _ in points(ax, "D")} == {-31} and len(points(ax, "<")) == 8  # They extend beyond the panel.


def test_the_finding_has_the_seeds_and_means_of_er_and_of_bis_networks_tested_twice():
    bi, stream = "BI bottom, published settings", dict(dataset="cifar10-lt", memory_size=200)
    tests = {("ER", "running"): 72, (bi, "running"): 40, (bi, "training"): 71, ("CBR", "running"): 60}
    rows = [dict(dataset="cifar100", memory_size=1000, method="ER", reading="running", F=30)]
    for (method, reading), f in tests.items():
        rows += [stream | dict(method=method, reading=reading, F=f + 2 * seed) for seed in range(2)]
    (ax,) = plots.readings.tested_again(pd.DataFrame(rows)).axes
    assert [x for x, _ in points(ax, "s")] == [73, 41] and [x for x, _ in points(ax, "o", filled=False)] == [72]
    assert [list(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2] == [[72, 74], [40, 42], [71, 73]]
    assert [x for x, _ in points(ax, "D")] == pytest.approx([76.19, 40.66])
