"""Readings: the same weights with other BatchNorm statistics, which are used only to test."""

import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch
from conftest import learn, needs_bfloat16, parts, run, unchanged
from own_objects import Smoothed
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import ucl
from ucl.assembly import build_scorer
from ucl.buffers.reservoir import ReservoirBuffer
from ucl.catalogue import READINGS, STATISTICS
from ucl.evaluation import readings, running_statistics
from ucl.evaluation.running_statistics import shift, statistics_of
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.machine.determinism import repeatable, seed_for, seeded_draws
from ucl.methods import ExperienceReplay
from ucl.models import OwnNetwork, to_unit
from ucl.models.network import norms_of
from ucl.models.passes import PlainTrainingPasses, TrainingModeNetwork
from ucl.scorers import views

pytestmark = pytest.mark.usefixtures("small_networks", "few_batches")


@pytest.fixture(scope="module")
def trained(tiny):
    """A network, its memory of 30 images, more than a batch, and the tasks of a short stream, all learnt."""
    stream, model, buffer, method = parts(tiny.replace(memory_size=30))
    learn(stream, model, buffer, method)
    return model, buffer, stream.tasks


def under(name, trained, seed=0):
    model, buffer, tasks = trained
    return readings.with_statistics(name, model, statistics_of(model), tasks, buffer, seed)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_reading_repeats_with_its_seed_has_the_weights_of_the_network_and_leaves_it_as_it_was(name, trained):
    model, buffer, _ = trained
    stored = buffer.images.clone()
    with unchanged(model):
        probe = under(name, trained)
    assert torch.equal(buffer.images, stored)
    assert all(torch.equal(w, v) for w, v in zip(probe.parameters(), model.parameters(), strict=True))
    moved = shift(statistics_of(probe), statistics_of(model))
    assert moved == 0 if name == "training" else moved > 0
    again, other = (statistics_of(under(name, trained, seed)) for seed in (0, 1))
    assert shift(statistics_of(probe), again) == 0 and (shift(again, other) > 0 or name == "training")


def test_a_shift_is_in_standard_deviations_of_the_reference_and_a_mean_over_all_channels():
    moved, reference = (torch.tensor([1.0, 2.0]), torch.ones(2)), (torch.zeros(2), torch.tensor([4.0, 0.25]))
    assert shift([moved, reference], [reference, reference]) == pytest.approx((1 / 2 + 2 / 0.5 + 0 + 0) / 4, rel=1e-4)


def test_an_estimate_is_torchs_cumulative_average_over_the_batches(trained):
    model, buffer, tasks = trained
    batches = list(readings.batches_of("memory+stream", model, tasks, buffer, np.random.default_rng(3)))
    assert len(batches) == readings.BATCHES
    probe, plain = copy.deepcopy(model), copy.deepcopy(model).double().train()
    for norm in norms_of(plain):
        norm.momentum, norm.num_batches_tracked = None, torch.tensor(0)
    with torch.no_grad():
        readings.estimate(probe, iter(batches))
        for images in batches:
            plain.logits(plain.normalize(images).double())
    expected = [(mean.float(), var.float()) for mean, var in statistics_of(plain)]
    torch.testing.assert_close(statistics_of(probe), expected, rtol=1e-4, atol=1e-5)


def rows(images):
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("size", [8, 30])
def test_batches_come_from_where_the_reading_says(size, trained, tiny):
    model, _, tasks = trained
    buffer = parts(tiny.replace(memory_size=size)).buffer
    for batch in (batch for task in tasks for batch in task):
        buffer.update(model, batch)
    stored = rows(buffer.images[: buffer.n_stored])
    last = rows(tasks[-1].images[-readings.LAST_BATCHES * tasks[-1].batch_size :])
    seen = rows(torch.cat([task.images for task in tasks]))

    def batches(name):
        return list(readings.batches_of(name, model, tasks, buffer, np.random.default_rng(0)))

    assert all(rows(images) <= stored and len(rows(images)) == min(size, 20) for images in batches("memory"))
    half = min(size, 10)
    for images in batches("memory+stream"):
        assert len(images) == half + 10
        assert rows(images[:half]) <= stored and rows(images[half:]) <= last
    assert all(rows(images) <= seen and len(images) == 20 for images in batches("balanced"))


