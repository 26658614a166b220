"""The paper's claims on made-up records: when they are supported, contradicted or open."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ucl import Config, Record, claims, paper
from ucl.evidence import verdicts

SCORES = ("LC", "MS", "RC", "EN", "RM", "MC", "BI")
SIZES = {"cifar10": (500, 1000), "cifar100": (1000, 2000)}
CIFAR10 = {"cifar10": (500, 1000)}
ALL_SIZES = SIZES | {"cifar10-lt": (200, 500), "cifar100-lt": (500, 1000), "bloodcell": (40, 160)}
BASELINES = {"ER": dict(population="reservoir"), "CBR": dict(population="class-balanced"), "A-GEM": dict(method="agem")}
NOTHING = pd.DataFrame(columns=["label", "seed", "last_accuracy", "last_forgetting", "record"])


def record_of(config, a, f, learnt=0.9, seconds=7.0, memory=None, device="cpu", fingerprint="aa", **facts):
    """A record of two tasks with these A, F and accuracy on the first task when learnt, all with a little noise."""
    noise = np.random.default_rng(int(config.key, 16)).normal(0, 0.005, 2)
    kept = learnt - f + noise[0]
    accuracy = np.array([[learnt, np.nan], [kept, 2 * (a + noise[1]) - kept]])
    return Record(
        config,
        accuracy,
        class_recall=np.full((2, 2), a + noise[1]),
        classes=["a", "b"],
        class_order=[0, 1],
        memory=memory or {},
        timing={"total": seconds, "evaluation": 2.0, "batches": 5},
        environment={"device": device, "processor": "p", "threads": 1, **facts},
        data={"name": "made up", "fingerprint": fingerprint},
        date="2025-03-01",
    )


def frame(records):
    return pd.DataFrame([record.summary() for record in records])


def configs(label, sizes=SIZES, seeds=range(3)):
    name, _, selection = label.partition(" ")
    row = BASELINES.get(name) or dict(score=name, selection=selection)
    return [Config(dataset=d, memory_size=m, seed=s, **row) for d, pair in sizes.items() for m in pair for s in seeds]


def runs(values, sizes=SIZES, seeds=range(3)):
    """Records of methods with given (A, F) or (A, F, learnt)."""
    return frame([record_of(c, *numbers) for label, numbers in values.items() for c in configs(label, sizes, seeds)])


def test_a_verdict_is_frozen_and_names_its_claim():
    verdict = claims.bi_forgets_least(NOTHING)
    assert verdict.claim == 2 and verdict.statement.endswith("BI has the lowest F in most cases.")
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.verdict = "supported"


@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_without_records_a_claim_is_open_and_says_what_is_missing(claim):
    verdict = claim(NOTHING)
    assert (verdict.verdict, verdict.n, verdict.hold, verdict.fail) == ("open", 0, 0, 0)
    assert verdict.scarce == verdict.comparisons > 0
    assert f"fewer than {verdicts.BLOCKS} blocks" in verdict.evidence and "\n" not in verdict.evidence


def test_all_six_claims_make_a_table():
    table = claims.verdicts(NOTHING)
    sizes = ["reproduced", "excluded", "undecided", "seeds"]
    counts = ["comparisons", "hold", "fail", "scarce", "n"]
    assert list(table.columns) == ["claim", "statement", "verdict", "evidence", *counts, *sizes]
    assert not table[sizes[:3]].any(axis=None) and set(table["seeds"]) == {""}
    assert list(table["claim"]) == [1, 2, 3, 4, 5, 6] and set(table["verdict"]) == {"open"}


# Size


def published_gain(dataset, sizes, method, other, metric, sign):
    """The gain that the paper prints, averaged over the memory sizes."""
    printed = paper.published().set_index(["dataset", "memory_size", "method", "selection", "metric"])["mean"]
    means = [[printed[(dataset, m, *of, metric)] for of in (method, other)] for m in sizes]
    return np.mean([sign * (own - reference) for own, reference in means])


def test_the_size_is_that_of_the_blocks_beside_the_papers():
    """With two data sets of two memory sizes, the wider of scipy's intervals: Welch's, and that of the seeds' means."""
    records = runs({"BI bottom": (0.4, 0.4), "EN bottom": (0.4, 0.45)})
    f = records.assign(F=100 * records["last_forgetting"]).pivot_table("F", ["dataset", "seed"], "label")
    gain = f["EN bottom"] - f["BI bottom"]
    one, two = gain["cifar10"], gain["cifar100"]
    welch = stats.ttest_ind(one, -two, equal_var=False).confidence_interval(0.95)
    printed = [published_gain(d, sizes, ("BI", "bottom"), ("EN", "bottom"), "F", -1) for d, sizes in SIZES.items()]
    found = claims.sizes(records).set_index("comparison").loc["F below EN"]
    assert (found.claim, found.n, found.exploratory) == (2, 6, 6)
    assert found["mean"] == pytest.approx((one.mean() + two.mean()) / 2)
    seeds = stats.ttest_1samp((one + two) / 2, 0).confidence_interval(0.95)
    wider = min(welch.low / 2, seeds.low), max(welch.high / 2, seeds.high)
    assert (found.low, found.high) == pytest.approx(wider)
    assert found.published == pytest.approx(np.mean(printed))
    evidence = f"F below EN {found['mean']:+.2f} [{found.low:+.2f}, {found.high:+.2f}] (n=6)"
    assert evidence in claims.bi_forgets_least(records).evidence


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1.0, "reproduced"), (2.0, "reproduced"), (0.0, "excluded"), (-1.0, "excluded"), (0.5, "undecided")],
)
def test_a_share_of_the_papers_effect_is_reproduced_excluded_or_undecided(share, expected):
    one = {"cifar10": (500, 1000)}
    effect = published_gain("cifar10", one["cifar10"], ("BI", "bottom"), ("ER", ""), "F", -1) / 100
    assert effect > 0.1
    records = runs({"BI bottom": (0.3, 0.5), "ER": (0.3, 0.5 + share * effect)}, one, range(5))
    verdict = claims.bi_beats_baselines(records)
    sizes = {size.comparison: size for size in verdict.sizes}
    assert sizes["F below ER"].size == expected
    counts = {word: getattr(verdict, word) for word in ("reproduced", "excluded", "undecided")}
    assert counts == {word: sum(size.size == word for size in verdict.sizes) for word in counts}
    assert sizes["F below CBR"].size == "" and sizes["F below CBR"].n == 0  # Nothing was measured.


