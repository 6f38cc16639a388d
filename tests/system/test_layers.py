"""The house rules: who may import whom, read from the source of the installed package."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NamedTuple

import pytest

FLOORS = {
    "errors": 1,
    "utils": 2,
    "kernels": 3, "solvers": 3, "preprocessing": 3, "engine": 3,
    "features": 4, "io": 4,
    "metrics": 5,
    "reductions": 6, "diagnostics": 6,
    "model": 7,
    "estimators": 8,
    "cli": 9,
}  # fmt: skip
MOST_ROOMS, MOST_ARROWS = 14, 60  # errors is no room
WITH_DASK = ("engine", "io", "metrics", "model", "diagnostics", "estimators", "cli")
DASK = {"dask", "distributed", "dask_ml"}
DISTRIBUTIONS = {"sklearn": "scikit-learn", "dask_ml": "dask-ml"}  # where they differ from the import name

_SPEC = importlib.util.find_spec("distrff")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
ROOT = Path(_SPEC.submodule_search_locations[0])


class Import(NamedTuple):
    importer: str
    target: str  # dotted; of `from a import b`, a.b where that is a module, else a
    line: int
    at_load: bool  # executed when the module is loaded, not later in a function
    for_types: bool  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    files = sorted(ROOT.rglob("*.py"))
    return {".".join(["distrff", *_parts(file.relative_to(ROOT))]): file for file in files}


def _parts(file: Path) -> list[str]:
    parts = list(file.with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def imports() -> list[Import]:
    return [found for name, file in modules().items() for found in imports_of(name, file.read_text())]


def imports_of(importer: str, source: str) -> Iterator[Import]:
    yield from _walk(importer, ast.parse(source), at_load=True, for_types=False)


def _walk(importer: str, node: ast.AST, at_load: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for target in _targets(child):
                yield Import(importer, target, child.lineno, at_load, for_types)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _walk(importer, child, at_load and not in_function, for_types or types_only)


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        return ["." * node.level + (node.module or "")]
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in modules() else str(node.module) for name in names]


def layer_of(module: str) -> str:
    """The second part of a module's dotted name; "" for the package root."""
    return module.split(".")[1] if "." in module else ""


def inner_imports() -> list[Import]:
    """Imports of distrff by distrff, without the root's own, which are lazy."""
    return [i for i in imports() if i.target.split(".")[0] == "distrff" and i.importer != "distrff"]


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
    rooms = {layer_of(name) for name in modules()} - {""}
    assert rooms == set(FLOORS)
    assert len(rooms - {"errors"}) <= MOST_ROOMS
    across = [i for i in inner_imports() if layer_of(i.importer) != layer_of(i.target)]
    across = [i for i in across if i.target != "distrff"]  # whose names are loaded late, of all rooms
    upward = [i for i in across if FLOORS[layer_of(i.target)] >= FLOORS[layer_of(i.importer)]]
    assert not upward, "\n".join(map(str, upward))
    arrows = {(layer_of(i.importer), layer_of(i.target)) for i in across if layer_of(i.target) != "errors"}
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)


RULES = {
    # The command line is a user of the public names.
    "only the command line imports the package root": lambda i, package: (
        i.target == "distrff" and layer_of(i.importer) not in ("", "cli")
    ),
    "imports are absolute": lambda i, package: i.target.startswith("."),
    "Dask is for the upper rooms": lambda i, package: (
        package in DASK and layer_of(i.importer) not in WITH_DASK
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
    graph: dict[str, set[str]] = {}
    for found in inner_imports():
        graph.setdefault(found.importer, set()).add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


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
