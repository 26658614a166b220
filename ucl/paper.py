"""The paper's own numbers and settings: Serra, Werner & Buettner, TMLR 2025."""

from __future__ import annotations

from typing import Any

# Where the paper is silent, what its authors' published implementation does: `config.replace(**PUBLISHED_CODE)`.
PUBLISHED_CODE: dict[str, Any] = dict(
    scoring_batchnorm="train",
    averaging="probabilities",
    view_draws="batch",
    view_space="normalized",
    class_balancing="redraw",
    reservoir_index="exclusive",
    long_tailed_test=True,
)
