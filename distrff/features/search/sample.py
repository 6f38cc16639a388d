"""What all searches share: rows to judge small models on, how these are judged, and the two ways to go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self, TypeVar

import numpy as np
from scipy.sparse import issparse

from distrff.errors import InputError, NonFiniteError
from distrff.features.base import Sample
from distrff.kernels.base import Kernel
from distrff.preprocessing.coding import EQUAL_TO_ROUNDING
from distrff.utils.arrays import dense_rows
from distrff.utils.random import stream

SAMPLE_ROWS = 16_384
"""Rows that a search looks at, at most."""
THINNING = 4
_MAX_OUTPUTS = 32
_DENSE_BYTES = 2**26
# A quarter of many rows is held out, of fewer a third: an error of 2000 rows is known well enough.
_MANY_ROWS, _HELD_OUT_SHARE, _SHARE_OF_FEW = 8000, 4, 3
_PAIRS = 4096


@dataclass(frozen=True, eq=False)
class SearchSample:
    """Rows of positive weight in random order, so that leading parts are random samples, too.

    Targets have mean 0 and deviation 1: a mean squared error of 1 is that of a constant. ``Y * deviation +
    mean`` are the coded targets, ±1 for classes.
    """

    X: Any  # (n, d) in float64, centred if dense; or CSR
    Y: np.ndarray  # (n, k)
    s: np.ndarray  # (n,) weights, 1 on average
    n_held_out: int  # the first rows, by which models are judged; the others are their training rows
    mean: np.ndarray
    deviation: np.ndarray
    has_classes: bool
    seed: int
    penalty: float | None = None  # of the model that is searched for, for each unit of weight; None: chosen
    # (n_held_out,), which held-out rows go together, from 0; nothing where each is for itself.
    units: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    go_by_places: bool = False  # as of the folds
    is_free: bool = True  # whether any rows may be held out, and not only the first

    @classmethod
    def of(cls, sample: Sample, max_rows: int = SAMPLE_ROWS) -> Self:
        """At most `max_rows` rows of a map's sample."""
        # Shuffled once: held-out rows, training rows and any thinner sample are then random parts of each
        # other.
        rows, units = sample.shuffled_rows("candidate rows"), np.empty(0, np.int64)
        if (split := sample.split) is None:
            rows = rows[:max_rows]
            n_held_out = len(rows) // (_HELD_OUT_SHARE if len(rows) >= _MANY_ROWS else _SHARE_OF_FEW)
        else:
            rows = rows[split.held_out[rows] | split.fitted[rows]][:max_rows]
            rows = rows[np.argsort(~split.held_out[rows], kind="stable")]
            n_held_out = int(np.count_nonzero(split.held_out[rows]))
            if split.units is not None:
                units = np.unique(split.units[rows[:n_held_out]], return_inverse=True)[1]
        X, Y, s = _in_float64(sample.X[rows]), coded_targets(sample.y)[rows], sample.weights[rows]
        mean = np.average(Y, axis=0, weights=s)
        deviation = np.sqrt(np.average(np.square(Y - mean), axis=0, weights=s))
        # A constant target would be scaled up to its rounding noise.
        deviation = np.where(deviation > EQUAL_TO_ROUNDING * np.abs(mean), deviation, 1.0)
        return cls(
            # Kernels of distances do not see the shift, and phases in float32 keep more digits near 0. It
            # would make sparse rows dense.
            X=X if issparse(X) else X - np.average(X, axis=0, weights=s),
            Y=(Y - mean) / deviation,
            s=s / s.mean(),
            n_held_out=max(1, n_held_out),
            mean=mean,
            deviation=deviation,
            # Of more classes than are coded, a row of another one has no decision value.
            has_classes=sample.has_classes and Y.shape[1] < _MAX_OUTPUTS,
            seed=sample.seed,
            penalty=sample.penalty,
            units=units,
            go_by_places=split is not None and split.go_by_places,
            is_free=split is None,
        )

    @property
    def criterion_name(self) -> str:
        return "share of wrong classes" if self.has_classes else "squared error"

    @property
    def n_training(self) -> int:
        return len(self.Y) - self.n_held_out

    def arrays(self) -> dict[str, np.ndarray]:
        """The sample as arrays, to be sent to tasks; its X must be dense."""
        numbers = {name: np.asarray(getattr(self, name)) for name in self.__dataclass_fields__}
        # Tasks receive arrays alone, and NaN stands for None.
        return numbers | {"penalty": np.array(math.nan if self.penalty is None else self.penalty)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Rebuild a sample from `arrays()`. Ignores other entries."""
        own: dict[str, Any] = {
            name: arrays[name] if arrays[name].ndim else arrays[name].item()
            for name in cls.__dataclass_fields__
        }
        return cls(**own | {"penalty": None if math.isnan(own["penalty"]) else own["penalty"]})

    def thinned(self, factor: int = THINNING) -> Self:
        """The same held-out rows, and one in `factor` of the training rows."""
        # The held-out rows lead and stay the same, so that errors of both samples can be compared.
        some = slice(self.n_held_out + max(2, self.n_training // factor))
        return replace(self, X=self.X[some], Y=self.Y[some], s=self.s[some])

    def folds(self, n_folds: int) -> list[slice]:
        """Runs of about equally many rows."""
        edges = np.linspace(0, len(self.Y), min(n_folds, len(self.Y)) + 1).astype(int).tolist()
        return [slice(*ends) for ends in pairwise(edges)]

    def holding_out(self, rows: slice) -> Self:
        """The sample with these rows in front, held out."""
        order = np.r_[rows, : rows.start, rows.stop : len(self.Y)]
        X, Y, s = self.X[order], self.Y[order], self.s[order]
        return replace(self, X=X, Y=Y, s=s, n_held_out=rows.stop - rows.start)

    def in_coordinates(self, A: np.ndarray | None) -> Self:
        """The rows A·x, or x / a for a vector of scales a; unchanged for None."""
        if A is None:
            return self
        return replace(self, X=self.X / A if A.ndim == 1 else self.X @ A.T)

    def judge(self, F: np.ndarray) -> HeldOutError:
        """Errors of values F on the held-out rows, (n_held_out, k)."""
        Y, s = self.Y[: self.n_held_out], self.s[: self.n_held_out]
        if not np.isfinite(F).all():
            return HeldOutError.of_no_model(self.has_classes)
        # Targets have deviation 1, so that none of several rules the mean.
        losses, shares = np.square(Y - F).mean(axis=1), s / s.sum()
        error = float(shares @ losses)
        if not self.has_classes:
            return HeldOutError(error, None, shares, losses, self.units)
        wrong = (self._classes(F) != self._classes(Y)).astype(np.float64)
        return HeldOutError(error, float(shares @ wrong), shares, wrong, self.units)

    def squared_errors(self, F: np.ndarray) -> np.ndarray:
        """Squared errors of m models at once, F of shape (m, n_held_out, k)."""
        s, squares = self.s[: self.n_held_out], np.square(self.Y[: self.n_held_out] - F).mean(axis=2)
        errors = squares @ s / s.sum()
        return np.where(np.isfinite(errors), errors, math.inf)

    def _classes(self, F: np.ndarray) -> np.ndarray:
        # Classes are compared as ±1: outputs of deviation 1 would favour rare ones.
        F = F * self.deviation + self.mean
        return F[:, 0] > 0 if F.shape[1] == 1 else F.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class HeldOutError:
    """Errors of one model on held-out rows."""

    squared_error: float  # mean over rows and targets; 1 is that of a constant
    misclassified: float | None  # share of wrong classes; None for numbers
    shares: np.ndarray  # (n_held_out,), of each row in the weight
    losses: np.ndarray  # (n_held_out,): 1 for a wrong class, else the squared error
    units: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # see `SearchSample`

    @property
    def criterion(self) -> float:
        """The error that an estimator of this kind is judged by."""
        return self.squared_error if self.misclassified is None else self.misclassified

    @property
    def spread(self) -> float:
        """Standard error of the criterion."""
        return self._deviation(self.losses - self.criterion)

    def spread_from(self, other: Self) -> float:
        """Standard error of the difference between two models judged on the same rows.

        It is often much smaller than either one's spread, since both fail in the same rows.
        """
        difference = self.losses - other.losses
        return self._deviation(difference - self.shares @ difference)

    def times(self, share: float) -> Self:
        """The errors of a model that has this share of them."""
        wrong = None if self.misclassified is None else share * self.misclassified
        return replace(
            self, squared_error=share * self.squared_error, misclassified=wrong, losses=share * self.losses
        )

    def _deviation(self, centred: np.ndarray) -> float:
        """The standard error of the mean of losses, less that mean."""
        # Var Σ p_i·l_i = Σ p_i²·Var l_i for independent rows of shares p; the rows of a group are one term.
        terms = self.shares * centred
        if not len(self.units):
            return float(np.linalg.norm(terms))
        sums = np.bincount(self.units, terms)
        return float(np.linalg.norm(sums) * math.sqrt(len(sums) / max(1, len(sums) - 1)))

    @classmethod
    def of_no_model(cls, has_classes: bool) -> Self:
        """Errors that stand for a model that could not be fitted."""
        return cls(math.inf, math.inf if has_classes else None, np.zeros(0), np.zeros(0))


def coded_targets(y: Any) -> np.ndarray:
    """Targets as numbers of shape (n_samples, n_outputs): ±1 by class unless they are numbers.

    Of more than 32 outputs those of largest variance are used, which for classes are the frequent ones.
    Raises NonFiniteError if a number is NaN or infinite.
    """
    Y = np.asarray(y)
    if Y.dtype.kind in "fiu":
        if not np.isfinite(Y).all():
            raise NonFiniteError("y contains NaN or infinity; drop or fill such rows before fitting")
        Y = Y.astype(np.float64).reshape(len(Y), -1)
    else:
        classes, index = np.unique(Y.astype(str), return_inverse=True)
        Y = np.where(index.reshape(-1, 1) == np.arange(len(classes)), 1.0, -1.0)
    if Y.shape[1] <= _MAX_OUTPUTS:
        return Y
    return Y[:, np.sort(np.argsort(-Y.var(axis=0), kind="stable")[:_MAX_OUTPUTS])]


def median_distance(kernel: Kernel, X: Any, seed: int) -> float:
    """Median distance of random pairs of different rows, dense or CSR.

    Euclidean for rotation-invariant kernels, else the sum over columns.
    """
    first, second = stream(seed, "length scale pairs").integers(0, X.shape[0], (2, _PAIRS))
    differences = abs(X[first] - X[second])
    if kernel.is_spherical:
        differences = differences.power(2) if issparse(differences) else np.square(differences)
    sums = np.asarray(differences.sum(axis=1)).ravel()
    distances = np.sqrt(sums) if kernel.is_spherical else sums
    # Many pairs of repeated rows would give a median of 0, and a kernel without a width.
    positive = distances[distances > 0]
    if not len(positive):
        raise InputError(
            "length_scale='auto' found no two different rows in its sample "
            f"(n_samples={X.shape[0]}; columns of extreme size count as equal); give a number, or check X"
        )
    return float(np.median(positive))


def is_too_wide(n_rows: int, n_columns: int) -> bool:
    """Whether sparse rows take more than 64 MiB once their zeros are written out for a search."""
    return 8 * n_rows * n_columns > _DENSE_BYTES


def _in_float64(X: Any) -> Any:
    """Rows in float64; CSR that is too wide stays so."""
    if issparse(X) and is_too_wide(*X.shape):
        return X.astype(np.float64, copy=False)
    return dense_rows(X).astype(np.float64, copy=False)


# Down a line, and by halving a field of candidates.

T = TypeVar("T")

FARTHEST = 28
"""Places from the first that a line goes on: widths in half octaves cover eight decades."""


@dataclass(frozen=True)
class Line:
    """Errors at whole numbers, and the place of the smallest one found."""

    best: int
    errors: dict[int, float]

    @property
    def error(self) -> float:
        return self.errors[self.best]

    @property
    def minimum(self) -> float:
        """Where the parabola through the best place and its neighbours is smallest; the best without both."""
        sides = [self.errors.get(self.best + side, math.inf) - self.error for side in (-1, 1)]
        below, above = sides
        # The best place is no larger than its neighbours, so the minimum is at most half a place away.
        if not 0 < below + above < math.inf or min(sides) < 0:
            return float(self.best)
        # The parabola through (−1, below), (0, 0) and (1, above).
        return self.best + 0.5 * (below - above) / (below + above)


def descend(
    error: Callable[[int], float],
    start: Iterable[int],
    steps: Iterable[int],
    *,
    farthest: int = FARTHEST,
    least_gain: float = 0.0,
) -> Line:
    """Walk downhill from the best of the `start` places, by each of the steps in turn while the error falls.

    Steps that halve, as in (2, -2, 1, -1), end at a place whose neighbours are known, for the parabola. A
    share `least_gain` of the error must be gained by each step. No place is evaluated twice.
    """
    errors: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in errors:
            errors[place] = error(place)
        return errors[place]

    best = min(start, key=at)
    for step in steps:
        # By the same step as long as it gains: a start far from the valley takes few more errors than a near
        # one.
        while abs(best + step) <= farthest and at(best + step) < (1.0 - least_gain) * at(best):
            best += step
    return Line(best, errors)


def halving(
    candidates: Sequence[T],
    judge: Callable[[Sequence[T], int], Sequence[float]],
    n_stages: int,
    keep: Callable[[list[T]], Iterable[T]] = lambda ranked: (),
) -> list[T]:
    """Successive halving: judge candidates in stages, each on more rows; the better half goes on.

    To the last stage an eighth goes on: with fourfold rows and features it costs some sixteen times the one
    before, and would take nearly all the time (Jamieson and Talwalkar 2016, "Non-stochastic best arm
    identification and hyperparameter optimization").

    `judge(candidates, stage)` gives their errors; infinite ones are out. `keep(ranked)` names candidates that
    go on in any case, and count in the share. Returns the finalists, the best first.
    """
    field = list(candidates)
    for left in reversed(range(n_stages)):
        errors = dict(zip(field, judge(field, n_stages - 1 - left), strict=True))
        # Python's sort is stable: of equal candidates the one named first stays first, on every machine.
        field = sorted((one for one in field if errors[one] < math.inf), key=errors.__getitem__)
        if field and left:
            kept = list(dict.fromkeys(keep(field)))
            others = [one for one in field if one not in kept]
            n = math.ceil(len(field) / (2 if left > 1 else 8))
            field = kept + others[: max(0, n - len(kept))]
    return field
