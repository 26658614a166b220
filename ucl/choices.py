"""The names that moved to `ucl.catalogue`; this module goes when its last caller has changed."""

from typing import Any

from ucl import catalogue
from ucl.catalogue import BOUNDARIES as _BOUNDARIES
from ucl.catalogue import LARGEST_IMAGE as LARGEST_IMAGE
from ucl.catalogue import MEDMNIST as MEDMNIST
from ucl.catalogue import PLUGS as PLUGS
from ucl.catalogue import SMALLEST_IMAGE as SMALLEST_IMAGE
from ucl.catalogue import UNIFORM as UNIFORM
from ucl.catalogue import choose_from as choose_from
from ucl.catalogue import has_separator as has_separator
from ucl.catalogue import is_own as is_own
from ucl.catalogue import plain_name as plain_name
from ucl.catalogue import scenario as scenario

METHODS = catalogue.helps(catalogue.METHODS)
POPULATIONS = catalogue.helps(catalogue.POLICIES)
SCORE_NAMES = catalogue.helps(catalogue.SCORES)
SELECTIONS = catalogue.helps(catalogue.SELECTIONS)
STATISTICS = catalogue.helps(catalogue.STATISTICS)
READINGS = catalogue.helps(catalogue.READINGS)
PICTURES = catalogue.helps(catalogue.PICTURES)
BOUNDARIES = catalogue.helps(_BOUNDARIES)
FROM_MEMORY = tuple(name for name, row in catalogue.STATISTICS.items() if row.needs_memory)
OF_BOUNDARIES: dict[str, dict[str, Any]] = {
    name: {"blur": row.blur, "replay": row.replay} for name, row in _BOUNDARIES.items()
}
WITHOUT_VALIDATION = tuple(name for name, row in catalogue.DATASETS.items() if not row.has_validation)
METHOD_LABELS = {name: row.label for name, row in catalogue.METHODS.items() if row.label}
POPULATION_LABELS = {name: row.label for name, row in catalogue.POLICIES.items() if row.label}
