"""Rows that the tests of fits and estimators share, as fixtures."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from distrff.utils.process import libraries


class Problem(NamedTuple):
    """Rows, targets (one and three) and weights of a smooth function with noise of deviation 0.1."""

    X: np.ndarray
    y: np.ndarray
    Y: np.ndarray
    s: np.ndarray


@pytest.fixture(autouse=True)
def one_blas_thread() -> Iterator[None]:
    """The matrices here are too small for several threads, which only wait for each other."""
    with libraries().limit(limits=1, user_api="blas"):
        yield


@pytest.fixture
def problem(rng) -> Problem:
    X = rng.standard_normal((900, 4))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(len(X))
    Y = np.stack([y + 3, 100 * np.cos(X[:, 3]) - 50 * y, rng.standard_normal(len(X))], axis=1)
    return Problem(X, y, Y, rng.uniform(0.2, 2.0, len(X)))
