"""Steps captured once and repeated, beside steps done one by one.

A machine without a GPU plays a capture with a tape: what is captured is every operation with the tensors it was given,
and to replay is to do the operations again on the same tensors. Python decides nothing then, as on a GPU: whatever a
step takes from elsewhere than its inputs and the tensors that stay is frozen, and its results go astray.
"""

import contextlib
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucl import datasets, graphs
from ucl.experiment import build_buffer, build_model, build_stream, repeatable
from ucl.graphs import Graphed
from ucl.methods import METHODS


class Tape(TorchDispatchMode):
    """Keeps the operations that it sees, to do them again; `undo` leaves no trace of the first time."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self._made = set()
        self._before = {}
        self._random = torch.get_rng_state()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for x in tensors((args, kwargs)):
            if memory_of(x) not in self._made:
                self._before.setdefault(memory_of(x), (x, x.detach().clone()))
        result = function(*args, **kwargs)
        self._made |= {memory_of(x) for x in tensors(result)} - self._before.keys()
        self.operations.append((function, args, kwargs, result))
        return result

    @torch.no_grad()
    def undo(self):
        for x, before in self._before.values():
            x.copy_(before)
        torch.set_rng_state(self._random)

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, result in self.operations:
            for to, x in zip(tensors(result), tensors(function(*args, **kwargs)), strict=True):
                if to.data_ptr() != x.data_ptr():  # neither a view nor what was changed in place
                    to.copy_(x)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory_of(x):
    return x.untyped_storage().data_ptr()


@pytest.fixture
def tapes(monkeypatch):
    """Has a CPU capture on tapes; a list that gets, for each capture, how often it was replayed."""
    replays = []

    def captured(function, stream):
        with Tape() as tape:
            function()
        tape.undo()
        replays.append(0)
        number = len(replays) - 1

        def replay():
            replays[number] += 1
            tape.replay()

        return replay

    on_the_cpu(monkeypatch, captured)
    return replays


def on_the_cpu(monkeypatch, captured):
    monkeypatch.setattr(graphs, "_GRAPHS_ON", ("cpu",))
    monkeypatch.setattr(graphs, "_stream_of", lambda device: "a stream")
    monkeypatch.setattr(graphs, "_on", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(graphs, "_captured", captured)


KINDS = {
    "finetune": {"method": "finetune"},
    "ER": {"population": "reservoir"},
    "A-GEM": {"method": "agem"},
    "MC": {"score": "MC", "population": "uncertainty"},
}


def learnt(config, device="cpu"):
    """Weights and statistics after a stream, and what the memory holds."""
    data, device = datasets.load(config.dataset), torch.device(device)
    with repeatable(config.seed, device):
        model, buffer = build_model(config, data, device), build_buffer(config, data, device)
        method = METHODS[config.method](model, config.lr, 0)
        for task in build_stream(config, data, device):
            for batch in task:
                method.learn(model, batch, buffer)
                if buffer is not None:
                    buffer.update(model, batch)
    return model.state_dict(), None if buffer is None else buffer.positions.tolist()


def assert_equal(one, other):
    assert one[1] == other[1]
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), name


@pytest.mark.parametrize("of", KINDS)
def test_captured_steps_learn_bit_for_bit_what_plain_steps_do(tiny, tapes, monkeypatch, of):
    config = tiny.replace(batch_size=3, **KINDS[of])
    captured = learnt(config)
    assert len(tapes) >= 1 + (of in ("ER", "A-GEM")) and min(tapes) > 1
    monkeypatch.undo()
    assert_equal(captured, learnt(config))


def zeroed():
    model = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
    model.weight.zero_()
    return model


def test_a_step_is_captured_once_for_each_shape_after_three_plain_calls(tapes):
    model, calls = zeroed(), []

    def add(model, x):
        calls.append(len(x))
        model.weight.add_(x.sum())

    step, total = Graphed(add), 0.0
    for i in range(6):
        for n in (2, 3):
            step(model, torch.full((n,), float(i)))
            total += n * i
            assert model.weight.item() == total
    assert calls == [2, 3] * 3 + [2, 3]  # three plain calls and the capture
    assert tapes == [3, 3]


def test_what_a_step_takes_from_elsewhere_is_frozen(tapes):
    """The tape does see what a GPU would get wrong."""
    model, rate = zeroed(), [1.0]
    step = Graphed(lambda model, x: model.weight.add_(x, alpha=rate[0]))
    for rate[0] in (1.0, 2.0, 3.0, 4.0, 5.0):
        step(model, torch.ones(1, 1))
    assert model.weight.item() == 1 + 2 + 3 + 4 + 4


def test_where_no_capture_succeeds_training_goes_on_as_it_was(tiny, monkeypatch):
    config = tiny.replace(batch_size=3)
    plain = learnt(config)

    def captured(function, stream):
        raise RuntimeError("operation not permitted when stream is capturing\nand more about it")

    on_the_cpu(monkeypatch, captured)
    with pytest.warns(UserWarning, match="slower: operation not permitted when stream is capturing$") as told:
        warned = learnt(config)
    assert len(told) == 1
    assert_equal(warned, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("of", KINDS)
def test_on_a_gpu_captured_steps_learn_what_plain_steps_do(tiny, monkeypatch, of):
    config = tiny.replace(batch_size=3, **KINDS[of])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = learnt(config, "cuda")
    monkeypatch.setattr(graphs, "_GRAPHS_ON", ())
    assert_equal(captured, learnt(config, "cuda"))
