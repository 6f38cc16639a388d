"""The numbers of the house, read from the source: rooms, arrows, circles, files, lines, and a fit's way."""

import ast
import importlib.util
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

_SPEC = importlib.util.find_spec("distrff")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
ROOT = Path(_SPEC.submodule_search_locations[0])
TESTS = Path(__file__).resolve().parents[1]
EVERYWHERE = ("errors", "utils")  # all rooms may import them; their arrows are not counted

GRAM_FIT = """
import json, sys
import numpy as np
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>":
        seen.add(code.co_filename)
import dask
import distrff as drf
rng = np.random.default_rng(0)
X = rng.standard_normal((400, 3))
y = np.sin(X[:, 0])
model = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 32), "cv", random_state=0)
with dask.config.set(scheduler="synchronous"):
    sys.setprofile(note)
    model.fit(X, y)
    sys.setprofile(None)
loaded = [m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "distrff"]
model.predict(X)
print(json.dumps({"frames": sorted(seen), "loaded": sorted(loaded), "modules": sorted(sys.modules)}))
"""


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


def room_of(module: str) -> str:
    """The second part of a module's dotted name; "" for the package root."""
    room = module.split(".")[1] if "." in module else ""
    return "cli" if room == "__main__" else room  # which starts the command line


def inner_imports() -> list[Import]:
    """Imports of distrff by distrff, without the root's own, which are lazy."""
    return [i for i in imports() if i.target.split(".")[0] == "distrff" and i.importer != "distrff"]


def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second, without those that all may import."""
    pairs = {(room_of(i.importer), room_of(i.target)) for i in inner_imports()}
    return {(a, b) for a, b in pairs if a != b and b not in EVERYWHERE}


def circle() -> list[str]:
    """Modules that import each other in turn, also in functions and for type checkers; empty if none do."""
    graph: dict[str, set[str]] = {}
    for found in inner_imports():
        graph.setdefault(found.importer, set()).add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@cache
def way_of_a_gram_fit() -> dict[str, list[Any]]:
    """Files whose frames run in a ridge fit by its Gram, files that are loaded after it, and all modules."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GRAM_FIT],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT.parent,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    frames, loaded = (
        [Path(f) for f in found[kind] if Path(f).is_relative_to(ROOT)] for kind in ("frames", "loaded")
    )
    common = [ROOT / "errors.py", *(ROOT / "utils").rglob("*.py"), ROOT / "__init__.py"]
    return {"frames": [f for f in frames if f not in common], "loaded": loaded, "modules": found["modules"]}


def lines_of(files: Iterator[Path] | list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def code_lines(file: Path) -> tuple[int, int]:
    """Lines with code, by the tokenizer (no comment, docstring or blank line), and comments, of a file."""
    ignored = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.STRING}
    lines: set[int] = set()
    n_comments = 0
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT:
            n_comments += 1
        elif token.type not in ignored and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines), n_comments


def docstrings(file: Path) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def numbers() -> dict[str, Any]:
    """The table of the house."""
    files = list(modules().values())
    counted = [code_lines(file) for file in files]
    code, comments = (sum(of) for of in zip(*counted, strict=True))
    texts = [text for file in files for text in docstrings(file)]
    way = way_of_a_gram_fit()
    return {
        "rooms": len({room_of(name) for name in modules()} - {"", "errors"}),
        "arrows": len(arrows()),
        "circle": circle(),
        "files": len(files),
        "lines": lines_of(files),
        "lines of code": code,
        "code lines a comment": round(code / comments, 1),
        "docstrings": len(texts),
        "docstrings that begin with Return": sum(text.startswith("Return") for text in texts),
        "files of a Gram fit": len(way["frames"]),
        "lines loaded after it": lines_of(way["loaded"]),
        "test lines": lines_of(list(TESTS.rglob("*.py"))),
    }
