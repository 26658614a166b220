"""Comparison of two methods: pairs by seed within each stream, scipy's intervals, and no wrong pairs."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from conftest import refused
from made_up import diverged, frame, two_tasks
from scipy import stats

import ucl
from ucl import Config, InputError

BI = Config(dataset="bloodcell", memory_size=40)
ER = BI.replace(population="reservoir")
OURS, THEIRS = {0: 0.3, 1: 0.5, 2: 0.45, 3: 0.6}, {0: 0.25, 1: 0.2, 2: 0.5, 4: 0.1}


def of(config, retained, **facts):
    return [two_tasks(config.replace(seed=seed), value, **facts) for seed, value in retained.items()]


RUNS = frame(*of(BI, OURS), *of(ER, THEIRS))


def refusal_of(*arguments):
    with pytest.raises(InputError) as refusal:
        ucl.compare(*arguments)
    return str(refusal.value)


def test_within_a_stream_the_interval_is_scipys_paired_t_interval():
    row = ucl.compare(RUNS, "score=BI", "label=ER", ["A"]).iloc[0]
    ours, theirs = (50 * (np.array([retained[s] for s in range(3)]) + 0.75) for retained in (OURS, THEIRS))
    expected = stats.ttest_rel(ours, theirs)
    assert (row["dataset"], row["memory_size"], row["n"], row["streams"]) == ("bloodcell", 40, 3, 1)
    assert (row["label"], row["comparator"], row["metric"]) == ("BI bottom", "ER", "A")
    assert row["mean"] == pytest.approx((ours - theirs).mean())
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert (row["of_label"], row["of_comparator"]) == pytest.approx((ours.mean(), theirs.mean()))


def test_pairs_without_the_measure_do_not_count():
    """Older records have no shares of answers, from which last_share is computed."""
    shares = np.array([[1.0, 0.0], [0.25, 0.75]])
    older = [*of(BI, {0: 0.4, 1: 0.5}), *of(ER, {0: 0.3, 1: 0.2})]
    newer = [dataclasses.replace(r, answer_shares=shares) for r in (*of(BI, {1: 0.5, 2: 0.6}), *of(ER, {2: 0.1}))]
    runs = frame(older[0], *older[2:], *newer)
    table = ucl.compare(runs, "score=BI", "label=ER", ["A", "last_share"]).set_index("metric")
    assert table["n"].to_dict() == {"A": 3, "last_share": 1}
    assert tuple(table.loc["last_share", ["of_label", "of_comparator"]]) == pytest.approx((75, 75))
    assert table.loc["last_share", "left_out"] == "pairs without last_share: 2"


def test_runs_without_a_partner_and_failed_runs_are_counted():
    broken = diverged(two_tasks(ER.replace(seed=3)))
    table = ucl.compare(pd.concat([RUNS, frame(broken)], ignore_index=True), "score=BI", "label=ER")
    assert set(table["left_out"]) == {"1 of BI bottom without a partner, 1 diverged of ER, 1 of ER without a partner"}
    assert set(table["n"]) == {3}


def test_a_method_without_a_memory_is_paired_with_each_memory_size_and_its_runs_count_once():
    finetune = BI.replace(method="finetune", memory_size=None)
    broken = diverged(two_tasks(finetune.replace(seed=3)))
    both = [*of(ER, {0: 0.3, 1: 0.4, 2: 0.5}), *of(ER.replace(memory_size=160), {0: 0.5, 1: 0.7})]
    runs = frame(*of(finetune, {0: 0.0, 1: 0.1, 9: 0.3}), broken, *both)
    table = ucl.compare(runs, "label=Finetune", "label=ER", ["A"])
    assert table["memory_size"].tolist() == [40, 160, pd.NA] and table["n"].tolist() == [2, 2, 4]
    assert table["mean"].tolist() == pytest.approx([-15, -27.5, -21.25])
    failed, partnerless = "1 diverged of Finetune", "1 of Finetune without a partner, 1 of ER without a partner"
    assert table["left_out"].iloc[2] == f"{failed}, {partnerless}"


def test_streams_have_equal_weights_and_one_with_a_single_pair_is_left_out():
    size = BI.replace(memory_size=160), ER.replace(memory_size=160)
    large = frame(*of(size[0], {0: 0.8, 1: 0.9}), *of(size[1], {0: 0.1, 1: 0.3}))
    table = ucl.compare(pd.concat([RUNS, large], ignore_index=True), "score=BI", "label=ER", ["A"])
    assert table["memory_size"].tolist() == [40, 160, pd.NA] and table["n"].tolist() == [3, 2, 5]
    assert table["dataset"].tolist() == ["bloodcell", "bloodcell", "all streams"]
    assert table["mean"].iloc[2] == pytest.approx(table["mean"].iloc[:2].mean())
    single = large[large["seed"] == 0]
    table = ucl.compare(pd.concat([RUNS, single], ignore_index=True), "score=BI", "label=ER", ["A"])
    assert table["n"].tolist() == [3, 1, 3] and table.loc[1, ["low", "high", "detectable"]].isna().all()
    assert table["streams"].iloc[2] == 1 and table["left_out"].iloc[2].endswith(", pairs alone on their stream: 1")
    assert table.loc[2, ["mean", "low", "high"]].tolist() == table.loc[0, ["mean", "low", "high"]].tolist()


def test_a_field_of_the_stream_in_both_filters_differs_within_the_pairs():
    runs = frame(*of(ER, {0: 0.3, 1: 0.4}), *of(ER.replace(memory_size=160), {0: 0.5, 1: 0.7}))
    (row,) = ucl.compare(runs, "label=ER memory_size=160", "label=ER memory_size=40", ["A"]).to_dict("records")
    assert (row["label"], row["comparator"]) == ("ER, memory_size=160", "ER, memory_size=40")
    assert row["mean"] == pytest.approx(12.5) and row["n"] == 2


def test_two_image_sizes_are_compared_although_their_images_differ():
    small, large, changed = (
        of(BI.replace(image_size=size), kept, fingerprint=images)
        for size, kept, images in ((32, {0: 0.3, 1: 0.4}, "s"), (64, {0: 0.5, 1: 0.7}, "l"), (64, {1: 0.9}, "m"))
    )
    (row,) = ucl.compare(frame(*small, *large), "image_size=64", "image_size=32", ["A"]).to_dict("records")
    assert row["n"] == 2 and row["mean"] == pytest.approx(12.5) and row["dataset"] == "bloodcell"
    assert "fingerprint=" in refusal_of(frame(*small, *large, *changed), "image_size=64", "image_size=32")


def test_two_versions_of_one_score_are_compared_on_request():
    mine = BI.replace(score="mine:s")
    old, new = (of(mine, kept, source=v, sources={"mine:s": v}) for v, kept in (("a", OURS), ("b", THEIRS)))
    row = ucl.compare(frame(*old, *new), "source=b", "source=a", ["A"]).iloc[0]
    assert row["n"] == 3 and row["mean"] == pytest.approx(50 * (-0.05 - 0.3 + 0.05) / 3)


@pytest.mark.parametrize(
    ("score", "facts", "er_has_sources"),
    [
        ("mine:s", dict(source="bs", sources={"mine:net": "b", "mine:s": "s"}), True),
        ("EN", dict(source="b"), False),
        ("EN", dict(source="b"), True),
    ],
)
def test_methods_that_share_a_network_whose_code_has_changed_are_not_compared(score, facts, er_has_sources):
    """As after a change of mine.py, when only one of the two methods has been measured again.

    Older records have one hash of all sources, `source`, and none of each.
    """
    base, kept = BI.replace(model="mine:net"), {0: 0.3, 1: 0.4}
    scored, er = of(base.replace(score=score), kept, **facts), base.replace(population="reservoir")
    facts_of_er = [dict(source=v, **({"sources": {"mine:net": v}} if er_has_sources else {})) for v in "ba"]
    same, changed = (frame(*scored, *of(er, kept, **of_version)) for of_version in facts_of_er)
    methods = "population=uncertainty", "label=ER"
    assert set(ucl.compare(same, *methods)["n"]) == {2} and "source" not in ucl.results(same)
    assert "mine:net" in refusal_of(changed, *methods) and "source" in ucl.results(changed)
    with pytest.raises(InputError, match="mine:net"):
        ucl.plot(changed, "accuracy")


def test_runs_of_other_streams_images_or_seeds_are_not_paired():
    others = {"images": of(ER, THEIRS, fingerprint="bb"), "dataset": of(ER.replace(n_tasks=2), THEIRS)}
    others["seed"] = of(ER, {9: 0.1})
    for word, runs in others.items():
        assert f"{word} is " in refusal_of(frame(*of(BI, OURS), *runs), "score=BI", "label=ER")


def test_two_versions_of_the_images_are_never_averaged():
    both = frame(*of(BI, OURS), *of(ER, THEIRS), *of(BI, OURS, fingerprint="bb"), *of(ER, THEIRS, fingerprint="bb"))
    for runs in (both, both[(both["fingerprint"] == "aa") | (both["label"] == "ER")]):
        assert "fingerprint=aa" in refusal_of(runs, "score=BI", "label=ER")
    assert set(ucl.compare(ucl.where(both, "fingerprint=bb"), "score=BI", "label=ER")["n"]) == {3}


def test_methods_that_were_scored_in_different_arithmetics_are_named():
    bi, en = of(BI, OURS, scoring_precision="float32"), of(BI.replace(score="EN"), OURS, scoring_precision="bfloat16")
    assert set(ucl.compare(frame(*bi, *en), "score=BI", "score=EN")["arithmetic"]) == {"bfloat16 and float32"}
    assert "arithmetic" not in ucl.compare(frame(*bi, *of(ER, THEIRS)), "score=BI", "label=ER")


def test_a_filter_that_selects_several_methods_is_refused_with_what_differs():
    mine = BI.replace(score="mine:s")
    mixed = frame(*of(mine, {0: 0.1}, source="0a"), *of(mine, {1: 0.1}, source="0b"), *of(ER, THEIRS))
    assert "source (0a, 0b)" in refusal_of(mixed, "score=mine:s", "label=ER")
    several = frame(*of(BI, OURS), *of(BI.replace(refresh=2), OURS), *of(BI.replace(selection="top"), OURS))
    runs = pd.concat([several, frame(*of(ER, THEIRS))], ignore_index=True)
    assert "label=BI bottom" in refusal_of(runs, "score=BI", "label=ER")
    assert "refresh (1, 2)" in refusal_of(runs, "label=BI bottom", "label=ER")
    assert set(ucl.compare(runs, "label=BI bottom settings=", "label=ER")["n"]) == {3}


def test_settings_are_part_of_a_methods_name():
    runs = frame(*of(BI, OURS), *of(BI.replace(refresh=2), OURS), *of(BI.replace(**ucl.paper.PUBLISHED_CODE), OURS))
    table = ucl.compare(runs, "refresh=2", "settings=")
    assert (table["label"].iloc[0], table["comparator"].iloc[0]) == ("BI bottom, refresh=2", "BI bottom")
    assert set(table["mean"]) == {0.0}
    assert ucl.compare(runs, "scoring_batchnorm=train", "settings=")["label"].iloc[0] == "BI bottom, published settings"


def test_what_cannot_be_compared_is_refused():
    with refused("first"):
        ucl.compare(RUNS, "score=EN", "label=ER")
    for first, second in (("score=BI", "label=BI bottom"), ("score=BI seed=0", "score=BI")):
        with refused("second"):
            ucl.compare(RUNS, first, second)
    with refused("measure"):
        ucl.compare(RUNS, "score=BI", "label=ER", ["Acc"])
