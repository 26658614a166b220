"""Operations that a GPU would run, observed without a GPU.

Tensors on "meta" have shapes and no values: an operation that reads one back to the host raises an error. Each
operation is recorded too, because copies to "meta" never wait, whereas copies to a GPU may.
"""

import multiprocessing
import sys
from collections import Counter

import pytest
import torch
from conftest import parts, save_bands
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucl import Config
from ucl.machine.determinism import exact_arithmetic

pytestmark = pytest.mark.usefixtures("small_networks")

MOVES = ("aten::_to_copy", "aten::copy_")
FREE = ("view", "_unsafe_view", "slice", "select", "unsqueeze", "permute", "expand", "unbind", "split_with_sizes",
        "split", "transpose", "t", "detach", "alias", "unfold")  # fmt: skip


class Watch(TorchDispatchMode):
    """Counts the operations that a device would run, and records those that the host would wait for."""

    def __init__(self):
        super().__init__()
        self.launches = Counter()
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if function is aten.batch_norm_update_stats.default and args[0].is_meta:
            result = tuple(args[0].new_empty(args[0].shape[1]) for _ in range(2))  # "meta" has no such kernel.
        elif function is aten.native_batch_norm.out and args[0].is_meta:
            result = kwargs["out"], kwargs["save_mean"], kwargs["save_invstd"]  # That of "meta" is slow.
        else:
            result = function(*args, **(kwargs or {}))
        name = function._schema.name
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        made = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        if any(value.is_meta for value in given + made):
            operation = name.removeprefix("aten::")
            self.launches[operation] += operation not in FREE
            from_host = [value for value in given if not value.is_meta and value.ndim]
            ahead = name in MOVES and (args[2:] == (True,) or (kwargs or {}).get("non_blocking"))
            if any(not value.is_meta for value in made) or (from_host and not ahead):
                self.waits.append(name)
        return result

    @property
    def total(self):
        return sum(self.launches.values())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return str(save_bands(tmp_path_factory.mktemp("data") / "bands.npz", train=320))


def stepped(dataset, fields, batches):
    """Return the operations of the training step and of the memory update, for each batch of the stream."""
    config = Config(**{"dataset": dataset, "n_tasks": 2, "memory_size": 10, "precision": "bfloat16"} | fields)
    stream, model, buffer, method = parts(config, "meta")
    operations = []
    for task in stream:
        for _, batch in zip(range(batches), task):
            with Watch() as learning:
                method.learn(model, batch, buffer)
            with Watch() as remembering:
                if buffer is not None:
                    buffer.update(model, batch)
            operations.append((learning, remembering))
    return operations


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "finetune"},
        {"method": "agem"},
        {"population": "reservoir"},
        {"population": "class-balanced"},
        {"population": "class-balanced", "class_balancing": "redraw"},
        *({"score": score} for score in ("BI", "LC", "MS", "RC", "RM", "MC")),
        {"score": "EN", "averaging": "probabilities"},
        {"selection": "top", "refresh": 2},
        {"selection": "step", "refresh": 0.5},
        {"view_draws": "batch"},
        {"view_space": "normalized"},
        {"scoring_batchnorm": "train"},
        {"dropout": 0.2},
        *({"method": method} for method in ("er-ace", "derpp", "mir")),
        {"method": "mir", "scoring_batchnorm": "train"},
        *({"population": population} for population in ("herding", "closest-to-mean", "coreset")),
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_nothing_in_the_loop_waits_for_the_device(dataset, fields):
    steps = stepped(dataset, fields, batches=2)
    assert len(steps) == 4
    for learning, remembering in steps:
        assert learning.total and not learning.waits
        assert not remembering.waits
    # A memory without a score stores few samples late in a stream, and perhaps none of the last batch.
    stored = sum(remembering.total for _, remembering in steps)
    assert bool(stored) == (fields.get("method") != "finetune")


def test_the_watch_sees_what_waits():
    meta, host = torch.zeros(3, device="meta"), torch.zeros(3)
    with Watch() as watch:
        meta[0], meta[1:].view(1, 2)
        assert not watch.total
        meta + 1
        assert watch.total == 1
        host.to("meta", non_blocking=True)
        meta.copy_(host, non_blocking=True)
        assert not watch.waits
        host.to("meta")
        meta.copy_(host)
        meta[torch.tensor([1, 2])]
        assert watch.waits == ["aten::_to_copy", "aten::copy_", "aten::index"]
    for reading in (torch.Tensor.item, torch.Tensor.tolist, torch.nonzero, torch.Tensor.cpu):
        with pytest.raises(RuntimeError):  # Some operations raise the subclass NotImplementedError.
            reading(meta[:1])


@pytest.mark.parametrize("score", ["BI", "MC"])
def test_scoring_is_launched_alike_for_a_small_and_a_large_memory(dataset, score):
    """On a GPU a launch costs more than these images, so all candidates must be scored in one pass."""
    fields = {"score": score, "batch_size": 50, "n_tasks": 1}
    small, large = (stepped(dataset, {**fields, "memory_size": size}, batches=3)[-1][1].launches for size in (20, 100))
    assert small["convolution"] == large["convolution"] == 11  # the stem, eight in four blocks, and two shortcuts
    assert small == large


CALLERS = {
    "nothing": "",
    "old switches": "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True",
    "medium": "torch.set_float32_matmul_precision('medium')",
    "high": "torch.set_float32_matmul_precision('high')",
}
if hasattr(torch.backends.cudnn, "conv"):  # torch 2.9
    CALLERS["new switches"] = "torch.backends.fp32_precision = 'tf32'"
    CALLERS["ieee"] = "torch.backends.cudnn.conv.fp32_precision = 'ieee'"


def is_exact_within(caller):
    """Runs in a separate process, because the old and the new switches can't be mixed."""
    exec(CALLERS[caller], {"torch": torch})
    cudnn, matmul, mkldnn = torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.mkldnn

    def exact():
        if hasattr(cudnn, "conv"):
            newer = (cudnn.conv, cudnn.rnn, matmul, mkldnn.conv, mkldnn.rnn, mkldnn.matmul)
            return [backend.fp32_precision == "ieee" for backend in newer]
        return [not backend.allow_tf32 for backend in (cudnn, matmul)]

    before = exact(), cudnn.deterministic, cudnn.benchmark
    with exact_arithmetic():
        within = all(exact()) and cudnn.deterministic and not cudnn.benchmark
    sys.exit(0 if within and before == (exact(), cudnn.deterministic, cudnn.benchmark) else 1)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
@pytest.mark.parametrize("caller", CALLERS)
def test_float32_is_exact_whatever_the_caller_chose_and_stays_chosen(caller):
    process = multiprocessing.get_context("fork").Process(target=is_exact_within, args=(caller,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
