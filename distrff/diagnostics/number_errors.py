"""How far predicted numbers are from the targets: sums over rows, and what is read off them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.metrics import r2_scores
from distrff.preprocessing.moments import Moments
from distrff.utils.arrays import as_columns
from distrff.utils.random import row_hash
from distrff.utils.sketch import QuantileSketch

DETAILED_TARGETS = 8
"""Targets of which more than sums is kept: a sketch has up to a megabyte."""

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Of which quantiles of the residuals are shown."""

_SAMPLE_ROWS = 8192
_BINS = 20
_BIN_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_POINTS = 256
_SAMPLE_SEED = 19


@dataclass(frozen=True, eq=False)
class NumberErrors:
    """Sums over rows of the errors f − y of one or several targets.

    A sum is exact but for rounding. Quantiles of residuals are from sketches, within 2⁻¹¹ of a
    residual of that rank. Pictures are drawn from 8,192 rows, those of the smallest hashes of their
    numbers: a quantile among the m rows of a bin has a rank that is off by √(q(1 − q)/m), one standard error.
    """

    n_rows: int
    targets: Moments  # of y
    error: np.ndarray  # (k,): Σ s (f − y)
    absolute_error: np.ndarray  # (k,): Σ s |f − y|
    squared_error: np.ndarray  # (k,): Σ s (f − y)²
    squared_norm: np.ndarray  # (k,): Σ s y²
    residuals: tuple[QuantileSketch, ...]  # of y − f, for the first targets
    sample: _Sample
    n_outside: int = 0  # rows outside the bounds of the model, which are left out

    @classmethod
    def empty(cls, k: int, n_sketched: int) -> NumberErrors:
        """Return the sums of no rows; of so many targets, the residuals are sketched."""
        zero, detailed = np.zeros(k), min(k, DETAILED_TARGETS)
        sketches = (QuantileSketch(),) * n_sketched
        return cls(0, Moments.empty(k), zero, zero, zero, zero, sketches, _Sample.empty(detailed))

    @classmethod
    def of(
        cls,
        F: np.ndarray,
        y: np.ndarray,
        s: np.ndarray | None,
        rows: np.ndarray,
        outside: np.ndarray,
        n_sketched: int,
    ) -> NumberErrors:
        """Return the sums of a block: predictions F (n, k), targets, weights and row numbers (n,)."""
        n = len(F)
        try:
            Y = as_columns(np.ascontiguousarray(y, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise InputError(f"y must hold numbers, as the model predicts numbers ({error})") from error
        if Y.shape != F.shape:
            raise InputError(f"y has {Y.shape[1]} column(s), but the model predicts {F.shape[1]}")
        s = np.ones(n) if s is None else np.ascontiguousarray(s, dtype=np.float64)
        n_outside = int(np.count_nonzero(outside))
        if n_outside:
            F, Y, s, rows = F[~outside], Y[~outside], s[~outside], rows[~outside]
        E = F - Y
        detailed = min(Y.shape[1], DETAILED_TARGETS)
        return cls(
            n,
            Moments.of(Y, s),
            s @ E,
            s @ np.abs(E),
            s @ np.square(E),
            s @ np.square(Y),
            tuple(QuantileSketch.of(-E[:, j], s) for j in range(n_sketched)),
            _Sample.of(rows, np.column_stack([s, Y[:, :detailed], F[:, :detailed]])),
            n_outside,
        )

    def merge(self, other: NumberErrors) -> NumberErrors:
        """Return the sums of both sets of rows."""
        return NumberErrors(
            self.n_rows + other.n_rows,
            self.targets.merge(other.targets),
            self.error + other.error,
            self.absolute_error + other.absolute_error,
            self.squared_error + other.squared_error,
            self.squared_norm + other.squared_norm,
            tuple(a + b for a, b in zip(self.residuals, other.residuals, strict=True)),
            self.sample.merge(other.sample),
            self.n_outside + other.n_outside,
        )

    n_unseen = 0  # as of labels that the fit never saw; numbers have none

    def misfits(self) -> tuple[QuantileSketch, ...]:
        """Return the sketch of |y − f| of each target, as far as they are sketched."""
        return tuple(sketch.absolute() for sketch in self.residuals)

    @property
    def weight(self) -> float:
        """Σs of the rows that were judged."""
        return self.targets.weight

    def scores(self) -> dict[str, float]:
        """Return r2, rmse, mae, relative_error = ‖f − y‖/‖y‖, and the rmse of the targets' mean.

        The r2 and the mae are averaged over targets; the others are of all targets together. The r2 is NaN if
        it is not defined for any target.
        """
        r2 = self._r2()
        r2 = r2[~np.isnan(r2)]
        weight, norm = self.weight, self.squared_norm.sum()
        return {
            "r2": float(r2.mean()) if len(r2) else float("nan"),
            "rmse": float(np.sqrt(self.squared_error.mean() / weight)),
            "constant_rmse": float(np.sqrt(self.targets.deviations.mean() / weight)),
            "mae": float(self.absolute_error.mean() / weight),
            "relative_error": float(np.sqrt(self.squared_error.sum() / norm)) if norm > 0 else float("nan"),
        }

    def _r2(self) -> np.ndarray:
        """Return the r2 of each target, NaN where it is not defined: all its numbers are equal."""
        return np.where(self.targets.has_one_value(), np.nan, r2_scores(self.squared_error, self.targets))

    def values(self, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return all that is known, as data for JSON; `names` are those of the targets."""
        k = len(self.error)
        r2 = self._r2()
        of_targets = [
            {
                "target": names[j] if names else ("y" if k == 1 else f"target {j}"),
                "r2": float(r2[j]),
                "rmse": float(np.sqrt(self.squared_error[j] / self.weight)),
                "constant_rmse": float(self.targets.standard_deviation()[j]),
                "mae": float(self.absolute_error[j] / self.weight),
                "bias": float(self.error[j] / self.weight),
            }
            for j in range(k)
        ]
        for j, sketch in enumerate(self.residuals[:DETAILED_TARGETS]):
            found = sketch.quantile(np.array(SHARES))
            of_targets[j]["residual_quantiles"] = dict(zip(map(str, SHARES), found.tolist(), strict=True))
            of_targets[j] |= self.sample.picture(j)
        return {"kind": "numbers", **self.scores(), "targets": of_targets}


# Rows to draw: those whose numbers have the smallest hashes, so the same ones whatever the parts.


@dataclass(frozen=True, eq=False)
class _Sample:
    rows: np.ndarray  # (m,), uint64, in the order of their hashes
    columns: np.ndarray  # (m, 1 + 2k): weight, targets, predictions

    @classmethod
    def empty(cls, k: int) -> _Sample:
        return cls(np.empty(0, np.uint64), np.empty((0, 1 + 2 * k)))

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray) -> _Sample:
        kept = columns[:, 0] > 0
        rows, columns = rows[kept].astype(np.uint64), columns[kept]
        first = np.argsort(row_hash(rows, _SAMPLE_SEED), kind="stable")[:_SAMPLE_ROWS]
        return cls(rows[first], columns[first])

    def merge(self, other: _Sample) -> _Sample:
        return self.of(np.concatenate([self.rows, other.rows]), np.concatenate([self.columns, other.columns]))

    def picture(self, j: int) -> dict[str, Any]:
        """Return quantiles of target and residual by prediction, in bins of equally many rows, and points.

        Rows count by their weights.
        """
        k = (self.columns.shape[1] - 1) // 2
        s, y, f = self.columns[:, 0], self.columns[:, 1 + j], self.columns[:, 1 + k + j]
        points = np.column_stack([f, y])[:_POINTS].tolist()
        order = np.argsort(f, kind="stable")
        bins = []
        for part in np.array_split(order, min(_BINS, max(1, len(order) // 16))):
            if len(part):
                shares = np.array(_BIN_SHARES)
                bins.append(
                    {
                        # The median, as what it is drawn against: in the last bin the mean is far beyond.
                        "prediction": float(QuantileSketch.of(f[part], s[part]).quantile(0.5)),
                        "actual": QuantileSketch.of(y[part], s[part]).quantile(shares).tolist(),
                        "residual": QuantileSketch.of(y[part] - f[part], s[part]).quantile(shares).tolist(),
                        "n_rows": len(part),
                    }
                )
        return {"bin_shares": list(_BIN_SHARES), "bins": bins, "points": points}
