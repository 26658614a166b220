"""Tests that need a GPU; without one, all of them are skipped. No other file has such tests."""

import threading
import warnings

import pytest
import torch
from conftest import parts, python
from test_graphs import KINDS, ON_REQUEST, assert_equal, learnt, scored
from test_models import pictures, relative_error, trained

import ucl
from ucl import Config
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.machine.cuda_graphs import WARM_UP, Graphed
from ucl.machine.determinism import exact_arithmetic, repeatable
from ucl.models import FoldedNetwork
from ucl.models.convolution import Conv2d
from ucl.scorers import SCORES, ScoringPasses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


KINDS = {**KINDS, "BI": {"score": "BI", "population": "uncertainty"}}


@pytest.mark.parametrize("of", KINDS)
def test_captured_steps_learn_bit_for_bit_what_plain_steps_do(tiny, of):
    config = tiny.replace(batch_size=3, **KINDS[of])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = learnt(config, "cuda")
    assert captured[2]
    assert_equal(captured, learnt(config, "cuda", graphs=False))


RUNS = [*((fields, None, True) for fields in KINDS.values()), *ON_REQUEST]


@pytest.mark.parametrize(("fields", "asked", "in_use"), RUNS, ids=str)
def test_a_run_has_the_results_of_one_without_graphs(tiny, fields, asked, in_use):
    config = tiny.replace(batch_size=3, **fields)
    plain, other = (ucl.run(config, device="cuda", progress=False, graphs=graphs) for graphs in (False, asked))
    assert (plain.environment["graphs"], other.environment["graphs"]) == (False, in_use)
    assert plain.results == other.results


@pytest.mark.parametrize("fields", [{}, {"precision": "float32"}, {"score": "MC"}, PUBLISHED_CODE], ids=str)
def test_a_fresh_process_runs_on_a_gpu(fields):
    config = Config(validation=0.5, imbalance=0.2, memory_size=10, **fields)
    script = "import sys, ucl; print(ucl.run(ucl.Config.from_json(sys.argv[1]), device='cuda').last_accuracy)"
    assert 0 < float(python("-c", script, config.to_json())) <= 1


@pytest.mark.parametrize("view_draws", ["image", "fixed", "batch"])
def test_captured_scoring_passes_have_the_logits_of_plain_ones(view_draws):
    (plain, not_used), (captured, used) = (scored(graphs, view_draws, "cuda") for graphs in (False, True))
    assert (not_used, used) == (False, True) and torch.equal(captured, plain)


@pytest.mark.parametrize("score", SCORES)
def test_no_update_of_an_uncertainty_buffer_waits_for_the_gpu(tiny, score):
    config, device = tiny.replace(batch_size=3, population="uncertainty", score=score), torch.device("cuda")
    with repeatable(config.seed, device):
        stream, model, buffer, _ = parts(config, device, graphs=False)
        for task in stream:
            for number, batch in enumerate(task):
                torch.cuda.set_sync_debug_mode("error" if number >= WARM_UP else "default")
                try:
                    buffer.update(model, batch)
                finally:
                    torch.cuda.set_sync_debug_mode("default")


def test_bfloat16_passes_fill_up_the_channels_and_give_the_logits():
    model = trained()
    images = pictures(64, seed=5)
    expected = FoldedNetwork(model).logits(model.normalize(images))
    model, images = model.cuda(), images.cuda()
    with exact_arithmetic():
        for dtype, channels, least, most in ((torch.bfloat16, (24, 8), 1e-6, 0.05), (torch.float32, (20, 3), 0, 1e-4)):
            folded = FoldedNetwork(model, dtype)
            assert folded.stem[0].shape[:2] == channels
            assert least <= relative_error(folded.logits(model.normalize(images)).cpu(), expected) < most


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_training_mode_passes_of_classes_at_once_are_those_of_the_cpu(dtype, most):
    """The views are the same; logits and running statistics differ by rounding, and repeat bit for bit."""
    candidates, found = pictures(40, seed=5).split([1, 20, 7, 12]), []
    for device, arithmetic in (("cpu", torch.float32), ("cuda", dtype), ("cuda", dtype)):
        model = trained().to(device)
        passes = ScoringPasses(torch.Generator().manual_seed(2), batchnorm="train", dtype=arithmetic)
        with exact_arithmetic():
            logits = passes.logits(model, torch.cat(candidates).to(device), sizes=[1, 20, 7, 12])
        found.append([logits.cpu(), *(values.cpu() for values in model.buffers())])
    for expected, got, again in zip(*found, strict=True):
        assert torch.equal(got, again)
        assert relative_error(got, expected) < most


