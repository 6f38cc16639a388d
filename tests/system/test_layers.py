"""The house rules: who may import whom, read from the source of the installed package."""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires

import pytest

from tests.support.house import (
    arrows,
    circle,
    imports,
    imports_of,
    inner_imports,
    lines_of,
    modules,
    room_of,
    way_of_a_gram_fit,
)

FLOORS = {
    "errors": 1,
    "utils": 2,
    "kernels": 3, "solvers": 3, "preprocessing": 3, "engine": 3,
    "features": 4, "io": 4,
    "metrics": 5, "model": 5,
    "diagnostics": 6, "fitting": 6,
    "estimators": 7,
    "cli": 8,
}  # fmt: skip
MOST_ROOMS, MOST_ARROWS = 14, 43  # errors is no room
MOST_FILES, MOST_FILES_OF_A_FIT, MOST_LINES_LOADED = 130, 24, 23_700
WITH_DASK = ("engine", "io", "metrics", "model", "diagnostics", "estimators", "cli")
DASK = {"dask", "distributed", "dask_ml"}
DISTRIBUTIONS = {"sklearn": "scikit-learn", "dask_ml": "dask-ml"}  # where they differ from the import name


def test_the_walk_sees_every_kind_of_import():
    source = (
        "import a.b, c as d\nfrom e import f\nfrom . import g\nfrom distrff import errors, other\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import h\n"
        "class K:\n    import i\n    def method(self):\n        with x:\n            import j\n"
    )
    found = {(i.target, i.at_load, i.for_types) for i in imports_of("m", source)}
    assert found == {
        ("a.b", True, False), ("c", True, False), ("e", True, False), (".", True, False),
        ("distrff.errors", True, False), ("distrff", True, False), ("typing", True, False),
        ("h", True, True), ("i", True, False), ("j", False, False),
    }  # fmt: skip


def test_every_module_is_in_a_room_that_imports_from_lower_floors_only():
    """Of types as well: so there is no circle of rooms; and few arrows lead from room to room."""
    rooms = {room_of(name) for name in modules()} - {""}
    assert rooms == set(FLOORS)
    assert len(rooms - {"errors"}) <= MOST_ROOMS
    across = [i for i in inner_imports() if room_of(i.importer) != room_of(i.target)]
    across = [i for i in across if i.target != "distrff"]  # the public names, which only the top room imports
    upward = [i for i in across if FLOORS[room_of(i.target)] >= FLOORS[room_of(i.importer)]]
    assert not upward, "\n".join(map(str, upward))
    assert len(arrows()) <= MOST_ARROWS, sorted(arrows())


def test_the_house_is_small_enough_to_be_seen_whole():
    """A ridge fit by its Gram leads through few files, and loads no more of the package than it needs."""
    way = way_of_a_gram_fit()
    assert len(modules()) <= MOST_FILES
    assert len(way["frames"]) <= MOST_FILES_OF_A_FIT, way["frames"]
    assert lines_of(way["loaded"]) <= MOST_LINES_LOADED


def test_a_fit_of_rows_in_memory_loads_what_it_needs():
    """Each of these takes half a second to load, a small fit much less."""
    loaded = {*way_of_a_gram_fit()["modules"]}
    assert not loaded & {"dask.array", "finufft", "zarr", "sklearn.decomposition"}
    assert "distrff.fitting.rows" in loaded  # all that a worker loads for sums


RULES = {
    # The command line is a user of the public names.
    "only the command line imports the package root": lambda i, package: (
        i.target == "distrff" and room_of(i.importer) not in ("", "cli")
    ),
    "imports are absolute": lambda i, package: i.target.startswith("."),
    "Dask is for the upper rooms": lambda i, package: (
        package in DASK and room_of(i.importer) not in WITH_DASK
    ),
    # It costs seconds and hundreds of megabytes.
    "dask-ml loads late": lambda i, package: package == "dask_ml" and i.at_load and not i.for_types,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_imports(rule):
    found = [i for i in imports() if RULES[rule](i, i.target.split(".")[0])]
    assert not found, "\n".join(map(str, found))


def test_no_module_imports_itself_by_a_detour():
    """Imports in functions and for type checkers count as well."""
    assert not circle(), "import cycle: " + " <- ".join(circle())


def test_every_import_is_declared():
    try:
        declared = requires("distrff") or []
    except PackageNotFoundError:
        pytest.skip("the package is not installed, so what it declares is not known")
    always = {re.split(r"[^\w.-]", line)[0] for line in declared if "extra ==" not in line}
    names = {i.target.split(".")[0] for i in imports() if not i.target.startswith(".")}
    third_party = names - {"distrff"} - set(sys.stdlib_module_names)
    undeclared = sorted(name for name in third_party if DISTRIBUTIONS.get(name, name) not in always)
    assert not undeclared, f"imported, but not in pyproject.toml's dependencies: {undeclared}"