def test_the_reading_views_shows_each_image_in_one_of_its_views_drawn_at_random(trained, monkeypatch):
    model, buffer, tasks = trained
    perturb, made = views.perturb, []

    def follow(images_NCHW, *rest):
        made.append((images_NCHW, perturb(images_NCHW, *rest)))
        return made[-1][1]

    monkeypatch.setattr(views, "perturb", follow)
    batches = list(readings.batches_of("views", model, tasks, buffer, np.random.default_rng(0)))
    stored = rows(to_unit(buffer.images[: buffer.n_stored]))
    shown = set()
    for images, (originals, views_PNCHW) in zip(batches, made, strict=True):
        assert rows(originals) <= stored and len(images) == len(rows(originals)) == 20
        for image, image_views in zip(images, views_PNCHW.unbind(1), strict=True):
            equal = (image_views == image).flatten(1).all(1)
            assert equal.any()
            shown |= set(equal.nonzero().flatten().tolist()) if equal.sum() == 1 else set()
    assert len(shown) > 6  # of 12 views, in 60 draws


def test_balanced_batches_draw_each_class_equally_often(monkeypatch):
    """500 images of a stream whose class sizes differ up to tenfold; chi-square with 9 degrees of freedom."""
    monkeypatch.setattr(readings, "BATCHES", 25)
    config = ucl.Config(dataset="digits", n_tasks=5, imbalance=0.1, memory_size=10, population="reservoir")
    stream, model, *_ = parts(config)
    label_of = {}
    for task in stream:
        label_of |= {image.numpy().tobytes(): c for image, c in zip(task.images, task.host_labels, strict=True)}
    batches = readings.batches_of("balanced", model, stream.tasks, None, np.random.default_rng(0))
    drawn = [label_of[image.numpy().tobytes()] for images in batches for image in images]
    counts = np.bincount(drawn, minlength=10)
    assert counts.sum() == 500 and ((counts - 50) ** 2 / 50).sum() < 27.9  # p = 0.001


def test_displaced_statistics_are_those_of_the_published_passes_one_after_another(trained, monkeypatch):
    """Each view of all candidates of a class passes through the network alone, in training mode."""
    model, buffer, tasks = trained
    passes, logits = [], TrainingModeNetwork.logits
    follow = lambda net, x, sizes: (passes.append(x.clone()), logits(net, x, sizes))[1]  # noqa: E731
    monkeypatch.setattr(TrainingModeNetwork, "logits", follow)
    images = torch.cat([buffer.images[: buffer.n_stored], tasks[-1].images[:20]])
    labels = np.concatenate([buffer.labels[: buffer.n_stored], tasks[-1].host_labels[:20]])
    candidates = sorted((images[labels == c] for c in tasks[-1].classes), key=len)  # the smaller class first
    published = build_scorer(ucl.Config(score="BI", precision="float32", **PUBLISHED_CODE)).passes
    published.generator.manual_seed(int(np.random.default_rng(7).integers(2**62)))
    published.logits(copy.deepcopy(model), torch.cat(candidates), sizes=[*map(len, candidates)])
    expected = passes[:]
    probe, draw = copy.deepcopy(model), np.random.default_rng(7)
    readings.displace(probe, tasks[-1], buffer, draw, torch.float32)
    displacing = passes[len(expected) :]
    assert len(displacing) == 2 and all(map(torch.equal, displacing, expected))


# --- in a run ---


@pytest.fixture(scope="module")
def uncertain(tiny):
    return tiny.replace(population=None, score="ucl.scorers:uniform", dropout=0.1)


def same(one, other, *names):
    """Whether two records or readings have equal results, NaN included; by default all of them."""
    names = names or ("accuracy", "class_recall", "answer_shares")
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in names)


measured = functools.cache(run)  # the record of a run, which several tests use


