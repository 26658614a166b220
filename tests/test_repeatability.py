"""Test and retest: agreement compared with scipy and sets, scorings compared with a memory's running mean."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ucl.catalogue import SCORES
from ucl.models import SlimResNet18
from ucl.scorers import ScoringPasses, bregman_information, entropy
from ucl.studies.repeatability import SETTINGS, agreement, draws, over_run, repeatability, scorings

pytestmark = pytest.mark.usefixtures("small_networks")


@settings(deadline=None, max_examples=30)
@given(n_scorings=st.integers(2, 4), n_images=st.integers(3, 12), seed=st.integers(0, 99), data=st.data())
def test_agreement_is_the_mean_over_pairs_of_scipys_correlation_and_of_shared_images(n_scorings, n_images, seed, data):
    kept = data.draw(st.integers(1, n_images))
    scores = np.random.default_rng(seed).integers(0, 30, (n_scorings, n_images)) / 7
    scores[:, 0] = 100  # not all the same
    correlations, shared = [], []
    for i in range(n_scorings):
        for j in range(i):
            correlations.append(scipy.stats.spearmanr(scores[i], scores[j]).statistic)
            one, other = (set(np.argsort(scores[k], kind="stable")[:kept]) for k in (i, j))
            shared.append(len(one & other) / kept)
    assert agreement(torch.from_numpy(scores), kept) == pytest.approx((np.mean(correlations), np.mean(shared)))


def test_equal_scores_have_no_correlation():
    spearman, overlap = agreement(torch.stack([torch.zeros(4), torch.arange(4.0)]), 2)
    assert np.isnan(spearman) and overlap == 1


def test_scorings_share_no_draw_and_count_as_the_settings_say():
    logits = torch.randn(9, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    single = torch.stack([entropy(draw) for draw in logits])
    torch.testing.assert_close(scorings(logits, entropy), single)
    four = scorings(logits, entropy, n_draws=4)  # for a score that is a mean over the views
    torch.testing.assert_close(four, torch.stack([single[:4].mean(0), single[4:8].mean(0)]))
    of_all_views = scorings(logits, bregman_information, n_draws=4)[0]
    assert not torch.allclose(of_all_views, torch.stack([*map(bregman_information, logits[:4])]).mean(0))
    first, second = scorings(logits, entropy, smoothing=0.2, rescorings=4)
    for mean, start in ((first, 0), (second, 4)):
        by_hand = single[start]
        for new in single[start + 1 : start + 4]:
            by_hand = 0.8 * by_hand + 0.2 * new
        torch.testing.assert_close(mean, by_hand)


def test_draws_are_the_scorers_logits_one_after_another():
    torch.manual_seed(0)
    model = SlimResNet18(4, image_size=28).eval()
    images = torch.randint(0, 256, (3, 3, 28, 28), generator=torch.Generator().manual_seed(0)).byte()
    drawn = draws(model, images, 2, torch.Generator().manual_seed(5))
    passes = ScoringPasses(torch.Generator().manual_seed(5))
    expected = torch.stack([passes.logits(model, images) for _ in range(2)])
    torch.testing.assert_close(drawn, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-2)
    table = repeatability(model, images, 2)
    assert table["setting"].tolist() == list(SETTINGS) * 6 and "MC" not in set(table["score"])  # without dropout


def test_over_a_run_more_draws_and_running_means_repeat_better(tiny):
    config = tiny.replace(lr=0.05)
    table = over_run(config, n_images=8)
    assert table[["task", "score"]].drop_duplicates().to_numpy().tolist() == [
        [task, score] for task in (1, 2) for score, row in SCORES.items() if not row.dropout_passes
    ]
    reported = table.dropna()
    assert reported["spearman"].between(-1, 1).all() and reported["overlap"].between(0, 1).all()
    means = table.groupby("setting")["spearman"].mean()
    assert means["1 draw"] < means["4 draws"] and means["1 draw"] < means["smoothing 0.2"]
    dropping = over_run(config.replace(dropout=0.3), n_images=4)
    assert dropping["score"].unique().tolist() == ["MC"]