def test_the_size_of_a_competitive_accuracy_has_no_margin():
    records = runs({"BI bottom": (0.3, 0.5), "ER": (0.3, 0.5)}, {"cifar10": (500, 1000)}, range(5))
    verdict = claims.bi_beats_baselines(records)
    (size,) = [size for size in verdict.sizes if size.comparison == "A above ER"]
    assert abs(size.mean) < 1 and re.search(r"A above ER less 2 \+[12]\.\d", verdict.evidence)


def test_no_size_is_reported_where_the_paper_prints_no_means():
    """Claim 1 on BloodCell, whose top-k the paper does not print; claims 5 and 6."""
    blood = claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP, {"bloodcell": (40, 160)}, range(5)))
    assert blood.verdict == "supported" and {size.size for size in blood.sizes} == {""}
    assert claims.confidence_is_alike_and_bi_is_not(memories(4.0)).sizes == ()
    assert claims.cost_per_batch(timed(1.3, 3.3)).sizes == ()


def test_exploratory_seeds_are_marked():
    values = {"BI bottom": (0.4, 0.4), "EN bottom": (0.4, 0.5)}
    both = {"bloodcell": (40,), "cifar10": (500,)}
    asked = {range(3): ("exploratory", 6), range(20, 24): ("new", 0)}
    asked |= {range(2, 6): ("exploratory and new", 4)}  # Seeds 2, 3 and 4 of BloodCell, 2 of CIFAR-10.
    for seeds, reported in asked.items():
        verdict = claims.bi_forgets_least(runs(values, both, seeds))
        (size,) = [size for size in verdict.sizes if size.comparison == "F below EN"]
        assert (verdict.seeds, size.exploratory) == reported


# Claim 1

BOTTOM_BEATS_TOP = {f"{s} bottom": (0.4, 0.4) for s in SCORES} | {f"{s} top": (0.3, 0.6) for s in SCORES}


def test_bottom_beats_top_is_supported_where_every_score_says_so():
    verdict = claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP))
    assert (verdict.verdict, verdict.n) == ("supported", 6)
    assert "28 of 28" in verdict.evidence
    assert len(re.findall(r", (?:smaller|larger) memory, [AF] \+", verdict.evidence)) == 28  # Each comparison is named.
    assert "(14 of 14 comparisons have pairs)" in verdict.evidence


def test_bottom_beats_top_is_contradicted_by_a_single_score():
    verdict = claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP | {"RC top": (0.5, 0.6)}))
    assert verdict.verdict == "contradicted" and re.search(r"RC, smaller memory, A -(9\.|10\.)", verdict.evidence)
    assert "26 of 28 comparisons clearly hold, 2 clearly fail" in verdict.evidence
    assert (verdict.comparisons, verdict.hold, verdict.fail, verdict.scarce) == (28, 26, 2, 0)


