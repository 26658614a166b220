"""Steps captured once and repeated, compared with steps done one by one.

Without a GPU, a tape simulates a capture: it records every operation with its tensors, and a replay repeats the
operations on the same tensors. As on a GPU, no Python code runs during a replay. Any value that a step takes from
outside its inputs and its persistent tensors is frozen at the capture, so that later results are wrong.
"""

import contextlib
import itertools
import math

import pytest
import torch
from conftest import learn, parts, run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucl.catalogue import METHODS
from ucl.machine import cuda_graphs as graphs
from ucl.machine.cuda_graphs import WARM_UP, Graphed
from ucl.machine.determinism import repeatable
from ucl.models import SlimResNet18
from ucl.scorers import ScoringPasses

pytestmark = pytest.mark.usefixtures("small_networks")


class Tape(TorchDispatchMode):
    """Records operations to repeat them; `undo` reverts the changes of the first execution."""

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
                if to.data_ptr() != x.data_ptr():  # It is neither a view nor changed in place.
                    to.copy_(x)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory_of(x):
    return x.untyped_storage().data_ptr()


@pytest.fixture
def tapes(monkeypatch):
    """Make a CPU capture on tapes; returns a list with the number of replays of each capture."""
    replays = []

    def captured(function, stream, pool):
        with Tape() as tape:
            output = function()
        tape.undo()
        replays.append(0)
        number = len(replays) - 1

        def replay():
            replays[number] += 1
            tape.replay()
            return None if output is None else output.clone()

        return replay

    on_the_cpu(monkeypatch, captured)
    return replays


def on_the_cpu(monkeypatch, captured):
    monkeypatch.setattr(graphs, "_GRAPHS_ON", ("cpu",))
    monkeypatch.setattr(graphs, "_stream_of", lambda device: "a stream")
    monkeypatch.setattr(graphs, "_on", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(graphs, "_captured", captured)
    monkeypatch.setattr(graphs, "_renew", lambda device, draws: torch.set_rng_state(draws))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda draws, device: torch.set_rng_state(draws))


KINDS = {name: {"method": name} for name in METHODS if name != "joint"} | {  # with a reservoir; "er" is ER
    "A-GEM of replay": {"method": "agem", "projected": "replay"},
    "MIR as commonly implemented": {"method": "mir", "scoring_batchnorm": "train"},
    "MC": {"score": "MC", "population": "uncertainty"},
}


def learnt(config, device="cpu", graphs=True):
    """Weights and statistics after a stream, the memory's content, and whether graphs were in use at the end."""
    with repeatable(config.seed, torch.device(device)):
        stream, model, buffer, method = parts(config, device, graphs)
        learn(stream, model, buffer, method)
    return model.state_dict(), None if buffer is None else buffer.positions.tolist(), method.graphs_in_use


