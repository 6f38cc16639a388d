"""Signatures and parameter texts of public names, read from their source.

Importing them instead would load NumPy, Numba and scikit-learn: two seconds for `--help`, and for each
misspelt option.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import distrff as drf


class Parameter(NamedTuple):
    """A parameter of a public name, as its signature and its docstring have it."""

    default: Any
    kind: str  # the type in words: 'float, "cv" or "gcv"'
    text: str


@cache
def parameters_of(name: str) -> dict[str, Parameter]:
    """Parameters of a public function or constructor."""
    module = _module(drf._MODULES[name])
    node = module.definitions[name]
    if isinstance(node, ast.ClassDef):
        return _of_class(module, node)
    return _documented(_of_function(module, node, skipped=0), node)


class _Module(NamedTuple):
    definitions: dict[str, Any]  # functions and classes
    constants: dict[str, ast.expr]
    imported: dict[str, str]  # names from distrff, and their modules


@cache
def _module(name: str) -> _Module:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    imports = [
        node for node in body if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("distrff.")
    ]
    return _Module(
        {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)},
        {
            t.id: node.value
            for node in body
            if isinstance(node, ast.Assign)
            for t in node.targets
            if isinstance(t, ast.Name)
        },
        {alias.name: str(node.module) for node in imports for alias in node.names},
    )


def _of_class(module: _Module, node: ast.ClassDef) -> dict[str, Parameter]:
    """Parameters of a constructor: its own `__init__`, or the fields of dataclasses, those of bases first."""
    found: dict[str, Parameter] = {}
    for base in reversed([one.id for one in node.bases if isinstance(one, ast.Name)]):
        if base in module.definitions:
            found |= _of_class(module, module.definitions[base])
        elif base in module.imported:
            other = _module(module.imported[base])
            found |= _of_class(other, other.definitions[base])
    own = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if own:
        found = _of_function(module, own[0], skipped=1)  # self
    elif any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and "KW_ONLY" not in ast.unparse(field.annotation):
                found[ast.unparse(field.target)] = Parameter(_literal(module, field.value), "", "")
    return _documented(found, node)


def _of_function(module: _Module, node: ast.FunctionDef, skipped: int) -> dict[str, Parameter]:
    named = [*node.args.args[skipped:], *node.args.kwonlyargs]
    given = [*node.args.defaults, *node.args.kw_defaults]
    defaults = [*[None] * (len(named) - len(given)), *given]
    found = zip(named, defaults, strict=True)
    return {argument.arg: Parameter(_literal(module, default), "", "") for argument, default in found}


def _literal(module: _Module, default: ast.expr | None) -> Any:
    """Value of a default: a literal, or a constant of the module; None where there is none."""
    if isinstance(default, ast.Name):
        default = module.constants[default.id]
    return None if default is None else ast.literal_eval(default)


def _documented(found: dict[str, Parameter], node: ast.ClassDef | ast.FunctionDef) -> dict[str, Parameter]:
    """The parameters with types and texts of a numpydoc docstring, where this has them."""
    docstring = ast.get_docstring(node) or ""
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?:\n\n\w[^\n]*\n-{3,}|\Z)", docstring, re.DOTALL | re.MULTILINE
    )
    entries = re.findall(r"^(\w.*)\n?((?:(?: .*)?\n?)*)", section[1] if section else "", re.MULTILINE)
    for head, text in entries:
        names, _, kind = head.partition(" : ")
        for name in names.split(", "):
            if name in found:
                found[name] = Parameter(found[name].default, kind, " ".join(text.split()))
    return found