@pytest.mark.parametrize(
    "fields",
    [
        dict(method="finetune"),
        dict(population="class-balanced"),
        dict(method="agem"),
        dict(score="BI", **PUBLISHED_CODE),
        dict(score="MC", scoring_batchnorm="train"),
        dict(score="MC", imbalance=0.5, batch_size=2),
        dict(method="mir", population="class-balanced"),
        dict(method="mir", population="class-balanced", scoring_batchnorm="train", lr=0.2),
    ],
    ids=str,
)
def test_readings_change_nothing_that_is_measured(uncertain, fields):
    config = uncertain.replace(**{"dropout": None, **fields})
    plain, read = measured(config), measured(config.replace(readings=True))
    assert plain.readings == {}
    assert same(read, plain) and read.memory == plain.memory
    scores_in_training_mode = config.scoring_batchnorm == "train" and (config.uses_scores or config.method == "mir")
    assert same(read.readings["training"], plain, "accuracy") != scores_in_training_mode


def test_the_statistics_of_training_leave_out_mirs_losses_and_the_step_that_it_undoes(tiny, monkeypatch):
    stream, model, buffer, method = parts(tiny.replace(method="mir", scoring_batchnorm="train"))
    step, expected = ExperienceReplay.step, running_statistics.statistics_of(model)

    def followed(method, model, images, labels):
        nonlocal expected
        probe = copy.deepcopy(model).train()
        probe._forward_pre_hooks.clear()
        running_statistics.load_statistics(probe, expected)
        with torch.no_grad():
            probe(images)
        expected = running_statistics.statistics_of(probe)
        step(method, model, images, labels)

    monkeypatch.setattr(ExperienceReplay, "step", followed)
    training_statistics = running_statistics.TrainingStatistics(model)
    learn(stream, model, buffer, method)
    assert running_statistics.shift(training_statistics(), expected) < 1e-6
    assert running_statistics.shift(running_statistics.statistics_of(model), expected) > 1e-3


def test_the_statistics_of_training_change_no_buffer_of_a_users_network():
    """Such as the averaging weights of momentum None, and the vectors that spectral norm improves in each pass.

    The masks of its dropout are those of the training steps.
    """

    def learnt(scores, follow):
        torch.manual_seed(0)
        layer = spectral_norm(nn.Conv2d(1, 4, 3))
        norm = nn.BatchNorm2d(4, momentum=None)
        network = nn.Sequential(nn.Dropout(0.5), layer, norm, nn.Flatten(), nn.Linear(4 * 36, 3))
        model = OwnNetwork(network, "mine:net", 3, 1, 8, (0.5,), (0.25,)).train()
        training_statistics = running_statistics.TrainingStatistics(model) if follow else None
        for images in torch.rand(3, 5, 1, 8, 8, generator=torch.Generator().manual_seed(1)):
            model(images)
            if scores:
                with torch.no_grad(), seeded_draws(1, "cpu"):  # as `ScoringPasses` draw
                    model(1 - images)
        return model, training_statistics

    plain, (followed, training_statistics) = learnt(True, follow=False)[0].state_dict(), learnt(True, follow=True)
    assert all(torch.equal(values, plain[name]) for name, values in followed.state_dict().items())
    (mean, var), (expected_mean, expected_var) = *training_statistics(), *statistics_of(learnt(False, follow=False)[0])
    assert torch.equal(mean, expected_mean) and torch.equal(var, expected_var)
    assert not torch.equal(mean, followed.network[2].running_mean)
    restored = running_statistics.TrainingStatistics(learnt(True, follow=False)[0])
    restored.load_state_dict(training_statistics.state_dict())
    assert torch.equal(restored()[0][0], mean)


def test_without_an_image_of_the_tasks_classes_nothing_is_displaced(trained):
    """The last batches of a blurry task may have none, and a run without a memory has no other."""
    model, _, tasks = trained
    task = dataclasses.replace(tasks[-1], classes=(99,))
    probe = readings.with_statistics("displaced", model, statistics_of(model), [*tasks[:-1], task], None, 0)
    assert shift(statistics_of(probe), statistics_of(model)) == 0


class ByLogits(Smoothed):
    def update(self, model, batch, buffer):
        self.descend(model, model.logits(model.normalize(batch.images)).logsumexp(1).mean())


def test_where_no_pass_is_followed_the_statistics_of_training_are_those_of_the_network(uncertain):
    config = uncertain.replace(dropout=0.0, method=f"{__name__}:ByLogits", population="reservoir", readings=True)
    assert same(measured(config).readings["training"], measured(config))


