"""Values that are written in YAML, where numbers such as 1e-3 are numbers."""

from __future__ import annotations

import functools
import re
from typing import Any

from ucl.errors import one_line

# YAML 1.1 wants a point and a sign, 1.0e-3, and reads other numbers with an exponent as text.
_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII)


def from_yaml(text: str) -> Any:
    """The value of a text in YAML; what is quoted there remains text.

    Raises:
        ValueError: the text is not valid YAML; the message is one line.
    """
    import yaml

    try:
        return yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ValueError(one_line(error, most=None)) from None


@functools.cache
def _loader() -> Any:
    """The safe loader of YAML, which also knows numbers with an exponent."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))
    return Loader
