"""What importing costs, and the public names."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import pytest

import distrff

HEAVY = {"numpy", "scipy", "pandas", "pyarrow", "zarr", "dask", "distributed", "dask_ml", "numba", "sklearn"}


def loaded_by(statement: str) -> set[str]:
    """Names of all modules in a fresh process after the statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_loads_nothing_heavy():
    """Dask imports the modules of all `dask_cli` entry points for its `--help`."""
    assert not loaded_by("import distrff") & HEAVY
    assert not loaded_by("import distrff.cli") & {"numpy", "dask.array", "distributed"}


def test_the_version_is_the_distribution_s_and_its_entry_points_name_one_command():
    try:
        assert distrff.__version__ == version("distrff")
    except PackageNotFoundError:
        pytest.skip("the package is not installed")
    found = [e for e in entry_points(name="distrff") if e.group in ("console_scripts", "dask_cli")]
    assert sorted(e.group for e in found) == ["console_scripts", "dask_cli"]
    assert {e.value for e in found} == {"distrff.cli:main"}


def test_public_names_resolve_and_others_do_not():
    for name in distrff.__all__:
        assert name in dir(distrff)
        if not name.isupper():  # a constant has no name of its own
            assert getattr(distrff, name).__name__ in (name, f"distrff.{name}", f"distrff.diagnostics.{name}")
    with pytest.raises(AttributeError, match="module 'distrff' has no attribute 'Nonsense'"):
        _ = distrff.Nonsense


def test_type_checkers_see_what_is_loaded():
    stub = ast.parse(Path(distrff.__file__).with_suffix(".pyi").read_text())
    seen = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # which says that it is public
    }
    assert {name: getattr(distrff, name) for name in seen} == {
        name: getattr(import_module(module), name) for name, module in seen.items()
    }
    assert sorted(seen) == sorted(distrff.__all__)
