"""Intervals and prediction sets from the errors of rows that a model did not see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from distrff.errors import DataWarning, InputError, ModelFileError, warn
from distrff.utils.sketch import QuantileSketch
from distrff.utils.text import number_text
from distrff.utils.validation import is_number

CALIBRATED, OUT_OF_FOLD = "calibrated", "out of fold"
_SOURCES = (CALIBRATED, OUT_OF_FOLD)
INTERVAL_ARRAYS = ("interval_keys", "interval_weights", "interval_ends")
"""In a stored model: of all sketches, one after the other, and where each ends."""


def class_scores(F: np.ndarray, P: np.ndarray | None) -> np.ndarray:
    """Misfit of each class to each row, shape (n_rows, n_classes).

    1 − p where there are probabilities P; else minus the margin, ∓f of two classes and −f_c of more.
    """
    if P is not None:
        return 1.0 - P
    return np.column_stack([F[:, 0], -F[:, 0]]) if F.shape[1] == 1 else -F


def checked_coverage(coverage: Any) -> Fraction:
    """A coverage as the decimal number that was written; raises InputError outside (0, 1)."""
    if not is_number(coverage) or not 0 < coverage < 1:
        raise InputError(f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}")
    # 0.55 stands for 55/100: its double is larger, and would take one more row than needed.
    return Fraction(repr(float(coverage)))


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """The scores of rows that a model did not see, from which intervals and sets follow.

    Parameters
    ----------
    sketches : tuple of QuantileSketch
        Of |y − f| of each target, or one of how badly the row's own class fits, infinite for a label that the
        model never saw. Weights are multiplicities.
    source : {"calibrated", "out of fold"}
    n_rows, n_outside, n_unseen : int
        Rows in all; those outside the bounds of the model, which do not count; those of labels never seen.

    Notes
    -----
    A new row is covered if its score is at most the radius r, the ⌈(n+1)c⌉-th smallest of n scores.

    *Calibrated*: the model was fitted without these rows (split conformal prediction: Vovk, Gammerman and
    Shafer 2005; Lei et al. 2018, JASA 113; for classes Sadinle, Lei and Wasserman 2019, JASA 114). If they
    and the new row are exchangeable, the new row is covered with probability at least c, whatever the model,
    the data and n. This is on average over calibration sets and rows: not for each x, each class or all
    targets of a row at once, and for one calibration set the share varies by about √(c(1−c)/n). Rows that
    chose a width, a metric or a penalty were seen.

    *Out of fold*: each row was scored by a model without its fold. This has no guarantee: these models are
    fitted to fewer rows than the final one, and map, widths and penalty were chosen with these rows too. The
    jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021, Ann. Statist. 49) has one, of 1 − 2(1 − c), by
    keeping the models of all folds, which this simple rule does not.

    Scores are kept in a `QuantileSketch`; r is the upper end of a bucket, at most 2⁻¹⁰ too large and never
    too small, so that the guarantee holds.
    """

    sketches: tuple[QuantileSketch, ...]
    source: str
    n_rows: int
    n_outside: int = 0
    n_unseen: int = 0

    def __repr__(self) -> str:
        return f"<Intervals {self}>"

    def __str__(self) -> str:
        rows = f"{self.n_rows - self.n_outside:,} rows"
        return f"calibrated on {rows}" if self.source == CALIBRATED else f"out of fold, of {rows}"

    def radius(self, coverage: float) -> np.ndarray:
        """Radius for each target, or the largest score of a class in the set, shape (n_scores,).

        Infinite, with a DataWarning, where there are too few rows for the coverage.
        """
        c = checked_coverage(coverage)
        found = np.empty(len(self.sketches))
        for j, sketch in enumerate(self.sketches):
            # In fractions: (n + 1)·c is often whole, and a rounding above it would take one more row.
            rank = math.ceil((Fraction(sketch.weight) + 1) * c)
            found[j] = sketch.upper_at_rank(rank)
            if rank > sketch.weight:
                # ⌈(n+1)c⌉ ≤ n for whole n from c/(1 − c) on
                needed = math.ceil(c / (1 - c))
                warn(
                    f"a coverage of {coverage:g} needs {needed:,} rows of weight 1, got a weight of "
                    f"{number_text(sketch.weight)}: intervals are unbounded, and sets hold all classes; "
                    f"calibrate on more rows",
                    DataWarning,
                )
                return np.full(len(found), np.inf)
        return found

    def around(self, prediction: Any, coverage: float) -> tuple[Any, Any]:
        """Ends of intervals around predictions, (n,) or (n, k), NumPy or dask."""
        radius = self.radius(coverage)
        half: Any = radius[0] if prediction.ndim == 1 else radius
        return prediction - half, prediction + half

    def fits(self, n_scores: int) -> bool:
        """Whether it is of so many targets and consistent, as one from a file may not be."""
        counts = self.n_rows, self.n_outside, self.n_unseen
        return (
            isinstance(self.source, str)
            and self.source in _SOURCES
            and len(self.sketches) == n_scores
            and all(type(n) is int and 0 <= n < 2**63 for n in counts)
            and all(sketch.is_valid() and len(sketch.keys) > 0 for sketch in self.sketches)
        )

    def to_parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and metadata that `from_parts` reads."""
        sketches = self.sketches
        ends = np.cumsum([len(sketch.keys) for sketch in sketches])
        keys = np.concatenate([sketch.keys for sketch in sketches])
        weights = np.concatenate([sketch.weights for sketch in sketches])
        arrays = dict(zip(INTERVAL_ARRAYS, (keys, weights, ends.astype(np.int64)), strict=True))
        counts = {name: getattr(self, name) for name in ("n_rows", "n_outside", "n_unseen")}
        return arrays, {"source": self.source, **counts}

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Intervals:
        """Intervals of a stored model; `fits` tells whether they can be used."""
        keys, weights, ends = (arrays[name] for name in INTERVAL_ARRAYS)
        if (
            ends.ndim != 1 or ends.dtype != np.int64 or not len(ends) or (np.diff(ends, prepend=0) < 0).any()
        ) or not ends[-1] == len(keys) == len(weights):
            raise ModelFileError("the ends of its intervals' sketches do not fit their keys")
        parts = zip(np.split(keys, ends[:-1]), np.split(weights, ends[:-1]), strict=True)
        sketches = tuple(QuantileSketch(*part) for part in parts)
        counts = (metadata[name] for name in ("n_rows", "n_outside", "n_unseen"))
        return cls(sketches, metadata["source"], *counts)
