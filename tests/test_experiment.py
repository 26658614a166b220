"""Whole runs on a tiny data set of bright bands, and the parts of a run compared with plain implementations."""

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from conftest import TWO_STAGES, learn, parts, python, run, save_bands
from scipy.special import logsumexp, softmax
from sklearn.metrics import accuracy_score, balanced_accuracy_score

import ucl
from ucl.buffers import ReservoirBuffer
from ucl.catalogue import WITHOUT_SCORE
from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation import predictions
from ucl.evaluation.run_tests import final_memory, has_diverged
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.machine.determinism import seed_for
from ucl.methods import METHODS
from ucl.models import MODELS, SlimResNet18
from ucl.models.folded import drop_
from ucl.records import Record

pytestmark = pytest.mark.usefixtures("small_networks")

FAINT = dict(noise=216, shade=40)  # Such bands are not learnt at once, so results differ.
METHODS_OF_THE_TABLES = {label: row.fields for label, row in WITHOUT_SCORE.items() if row.in_paper} | {
    "A-GEM of replay": dict(method="agem", projected="replay"),
    "BI bottom": dict(score="BI", selection="bottom"),
    "BI top": dict(score="BI", selection="top"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def base(folder):
    """Thirty batches of five, fifteen per task; test classes differ in size."""
    path = save_bands(folder / "squares.npz", **FAINT, train=160, test=90)
    return Config(dataset=path, n_tasks=2, memory_size=8, batch_size=5, lr=0.05, seed=3, precision="float32")


@pytest.fixture(scope="module")
def small(folder):
    """Four batches, two per task, for more expensive tests."""
    path = save_bands(folder / "small.npz", **FAINT, train=44, test=32)
    return Config(dataset=path, n_tasks=2, memory_size=6, lr=0.03, seed=1, precision="float32", validation=0.0)


measured = cache(run)  # the record of a run, made once


# --- what a record says ---


@pytest.mark.filterwarnings("error")
def test_a_class_without_validation_images_leaves_the_balanced_accuracy_a_number(folder):
    path = save_bands(folder / "untested.npz", **FAINT, train=44, val=32)
    arrays = dict(np.load(path))
    tested = arrays["val_labels"] < 3
    np.savez(path, **arrays | {name: arrays[name][tested] for name in ("val_images", "val_labels")})
    config = Config(dataset=path, n_tasks=2, method="finetune", balanced_accuracy=True, evaluate_on="validation")
    record = run(config)
    recall = record.class_recall[-1]
    assert np.isnan(recall).tolist() == [False, False, False, True]
    assert record.last_accuracy == pytest.approx(recall[:3].mean())


def test_a_record_can_be_written_when_part_of_the_memory_was_never_scored(small):
    # The memory has more slots than the first task has images, so its classes give up slots before they are scored.
    record = run(small.replace(memory_size=24))
    in_first_task = [label in record.class_order[:2] for label in record.memory["label"]]
    scores = record.memory["score"]
    assert any(in_first_task) and not all(in_first_task)
    assert [score is None for score in scores] == in_first_task
    assert Record.from_json(record.to_json()).memory == record.memory


def test_a_record_names_the_data_and_the_order_of_the_classes(base):
    data, record = ucl.datasets.load(base.dataset), measured(base)
    assert record.data == {"name": "squares", "fingerprint": data.fingerprint, "training_images": 160}
    assert record.classes == list(data.classes)
    assert record.class_order == list(parts(base).stream.class_order)
    facts = record.environment
    assert (facts["device"], facts["threads"], facts["scoring_precision"]) == ("cpu", 1, "float32")
    assert (facts["torch"], facts["ucl"]) == (torch.__version__, ucl.__version__)
    assert facts["processor"] and facts["peak_memory_mib"] > 10


# --- what a run does ---


def test_a_network_with_dropout_is_judged_by_the_mean_of_twenty_passes(small, monkeypatch):
    config = small.replace(dropout=0.7, n_tasks=1)
    (task,), model, *_ = parts(config)
    torch.manual_seed(0)  # This seeds the dropout masks.
    for batch in [*task] * 8:
        METHODS["finetune"](model, config.lr).learn(model, batch, None)
    drop = lambda x, rate, training, _: drop_(x.clone(), rate) if training else x  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "dropout", drop)
    predicted = {}
    for passes in (1, 20):
        for module in model.eval().modules():
            module.train(isinstance(module, torch.nn.Dropout))
        torch.manual_seed(3)
        with torch.no_grad():
            predicted[passes] = sum(model(task.test_images).softmax(1) for _ in range(passes)).argmax(1).tolist()
    torch.manual_seed(3)
    assert predictions(model, task.test_images).tolist() == predicted[20] != predicted[1]


def by_hand(config):
    """Run `config` in a plain loop: accuracy matrix and final balanced accuracy by scikit-learn, and positions."""
    stream, model, buffer, method = parts(config)
    accuracy = np.full((len(stream), len(stream)), np.nan)
    labels, predictions = [], []
    for task in stream:
        learn([task], model, buffer, method)
        model.eval()
        for seen in stream.tasks[: task.number + 1]:
            with torch.no_grad():
                predicted = model(seen.test_images).argmax(1)
            accuracy[task.number, seen.number] = accuracy_score(seen.test_labels, predicted)
            if task.number == len(stream) - 1:
                labels += seen.test_labels.tolist()
                predictions += predicted.tolist()
    positions = [] if buffer is None else buffer.positions.tolist()
    return accuracy, balanced_accuracy_score(labels, predictions), positions


@pytest.mark.parametrize("label", ["Finetune", "ER", "CBR", "A-GEM", "BI bottom"])
def test_a_run_measures_what_a_bare_loop_and_scikit_learn_measure(base, label):
    config = base.replace(**METHODS_OF_THE_TABLES[label])
    accuracy, balanced, positions = by_hand(config)
    assert measured(config).accuracy == pytest.approx(accuracy, nan_ok=True)
    assert ucl.metrics.balanced_accuracy(measured(config).class_recall[-1]) == pytest.approx(balanced)
    assert measured(config).memory.get("position", []) == positions


def test_what_finetuning_forgets_replay_keeps(base):
    """On average over two seeds, since rounding decides what a single run of few batches learns."""
    finetuned, replayed = (
        np.mean([measured(base.replace(lr=0.1, seed=seed, **fields)).accuracy for seed in (0, 3)], axis=0)
        for fields in (METHODS_OF_THE_TABLES["Finetune"], METHODS_OF_THE_TABLES["ER"])
    )
    assert finetuned[1, 0] < 0.2 and replayed[1, 0] > 0.5
    assert finetuned[1, 1] > 0.7 and replayed[1, 1] > 0.7


class Uncounted(ReservoirBuffer):
    def update(self, model, batch):
        self.store(batch)


NOT_USED = {"n_seen": dict(population=f"{__name__}:Uncounted"), "score=EN": dict(method="derpp", score="EN")}


@pytest.mark.parametrize("word", NOT_USED)
def test_a_run_warns_of_a_score_that_no_memory_uses_and_of_samples_that_are_not_counted(small, word):
    with pytest.warns(UserWarning, match=word):
        run(small.replace(**NOT_USED[word]))


# --- runs are repeatable, and one seed means the same for all methods ---


IN_A_PROCESS = f"""
import json, sys, torch, ucl
from functools import partial
from ucl.models import slim_resnet
slim_resnet._STAGES = {TWO_STAGES}
torch.set_num_threads(1)
for line in sys.stdin:
    config = ucl.Config.from_json(json.loads(line))
    print(json.dumps(ucl.run(config, device="cpu", progress=False).results))
    slim_resnet.MODELS["slim_resnet18"] = partial(slim_resnet.SlimResNet18, width=8)
print(json.dumps([name for name in ("torch._dynamo", "torchvision") if name in sys.modules]))
"""


def test_in_another_process_a_run_repeats_bit_for_bit_and_loads_no_compiler(small):
    """The first run with a network of full width, which is slow, and two with narrow ones."""
    configs = [small.replace(score="BI"), small.replace(method="agem"), small.replace(score="MC")]
    lines = "".join(json.dumps(config.to_json()) + "\n" for config in configs)
    output = python("-c", IN_A_PROCESS, environment={"PYTHONHASHSEED": "77"}, input=lines)
    *results, slow_to_load = map(json.loads, output.splitlines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "slim_resnet18", SlimResNet18)
        wide = run(configs[0])
    assert results == [record.results for record in (wide, *map(measured, configs[1:]))]
    assert slow_to_load == []


def test_methods_at_one_seed_differ_in_the_method_alone(base):
    records = {label: measured(base.replace(**how)) for label, how in METHODS_OF_THE_TABLES.items()}
    assert len({tuple(r.class_order) for r in records.values()}) == 1
    # Nothing is replayed in the first task, so all methods learn the same network, bit for bit.
    first_rows = {np.nan_to_num(r.class_recall[0], nan=-1).tobytes() for r in records.values()}
    assert len(first_rows) == 1
    assert len({r.class_recall[1].tobytes() for r in records.values()}) > 1
    memories = {label: r.memory for label, r in records.items() if r.memory}
    # A-GEM and ER fill their memories with the same draws, but their final networks score the samples differently.
    assert memories["ER"]["position"] == memories["A-GEM"]["position"]
    assert memories["ER"]["confidence"] != memories["A-GEM"]["confidence"]
    assert len({tuple(sorted(memory["position"])) for memory in memories.values()}) == 4


MODES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_the_modes_and_draws_of_the_caller_have_no_effect_and_return(small, modes):
    def current():
        flags = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), torch.is_inference_mode_enabled()
        flags += torch.is_grad_enabled(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
        draws = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return *flags, torch.get_default_dtype(), torch.get_default_device(), *draws

    try:
        torch.set_default_dtype(torch.float64)
        with modes():
            before = current()
            record = run(small.replace(score="MC"))
            with pytest.raises(InputError):
                run(small.replace(memory_size=3))
            assert current() == before
    finally:
        torch.set_default_dtype(torch.float32)
    assert record.results == measured(small.replace(score="MC")).results


def test_runs_in_several_threads_do_not_share_their_draws(small):
    configs = [small.replace(score="ucl.scorers:uniform", seed=seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        records = [*pool.map(run, configs)]
    assert [record.results for record in records] == [measured(config).results for config in configs]


@pytest.mark.parametrize("label", ["ER", "BI top"])
def test_the_final_model_scores_each_stored_image_by_the_same_views_for_every_method(small, label, monkeypatch):
    """Confidence and BI, computed in numpy from the image at the stored position and from the weights at the end."""
    ends = []
    monkeypatch.setattr(ucl.experiment, "final_memory", lambda *end: (ends.append(end[1]), final_memory(*end))[1])
    memory = run(small.replace(**METHODS_OF_THE_TABLES[label])).memory
    model = ends[0]
    images = torch.from_numpy(ucl.datasets.load(small.dataset).train_images[memory["position"]]).permute(0, 3, 1, 2)
    draw = torch.Generator().manual_seed(seed_for(small.seed, "final views"))
    views_PNCHW = ucl.views.perturb(images / 255, draw, model.mean.flatten())
    with torch.no_grad():
        logits_PNC = torch.stack([model.eval()(images_NCHW) for images_NCHW in views_PNCHW]).double().numpy()
    confidence = softmax(logits_PNC, -1).max(-1).mean(0)
    information = logsumexp(logits_PNC, -1).mean(0) - logsumexp(logits_PNC.mean(0), -1)
    assert memory["confidence"] == pytest.approx(confidence, rel=1e-4)
    assert memory["bregman_information"] == pytest.approx(information, rel=1e-3, abs=1e-6)
    assert len(set(memory["confidence"])) > 4


def test_progress_is_shown_when_asked_for_and_else_not_a_word(small, capfd):
    config = small.replace(method="finetune")
    run(config)
    assert capfd.readouterr() == ("", "")
    ucl.run(config, device="cpu", progress=None)  # The output is a file here, not a terminal.
    assert capfd.readouterr() == ("", "")
    record = ucl.run(config, device="cpu", progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "Finetune" in err and "4/4" in err and f"A {100 * record.last_accuracy:.1f} %" in err


# --- a network that diverges, and measuring ---


@pytest.fixture(scope="module")
def three_tasks(folder):
    path = save_bands(folder / "three.npz", 6, **FAINT, train=84, test=36)
    return Config(dataset=path, n_tasks=3, memory_size=8, seed=1, batch_size=5, precision="float32", validation=0.15)


@pytest.mark.parametrize(
    "how",
    [
        dict(method="finetune"),
        dict(method="agem"),
        dict(population="class-balanced"),
        *(dict(score="BI", selection=name, refresh=2) for name in ("bottom", "step", "top")),
        dict(score="RM", averaging="probabilities", **{k: v for k, v in PUBLISHED_CODE.items() if k != "averaging"}),
        dict(score="ucl.scorers:margin"),
        dict(method="er-ace"),
        *(dict(population=name) for name in ("loss-aware", "herding", "gss", "homogeneous", "rainbow")),
    ],
    ids=str,
)
def test_a_network_that_diverges_is_a_result_that_ends_with_the_task(three_tasks, how, monkeypatch):
    """The weights become infinite in the middle of the second task, as after an overflow."""
    descend = ucl.methods.method.descend
    steps = []

    def step(model, gradient, lr):
        steps.append(lr)
        descend(model, gradient, math.inf if len(steps) == 6 else lr)

    for module in (ucl.methods.method, ucl.methods.replay):
        monkeypatch.setattr(module, "descend", step)
    with pytest.warns(UserWarning, match=r"task 2 of 3.*lr.* 0\.1"):
        record = run(three_tasks.replace(**how))
    assert record.diverged_after == 1
    assert record.accuracy[0, 0] >= 0
    assert np.isnan(record.accuracy[1:]).all() and np.isnan(record.class_recall[1:]).all()
    assert len(steps) == record.timing["batches"] == 8  # Of twelve batches, those of the third task are not learnt.
    assert np.isnan(record.last_accuracy)
    assert Record.from_json(record.to_json()).results == record.results


def test_statistics_that_are_infinite_are_divergence_though_the_weights_are_numbers(small):
    model = parts(small).model
    assert not has_diverged(model)
    model.register_buffer("mask", torch.tensor([-math.inf]))  # as attention has, from the start
    assert not has_diverged(model)
    model.blocks[3].bn2.running_var[5] = math.inf
    assert has_diverged(model)


def test_a_task_is_measured_by_the_same_masks_whatever_else_is_measured(three_tasks, monkeypatch):
    masks = []

    def counted(model, images):
        masks.append((images.data_ptr(), torch.rand(1).item()))
        return predictions(model, images)

    monkeypatch.setattr(ucl.evaluation.accuracy, "predictions", counted)
    run(three_tasks.replace(population="reservoir", dropout=0.5))
    tests = list(dict.fromkeys(test for test, _ in masks))
    assert [tests.index(test) for test, _ in masks] == [0, 0, 1, 0, 1, 2]
    assert len(set(masks)) == 3
