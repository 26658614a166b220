"""Values that are written in YAML, where numbers such as 1e-3 are numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ucl.errors import one_line

# YAML 1.1 wants a point and a sign, 1.0e-3, and reads other numbers with an exponent as text.
_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII)


def from_yaml(text: str) -> Any:
    """The value of a text in YAML; what is quoted there remains text.

    Raises:
        ValueError: the text is not valid YAML, or a mapping has a key twice; the message is one line.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            check_unique_keys(k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode) and k.value != "<<")
            return node

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, KeyError) as error:  # A KeyError is of `!!bool 3`.
        raise ValueError(one_line(error, most=None).replace(' in "<unicode string>",', " in")) from None


def check_unique_keys(keys: Iterable[str]) -> None:
    """Check that no key of a mapping is there twice: YAML and JSON readers would drop all its values but the last.

    Raises:
        ValueError: a key is; the message names it.
    """
    for key, times in Counter(keys).items():
        if times > 1:
            raise ValueError(f"{key} is there {times} times; give it once, with a list of its values")
