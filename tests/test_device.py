"""What a GPU would be asked, found out without one.

Tensors on "meta" have shapes and no values: an operation that reads one back to the host raises. Each operation is
watched besides, as copies to "meta" never wait and those to a GPU may.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucl import Config, datasets
from ucl.experiment import build_buffer, build_model, build_stream
from ucl.methods import METHODS

MOVES = ("aten::_to_copy", "aten::copy_")
FREE = ("view", "_unsafe_view", "slice", "select", "unsqueeze", "permute", "expand", "unbind", "split_with_sizes",
        "split", "transpose", "t", "detach", "alias", "unfold")  # fmt: skip


class Watch(TorchDispatchMode):
    """Counts what a device would be asked to do, and keeps what the host would wait for."""

    def __init__(self):
        super().__init__()
        self.launches = Counter()
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
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


def stepped(fields, batches):
    """What the training steps and what the memory asks, batch after batch of the stream."""
    config = Config(**{"dataset": "digits", "n_tasks": 2, "memory_size": 10} | fields)
    data = datasets.load(config.dataset)
    stream = build_stream(config, data, "meta")
    model = build_model(config, data, "meta")
    buffer = build_buffer(config, data, "meta", torch.bfloat16)
    method = METHODS[config.method](model, config.lr, 0)
    found = []
    for task in stream:
        for _, batch in zip(range(batches), task):
            with Watch() as learning:
                method.learn(model, batch, buffer)
            with Watch() as remembering:
                if buffer is not None:
                    buffer.update(model, batch)
            found.append((learning, remembering))
    return found


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
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_nothing_in_the_loop_waits_for_the_device(fields):
    steps = stepped(fields, batches=2)
    assert len(steps) == 4
    for learning, remembering in steps:
        assert learning.total and not learning.waits
        assert not remembering.waits
    # a memory without a score takes few samples late in a stream: none in the last batch, it may be
    stored = sum(remembering.total for _, remembering in steps)
    assert bool(stored) == (fields.get("method") != "finetune")


def test_the_watch_sees_what_waits():
    there, host = torch.zeros(3, device="meta"), torch.zeros(3)
    with Watch() as watch:
        there[0], there[1:].view(1, 2)
        assert not watch.total
        there + 1
        assert watch.total == 1
        host.to("meta", non_blocking=True)
        there.copy_(host, non_blocking=True)
        assert not watch.waits
        host.to("meta")
        there.copy_(host)
        there[torch.tensor([1, 2])]
        assert watch.waits == ["aten::_to_copy", "aten::copy_", "aten::index"]
    for reading in (torch.Tensor.item, torch.Tensor.tolist, torch.nonzero, torch.Tensor.cpu):
        with pytest.raises(RuntimeError):  # some raise its subclass for what is not implemented
            reading(there[:1])


def test_scoring_is_launched_alike_for_a_small_and_a_large_memory():
    """A launch costs a GPU more than these images do: there is one pass over all candidates, and it stays one."""
    small, large = (stepped({"memory_size": size, "batch_size": 50}, batches=5)[-1][1].launches for size in (20, 200))
    assert small["convolution"] == large["convolution"] == 20
    assert small == large
