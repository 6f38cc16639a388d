"""Equispaced Fourier features: all frequencies of a lattice, for 1 to 3 columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from operator import index
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from distrff.errors import DataWarning, InputError, ModelFileError, column_called, warn
from distrff.features.base import KernelFeatureMap, Sample, search_module
from distrff.features.fitted import Arrays, KernelMap, MapCost, MapOutline, Trait, canonical_json
from distrff.kernels.base import LEARNED, Kernel, half_distance
from distrff.kernels.stationary import Matern
from distrff.utils.nufft import (
    MAX_DIMENSIONS,
    sums_on_grid,
    values_at,
    values_of_few,
    values_on_grid,
    waves_of,
)
from distrff.utils.text import listed
from distrff.utils.validation import check_count, is_number

# The fitted map.

_EPS, _EPS_OF_SAMPLES = 1e-10, 1e-5  # of transforms for predictions, and for their deviations
_FEW_ROWS = 32  # a fine grid would take longer
_ROWS_AT_ONCE = 2**17, 2**22
_MAX_AXIS_NUMBERS = 2**21  # modes times coordinates of one axis: exponentials of 32 MB


@dataclass(frozen=True)
class EquispacedMap(KernelMap):
    """z(x) = (√w_0, √(2w_1)·cos⟨j_1, x̃⟩, √(2w_1)·sin⟨j_1, x̃⟩, …), j_1, j_2, … being half of the lattice.

    Sums of features are Fourier sums Σ_j C_j·exp(i⟨j, x̃⟩) with C_{−j} = C̄_j: transforms, not products.
    A ready map has prepared √w on the whole lattice.
    """

    kind: ClassVar[str] = "equispaced"

    lattice_json: str = ""

    def __post_init__(self) -> None:
        if self.lattice.n_columns != self.n_columns:
            raise ModelFileError("a stored map and its lattice of frequencies differ in columns")

    @cached_property
    def lattice(self) -> Lattice:
        return Lattice.from_dict(json.loads(self.lattice_json))

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.OWN_UNITS, Trait.SUMS})

    @property
    def n_features(self) -> int:
        return self.lattice.n_modes

    @property
    def cost(self) -> MapCost:
        return _cost(len(self.lattice.columns))

    @property
    def rows_at_once(self) -> int:
        # A transform costs a fine grid of about as many places as modes, so as many points should share it.
        return int(np.clip(self.n_features, *_ROWS_AT_ONCE))

    def outside(self, X: np.ndarray) -> np.ndarray:
        return self.lattice.outside(X)

    @property
    def example(self) -> np.ndarray:
        return np.array([[0.0 if b is None else (b[0] + b[1]) / 2 for b in self.lattice.bounds]])

    def derive(self) -> dict[str, np.ndarray]:
        # Roots, as features and coefficients each take one of the two factors of w.
        return {"root_weights": np.sqrt(self.lattice.weights(self.kernel))}

    def prepare(self, arrays: Arrays) -> np.ndarray:
        root = arrays["root_weights"]
        if root.shape != tuple(2 * m + 1 for m in self.lattice.modes):
            raise InputError("the arrays of an equispaced map do not fit its lattice; fit the model again")
        return root

    @property
    def prepared_bytes(self) -> int:
        return 8 * self.n_features

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        half = self.lattice.n_modes // 2
        # In the order of the lattice −j is the mirror image of j, so the second half has one of each pair.
        J = np.stack([g.ravel() for g in self._modes()])[:, half + 1 :]
        phase = np.stack(self.lattice.phases(X), axis=1) @ J
        # w·e^{iθ} + w·e^{−iθ} has the kernel of √(2w)·cos θ and √(2w)·sin θ.
        amplitude = math.sqrt(2.0) * self.prepared.ravel()[half + 1 :]
        Z[:, 0] = self.prepared.ravel()[half]
        Z[:, 1::2] = np.cos(phase) * amplitude
        Z[:, 2::2] = np.sin(phase) * amplitude
        # Outside of the box features repeat those of other places: NaN rather than a plausible answer.
        Z[self.lattice.outside(X)] = np.nan
        return Z

    def _modes(self) -> list[np.ndarray]:
        return list(np.meshgrid(*(np.arange(-m, m + 1) for m in self.lattice.modes), indexing="ij"))

    def values_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """C of each output, a pair of outputs as one complex array: (ceil(k/2), 2·m_1 + 1, …)."""
        C = [self.prepared * lattice_of(w, self.prepared.shape) for w in coef.T]
        # Functions are real, so the imaginary part of a transform serves a second one: half the transforms.
        C.extend([np.zeros_like(C[0])] * (len(C) % 2))
        return np.stack([a + 1j * b for a, b in zip(C[::2], C[1::2], strict=True)])

    def values(self, X: np.ndarray, coef: np.ndarray, n_outputs: int) -> np.ndarray:
        points, F = self.lattice.phases(X), np.empty((len(X), 2 * len(coef)))
        for i, C in enumerate(coef):
            f = values_of_few(points, C) if len(X) <= _FEW_ROWS else values_at(points, C, _EPS)
            F[:, 2 * i], F[:, 2 * i + 1] = f.real, f.imag
        F[self.lattice.outside(X)] = np.nan
        return F[:, :n_outputs]

    def coef_of_functions(self, C: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """w of some real functions, of which two share a place of C's leading axis: (N, len(numbers))."""
        coef = np.empty((self.lattice.n_modes, len(numbers)))
        for i, number in enumerate(numbers):
            one = C[number // 2].astype(np.complex128)
            mirrored = np.flip(one).conj()
            # The real part of a Fourier sum, or the imaginary one.
            part = (one + mirrored) / 2 if number % 2 == 0 else (one - mirrored) / 2j
            # A weight that underflows has no coefficient.
            ratio = np.divide(part, self.prepared, out=np.zeros_like(part), where=self.prepared > 0)
            coef[:, i] = coef_of(ratio)
        return coef

    def mean_square(self, X: np.ndarray, C: np.ndarray) -> np.ndarray:
        """The mean square of real functions, two of which share a place of the leading axis: (r,)."""
        total = np.zeros(len(X))
        for f in self._functions(X, C):
            total += np.square(f.real) + np.square(f.imag)
        total /= 2 * len(C)  # each holds two
        total[self.outside(X)] = np.nan
        return total

    def _functions(self, X: np.ndarray, C: np.ndarray) -> Iterator[np.ndarray]:
        points = self.lattice.phases(X)
        return (values_at(points, one, _EPS_OF_SAMPLES) for one in C)

    def values_on_grid(self, axes: Sequence[np.ndarray], coef: np.ndarray) -> np.ndarray | None:
        if (points := self._grid_phases(axes)) is None:
            return None
        F = np.empty((*map(len, axes), coef.shape[1]))
        for output, w in enumerate(coef.T):
            C = self.prepared * lattice_of(w, self.prepared.shape)
            F[..., output] = self._over_all_columns(axes, values_on_grid(points, C))
        return self._masked(axes, F)

    def mean_square_on_grid(self, axes: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray | None:
        """`mean_square` on the product grid of the columns' coordinates, (n_1, …, n_d).

        8·m·(N + cells) flops for two functions, in the precision of C. None where transforms are faster.
        """
        functions = self._functions_on_grid(axes, C)
        return None if functions is None else self._mean_square_of(functions, axes, len(C))

    def _functions_on_grid(self, axes: Sequence[np.ndarray], C: np.ndarray) -> Iterator[np.ndarray] | None:
        if (points := self._grid_phases(axes)) is None:
            return None
        waves = waves_of(points, C.shape[1:], C.dtype)
        return (self._over_all_columns(axes, sums_on_grid(waves, one)) for one in C)

    def _mean_square_of(
        self, functions: Iterator[np.ndarray], axes: Sequence[np.ndarray], n_functions: int
    ) -> np.ndarray:
        F = np.zeros(list(map(len, axes)))
        for f in functions:
            F += np.square(f.real)
            F += np.square(f.imag)
        F /= 2 * n_functions  # each holds two
        return self._masked(axes, F)

    def _grid_phases(self, axes: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Phases of the coordinates of the columns that vary; None for more than products are good for."""
        lattice = self.lattice
        points = [
            lattice.phases(_column(lattice.n_columns, j, axes[j]))[i] for i, j in enumerate(lattice.columns)
        ]
        largest = max(x.size * n for x, n in zip(points, self.prepared.shape, strict=True))
        return points if largest <= _MAX_AXIS_NUMBERS else None

    def _over_all_columns(self, axes: Sequence[np.ndarray], F: np.ndarray) -> np.ndarray:
        """Values of the columns that vary, to be broadcast along the others, on which they do not depend."""
        return F.reshape([len(x) if j in self.lattice.columns else 1 for j, x in enumerate(axes)])

    def _masked(self, axes: Sequence[np.ndarray], F: np.ndarray) -> np.ndarray:
        for j, (x, bounds) in enumerate(zip(axes, self.lattice.bounds, strict=True)):
            if bounds is not None:
                F[(slice(None),) * j + (beyond(x, bounds),)] = np.nan
        return F


# Covariates beside the lattice.


@dataclass(frozen=True)
class Trend:
    """The columns of a lattice, and those of the covariates u = (x − centre)/scale, by their numbers.

    A column may be both: a trend along a coordinate.
    """

    places: tuple[int, ...]
    columns: tuple[int, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers, sizes = (*self.centre, *self.scale), {*map(len, (self.columns, self.centre, self.scale))}
        is_valid = self.places and sizes == {len(self.columns)} and all(map(is_number, numbers))
        if not is_valid or min((*self.places, *self.columns)) < 0 or not np.isfinite(numbers).all():
            raise ModelFileError("a stored trend is damaged; write the model again")

    @classmethod
    def of(cls, sample: Sample, places: Sequence[int], columns: Sequence[int]) -> Self:
        """The trend in these columns, scaled to mean 0 and deviation 1; raises InputError for a constant."""
        U, s = sample.X[:, list(columns)].astype(np.float64), sample.weights
        centre = s @ U / s.sum()
        scale = np.sqrt(s @ np.square(U - centre) / s.sum())
        # Rounding leaves a constant column some deviation. A trial has one row, which says nothing.
        is_constant = scale <= 1e-12 * np.abs(centre) if len(U) > 1 else np.zeros(len(scale), dtype=bool)
        for j, mean in zip(np.array(columns)[is_constant].tolist(), centre[is_constant], strict=True):
            name = None if sample.column_names is None else sample.column_names[j]
            raise InputError(
                f"{column_called(j, name)} has one value, {mean:g}, in all rows, and can be no covariate; "
                f"leave it out"
            )
        scale = np.where(scale > 0, scale, 1.0)
        return cls(tuple(places), tuple(columns), tuple(centre.tolist()), tuple(scale.tolist()))

    def covariates(self, X: np.ndarray) -> np.ndarray:
        """U of rows along the last axis, float64 of shape (…, p)."""
        return (X[..., list(self.columns)].astype(np.float64) - np.array(self.centre)) / np.array(self.scale)

    def placed(self, X: np.ndarray) -> np.ndarray:
        """The columns of the lattice."""
        return X[..., list(self.places)]

    def placed_sample(self, sample: Sample) -> Sample:
        """The sample with the columns of the lattice, and targets less their trend by least squares."""
        y, names, ranges = sample.y, sample.column_names, sample.column_ranges
        if y is not None and not sample.has_classes:
            U, root = self.covariates(sample.X), np.sqrt(sample.weights)[:, None]
            Y = np.asarray(y, dtype=np.float64).reshape(len(U), -1)
            line = np.linalg.lstsq(root * np.insert(U, 0, 1.0, axis=1), root * Y, rcond=None)[0]
            y = (Y - U @ line[1:]).reshape(np.shape(y))
        return replace(
            sample,
            X=self.placed(sample.X),
            y=y,
            column_names=None if names is None else tuple(names[j] for j in self.places),
            column_ranges=None if ranges is None else self.placed(ranges),
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The trend that `to_dict` wrote; raises ModelFileError for anything else."""
        try:
            places, columns = (tuple(map(index, data[name])) for name in ("places", "columns"))
            return cls(places, columns, tuple(data["centre"]), tuple(data["scale"]))
        except (TypeError, KeyError) as error:
            raise ModelFileError(f"a stored trend is damaged ({error!r})") from error


@dataclass(frozen=True)
class TrendMap(EquispacedMap):
    """The features of the lattice on its columns, then the covariates u.

    Coefficients of N modes are followed by those of u, also in the samples of the posterior, which are flat
    arrays here.
    """

    kind: ClassVar[str] = "equispaced with trend"

    trend_json: str = ""

    def __post_init__(self) -> None:
        places, columns = self.trend.places, self.trend.columns
        if {*places, *columns} != {*range(self.n_columns)} or self.lattice.n_columns != len(places):
            raise ModelFileError("a stored map, its lattice and its trend differ in columns")

    @cached_property
    def trend(self) -> Trend:
        return Trend.from_dict(json.loads(self.trend_json))

    @property
    def traits(self) -> frozenset[Trait]:
        return super().traits | {Trait.TREND}

    @property
    def n_features(self) -> int:
        return self.lattice.n_modes + len(self.trend.columns)

    def outside(self, X: np.ndarray) -> np.ndarray:
        return super().outside(self.trend.placed(X))

    @property
    def example(self) -> np.ndarray:
        x = np.zeros((1, self.n_columns))
        x[:, list(self.trend.columns)] = self.trend.centre
        x[:, list(self.trend.places)] = super().example
        return x

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        super().apply(self.trend.placed(X), Z[:, : self.lattice.n_modes])
        Z[:, self.lattice.n_modes :] = self.trend.covariates(X)
        return Z

    def values_coef(self, coef: np.ndarray, dtype: np.dtype) -> Any:
        of_lattice, of_trend = self._split(coef)
        return super().values_coef(of_lattice, dtype), of_trend

    def values(self, X: np.ndarray, coef: Any, n_outputs: int) -> np.ndarray:
        F = super().values(self.trend.placed(X), coef[0], n_outputs)
        return F + self.trend.covariates(X) @ coef[1]

    def _split(self, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return coef[: self.lattice.n_modes], coef[self.lattice.n_modes :]

    def _samples(self, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples on the lattice, and their coefficients of u, (S/2, p)."""
        of_lattice, of_trend = self._split(C.T)
        return of_lattice.T.reshape(len(C), *self.prepared.shape), of_trend.T

    def coef_of_functions(self, C: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        of_lattice, of_trend = self._samples(C)
        one = of_trend[numbers // 2].T
        beta = np.where(numbers % 2 == 0, one.real, one.imag)
        return np.concatenate([super().coef_of_functions(of_lattice, numbers), beta])

    def _functions(self, X: np.ndarray, C: np.ndarray) -> Iterator[np.ndarray]:
        of_lattice, of_trend = self._samples(C)
        U = self.trend.covariates(X)
        functions = super()._functions(self.trend.placed(X), of_lattice)
        return (f + U @ beta for f, beta in zip(functions, of_trend, strict=True))

    # On grids the axis of a covariate has its values in all cells.

    def cells(self, axes: Sequence[np.ndarray]) -> np.ndarray:
        found = super().cells(self._places(axes))
        X = np.empty((*found.shape[:-1], self.n_columns))
        for j in self.trend.columns:
            X[..., j] = axes[j] if j not in self.trend.places else np.nan
        X[..., list(self.trend.places)] = found
        return X

    def _places(self, axes: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [axes[j] for j in self.trend.places]

    def values_on_grid(self, axes: Sequence[np.ndarray], coef: np.ndarray) -> np.ndarray | None:
        of_lattice, of_trend = self._split(coef)
        F = super().values_on_grid(self._places(axes), of_lattice)
        return None if F is None else F + self.trend.covariates(self.cells(axes)) @ of_trend

    def mean_square_on_grid(self, axes: Sequence[np.ndarray], C: np.ndarray) -> np.ndarray | None:
        of_lattice, of_trend = self._samples(C)
        functions = self._functions_on_grid(self._places(axes), of_lattice)
        if functions is None:
            return None
        U = self.trend.covariates(self.cells(axes)).astype(C.real.dtype)
        both = (f + U @ beta for f, beta in zip(functions, of_trend, strict=True))
        return self._mean_square_of(both, self._places(axes), len(C))


def _column(n_columns: int, j: int, x: np.ndarray) -> np.ndarray:
    """Rows with these values in column j, and zeros."""
    X = np.zeros((len(x), n_columns))
    X[:, j] = x
    return X


def lattice_of(coef: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """c_j on the whole lattice, c_{−j} = c̄_j, from real coefficients in the order of the features."""
    half = len(coef) // 2
    flat = np.empty(len(coef), np.complex128)
    flat[half] = coef[0]
    # a·√2·cos θ + b·√2·sin θ = c·e^{iθ} + c̄·e^{−iθ} for c = (a − ib)/√2; √w is multiplied later.
    flat[half + 1 :] = (coef[1::2] - 1j * coef[2::2]) / math.sqrt(2.0)
    flat[:half] = flat[:half:-1].conj()
    return flat.reshape(shape)


def coef_of(C: np.ndarray) -> np.ndarray:
    """The real coefficients of c_j on the whole lattice; inverse of `lattice_of`."""
    flat = C.ravel()
    half = flat.size // 2
    coef = np.empty(flat.size)
    coef[0] = flat[half].real
    coef[1::2] = math.sqrt(2.0) * flat[half + 1 :].real
    coef[2::2] = -math.sqrt(2.0) * flat[half + 1 :].imag
    return coef


def _cost(d: int) -> MapCost:
    # Transforms are counted by their own plan; these are the products of the features themselves.
    return MapCost(product_flops=2.0 * d, feature_numbers=1.0)


# The map as users meet it: bounds and widths from the data, and the lattice that these ask for.

_MARGIN = 0.01  # of the data's range, on each side of the default bounds
_MAX_MODES, _MIN_MODES, _MODES_A_ROW = 2**20, 2**15, 64
_MIN_ROWS_OF_WIDTHS = 40
_PILOT_SMOOTHNESS = 1.5
_LINEAR = "linear"  # of a trend, for the columns of the kernel


class EquispacedFourierFeatures(KernelFeatureMap):
    r"""Fourier features at all frequencies of an equispaced lattice, for 1 to 3 columns.

    With x̃ = 2πh(x − c), z(x) holds √w_j·exp(i⟨j, x̃⟩) for j ∈ {−m … m}^d, as real cosines and sines, with
    w_j = ∏h·k̂(h·j), k̂ the kernel's Fourier transform: ⟨z(x), z(x')⟩ = k̃(x − x') is the trapezoidal rule of
    Bochner's integral (Greengard, Rachh and Barnett 2022, "Equispaced Fourier representations for efficient
    Gaussian process regression from a billion data points", section 3). No frequency is random: within
    `bounds`, sup|k − k̃| is at most `tol`·k(0), if `n_components` suffice; `kernel_error_` tells.

    `KernelRidge` and `KernelRidgeClassifier` with ``solver="auto"`` never form these features, other models
    do, for which `n_components` must be a number. One pass over the rows sums
    v_k = Σ s·exp(−i⟨k, x̃⟩) and b_j = Σ s·y·exp(−i⟨j, x̃⟩) by non-uniform FFTs; the Gram is the Toeplitz
    matrix of v, which FFTs apply. Kernels enter after the sums: these choose smoothness, widths and alpha
    without another look at the rows.

    Parameters
    ----------
    kernel : Kernel, optional
        Shift-invariant; a metric must be an invertible matrix of a Gaussian or Matern kernel. None is
        `Matern("ard", nu="auto")`: smoothness ν from ½, 3/2, 5/2 and ∞ (Gaussian) and a width a column, all
        chosen by the fit by held-out error. "auto" is one width for all columns. Where rows are held out by
        their place on a map (`BlockFolds`, by default where it has gaps) all is chosen by the likelihood of
        the rows instead: ν from ¼ to ∞, and for None a matrix as metric, which turns the widths, and a second
        term of a shorter range where rows ask for one. Widths are in the columns' own units: an estimator's
        `scale` does not apply.
    n_components : int, optional
        N = ∏(2m + 1), the most features. Default: as many as `tol` asks for, up to 64 a row, at least 32,768,
        and at most 1,048,576; for a map with gaps three for two rows, up to sixteen a row of few. Where they
        are far from sufficing, periods are at most three times the box, so that a kernel of longer range has
        images of itself there; the report says how far it is off.
    tol : float
        Largest error of the kernel over the box, sup|k − k̃|/k(0). It is not a bound for predictions: a small
        alpha amplifies it. Kernels of a map with gaps take all modes, whatever these leave.
    bounds : sequence of pairs, or mapping of column to pair, optional
        Least and largest value of each column, between which models are made and predict. Default: the range
        of the rows of the fit, and a hundredth of it on both sides. Features repeat themselves outside of
        the bounds; predictions there are NaN. On a map with gaps, a stretch of a column without rows that is
        longer than all parts with rows together is shortened to their length: places in the middle of it are
        predicted as equally far from both sides.
    period : mapping of column to float, optional
        Columns that are periodic, such as an hour of 24 or a longitude of 360, with their periods: the
        kernel becomes periodic in them. Columns are named, or numbered from 0.
    trend : list of str or int, or "linear", optional
        Columns of covariates u, such as an elevation, beside the kernel of the other columns:
        f(x) = g(x) + ⟨beta, u⟩ + b, beta without a penalty (universal kriging; Rasmussen and Williams 2006,
        section 2.7). "linear", alone or in the list, is a trend along the columns of the kernel themselves.
        It needs an intercept and ``solver="auto"``; `report_["trend"]` has beta with its standard errors.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    lattice_ : Lattice
        Modes, spacing and bounds.
    kernel_error_ : float
        A bound of sup|k − k̃|/k(0).
    length_scale_search_ : dict or None
        How widths and smoothness were found, where there is a trend on what it leaves by least squares.
    trend_ : Trend or None
    specification_ : EquispacedMap
    seed_, n_features_in_ : int

    Notes
    -----
    Far from all rows predictions are only as good as the kernel: for rows that are fitted closely, by a small
    alpha, an error of `tol` becomes ripples there, as large as the standard deviation. That is estimated by
    64 models drawn from the posterior, and so known to 9 %. They follow from the sums, in 20 to 120 products
    with the Toeplitz matrix each.

    Work is in float64. N grows with 1/ℓ^d, and for rough kernels with tol^(−d/2ν): Matérn of ν = ½ at a width
    of a tenth of the box takes 1.8e7 modes in the plane for tol=1e-3. `transform` writes features out, n·N
    cosines and sines; it is for small sizes, and for other estimators.
    """

    _default_kernel = Matern("ard", nu="auto")
    _chooses_smoothness = True
    traits = frozenset({Trait.OWN_UNITS, Trait.SUMS})

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_components: int | None = None,
        *,
        tol: float = 1e-3,
        bounds: Any = None,
        period: Any = None,
        trend: str | Sequence[Any] | None = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components  # type: ignore[assignment]
        self.tol = tol
        self.bounds = bounds
        self.period = period
        self.trend = trend

    def check_parameters(self) -> None:
        super().check_parameters()
        kernel = self.chosen_kernel
        if not kernel.is_shift_invariant:
            raise InputError(
                f"equispaced frequencies need a shift-invariant kernel, got {kernel!r}; use NystroemFeatures"
            )
        if kernel.metric == LEARNED:
            raise InputError(
                f"equispaced frequencies need a metric in numbers, got {kernel!r}; without a kernel the fit "
                f"chooses one, or use FourierFeatures"
            )
        check_count("n_components", self.n_components, or_none=True)
        if not is_number(self.tol) or not 0 < self.tol < 1:
            raise InputError(f"the map's tol must be between 0 and 1, got {self.tol!r}: a share of k(0)")
        # Names of columns are known at the fit; what can be checked without them is refused here, before a
        # pass.
        _pairs(self.bounds, None)
        _periods(self.period, None)
        is_known = self.trend is None or isinstance(self.trend, Sequence | np.ndarray)
        if not is_known or (isinstance(self.trend, str) and self.trend != _LINEAR):
            raise InputError(f"trend must be a list of columns or {_LINEAR!r}, got {self.trend!r}")

    def check_columns(self, n_columns: int) -> None:
        n_places, _ = self.sizes(n_columns)
        if n_places < 1:
            raise InputError(f"trend names all {n_columns} columns, and the kernel needs one at least")
        _check_few(n_places)
        super().check_columns(n_columns)

    def sizes(self, n_columns: int) -> tuple[int, int]:
        """How many columns the kernel and the trend have."""
        n_places = n_columns - len(self._covariates)
        return n_places, len(self._covariates) + n_places * self._is_linear

    @property
    def _is_linear(self) -> bool:
        return self.trend is not None and _LINEAR in self.trend

    @property
    def _covariates(self) -> list[Any]:
        given = () if self.trend is None or isinstance(self.trend, str) else self.trend
        return list(dict.fromkeys(c for c in given if c != _LINEAR))

    def places(self, n_columns: int, names: Sequence[str] | None) -> tuple[list[int], list[int]]:
        """Numbers of the columns of the kernel and of the trend."""
        own = [*_by_column("trend", dict.fromkeys(self._covariates), names or ())]
        if wrong := [j for j in own if j >= n_columns]:
            raise InputError(f"trend names column {wrong[0]}, but there are {n_columns} columns")
        places = [j for j in range(n_columns) if j not in own]
        return places, places * self._is_linear + own

    @property
    def size_limit(self) -> str | None:
        return "n_components" if self.n_components is None else None

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        search_flops = float(PILOT_ROWS) ** 3 * 60 if self.chooses else 0.0
        n_places, _ = self.sizes(n_columns)
        return MapOutline(self._max_modes(n_rows), _cost(n_places), search_flops=search_flops)

    def _max_modes(self, n_rows: int) -> int:
        if self.n_components is not None:
            return int(self.n_components)
        return int(np.clip(_MODES_A_ROW * n_rows, _MIN_MODES, _MAX_MODES))

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        # No column is named or bounded: trial rows have neither names nor the data's range.
        kernel = self._smooth_kernel.with_widths(1.0)
        trend = [*range(n_columns - len(self._covariates), n_columns), *[_LINEAR] * self._is_linear]
        self.set_params(kernel=kernel, n_components=3, bounds=None, period=None, trend=trend)
        return 1

    @property
    def chooses(self) -> bool:
        """Whether the sums are to choose widths or smoothness."""
        return self.chosen_kernel.is_auto

    @property
    def widths_are_undecided(self) -> bool:
        """Whether the sums are to choose widths."""
        return self._smooth_kernel.is_auto

    @property
    def _smooth_kernel(self) -> Kernel:
        """The kernel as given, with the smoothness of the pilot where that is undecided."""
        kernel = self.chosen_kernel
        if isinstance(kernel, Matern) and kernel.has_undecided_smoothness:
            return kernel.set_params(nu=_PILOT_SMOOTHNESS)
        return kernel

    def decide(self, sample: Sample) -> None:
        """Set the lattice, and the kernel from which the fit starts to search by all rows."""
        places, trend = self.places(sample.X.shape[1], sample.column_names)
        _check_few(len(places))
        box = self._box(sample, places)
        self.trend_ = Trend.of(sample, places, trend) if trend else None
        if self.trend_ is not None:
            sample = self.trend_.placed_sample(sample)
        _warn_of_degrees(self.chosen_kernel, sample)
        pilot = self._pilot_kernel(sample)
        pilot(sample.X[:1], sample.X[:1])  # raises for another number of widths than of columns
        n_rows = self.n_weighted_rows_ = sample.n_weighted_rows
        if self.chooses and sample.split is not None and sample.split.go_by_places:
            box = box.of_pieces(sample.X)
            modes = min(self._max_modes(n_rows), _modes_of_map(n_rows / math.prod(box.filled)))
            self.lattice_ = box.lattice_of_map(pilot, modes)
        elif self.widths_are_undecided:
            # One lattice, and so one pass, must serve every width that the search will compare.
            self.lattice_, pilot = box.lattice_for_search(pilot, self.tol, self._max_modes(n_rows), n_rows)
        else:
            self.lattice_ = box.lattice_of_kernel(pilot, self.tol, self._max_modes(n_rows))
        self.pilot_kernel_ = pilot

    def freeze(self, sample: Sample) -> EquispacedMap:
        return self._map_of(self.pilot_kernel_, self.lattice_)

    def _map_of(self, kernel: Kernel, lattice: Lattice) -> EquispacedMap:
        self.kernel_, self.lattice_ = kernel, lattice
        self.kernel_error_ = lattice.error(kernel)
        texts = {
            "kernel_json": canonical_json(kernel.to_dict()),
            "lattice_json": canonical_json(lattice.to_dict()),
        }
        if self.trend_ is None:
            return EquispacedMap(n_columns=lattice.n_columns, **texts)
        return TrendMap(
            n_columns=self.n_features_in_, trend_json=canonical_json(self.trend_.to_dict()), **texts
        )

    def with_kernel(self, kernel: Kernel, lattice: Lattice, search: dict[str, Any] | None) -> Self:
        """The fitted map with another kernel, on this lattice or a central part of it."""
        # The pilot's map stays as it is: `specification_` and `kernel_` of one object always belong together.
        chosen = clone(self)
        for name in ("seed_", "n_features_in_", "pilot_kernel_", "trend_", "n_weighted_rows_"):
            setattr(chosen, name, getattr(self, name))
        chosen.length_scale_search_ = search
        chosen.specification_ = chosen._map_of(kernel, lattice).with_digest()
        return chosen

    @classmethod
    def of_specification(cls, specification: EquispacedMap, kernel: Kernel, tol: float) -> Self:
        """The fitted map of this lattice, for a search that begins at the specification's kernel.

        `kernel` is the one that was given, perhaps with undecided parts.
        """
        found = cls(kernel, tol=tol)
        # Nothing of this map is drawn, so any seed is its seed.
        found.seed_, found.n_features_in_ = 0, specification.n_columns
        found.n_weighted_rows_ = 0  # not known here
        found.pilot_kernel_, found.length_scale_search_, found.trend_ = specification.kernel, None, None
        found.specification_ = found._map_of(specification.kernel, specification.lattice).with_digest()
        return found

    def _box(self, sample: Sample, places: Sequence[int]) -> Box:
        """The box of these columns."""
        names, d = sample.column_names, sample.X.shape[1]
        periods = _periods(self.period, names or ())
        given = _pairs(self.bounds, names or ())
        if wrong := [j for j in {*periods, *given} if j >= d]:
            raise InputError(f"bounds or period name column {wrong[0]}, but there are {d} columns")
        if wrong := [j for j in {*periods, *given} if j not in places]:
            called = column_called(wrong[0], None if names is None else names[wrong[0]])
            raise InputError(f"bounds or period name {called}, which is a covariate and has none")
        bounds: list[tuple[float, float] | None] = []
        for j in places:
            low, high = sample.ranges[:, j].tolist()
            called = column_called(j, None if names is None else names[j])
            if j in periods:
                if j in given:
                    raise InputError(f"{called} has both bounds and a period; give one of them")
                bounds.append(None)
            elif j in given:
                if beyond(np.array([low, high]), given[j]).any():
                    raise InputError(
                        f"{called} has values from {low:g} to {high:g}, outside of its bounds "
                        f"{given[j][0]:g} to {given[j][1]:g}; widen the bounds, or leave those rows out"
                    )
                bounds.append(given[j])
            else:
                if _place_of(_LONGITUDES, names) == j and _AROUND <= high - low <= 360:
                    warn(
                        f"{called} goes around the earth, but without a period its two ends are far apart "
                        f"for the model; give the column a period of 360",
                        DataWarning,
                    )
                # Rows to predict may lie a little beyond those of the fit.
                margin = _MARGIN * (high - low)
                bounds.append((low - margin, high + margin))
        return Box(tuple(bounds), tuple(periods.get(j) for j in places))

    def _pilot_kernel(self, sample: Sample) -> Kernel:
        """Set the search and return the kernel, what is undecided found by small models on the sample."""
        kernel, self.length_scale_search_ = self._smooth_kernel, None
        if not kernel.is_auto:
            return kernel
        told = sample.weights > 0
        if any(
            (A[told] == A[told][:1]).all() for A in (sample.X, sample.y) if A is not None
        ):  # any widths do
            return kernel.with_widths(1.0)
        if kernel.is_ard and sample.y is not None and np.count_nonzero(sample.weights) >= _MIN_ROWS_OF_WIDTHS:
            budget = search_module("widths").LikelihoodBudget(max_rows=PILOT_ROWS)
            found, search = search_module("widths").relevant_length_scales(kernel, sample, budget=budget)
            # A note says that the likelihood found no more than noise.
            if "note" not in search:
                self.length_scale_search_ = search
                return found
        widths = search_module("widths")
        if kernel.is_ard:
            # Columns are in their own units, which one width for all would compare with each other.
            deviation = sample.X.std(axis=0)
            scale = np.where(deviation > 0, deviation, 1.0)
            found, search = widths.proportional_length_scales(kernel, scale, sample, self._small_ridge)
        else:
            found, search = widths.automatic_length_scale(kernel, sample, self._small_ridge)
        self.length_scale_search_ = search
        return found

    def _small_ridge(self, rows: Any, kernel: Kernel) -> Any:
        ridge = search_module("ridge")
        # Widths of a random map only begin the search here, which the sums over all rows finish.
        return ridge.FourierRidge(rows, kernel, ridge.FEATURES)


# Columns in degrees, by their names.

_LONGITUDES, _LATITUDES = ("lon", "long", "lng", "longitude"), ("lat", "latitude")
_AROUND = 350.0  # degrees
_SAME_LENGTH = 0.9  # widths are not known to a tenth


def _place_of(known: Sequence[str], names: Sequence[str] | None) -> int | None:
    """The first column that is called by one of the known words."""
    return next((j for j, name in enumerate(names or ()) if str(name).lower() in known), None)


def _warn_of_degrees(kernel: Kernel, sample: Sample) -> None:
    """Warn of a width that takes a degree of longitude for as long as one of latitude."""
    lon, lat = (_place_of(words, sample.column_names) for words in (_LONGITUDES, _LATITUDES))
    if lon is None or lat is None or not _has_one_width(kernel):
        return
    middle = float(sample.ranges[:, lat].mean())
    share = math.cos(math.radians(middle))
    if abs(middle) < 90 and share < _SAME_LENGTH:
        warn(
            f"the kernel has one width for longitude and latitude, but at latitude {middle:.3g} a degree of "
            f"longitude is only {share:.2g} of one of latitude, in kilometres (its cosine); give a width for "
            f"each column, that of longitude divided by {share:.2g}, or 'ard', which finds both",
            DataWarning,
        )


def _has_one_width(kernel: Kernel) -> bool:
    parameters = kernel.get_params(deep=False).values()
    if operands := [k for k in parameters if isinstance(k, Kernel)]:
        return any(map(_has_one_width, operands))
    return not kernel.is_ard and kernel.metric is None and np.ndim(kernel.get_params()["length_scale"]) == 0


def _check_few(n_columns: int) -> None:
    if n_columns > MAX_DIMENSIONS:
        raise InputError(
            f"equispaced frequencies are for 1 to {MAX_DIMENSIONS} columns, got {n_columns}; choose columns, "
            f"take times as seconds, which are one column and not six, or use FourierFeatures"
        )


def _pairs(given: Any, names: Sequence[str] | None) -> dict[int, tuple[float, float]]:
    """The bounds by column number; raises InputError for values that are no bounds."""
    found = {}
    for (j, pair), called in zip(_by_column("bounds", given, names).items(), _called(given), strict=True):
        if pair is None:
            continue
        values = list(pair) if isinstance(pair, Sequence | np.ndarray) and not isinstance(pair, str) else []
        if len(values) != 2 or not all(is_number(v) and math.isfinite(v) for v in values):
            raise InputError(f"bounds of {called} must be a pair of numbers, least and largest, got {pair!r}")
        if not values[0] < values[1]:
            raise InputError(f"bounds of {called} must be its least and its largest value, got {pair!r}")
        found[j] = (float(values[0]), float(values[1]))
    return found


def _called(given: Any) -> list[str]:
    """Names of the columns of a mapping or sequence, for messages."""
    keys = list(given) if isinstance(given, Mapping) else range(0 if given is None else len(given))
    return [f"column {key!r}" for key in keys]


def _periods(given: Any, names: Sequence[str] | None) -> dict[int, float]:
    """The periods by column number; raises InputError for values that are no periods."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"period must map columns to periods, such as {{'hour': 24}}, got {given!r}")
    found = _by_column("period", given, names)
    for period, called in zip(found.values(), _called(given), strict=True):
        if not is_number(period) or not 0 < period < math.inf:
            raise InputError(f"the period of {called} must be a positive number, got {period!r}")
    return {j: float(period) for j, period in found.items()}


def _by_column(parameter: str, given: Any, names: Sequence[str] | None) -> dict[int, Any]:
    """A mapping or sequence with columns as numbers.

    A name of digits is a number unless a column has it. `names` are None where they are not known yet: then
    names get numbers in their order, so that their values can be checked.
    """
    if given is None:
        return {}
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence | np.ndarray):
        raise InputError(f"{parameter} must map columns to values, got {given!r}")
    items = given.items() if isinstance(given, Mapping) else enumerate(given)
    found: dict[int, Any] = {}
    for column, value in items:
        if isinstance(column, str) and names is None:
            number = len(found)
        elif isinstance(column, str) and column in (names or ()):
            number = list(names or ()).index(column)
        elif isinstance(column, str) and column.isascii() and column.isdigit():
            number = int(column)
        elif isinstance(column, str):
            known = (
                f"the columns are {listed(names)}; name one of these"
                if names
                else "columns have no names here; number them"
            )
            raise InputError(f"{parameter} names column {column!r}; {known}")
        elif not is_number(column) or column < 0 or column != int(column):
            raise InputError(f"{parameter} must name columns or number them from 0, got {column!r}")
        else:
            number = int(column)
        if number in found:
            raise InputError(f"{parameter} has two values for column {column}; give one")
        found[number] = value
    return found


# Equispaced frequencies: the lattice, what it resolves of a kernel, and the one that a box asks for.

# The lattice of frequencies: what the sums over rows depend on, whatever the kernel.


@dataclass(frozen=True)
class Lattice:
    """The frequencies h·j, j ∈ {−m … m}^d, of the columns that vary, and the box that they are for.

    The phase of a column is 2πh(x − c). Outside of the box features repeat themselves. A sea is an interval
    of a column without rows, all of which counts as one place.
    """

    n_columns: int
    columns: tuple[int, ...]  # that vary; the others have one value, which every row to predict must have
    modes: tuple[int, ...]  # m of each of `columns`
    spacing: tuple[float, ...]  # h
    centre: tuple[float, ...]  # c
    bounds: tuple[tuple[float, float] | None, ...]  # of all columns; None where one is periodic
    seas: tuple[tuple[tuple[float, float], ...], ...] = ()  # of all columns, or none at all

    def __post_init__(self) -> None:
        d = len(self.columns)
        is_valid = (
            is_number(self.n_columns)
            and 1 <= d <= MAX_DIMENSIONS
            and len(self.modes) == len(self.spacing) == len(self.centre) == d
            and len(self.bounds) == self.n_columns
            and list(self.columns) == sorted(set(self.columns) & set(range(self.n_columns)))
            and all(isinstance(m, int) and 0 <= m < 2**31 for m in self.modes)
            and all(is_number(h) and 0 < h < math.inf for h in self.spacing)
            and all(is_number(c) and math.isfinite(c) for c in self.centre)
            and all(
                b is None or (len(b) == 2 and all(map(is_number, b)) and b[0] <= b[1]) for b in self.bounds
            )
            and len(self.seas) in (0, self.n_columns)
            and all(-math.inf < a < b < math.inf for seas in self.seas for a, b in seas)
        )
        if not is_valid:
            raise ModelFileError("a stored lattice of frequencies is damaged; write the model again")

    @property
    def n_modes(self) -> int:
        """N = ∏(2m + 1), the real features."""
        return math.prod(2 * m + 1 for m in self.modes)

    def part(self, n_modes: int) -> Lattice:
        """The central part of about so many modes, as many of each coordinate in proportion."""
        share = (n_modes / self.n_modes) ** (1.0 / len(self.modes))
        if share >= 1:
            return self
        return replace(self, modes=tuple(max(0, int(((2 * m + 1) * share - 1) / 2)) for m in self.modes))

    def phases(self, X: np.ndarray) -> list[np.ndarray]:
        """2πh(x − c) of each column that varies, in [−π, π]: float64 arrays of shape (n_rows,)."""
        found = []
        for j, h, c in zip(self.columns, self.spacing, self.centre, strict=True):
            # float64 before the subtraction: a mode j multiplies the error of a phase by up to m.
            turns = (self._placed(j, X[:, j].astype(np.float64)) - c) * h
            if self.bounds[j] is None:
                # A period is one turn, so that whole turns mean nothing; transforms take phases in [−π, π].
                turns -= np.rint(turns)
            found.append(2.0 * math.pi * turns)
        return found

    def _placed(self, j: int, x: np.ndarray) -> np.ndarray:
        return without(self.seas[j], x) if self.seas else x

    def width(self, j: int) -> float:
        """Of the box in column j, which has bounds, without its seas."""
        low, high = self._placed(j, np.array(self.bounds[j]))
        return float(high - low)

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Mask of the rows outside of the bounds, shape (n_rows,)."""
        outside = np.zeros(len(X), dtype=bool)
        for x, bounds in zip(X.T, self.bounds, strict=True):
            if bounds is not None:
                outside |= beyond(x, bounds)
        return outside

    def weights(self, kernel: Kernel) -> np.ndarray:
        """w_j = ∏h·k̂(h·j), shape (2·m_1 + 1, …)."""
        return kernel.along(self.columns).lattice_weights(self.spacing, self.modes)

    def error(self, kernel: Kernel) -> float:
        """A bound of sup|k − k̃|/k(0) in the box: of modes left out, and of periodic images."""
        # Poisson's formula: k̃ is k with all its images at distances n/h, less the weights of the modes left
        # out. Columns add up, each times the sums of the others.
        return self.left_out(kernel) + self.images(kernel)

    def left_out(self, kernel: Kernel) -> float:
        """The part of the modes that are left out."""
        return sum(
            self._images_elsewhere(kernel, j) * _Line(kernel.along([j])).tail(self.spacing[i], self.modes[i])
            for i, j in enumerate(self.columns)
        )

    def images(self, kernel: Kernel) -> float:
        """The part of the images."""
        return sum(
            self._images_elsewhere(kernel, j)
            * _Line(kernel.envelope(j, self.n_columns)).images(self.width(j), self.spacing[i])
            for i, j in enumerate(self.columns)
            if self.bounds[j] is not None
        )

    def _images_elsewhere(self, kernel: Kernel, column: int) -> float:
        """How many times k(0) the kernel's sum over the periods of other columns is."""
        periodic = [(h, j) for h, j in zip(self.spacing, self.columns, strict=True) if self.bounds[j] is None]
        return images_elsewhere(kernel, periodic, column)

    def resolving(self, kernel: Kernel, tol: float) -> Lattice | None:
        """The smallest central part on which the kernel is within `tol`; None if there is none."""
        budget = tol - self.images(kernel)
        # The images alone exceed `tol`: no number of modes would do.
        if budget <= 0:
            return None
        share, modes = budget / len(self.columns), []
        for i, j in enumerate(self.columns):
            error = share / self._images_elsewhere(kernel, j)
            m = _Line(kernel.along([j])).modes(self.spacing[i], error, self.modes[i])
            if m is None:
                return None
            modes.append(m)
        return replace(self, modes=tuple(modes))

    def to_dict(self) -> dict[str, Any]:
        """The lattice as strict JSON data."""
        data = {
            "n_columns": self.n_columns,
            "columns": list(self.columns),
            "modes": list(self.modes),
            "spacing": list(self.spacing),
            "centre": list(self.centre),
            "bounds": [None if b is None else list(b) for b in self.bounds],
        }
        return data | ({"seas": [[list(sea) for sea in seas] for seas in self.seas]} if self.seas else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The lattice that `to_dict` wrote; raises ModelFileError for anything else."""
        try:
            return cls(
                data["n_columns"],
                tuple(map(index, data["columns"])),
                # `index` and not `int`, which would take a mode of 2.5 from a damaged file as 2.
                tuple(map(index, data["modes"])),
                tuple(map(_number, data["spacing"])),
                tuple(map(_number, data["centre"])),
                tuple(None if b is None else (_number(b[0]), _number(b[1])) for b in data["bounds"]),
                tuple(tuple((_number(a), _number(b)) for a, b in seas) for seas in data.get("seas", ())),
            )
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise ModelFileError(f"a stored lattice of frequencies is damaged ({error!r})") from error


def _number(value: Any) -> float:
    if not is_number(value):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def beyond(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Mask of the numbers outside of bounds, which float32 rounds by up to one part in 2²⁴."""
    slack = max(map(abs, bounds)) * 2.0**-24
    return np.asarray((x < bounds[0] - slack) | (x > bounds[1] + slack))


# One coordinate: how many modes a kernel needs, and how far away its periodic images must be.

_MAX_LINE_MODES, _FEW_LINE_MODES = 2**22, 2**16
_LEAST_EXPONENT, _SAME_EXPONENT, _MOST_OCTAVES = 0.4, 0.05, 24.0  # of tails by a power law
_FIRST_MODES = 1024
_N_IMAGES = 256


@dataclass(frozen=True)
class _Line:
    """A kernel of one column; all errors are shares of k(0)."""

    kernel: Kernel

    def _at(self, distances: np.ndarray) -> np.ndarray:
        return self.kernel(distances[:, None], np.zeros((1, 1)))[:, 0] / self.kernel.at_zero

    def images(self, width: float, spacing: float) -> float:
        """Σ k(δ + n/h) over n ≠ 0 at most, for differences |δ| up to the width of the box."""
        # For |δ| ≤ width the nearest image, at 1/h, is at least 1/h − width away.
        nearest = 1.0 / spacing - width
        if nearest <= 0:
            return math.inf
        # Both sides, all images at the distance of the nearer one: kernels fall, so this is a bound.
        return 2.0 * float(self._at(nearest + np.arange(_N_IMAGES) / spacing).sum())

    def spacing(self, width: float, error: float) -> float:
        """The largest h whose images add up to `error` at most."""
        low, high = 0.0, width
        # Doubled until the images are far enough, then bisected forty times, to some 1e-12 of it.
        while self.images(width, 1.0 / (width + high)) > error:
            low, high = high, 2.0 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.images(width, 1.0 / (width + middle)) > error else (low, middle)
            )
        return 1.0 / (width + high)

    def total(self, spacing: float) -> float:
        """Σ w_j over all j, by Poisson's formula: the kernel and its images at 0."""
        return 1.0 + 2.0 * float(self._at(np.arange(1, _N_IMAGES) / spacing).sum())

    def _shells(self, spacing: float, m: int) -> np.ndarray:
        """Σ_{|j| ≤ i} w_j for i = 0 … m."""
        w = self.kernel.lattice_weights([spacing], [m])[m:] / self.kernel.at_zero
        # w_{−j} = w_j, and w_0 stands once.
        return np.asarray(2.0 * np.cumsum(w) - w[0])

    def tail(self, spacing: float, m: int) -> float:
        """Σ w_j over |j| > m."""
        # A kernel that falls slowly has more images than are added up, but then its weights fall fast.
        sums = self._shells(spacing, max(4 * m, _FIRST_MODES))
        return max(0.0, max(self.total(spacing), float(sums[-1])) - float(sums[m]))

    def likely_modes(self, spacing: float, error: float) -> float:
        """As `modes`; where more than 2¹⁶ are needed, and the tail follows a power law, by that law."""
        if (m := self.modes(spacing, error, _FEW_LINE_MODES)) is not None:
            return float(m)
        before, half, whole = (self.tail(spacing, _FEW_LINE_MODES // n) for n in (4, 2, 1))
        if before > half > whole > 0:
            first, last = math.log2(before / half), math.log2(half / whole)
            # A tail of |j|^(−2ν), ν ≥ ¼: of a smooth or a narrow kernel the exponent still grows.
            if last >= _LEAST_EXPONENT and abs(first - last) <= _SAME_EXPONENT * last:
                return _FEW_LINE_MODES * 2.0 ** min(math.log2(whole / error) / last, _MOST_OCTAVES)
        return float(self.modes(spacing, error) or _MAX_LINE_MODES)

    def modes(self, spacing: float, error: float, max_modes: int = _MAX_LINE_MODES) -> int | None:
        """The smallest m whose tail is at most `error`; None if it is above `max_modes`."""
        total, n = self.total(spacing), _FIRST_MODES
        while True:
            sums = self._shells(spacing, n)
            # A tail that ends within the first half of the modes looked at is known well enough.
            if max(total, sums[-1]) - sums[n // 2] <= error:
                m = int(np.searchsorted(sums, max(total, sums[-1]) - error))
                return m if m <= max_modes else None
            if n > 2 * max_modes:
                return None
            n *= 2


def images_elsewhere(kernel: Kernel, periodic: Sequence[tuple[float, int]], column: int) -> float:
    """∏ Σ_n k_j(n/h_j)/k_j(0) over periodic columns but one, given as pairs of spacing and column.

    By so much the errors of a column may count, as they meet all periodic images in the others.
    """
    return math.prod(_Line(kernel.along([j])).total(h) for h, j in periodic if j != column)


# The lattice that the range of the columns and a kernel ask for.

_FEWEST_MODES = 5
_IMAGE_SHARE = 0.25  # of tol, for periodic images; the rest is for the modes that are left out
_LONGEST, _SHORTEST = (2.0, 1.0, 0.5, 0.25, 0.125), 4.0  # widths to be compared, by that of the pilot
_ENOUGH = 0.25  # shortest by longest width; where the range is smaller, longer ones are given up
# How many times too few modes of a column may be, or what they may leave of the kernel, before periods are
# at most so many times the box.
_NEARLY, _FAIR, _WIDEST = 2.0, 1e-3, 3.0
PILOT_ROWS = 1000  # of the likelihood: widths are only to start from, and 2,000 rows took four times as long


def scaled_widths(kernel: Kernel, factors: Any) -> Kernel:
    """The kernel with its widths multiplied by one factor or one a column, to four digits."""
    operands = {name: k for name, k in kernel.get_params(deep=False).items() if isinstance(k, Kernel)}
    if operands:
        return kernel.set_params(**{name: scaled_widths(k, factors) for name, k in operands.items()})
    widths = kernel.get_params(deep=False)["length_scale"]
    if np.ndim(widths) == 0 and np.ndim(factors) == 0:
        return kernel.set_params(length_scale=float(f"{widths * factors:.4g}"))
    scaled = np.asarray(widths) * np.asarray(factors)
    return kernel.set_params(length_scale=tuple(float(f"{w:.4g}") for w in scaled))


@dataclass(frozen=True)
class Box:
    """Bounds and periods of the columns, one of both each; seas as of `Lattice`.

    `filled` is the share of each column's range, without seas, that some rows have.
    """

    bounds: tuple[tuple[float, float] | None, ...]
    periods: tuple[float | None, ...]
    seas: tuple[tuple[tuple[float, float], ...], ...] = ()
    filled: tuple[float, ...] = ()

    def of_pieces(self, X: np.ndarray) -> Box:
        """The box for rows at these places: pieces of the map that lie far apart are closer together."""
        places = [(x.astype(np.float64), _has_rows(x)) for x in X.T]
        seas = [() if b is None else _seas(*place) for place, b in zip(places, self.bounds, strict=True)]
        filled = [
            # A single value has no width, and fills it.
            min(1.0, float(np.ptp(x) * has_rows.mean()) / (float(np.ptp(x)) - _length(own) or 1.0)) or 1.0
            for (x, has_rows), own in zip(places, seas, strict=True)
        ]
        return replace(self, seas=tuple(seas) if any(seas) else (), filled=tuple(filled))

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns that vary; the first one where none does."""
        moving = [j for j, b in enumerate(self.bounds) if b is None or b[1] > b[0]]
        return tuple(moving) or (0,)

    def _width(self, j: int) -> float:
        bounds = self.bounds[j]
        assert bounds is not None
        # A single value has no width, and any will do.
        return bounds[1] - bounds[0] - (_length(self.seas[j]) if self.seas else 0.0) or 1.0

    def lattice_of_kernel(self, kernel: Kernel, tol: float, max_modes: int) -> Lattice:
        """The lattice of a given kernel.

        Where the modes are far from sufficing, images are accepted for the sake of short waves. With
        periods of up to twelve times the box, as `tol` asks of rough kernels of long range, the mean error in
        the gaps of Heaton's temperatures was 1.63, 1.36 and 2.05 degrees for three kernels; with up to four
        times 1.10, 1.22 and 1.47, with three 1.02, 1.23 and 1.47, and with two 1.04, 1.24 and 1.49.
        """
        lattice, factor = self.lattice(kernel, kernel, tol, max_modes)
        if factor <= _NEARLY or lattice.error(kernel) <= _FAIR:
            return lattice
        return self.lattice(kernel, kernel, tol, max_modes, widest=_WIDEST)[0]

    def lattice(
        self,
        kernel: Kernel,
        longest: Kernel,
        tol: float,
        max_modes: int,
        *,
        shortest: float = 1.0,
        widest: float = math.inf,
    ) -> tuple[Lattice, float]:
        """A lattice with margins for the longest widths, and the factor of the shortest resolved.

        It resolves the kernel with its widths times a factor: `shortest`, or as little more as brings the
        modes down to `max_modes`. Periods are at most `widest` times the box.
        """
        columns, bounds = self.columns, list(self.bounds)
        spacing, centre = [], []
        periodic = [(1.0 / p, j) for j in columns if (p := self.periods[j]) is not None]
        tolerances = [tol / (images_elsewhere(longest, periodic, j) * len(columns)) for j in columns]
        for j, error in zip(columns, tolerances, strict=True):
            period = self.periods[j]
            if period is not None:
                # The period itself is the distance of images: they are meant, and no error.
                spacing.append(1.0 / period)
                centre.append(0.0)
            else:
                b = bounds[j]
                assert b is not None
                # The longest width reaches farthest, so its images ask for the finest spacing.
                line = _Line(longest.envelope(j, len(bounds)))
                width = self._width(j)
                spacing.append(max(line.spacing(width, _IMAGE_SHARE * error), 1.0 / (widest * width)))
                centre.append((b[0] + b[1]) / 2)

        shares = [(1 - _IMAGE_SHARE) * error for error in tolerances]
        narrow = kernel if shortest == 1 else scaled_widths(kernel, shortest)
        lines = [_Line(narrow.along([j])) for j in columns]
        modes = np.array([line.likely_modes(h, e) for line, h, e in zip(lines, spacing, shares, strict=True)])

        def counted(factor: float) -> np.ndarray:
            """The modes of wider kernels: frequencies are in inverse proportion to widths."""
            return np.ceil(modes / factor).astype(np.int64)

        # Bisection for the logarithm of the factor; e⁴⁰ leaves one mode of any number.
        low, high = 0.0, 40.0
        for _ in range(50 if math.prod((2 * counted(1.0) + 1).tolist()) > max_modes else 0):
            middle = (low + high) / 2
            too_many = math.prod((2 * counted(math.exp(middle)) + 1).tolist()) > max_modes
            low, high = (middle, high) if too_many else (low, middle)
        factor = math.exp(high) if low > 0 else 1.0
        kept = tuple(int(m) for m in counted(factor))
        while len(kept) > 0 and math.prod(2 * m + 1 for m in kept) > max_modes:
            kept = tuple(max(0, m - 1) for m in kept)  # of a single mode a column nothing is left to divide
        # Grids of transforms have at least 32 places a coordinate, for 21 modes of v: fewer save nothing.
        more = tuple(max(m, _FEWEST_MODES) for m in kept)
        if math.prod(2 * m + 1 for m in more) <= max_modes:
            kept = more
        lattice = Lattice(len(bounds), columns, kept, tuple(spacing), tuple(centre), tuple(bounds))
        return lattice, shortest * factor

    def lattice_of_map(self, pilot: Kernel, n_modes: int) -> Lattice:
        """About so many modes, of waves as short in each column as the pilot's widths are to each other.

        The margin is as wide as what has rows: with three tenths of it, ranges of half of the box made
        neighbours of opposite sides, and errors in the gaps of a map were up to a seventh larger.
        """
        columns, bounds = self.columns, self.bounds
        filled = self.filled or (1.0,) * len(bounds)
        periods = [self.periods[j] or (1.0 + filled[j]) * self._width(j) for j in columns]
        needs = [
            period / half_distance(pilot, j, len(bounds)) for j, period in zip(columns, periods, strict=True)
        ]
        modes = tuple((n - 1) // 2 for n in _shared(n_modes, needs))
        centre = tuple(0.0 if (b := bounds[j]) is None else b[0] + self._width(j) / 2 for j in columns)
        spacing = tuple(1.0 / p for p in periods)
        return Lattice(len(bounds), columns, modes, spacing, centre, tuple(bounds), self.seas)

    def lattice_for_search(
        self, pilot: Kernel, tol: float, max_modes: int, n_rows: int
    ) -> tuple[Lattice, Kernel]:
        """The lattice of most use for comparing widths around those of the pilot, and where to begin.

        From twice the pilot's widths down to a quarter of them, and less where there are more rows than the
        pilot had.
        """
        # n rows resolve widths in proportion to n^(−1/d).
        wanted = 1.0 / (_SHORTEST * max(1.0, n_rows / PILOT_ROWS) ** (1.0 / len(self.columns)))
        best = None
        # Long widths take a wide margin, and so many modes; where these do not suffice, the longest are given
        # up first. Little is lost: with a smaller alpha a shorter width fits a smooth function as well.
        for longest in _LONGEST:
            wide = scaled_widths(pilot, longest * (1 + 1e-3))  # widths are rounded to four digits
            lattice, kept = self.lattice(pilot, wide, tol, max_modes, shortest=wanted)
            if best is None or kept <= longest:
                best = lattice, scaled_widths(pilot, min(longest, max(1.0, kept * (1 + 1e-3))))
            if kept <= max(wanted, longest * _ENOUGH):
                break
        assert best is not None
        return best


_FEWEST_OF_MAP = 3  # modes of a column


def _shared(n_modes: int, needs: Sequence[float]) -> list[int]:
    """Factors of `n_modes` in proportion to `needs`, none below three: a kernel may be flat in a column."""
    found = dict[int, int]()
    # From the least need on, so that what it must have is divided among the others.
    for i in sorted(range(len(needs)), key=lambda i: needs[i]):
        rest = [need for k, need in enumerate(needs) if k not in found]
        share = (n_modes / math.prod(found.values()) / math.prod(rest)) ** (1.0 / len(rest))
        found[i] = max(_FEWEST_OF_MAP, int(share * needs[i]))
    return [found[i] for i in range(len(needs))]


def _modes_of_map(n_rows: float) -> int:
    """Three for two rows, of few rows up to sixteen a row."""
    return int(max(3 * n_rows // 2, min(16 * n_rows, 2**16)))


_ROWS_A_BIN, _MOST_BINS = 20, 100


def _has_rows(x: np.ndarray) -> np.ndarray:
    """Which of equal parts of the range of a coordinate have rows."""
    return np.histogram(x, max(1, min(len(x) // _ROWS_A_BIN, _MOST_BINS)))[0] > 0


def _seas(x: np.ndarray, has_rows: np.ndarray) -> tuple[tuple[float, float], ...]:
    """The middle of each stretch without rows that is longer than all parts with rows; the ends stay so long.

    Waves go on where no rows are: of terrain in two pieces of 5° together, 25° apart, most were spent on what
    lies between. Rows tell nothing of a kernel that is wider than all of them.
    """
    low, step = float(x.min()), float(np.ptp(x)) / len(has_rows)
    kept, ends = step * np.count_nonzero(has_rows), np.flatnonzero(np.diff(has_rows.astype(np.int8)))
    shores = [
        (low + (a + 1) * step, low + (b + 1) * step) for a, b in zip(ends[::2], ends[1::2], strict=True)
    ]
    return tuple((a + kept / 2, b - kept / 2) for a, b in shores if b - a > kept)


def _length(seas: Sequence[tuple[float, float]]) -> float:
    return sum(b - a for a, b in seas)


def without(seas: Sequence[tuple[float, float]], x: np.ndarray) -> np.ndarray:
    """Coordinates on a line from which seas are cut out."""
    found = x
    for a, b in seas:
        found = found - np.clip(x - a, 0.0, b - a)
    return found


_FIRST_SHARE, _SETTLED = 1e-5, 1.02


@lru_cache(maxsize=64)
def resolved_share(n_modes: int, n_columns: int, tol: float = 1e-3) -> float:
    """The shortest width, as a share of the box, that so many modes resolve for Matérn 3/2."""
    box = Box(((0.0, 1.0),) * n_columns, (None,) * n_columns)
    share, factor = _FIRST_SHARE, math.inf
    while factor > _SETTLED and share < 1:  # the margin of the box grows with the width
        kernel = Matern(share)
        _, factor = box.lattice(kernel, kernel, tol, n_modes)
        share *= factor
    return share
