"""The rooms (subpackages and modules) of the package: imports go only to lower floors, and none are circular."""

import itertools
from graphlib import TopologicalSorter
from pathlib import Path

import ucl
from ucl import user_objects

PACKAGE = Path(ucl.__file__).parent
FLOORS = [  # an import goes down this list, and along a line from left to right
    ("__main__", "cli"),
    ("reproduction",),
    ("studies", "avalanche", "benchmarks"),
    ("report", "plots"),
    ("sweeps",),
    ("experiment", "assembly"),
    ("evaluation", "checkpoints", "listeners", "evidence", "records"),
    ("methods", "buffers", "scorers", "streams", "models"),
    ("machine",),
    ("naming", "config", "fields", "catalogue", "user_objects", "metrics", "errors", "_version"),
]
PLACE = {room: place for place, room in enumerate(itertools.chain(*FLOORS))}


def modules():
    """The source of each module, by its name without the package's."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "__init__.py"  # the public names, which are imported only when they are used
    }


def imported(source, known):
    """The modules that a module imports, anywhere in its source."""
    for name in user_objects._imports(source.encode(), ""):
        room, _, inner = name.partition(".")
        while room == "ucl" and inner:
            if inner in known or f"{inner}.__init__" in known:
                yield inner if inner in known else f"{inner}.__init__"
                break
            inner = inner.rpartition(".")[0]


def arrows():
    found = modules()
    return {name: set(imported(source, found)) - {name} for name, source in found.items()}


def test_each_module_has_a_floor_and_imports_go_down_or_right():
    assert {name.partition(".")[0] for name in modules()} == set(PLACE)
    pairs = [(name, other) for name, others in arrows().items() for other in others]
    assert [(a, b) for a, b in pairs if PLACE[a.partition(".")[0]] > PLACE[b.partition(".")[0]]] == []


def test_there_is_no_circle():
    graph = {name: {other for other in others if not other.endswith("__init__")} for name, others in arrows().items()}
    list(TopologicalSorter(graph).static_order())  # raises if there is a circle


def test_the_public_names_are_importable():
    for name in ucl.__all__:
        assert getattr(ucl, name) is not None
    for room, name in ("datasets", "load"), ("paper", "grid"), ("selection", "bottom_k"), ("views", "VIEWS"):
        assert hasattr(getattr(ucl, room), name)