def test_bottom_beats_top_is_open_where_a_score_makes_no_difference_or_is_missing():
    assert claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP | {"RC top": (0.4, 0.6)})).verdict == "open"
    without = {label: numbers for label, numbers in BOTTOM_BEATS_TOP.items() if label != "MC top"}
    assert claims.bottom_beats_top(runs(without)).verdict == "open"


def test_three_seeds_of_one_data_set_decide_nothing_and_five_do():
    one = {"cifar10": (500, 1000)}
    assert claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP, one)).verdict == "open"
    assert claims.bottom_beats_top(runs(BOTTOM_BEATS_TOP, one, seeds=range(5))).verdict == "supported"


def test_a_data_set_with_a_single_block_is_left_out_and_does_not_undo_the_others():
    five = runs(BOTTOM_BEATS_TOP, {"cifar10": (500, 1000)}, seeds=range(5))
    one_more = pd.concat([five, runs(BOTTOM_BEATS_TOP, {"cifar100": (1000, 2000)}, seeds=[5])], ignore_index=True)
    found, alone = (claims.bottom_beats_top(of) for of in (one_more, five))
    assert (found.verdict, found.evidence, found.n) == (alone.verdict, alone.evidence, alone.n)
    assert alone.verdict == "supported" and alone.n == 5
    each_alone = [runs(BOTTOM_BEATS_TOP, {name: (500, 1000)}, seeds=[0]) for name in ("cifar10", "cifar10-lt")]
    assert claims.bottom_beats_top(pd.concat(each_alone, ignore_index=True)).verdict == "open"


def test_runs_with_other_settings_do_not_count_unless_asked_for():
    lr = [record_of(c.replace(lr=0.05), *n) for label, n in BOTTOM_BEATS_TOP.items() for c in configs(label)]
    assert claims.bottom_beats_top(frame(lr)).n == 0
    assert claims.bottom_beats_top(frame(lr), lr=0.05).verdict == "supported"


def test_runs_of_different_seeds_are_no_pairs():
    bottom = runs({label: n for label, n in BOTTOM_BEATS_TOP.items() if "bottom" in label}, seeds=range(3))
    top = runs({label: n for label, n in BOTTOM_BEATS_TOP.items() if "top" in label}, seeds=range(3, 6))
    assert claims.bottom_beats_top(pd.concat([bottom, top], ignore_index=True)).n == 0


# Claim 2


def test_a_data_set_that_is_named_by_a_path_is_that_data_set():
    runs_of = {"BI bottom": 0.1, "LC bottom": 0.3}
    named = [
        record_of(config.replace(dataset="./cifar10", memory_size=500), 0.5, f)
        for label, f in runs_of.items()
        for config in configs(label, {"cifar10": (500,)}, range(5))
    ]
    (of_lc,) = [size for size in claims.bi_forgets_least(frame(named)).sizes if size.comparison == "F below LC"]
    assert of_lc.n == 5 and abs(of_lc.mean - 20) < 1


def test_bi_forgets_least_is_supported_contradicted_or_open():
    others = {f"{s} bottom": (0.4, 0.5) for s in SCORES[:5]}
    assert claims.bi_forgets_least(runs(others | {"BI bottom": (0.4, 0.4)})).verdict == "supported"
    assert claims.bi_forgets_least(runs(others | {"BI bottom": (0.4, 0.6)})).verdict == "contradicted"
    assert claims.bi_forgets_least(runs(others | {"BI bottom": (0.4, 0.5)})).verdict == "open"
    assert (
        claims.bi_forgets_least(runs(others | {"BI bottom": (0.4, 0.4), "MC bottom": (0.1, 0.1)})).verdict
        == "supported"
    )


def test_a_claim_of_several_comparisons_is_contradicted_only_at_the_level_that_is_divided_by_their_number():
    others = {f"{s} bottom": (0.4, 0.5) for s in SCORES[:5]}
    slightly, clearly = (runs(others | {"BI bottom": (0.4, f)}) for f in (0.51, 0.53))
    of_claim = claims.sizes(slightly).query("claim == 2")
    assert len(of_claim) == 5 and (of_claim["high"] < 0).all()  # at 95 %, each comparison fails
    assert claims.bi_forgets_least(slightly).verdict == "open"
    assert claims.bi_forgets_least(clearly).verdict == "contradicted"


# Claim 3

BASE = {name: (0.4, 0.5) for name in BASELINES}