def test_scoring_mode_moves_what_the_test_reads_and_nothing_else(uncertain):
    """With a random score and one seed, both modes give equal memories and, judged by the accuracy, equal weights."""
    evaluation = measured(uncertain.replace(scoring_batchnorm="eval"))
    training = measured(uncertain.replace(scoring_batchnorm="train", readings=True))
    assert [training.memory[name] == evaluation.memory[name] for name in ("position", "score")] == [True, True]
    assert same(training.readings["training"], evaluation) and not same(training, evaluation)


def test_a_reading_can_be_the_one_that_counts(uncertain):
    config = uncertain.replace(population="class-balanced", dropout=None)
    plain = measured(config.replace(readings=True))
    for name in ("memory+stream", "displaced"):
        chosen = measured(config.replace(test_batchnorm=name))
        assert same(chosen, plain.readings[name])
        assert chosen.memory["position"] == plain.memory["position"]


def test_a_record_keeps_its_readings(uncertain):
    record = measured(uncertain.replace(score="MC", dropout=None, imbalance=0.5, batch_size=2, readings=True))
    again = ucl.Record.from_json(record.to_json())
    assert again.readings.keys() == set(READINGS)
    for name, reading in record.readings.items():
        assert same(again.readings[name], reading) and same(again.readings[name], reading, "shift")
        assert reading.shift.shape == (2,)
        assert (reading.shift >= 0).all() if name in STATISTICS else np.isnan(reading.shift).all()
    assert record.readings["training"].shift.tolist() == [0, 0]


def test_a_reading_that_is_not_possible_after_each_task_is_left_out(uncertain, monkeypatch):
    update = ReservoirBuffer.update
    late = lambda buffer, model, batch: update(buffer, model, batch) if batch.task else None  # noqa: E731
    monkeypatch.setattr(ReservoirBuffer, "update", late)
    config = uncertain.replace(population="reservoir", readings=True, dropout=0)
    record = run(config)
    possible = {name for name, row in STATISTICS.items() if not row.needs_memory}
    assert record.memory["label"] and record.readings.keys() == possible
    assert ucl.Record.from_json(record.to_json()).results == record.results
    with pytest.warns(UserWarning, match="memory is empty.* after task 1"):
        replaced = run(config.replace(readings=False, test_batchnorm="memory"))
    assert np.array_equal(replaced.accuracy[0], record.accuracy[0], equal_nan=True)


# --- tests as published, in the same run ---


@pytest.fixture(scope="module")
def learnt(tiny):
    """A network with dropout after a task of bands, and the task with noise for test images, of which it is unsure."""
    config = ucl.Config(dataset=tiny.dataset, n_tasks=1, score="MC", memory_size=8, lr=0.05)
    (task,), model, _, method = parts(config)
    for batch in [*task] * 3:
        method.learn(model, batch)
    noise = torch.randint(0, 256, (200, *task.test_images.shape[1:]), generator=torch.Generator().manual_seed(0)).byte()
    return model, dataclasses.replace(task, test_images=noise, test_labels=torch.zeros(200, dtype=torch.int64))


def test_the_published_test_is_the_mean_of_training_mode_logits_over_batches_of_ten(learnt, monkeypatch):
    """With torch's layers, pass after pass, so that the seed draws the same masks."""
    monkeypatch.setattr(readings, "in_training_mode", lambda model: PlainTrainingPasses(model, torch.float32))
    model, task = learnt
    plain, expected = copy.deepcopy(model).train(), torch.empty_like(task.test_labels)
    order = np.random.default_rng(seed_for(5, "published test of task 0")).permutation(200)
    with torch.no_grad(), seeded_draws(seed_for(5, "masks of the published test of task 0"), "cpu"):
        for batch in torch.from_numpy(order).split(10):
            logits_PNC = torch.stack([plain(task.test_images[batch]) for _ in range(readings.DROPOUT_PASSES)])
            expected[batch] = logits_PNC.mean(0).argmax(-1)
    assert readings.published_test(model, task, 5).tolist() == expected.tolist()
    assert len(expected.unique()) > 1


