"""The user's own objects, named by a dotted path: ``package.module:name`` or ``package.module:name(power=2)``.

The path is the value of a field of `Config` (`ucl.choices.PLUGS`). `find`, `find_class` and `find_by_name` import the
object and raise before the run if it cannot be used. If its code raises during a run, `blamed` turns the error into one
line that names the object.
"""

from ucl.own.modules import kept_from_processes, source_file, source_hash
from ucl.own.objects import ByName, blamed, call, check_initialised, find, find_by_name, find_class
from ucl.own.path import parsed

__all__ = [
    "ByName",
    "blamed",
    "call",
    "check_initialised",
    "find",
    "find_by_name",
    "find_class",
    "kept_from_processes",
    "parsed",
    "source_file",
    "source_hash",
]