def test_bi_beats_the_baselines_is_supported_where_all_data_sets_say_so():
    verdict = claims.bi_beats_baselines(runs(BASE | {"BI bottom": (0.4, 0.4)}, ALL_SIZES))
    assert (verdict.verdict, verdict.n) == ("supported", 15)


def test_an_accuracy_far_below_is_not_competitive():
    verdict = claims.bi_beats_baselines(runs(BASE | {"BI bottom": (0.3, 0.4)}, ALL_SIZES))
    assert verdict.verdict == "contradicted" and re.search(r"A above ER less 2 -[78]\.", verdict.evidence)


def test_one_data_set_that_goes_the_other_way_or_is_missing_keeps_it_open():
    most = {d: pair for d, pair in ALL_SIZES.items() if d != "bloodcell"}
    good = runs(BASE | {"BI bottom": (0.4, 0.3)}, most)
    assert claims.bi_beats_baselines(good).verdict == "open"
    assert "no pairs with ER on bloodcell" in claims.bi_beats_baselines(good).evidence
    bad = runs(BASE | {"BI bottom": (0.4, 0.51)}, {"bloodcell": (40, 160)})
    verdict = claims.bi_beats_baselines(pd.concat([good, bad], ignore_index=True))
    assert verdict.verdict == "open" and "F not below CBR on bloodcell" in verdict.evidence


# Claim 4


def test_mc_forgets_little_only_where_it_keeps_no_more():
    bi = {"BI bottom": (0.4, 0.5, 0.9)}
    assert (
        claims.mc_forgets_little_as_it_learns_little(runs(bi | {"MC bottom": (0.3, 0.3, 0.6)})).verdict == "supported"
    )
    keeps_more = claims.mc_forgets_little_as_it_learns_little(runs(bi | {"MC bottom": (0.3, 0.3, 0.8)}))
    assert keeps_more.verdict == "contradicted" and re.search(
        r"retained accuracy below BI -(9\.9|10\.0)", keeps_more.evidence
    )
    alike = claims.mc_forgets_little_as_it_learns_little(runs(bi | {"MC bottom": (0.3, 0.3, 0.7)}))
    assert alike.verdict == "open"


# Claim 5


def memories(selected_by, at_the_end=0.0, sizes=SIZES):
    """Records of CBR, BI top and BI bottom whose memory samples vary around given means.

    CBR has no scores of its own; under the final network, those of BI top and BI bottom differ by `at_the_end`.
    """
    records = []
    means = {"CBR": (None, 0.0), "BI top": (selected_by, at_the_end), "BI bottom": (0.0, 0.0)}
    for label, (stored, final) in means.items():
        for config in configs(label, sizes):
            draw, n = np.random.default_rng(int(config.key, 16)), config.memory_size
            memory = {
                "score": [None] * n if stored is None else draw.normal(stored, 1, n).tolist(),
                "confidence": [None, *draw.normal(final, 1, n)],
                "bregman_information": [None, *draw.normal(final, 1, n)],
            }
            records.append(record_of(config, 0.4, 0.5, memory=memory))
    return frame(records)


def test_confidence_is_alike_and_bi_is_not():
    """Records have no confidence of the time when images were stored, so they cannot support the claim."""
    far = claims.confidence_is_alike_and_bi_is_not(memories(4.0))
    assert (far.verdict, far.n) == ("open", 6) and "no record has the confidence" in far.evidence
    expected = 1 - 2 * stats.norm.sf(2) - claims.ALIKE  # of two normal distributions, four standard deviations apart
    gain = float(re.search(r"further than 0.2 by \+(\d\.\d\d) \[", far.evidence)[1])
    assert abs(gain - expected) < 0.02
    alike = claims.confidence_is_alike_and_bi_is_not(memories(0.0))
    assert alike.verdict == "contradicted" and "further than 0.2 by -0.1" in alike.evidence


def test_scores_by_the_final_network_decide_nothing():
    alike, apart = (claims.confidence_is_alike_and_bi_is_not(memories(4.0, end)) for end in (0.0, 4.0))
    assert alike.verdict == apart.verdict == "open"
    for verdict, lowest, highest in ((alike, 0.0, 0.1), (apart, 0.6, 0.7)):  # 2 of 3 pairs are apart by 0.95
        found = re.search(r"are (\d\.\d\d) in confidence and (\d\.\d\d) in BI apart \(n=12\)", verdict.evidence)
        assert all(lowest < float(value) < highest for value in found.groups())


def test_a_run_whose_memory_has_no_numbers_does_not_count():
    records = memories(4.0)
    for record in records.query("dataset == 'cifar10' and seed == 0")["record"]:
        record.memory["score"] = [None, None]
    assert claims.confidence_is_alike_and_bi_is_not(records).n == 5


