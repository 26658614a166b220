"""The comparison of scores in bfloat16 and float32: it watches a run and changes nothing in it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import learn, needs_bfloat16, parts, save_bands

from ucl import Config, assembly
from ucl.benchmarks.precision import count_kept_by_both, kept_by_both
from ucl.machine.determinism import repeatable
from ucl.scorers import Scorer

pytestmark = [needs_bfloat16, pytest.mark.usefixtures("small_networks")]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A stream of sixteen batches in two tasks."""
    path = save_bands(tmp_path_factory.mktemp("data") / "bands.npz", train=160, test=8)
    return Config(dataset=str(path), n_tasks=2, memory_size=12, seed=3)


def test_float32_keeps_nearly_what_bfloat16_keeps(config):
    table = kept_by_both(config)
    assert table["task"].tolist() == [1, 2] and (table["kept_by_both"] <= table["kept"]).all()
    assert table["kept_by_both"].sum() >= 0.9 * table["kept"].sum() > 0


@dataclass
class TurnedInBfloat16(Scorer):
    """A score whose order is reversed in bfloat16."""

    def __call__(self, *arguments, **named):
        sign = -1 if self.passes.dtype == torch.bfloat16 else 1
        return sign * super().__call__(*arguments, **named)


def test_a_score_that_keeps_the_other_end_is_reported(config):
    stream, model, buffer, _ = parts(config.replace(precision="bfloat16"))
    buffer.scorer = TurnedInBfloat16(buffer.scorer.score, buffer.scorer.passes)
    counts = [count_kept_by_both(model, batch, buffer) for batch in stream.tasks[0]]
    _, kept, both = np.array(counts).sum(0)
    assert 0 < both < 0.9 * kept  # a memory of 12 and a batch of 10: some are retained under any score


@pytest.mark.parametrize("every", [1, 4])
def test_the_run_is_the_run_it_would_be_without(config, every, monkeypatch):
    coarse = config.replace(precision="bfloat16")
    with repeatable(config.seed, torch.device("cpu")):
        stream, model, expected, method = parts(coarse)
        learn(stream, model, expected, method)
    watched = parts(coarse).buffer
    monkeypatch.setattr(assembly, "build_buffer", lambda *_, **__: watched)
    table = kept_by_both(config, every)
    assert torch.equal(watched.positions, expected.positions)
    assert torch.equal(watched.scores, expected.scores)
    assert table["classes"].sum() > 0
