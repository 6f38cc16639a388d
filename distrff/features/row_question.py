"""What a map asks of all rows before it is fitted; whoever has the rows answers, by one pass over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class RowQuestion(Protocol):
    """A monoid over blocks of rows; a small picklable value, module-level like every reduction.

    Rows come scaled, in the dtype in which the map will be applied to them.
    """

    @property
    def label(self) -> str:
        """What the pass is called in reports."""

    def zero(self) -> Any:
        """Return a fresh answer, of no rows."""

    def update(self, answer: Any, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Any:
        """Return the answer with the rows from number `start` on added; it may be changed in place."""

    def merge(self, first: Any, second: Any) -> Any:
        """Return the answer of both, neither of which is changed; those of earlier rows come first."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of the answer of that many rows, at most."""


class Ask(Protocol):
    """Whoever has the rows."""

    @property
    def n_rows(self) -> int:
        """How many they are."""

    def __call__(self, question: RowQuestion, *, least_features: int = 0) -> Any:
        """Return the answer, or refuse it for a map that will have too many columns.

        `least_features` of them are certain before the pass.
        """


@dataclass(frozen=True, eq=False)
class _Asked:
    """Rows in memory."""

    X: np.ndarray
    sample_weight: np.ndarray | None

    @property
    def n_rows(self) -> int:
        return len(self.X)

    def __call__(self, question: RowQuestion, *, least_features: int = 0) -> Any:
        return question.update(question.zero(), 0, self.X, self.sample_weight)


def asked_of(X: np.ndarray, sample_weight: np.ndarray | None) -> Ask:
    """Return who answers for rows in memory."""
    return _Asked(X, sample_weight)