@pytest.mark.parametrize(("n_in", "n_out", "stride"), [(3, 20, 1), (20, 20, 1), (20, 40, 2)])
def test_weight_gradients_are_those_of_float64(n_in, n_out, stride):
    conv = Conv2d(n_in, n_out, 3, stride, 1, bias=False).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(20, n_in, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    with exact_arithmetic():
        out = conv(x)
        assert type(out.grad_fn).__name__ == "_ConvolutionBackward"
        slope = torch.randn_like(out)
        (ours,) = torch.autograd.grad(out, conv.weight, slope, retain_graph=True)
        (again,) = torch.autograd.grad(out, conv.weight, slope)
    exact = torch.nn.grad.conv2d_weight(x.double(), conv.weight.shape, slope.double(), stride, 1)
    assert torch.equal(ours, again)
    assert relative_error(ours.double(), exact) < 1e-5


@pytest.mark.parametrize(("channels", "size"), [(40, 32), (20, 400)])
def test_many_channels_and_large_images_have_torchs_weight_gradients(channels, size):
    conv = Conv2d(channels, channels, 3, 1, 1, bias=False).cuda()
    out = conv(torch.randn(20, channels, size, size, device="cuda"))
    assert type(out.grad_fn).__name__ == "ConvolutionBackward0"


def noisy(rate):
    """A model of one weight, and a step that draws from the global generator, as dropout does."""
    model = torch.nn.Linear(1, 1, bias=False, device="cuda").requires_grad_(False)
    torch.nn.init.zeros_(model.weight)

    def step(model, x):
        model.weight.add_(torch.nn.functional.dropout(x, rate).sum())

    return model, step


def after(step, model, n, seed=0):
    torch.cuda.manual_seed(seed)
    for _ in range(n):
        step(model, torch.ones(1000, device="cuda"))
    return model.weight.item()


def test_draws_go_on_after_a_capture_that_failed():
    model, plain = noisy(0.5)
    expected = after(plain, model, WARM_UP + 4)
    model, plain = noisy(0.5)

    def reading(model, x):
        plain(model, x)
        model.weight.item()  # a capture forbids this

    step = Graphed(reading, graphs=True)
    with pytest.warns(UserWarning, match="no CUDA graph"):
        found = after(step, model, WARM_UP + 4)
    assert found == expected and not step.in_use
    torch.nn.functional.dropout(torch.ones(9, device="cuda"))  # raises if the generator is still in capture mode


def test_draws_repeat_from_graphs_of_two_kinds_of_inputs():
    found = []
    for graphs in (False, True):
        model, plain = noisy(0.5)
        step = Graphed(plain, graphs)
        torch.cuda.manual_seed(0)
        for _ in range(WARM_UP + 4):
            for n in (1000, 2000):
                step(model, torch.ones(n, device="cuda"))
        assert step.in_use == graphs
        found.append(model.weight.item())
    assert found[0] == found[1]


def test_another_thread_that_takes_memory_spoils_no_capture():
    model, plain = noisy(0.0)
    stop = threading.Event()

    def take():
        while not stop.is_set():
            torch.empty(2**24, device="cuda")
            torch.cuda.empty_cache()

    other = threading.Thread(target=take)
    other.start()
    try:
        step = Graphed(plain, graphs=True)
        assert after(step, model, WARM_UP + 4) == 1000 * (WARM_UP + 4) and step.in_use
    finally:
        stop.set()
        other.join()
