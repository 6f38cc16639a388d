"""Which rows are landmarks: those of the smallest random keys, of all rows alike or by leverage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh

from distrff.errors import InputError
from distrff.features.row_question import Ask
from distrff.kernels import Kernel
from distrff.random_streams import child_seed, row_hash

LANDMARKS = ("uniform", "leverage")

PILOT_ROWS = 1024
_PILOT_NUMBERS = 2**19  # of 8 bytes, which travel with every task
_LEAST_SCORE = 2.0**-40


class Lowest(NamedTuple):
    """The rows of the lowest keys so far, by ascending key."""

    keys: np.ndarray
    rows: np.ndarray
    X: np.ndarray


@dataclass(frozen=True)
class LowestKeys:
    """Question for the rows of positive weight whose keys are the `n_landmarks` smallest.

    A row's key is a function of its number and the seed, and no two rows share one, so that the answer
    depends neither on the order nor on the grouping in which rows are seen.
    """

    n_landmarks: int
    n_columns: int
    seed: int

    @property
    def label(self) -> str:
        return "landmarks"

    def zero(self) -> Lowest | None:
        return None

    def update(
        self, answer: Lowest | None, start: int, X: np.ndarray, sample_weight: np.ndarray | None
    ) -> Lowest | None:
        chosen = np.arange(len(X)) if sample_weight is None else np.flatnonzero(sample_weight > 0)
        if not len(chosen):
            return answer
        numbers = chosen.astype(np.uint64) + np.uint64(start)
        keys = self.keys(numbers, X[chosen])
        found = _lowest(self.n_landmarks, keys, numbers, X, chosen)
        return found if answer is None else self.merge(answer, found)

    def keys(self, numbers: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return the keys of rows with these numbers."""
        return row_hash(numbers, self.seed)

    def merge(self, first: Lowest | None, second: Lowest | None) -> Lowest | None:
        if first is None or second is None:
            return second if first is None else first
        both = Lowest(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
        return _lowest(self.n_landmarks, both.keys, both.rows, both.X, np.arange(len(both.keys)))

    def size_bytes(self, n_rows: int) -> int:
        return min(n_rows, self.n_landmarks) * 8 * (self.n_columns + 2)


def _lowest(n: int, keys: np.ndarray, numbers: np.ndarray, X: np.ndarray, at: np.ndarray) -> Lowest:
    """Return the n lowest of these keys with their row numbers and rows, those of X[at]."""
    order = np.lexsort((numbers, keys))[:n]
    return Lowest(keys[order], numbers[order], X[at[order]])


@dataclass(frozen=True, eq=False)
class LowestLeverageKeys(LowestKeys):
    """Question for rows drawn without replacement in proportion to their leverage.

    The key of a row is an exponential variate divided by its score, so that each next smallest key is
    that of a row drawn in proportion to the scores of those left (Efraimidis and Spirakis 2006, "Weighted
    random sampling with a reservoir", whose keys u^(1/score) these are the logarithms of).

    Parameters
    ----------
    kernel : Kernel
    pilot : ndarray of shape (m, n_columns), float64
        Rows drawn uniformly.
    penalty : float
    """

    kernel: Kernel
    pilot: np.ndarray
    penalty: float

    @property
    def label(self) -> str:
        return "landmarks by leverage"

    def keys(self, numbers: np.ndarray, X: np.ndarray) -> np.ndarray:
        u = (row_hash(numbers, self.seed) >> np.uint64(11)).astype(np.float64) + 0.5
        return -np.log(u * 2.0**-53) / self.scores(X.astype(np.float64))

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Return k(x, x) − k(x, P)(K_PP + penalty·I)⁻¹k(P, x), in proportion to ridge leverage scores."""
        K = self.kernel.block(X, self.pilot)
        norms = squared_norms(self.kernel, X)
        explained = np.einsum("ij,ji->i", K, cho_solve(self._factor, K.T, check_finite=False))
        return np.maximum(norms - explained, _LEAST_SCORE * np.maximum(norms, _LEAST_SCORE))

    @cached_property
    def _factor(self) -> tuple[np.ndarray, bool]:
        K = self.kernel.block(self.pilot, self.pilot)
        K[np.diag_indices(len(K))] += self.penalty
        factor: tuple[np.ndarray, bool] = cho_factor(K, lower=True, overwrite_a=True, check_finite=False)
        return factor

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_factor"}


def squared_norms(kernel: Kernel, X: np.ndarray) -> np.ndarray:
    """Return k(x, x) of each row."""
    if kernel.is_shift_invariant:
        return np.full(len(X), kernel.at_zero)
    return np.asarray([kernel.block(x, x)[0, 0] for x in X[:, None, :]])


def chosen_landmarks(
    ask: Ask, kernel: Kernel, *, landmarks: str, n_landmarks: int, n_columns: int, seed: int
) -> np.ndarray:
    """Return the rows that are landmarks, in no order that matters.

    Parameters
    ----------
    ask : callable
        Answers what is asked of all rows; one pass for uniform landmarks, two for leverage.
    kernel : Kernel
        Every width a number.
    landmarks : {"uniform", "leverage"}
        Leverage: in proportion to approximate ridge leverage scores, from at most 1024 uniform pilot rows.
        With the pilot's kernel matrix of m rows the score of a row is
        k(x, x) − k(x, P)(K_PP + γI)⁻¹k(P, x) (Rudi, Calandriello, Carratino and Rosasco 2018, "On fast
        leverage score sampling and optimal learning"), with γ the mean of the m/2 smallest eigenvalues,
        γ = (2/m)·Σ_{i>m/2} σ_i(K_PP) (Musco and Musco 2017, "Recursive sampling for the
        Nyström method", whose penalty is such a tail).
    n_landmarks, n_columns : int
    seed : int

    Returns
    -------
    ndarray of shape (n_landmarks, n_columns), float64

    Raises
    ------
    InputError
        If there are fewer rows of positive weight.
    """
    uniform_seed = child_seed(seed, "landmarks")
    if landmarks == "uniform":
        return _answered(ask, LowestKeys(n_landmarks, n_columns, uniform_seed), n_landmarks)
    n_pilot = max(1, min(n_landmarks, PILOT_ROWS, _PILOT_NUMBERS // n_columns))
    pilot = _answered(ask, LowestKeys(n_pilot, n_columns, uniform_seed), n_pilot, wanted=n_landmarks)
    question = LowestLeverageKeys(
        n_landmarks, n_columns, child_seed(seed, "leverage"), kernel, pilot, _penalty(kernel, pilot)
    )
    return _answered(ask, question, n_landmarks)


def _penalty(kernel: Kernel, pilot: np.ndarray) -> float:
    eigenvalues = eigvalsh(kernel.block(pilot, pilot), check_finite=False)
    smaller = eigenvalues[: max(1, len(pilot) // 2)]
    rounding = np.finfo(np.float64).eps * len(pilot) * eigenvalues[-1]
    return float(max(smaller.mean(), 16 * rounding, np.finfo(np.float64).tiny))


def _answered(ask: Ask, question: LowestKeys, n: int, wanted: int | None = None) -> np.ndarray:
    answer: Lowest | None = ask(question)
    found = 0 if answer is None else len(answer.keys)
    if answer is None or found < n:
        raise _too_many(wanted or n, found, "have a positive weight")
    return np.asarray(answer.X, dtype=np.float64)


def check_enough_rows(n_landmarks: int, n_rows: int) -> None:
    """Raise InputError if there are fewer rows than landmarks, whatever their weights."""
    if n_rows < n_landmarks:
        raise _too_many(n_landmarks, n_rows, "are there")


def _too_many(n_landmarks: int, n_rows: int, what: str) -> InputError:
    return InputError(
        f"n_components={n_landmarks} landmarks were asked for, but only {n_rows} rows {what} "
        f"(n_samples={n_rows}); use n_components={max(n_rows, 1)} or fewer, or more rows"
    )