def assert_equal(result, other):
    assert result[1] == other[1]
    for name, value in result[0].items():
        assert torch.equal(value, other[0][name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_learn_bit_for_bit_what_plain_steps_do(tiny, tapes, kind):
    config = tiny.replace(batch_size=3, **KINDS[kind])
    captured, plain = learnt(config), learnt(config, graphs=False)
    assert len(tapes) >= 1 + (kind in ("er", "agem", "A-GEM of replay")) and min(tapes) > 1
    assert (captured[2], plain[2]) == (True, False)
    assert_equal(captured, plain)


def scored(graphs, view_draws, device="cpu"):
    """Logits of views of two numbers of images while the weights change, and whether graphs were in use."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = SlimResNet18(4, 1, 28).to(device)
    passes = ScoringPasses(generator, view_draws=view_draws, graphs=graphs)
    logits = []
    for _ in range(WARM_UP + 3):
        for n in (5, 3):
            for weight in model.parameters():
                weight.data.mul_(1.01)
            images = torch.randint(256, (n, 1, 28, 28), dtype=torch.uint8, generator=generator).to(device)
            logits.append(passes.logits(model, images, torch.arange(n, device=device)))
    return torch.cat(logits, 1), passes._graphed.in_use


def test_captured_scoring_passes_have_the_logits_of_plain_ones(tapes):
    (plain, not_used), (captured, used) = (scored(graphs, "fixed") for graphs in (False, True))
    assert (not_used, used) == (False, True) and torch.equal(captured, plain)
    assert tapes == [3 + 1, 3 + 1]


OWN = [{"method": "ucl.methods:ExperienceReplay"}, {"model": "own_objects:batch_normed"}]
HOOKED = dict(score="EN", population="uncertainty", scoring_batchnorm="train", readings=True)
ON_REQUEST = [(fields, asked, bool(asked)) for fields in OWN for asked in (None, True)]


@pytest.mark.parametrize(("fields", "asked", "in_use"), [({}, None, True), *ON_REQUEST, (HOOKED, None, False)], ids=str)
def test_a_record_tells_of_graphs_and_has_the_results_of_a_run_without(tiny, tapes, monkeypatch, fields, asked, in_use):
    """A user's method and network use them on request only, and a network with hooks never: a graph calls no hook."""
    monkeypatch.setattr("ucl.evaluation.readings.BATCHES", 3)
    config = tiny.replace(batch_size=3, **fields)
    plain = run(config, graphs=False)
    assert plain.environment["graphs"] is False and tapes == []
    record = run(config, graphs=asked)
    assert record.environment["graphs"] is in_use and bool(tapes) == in_use
    assert record.results == plain.results


def zeroed():
    model = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
    model.weight.zero_()
    return model


def test_a_step_is_captured_once_for_each_kind_of_input_after_three_plain_calls(tapes):
    kinds = [torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2).t(), torch.ones(4, 1)]
    model, calls = zeroed(), []

    def add(model, x):
        calls.append(x.shape)
        model.weight.add_(x.sum())

    step = Graphed(add, graphs=True)
    for i in range(6):
        for x in kinds:
            step(model, i * x)
    assert model.weight.item() == (0 + 1 + 2 + 3 + 4 + 5) * 4 * 4
    assert len(calls) == 4 * (3 + 2)  # Three plain calls; one plain and one captured call at the capture.
    assert tapes == [4, 4, 4, 4]  # The first repetition is only compared.


def test_a_capture_that_repeats_something_else_is_not_used(tapes):
    """A value that a step takes from outside is frozen in a capture; the first repetition reveals it."""
    model, calls = zeroed(), itertools.count()
    step = Graphed(lambda model, x: model.weight.add_(x, alpha=next(calls)), graphs=True)
    with pytest.warns(UserWarning, match="no CUDA graph"):
        for _ in range(4):
            step(model, torch.ones(1, 1))
    # Calls 3 and 4 were the comparison, and changed no weights.
    assert model.weight.item() == 0 + 1 + 2 + 5 and not step.in_use
    step(model, torch.ones(1, 1))
    assert model.weight.item() == 0 + 1 + 2 + 5 + 6 and tapes == [1]


def test_a_network_that_diverges_is_repeated_all_the_same(tapes):
    model = zeroed()
    step = Graphed(lambda model, x: model.weight.mul_(x), graphs=True)
    for value in (math.inf, 0.0, 1.0, 1.0, 1.0):
        step(model, torch.full((1, 1), value))
    assert math.isnan(model.weight.item()) and step.in_use


@pytest.mark.parametrize("kind", ["er", "MC"])
def test_where_no_capture_succeeds_training_goes_on_as_it_was(tiny, monkeypatch, kind):
    config = tiny.replace(batch_size=3, **KINDS[kind])
    plain = learnt(config, graphs=False)

    def captured(function, stream, pool):
        function()  # This capture fails late, after it has drawn masks.
        raise RuntimeError("operation not permitted when stream is capturing\nand more about it")

    on_the_cpu(monkeypatch, captured)
    with pytest.warns(UserWarning, match="operation not permitted when stream is capturing$") as reported:
        warned = learnt(config)
    assert len(reported) == 1 and not warned[2]
    assert_equal(warned, plain)
