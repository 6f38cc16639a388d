"""The examples as modules."""

import gzip
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports an example by its name, which finds its neighbours as a script does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


@pytest.fixture
def write_libsvm() -> Callable[[Path, np.ndarray, Iterable[int]], None]:
    """Writes rows of zeros and ones, and labels -1 and 1, as a compressed libsvm file."""

    def write(path: Path, X: np.ndarray, y: Iterable[int]) -> None:
        with gzip.open(path, "wt") as file:
            for row, label in zip(X, y, strict=True):
                ones = " ".join(f"{column + 1}:1" for column in np.flatnonzero(row))
                file.write(f"{label:+d} {ones}\n")

    return write


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(example, *words)`: the message of an example that must be refused with exit code 2."""

    def run(example: ModuleType, *words: object) -> str:
        assert example.main([str(word) for word in words]) == 2
        return capsys.readouterr().err

    return run
