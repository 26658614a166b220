"""The names of runs: what differs from the defaults."""

import pytest

from ucl import Config, naming

CELLS = Config(dataset="/data/cells", memory_size=40, seed=3)


def test_settings_name_what_differs_and_nothing_else():
    config = Config(dataset="cifar10", score="LC", selection="top", memory_size=70, seed=4)
    assert naming.settings(config) == ""
    assert naming.settings(config.replace(lr=0.05, averaging="probabilities")) == "lr=0.05, averaging=probabilities"
    assert naming.settings(Config(dataset="cifar10", method="finetune", n_tasks=2)) == "n_tasks=2"
    assert naming.settings(Config(score="MC", dropout=0.2)) == "dropout=0.2"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (dict(n_tasks=2, score="EN", refresh=2), "cells, n_tasks=2, memory 40, EN bottom, refresh=2, seed 3"),
        (dict(method="finetune", lr=0.05), "cells, Finetune, lr=0.05, seed 3"),
        (dict(population="class-balanced", class_balancing="redraw"), "cells, memory 40, CBR redraw, seed 3"),
        (naming.PUBLISHED_CODE, "cells, memory 40, BI bottom, published settings, seed 3"),
    ],
)
def test_a_run_is_named_by_its_data_set_without_the_folder_its_method_and_settings(fields, name):
    assert naming.run_name(CELLS.replace(**fields)) == name