def test_the_published_test_of_a_run_is_that_of_its_networks(uncertain):
    """In a run that is repeated by hand."""
    config = uncertain.replace(score="MC", scoring_batchnorm="train", readings=True, dropout=None)
    reading = measured(config).readings["published test"]
    with repeatable(config.seed, torch.device("cpu")):
        stream, model, buffer, method = parts(config)
        for task in stream:
            learn([task], model, buffer, method)
            seen, t = stream.tasks[: task.number + 1], task.number
            given = [readings.published_test(model, earlier, config.seed) for earlier in seen]
            for earlier, labels in zip(seen, given, strict=True):
                truth = earlier.test_labels.numpy()
                assert reading.accuracy[t, earlier.number] == np.mean(labels == truth)
                share = np.mean(np.isin(np.concatenate(given), earlier.classes))
                assert reading.answer_shares[t, earlier.number] == share
                for c in earlier.classes:
                    assert reading.class_recall[t, c] == np.mean(labels[truth == c] == c)


def test_the_thinned_test_is_that_of_a_run_with_a_long_tailed_test(uncertain):
    config = uncertain.replace(score="BI", imbalance=0.2, batch_size=2, dropout=0.0)
    whole, thin = measured(config.replace(readings=True)), measured(config.replace(long_tailed_test=True))
    reading = whole.readings["thinned"]
    assert same(reading, thin)
    assert whole.measures("thinned") == pytest.approx(thin.measures(), nan_ok=True)


def test_tests_of_the_current_task_give_the_same_numbers_or_none(tiny):
    config = tiny.replace(n_tasks=4, memory_size=4, batch_size=2, imbalance=0.3, readings=True)
    every, current = measured(config), measured(config.replace(evaluate_tasks="current"))
    assert current.memory == every.memory and current.config.key != every.config.key
    again = ucl.Record.from_json(current.to_json())
    tested = np.tri(4, dtype=bool) & (np.eye(4, dtype=bool) | (np.arange(4) == 3)[:, None])
    for ours, theirs in [(again, every), *((again.readings[name], every.readings[name]) for name in every.readings)]:
        assert np.array_equal(ours.accuracy, np.where(tested, theirs.accuracy, np.nan), equal_nan=True)
        recall = theirs.class_recall[:, every.class_order]  # one class per task
        assert np.array_equal(ours.class_recall[:, every.class_order], np.where(tested, recall, np.nan), equal_nan=True)
        assert np.array_equal(ours.answer_shares[[0, 3]], theirs.answer_shares[[0, 3]], equal_nan=True)
        assert np.isnan(ours.answer_shares[1:3]).all()
    for balanced in (False, True):
        config = current.config.replace(balanced_accuracy=balanced)
        ours = dataclasses.replace(current, config=config).measures()
        theirs = dataclasses.replace(every, config=every.config.replace(balanced_accuracy=balanced)).measures()
        left_out = dict.fromkeys(("F", "balanced_F", "best", "average"), np.nan)
        assert ours == pytest.approx({**theirs, **left_out}, abs=0, nan_ok=True)
    assert "thinned" in every.readings


@needs_bfloat16
@pytest.mark.parametrize(("fields", "expected"), [({}, torch.bfloat16), ({"population": "reservoir"}, torch.float32)])
def test_displaced_passes_are_in_the_arithmetic_of_the_runs_scoring(uncertain, monkeypatch, fields, expected):
    """If a run scores nothing, they are in float32."""
    config, used = uncertain.replace(precision="bfloat16", readings=True, **fields), []
    displace = readings.displace

    def follow(model, task, buffer, draw, dtype):
        used.append(dtype)
        displace(model, task, buffer, draw, dtype)

    monkeypatch.setattr(readings, "displace", follow)
    record = measured(config)
    assert used == [expected] * 2
    assert record.arithmetic == ("bfloat16" if config.uses_scores else "")


def test_a_reading_without_an_answer_is_left_out_with_a_warning(tiny, monkeypatch):
    def spoil(probe, *_):
        [*probe.parameters()][-1].fill_(torch.nan)

    monkeypatch.setattr(readings, "displace", spoil)
    with pytest.warns(UserWarning, match="displaced"):
        record = run(tiny.replace(readings=True))
    assert record.diverged_after is None and set(record.readings) == STATISTICS.keys() - {"displaced"}