def test_small_memories_do_not_count_where_chance_sets_them_apart():
    assert claims.confidence_is_alike_and_bi_is_not(memories(4.0, sizes={"bloodcell": (40,)})).n == 0


# Claim 6


def timed(cbr, bi, bi_device="cpu", sizes=CIFAR10):
    """Records in which ER takes 1 s per batch and the others the given seconds; the seed adds a little to all."""
    times = {"ER": (1.0, "cpu"), "CBR": (cbr, "cpu"), "BI bottom": (bi, bi_device)}
    return frame(
        record_of(c, 0.4, 0.5, seconds=2 + 5 * seconds * (1 + 0.01 * c.seed), device=device)
        for label, (seconds, device) in times.items()
        for c in configs(label, sizes, range(5))
    )


def test_cost_per_batch_is_about_the_papers():
    supported = claims.cost_per_batch(timed(1.3, 3.3))
    assert supported.verdict == "supported" and "CBR 1.30 times ER" in supported.evidence
    assert claims.cost_per_batch(timed(1.4, 6.0)).verdict == "contradicted"
    assert claims.cost_per_batch(timed(1.0, 3.1)).verdict == "contradicted"


def test_times_on_other_data_sets_are_shown_and_decide_nothing():
    both = pd.concat([timed(1.4, 3.1), timed(1.0, 9.0, sizes={"bloodcell": (40,)})], ignore_index=True)
    verdict = claims.cost_per_batch(both)
    assert verdict.verdict == "supported" and "BI bottom 9.00 times ER on bloodcell 40" in verdict.evidence
    alone = claims.cost_per_batch(timed(1.0, 9.0, sizes={"bloodcell": (40,)}))
    assert (alone.verdict, alone.n) == ("open", 0)


def test_times_on_two_machines_are_not_compared():
    verdict = claims.cost_per_batch(timed(1.4, 3.1, bi_device="cuda"))
    assert (verdict.verdict, verdict.n) == ("open", 0)


# Versions of the images, arithmetics


def test_pairs_are_of_one_version_of_the_images_and_the_evidence_names_both():
    """A second version adds pairs, but no blocks."""
    low, high = (configs(label, {"cifar10": (500,)}, range(5)) for label in ("BI bottom", "LC bottom"))
    alone = frame([record_of(c, 0.5, f) for run, f in ((low, 0.1), (high, 0.3)) for c in run])
    # On the other images both forget more, so a pair across the versions would show the opposite.
    more = [record_of(c, 0.5, f, fingerprint="bb") for run, f in ((low, 0.6), (high, 0.8)) for c in run]
    both = claims.bi_forgets_least(pd.concat([alone, frame(more)], ignore_index=True))
    assert "cifar10 measured on 2 versions of its images (aa, bb)" in both.evidence
    assert re.search(r"F below LC \+(19|20|21)\.\d\d \[.*\(n=5\)", both.evidence)
    assert "versions of its images" not in claims.bi_forgets_least(alone).evidence
    only_apart = frame([record_of(c, 0.5, 0.1) for c in low] + [r for r in more if r.config.score == "LC"])
    assert "F below LC: no pairs" in claims.bi_forgets_least(only_apart).evidence


def test_the_evidence_names_mixed_arithmetics():
    names = {0: "float32", 1: "bfloat16", 2: "bfloat16"}
    bi, er = (configs(label, {"cifar10": (500,)}) for label in ("BI bottom", "ER"))
    mixed = frame([record_of(c, 0.5, 0.1, scoring_precision=names[c.seed]) for c in (*bi, *er)])
    assert "scored in bfloat16 (2 runs) and float32 (1 runs)" in claims.bi_forgets_least(mixed).evidence
    plain = frame([record_of(c, 0.5, 0.1, scoring_precision="float32") for c in (*bi, *er)])
    assert "scored in" not in claims.bi_forgets_least(plain).evidence


def test_runs_that_failed_decide_nothing_and_are_counted():
    records = [record_of(c, *numbers) for label, numbers in BOTTOM_BEATS_TOP.items() for c in configs(label)]
    broken = [
        dataclasses.replace(record, accuracy=np.full((2, 2), np.nan), diverged_after=0) if n % 9 == 0 else record
        for n, record in enumerate(records)
    ]
    whole, fewer = (claims.bottom_beats_top(frame(runs)) for runs in (records, broken))
    assert "left out" not in whole.evidence
    assert f"left out: {len(records[::9])} diverged" in fewer.evidence
    assert fewer.n < whole.n or fewer.verdict == whole.verdict
    assert "nan" not in fewer.evidence
