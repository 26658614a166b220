"""The comparison of scores in bfloat16 and float32: it watches a run and changes nothing in it."""

import numpy as np
import pytest
import torch
from conftest import bands

from ucl import Config, datasets
from ucl.buffers import UncertaintyBuffer
from ucl.experiment import build_buffer, build_model, build_stream, repeatable
from ucl.methods import ExperienceReplay
from ucl.precision import SideBySideBuffer, kept_by_both
from ucl.streams import seed_for


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A stream of sixteen batches in two tasks."""
    path = tmp_path_factory.mktemp("data") / "bands.npz"
    arrays = {}
    for split, n in (("train", 160), ("test", 8)):
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = bands(n)
    np.savez(path, **arrays)
    return Config(dataset=str(path), n_tasks=2, memory_size=12, seed=3)


@pytest.fixture(scope="module")
def tables(config):
    return {dtype: kept_by_both(config, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}


def test_float32_keeps_what_float32_keeps(tables):
    same = tables[torch.float32]
    assert same["task"].tolist() == [1, 2]
    assert (same["kept"] > 0).all() and same["kept"].equals(same["kept_by_both"])


def test_bfloat16_keeps_nearly_the_same(tables):
    coarse = tables[torch.bfloat16]
    assert (coarse["kept_by_both"] <= coarse["kept"]).all()
    assert coarse["kept_by_both"].sum() >= 0.9 * coarse["kept"].sum()


def test_a_rule_that_keeps_the_other_end_is_told(config):
    """A coarse score that turns the order around keeps the float32 choice only where it must."""
    data = datasets.load(config.dataset)
    model, stream = build_model(config, data), build_stream(config, data)
    buffer = build_buffer(config, data, dtype=torch.bfloat16)
    upright = buffer.scorer.score
    buffer.scorer.score = lambda logits_PNC: upright(logits_PNC) * (-1 if turned else 1)
    turned = True
    buffer.__class__, buffer.counts = SideBySideBuffer, []
    inside = UncertaintyBuffer._score

    def score(self, model, batch, places):
        nonlocal turned
        turned = self.scorer.dtype == torch.bfloat16
        return inside(self, model, batch, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UncertaintyBuffer, "_score", score)
        for batch in stream.tasks[0]:
            buffer.update(model, batch)
    _, kept, both = np.array(buffer.counts).sum(0)
    assert 0 <= both < kept


@pytest.mark.parametrize("every", [1, 4])
def test_the_run_is_the_run_it_would_be_without(config, every):
    data = datasets.load(config.dataset)
    ends = []
    for watched in (False, True):
        with repeatable(config.seed, torch.device("cpu")):
            model, stream = build_model(config, data), build_stream(config, data)
            buffer = build_buffer(config, data, dtype=torch.bfloat16)
            if watched:
                buffer.__class__, buffer.every, buffer.counts = SideBySideBuffer, every, []
            method = ExperienceReplay(model, config.lr, seed_for(config.seed, "replay"))
            for task in stream:
                for batch in task:
                    method.learn(model, batch, buffer)
                    buffer.update(model, batch)
        ends.append((buffer.positions.clone(), model.linear.weight.detach().clone()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert len(buffer.counts) > 0
