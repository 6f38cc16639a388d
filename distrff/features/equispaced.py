"""Equispaced Fourier features: all frequencies of a lattice, for 1 to 3 columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from distrff.errors import InputError, ModelFileError, column_called
from distrff.features.base import KernelFeatureMap, KernelMapSpecification
from distrff.features.lattice import PILOT_ROWS, Box, Lattice, beyond
from distrff.features.search.ridge import FEATURES, FourierRidge, SmallRidge
from distrff.features.search.sample import SearchSample
from distrff.features.search.widths import LikelihoodBudget, automatic_length_scale, relevant_length_scales
from distrff.features.specification import BlockMap, MapCost, MapSpecification, Sample, canonical_json
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Matern
from distrff.utils.nufft import MAX_DIMENSIONS, values_at, values_of_few, values_on_grid
from distrff.utils.text import listed
from distrff.utils.validation import check_count, is_number

# The fitted map.

_EPS, _EPS_OF_SAMPLES = 1e-10, 1e-5  # of transforms for predictions, and for their deviations
_FEW_ROWS = 32  # a fine grid would take longer
_ROWS_AT_ONCE = 2**17, 2**22
_MAX_AXIS_NUMBERS = 2**21  # modes times coordinates of one axis: exponentials of 32 MB


@dataclass(frozen=True)
class EquispacedSpecification(KernelMapSpecification):
    """A lattice with a kernel; features are a constant, then cos and sin of half of its frequencies."""

    kind: ClassVar[str] = "equispaced"

    lattice_json: str = ""

    def __post_init__(self) -> None:
        if self.lattice.n_columns != self.n_columns:
            raise ModelFileError("a stored map and its lattice of frequencies differ in columns")

    @cached_property
    def lattice(self) -> Lattice:
        return Lattice.from_dict(json.loads(self.lattice_json))

    @property
    def n_features(self) -> int:
        return self.lattice.n_modes

    @property
    def cost(self) -> MapCost:
        return _cost(len(self.lattice.columns))

    @property
    def rows_at_once(self) -> int:
        return int(np.clip(self.n_features, *_ROWS_AT_ONCE))

    def outside(self, X: np.ndarray) -> np.ndarray:
        return self.lattice.outside(X)

    @property
    def example(self) -> np.ndarray:
        return np.array([[0.0 if b is None else (b[0] + b[1]) / 2 for b in self.lattice.bounds]])

    def derive_arrays(self) -> dict[str, np.ndarray]:
        return {"root_weights": np.sqrt(self.lattice.weights(self.kernel))}

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> EquispacedBlockMap:
        root = arrays["root_weights"]
        if root.shape != tuple(2 * m + 1 for m in self.lattice.modes):
            raise InputError("the arrays of an equispaced map do not fit its lattice; fit the model again")
        return EquispacedBlockMap(self.lattice, root)


@dataclass(eq=False)
class EquispacedBlockMap(BlockMap):
    """z(x) = (√w_0, √(2w_1)·cos⟨j_1, x̃⟩, √(2w_1)·sin⟨j_1, x̃⟩, …), j_1, j_2, … being half of the lattice.

    Sums of features are Fourier sums Σ_j C_j·exp(i⟨j, x̃⟩) with C_{−j} = C̄_j: transforms, not products.
    """

    lattice: Lattice
    root_weights: np.ndarray

    @property
    def n_features(self) -> int:  # type: ignore[override]
        return self.root_weights.size

    @property
    def n_bytes(self) -> int:  # type: ignore[override]
        return self.root_weights.nbytes

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        half = self.n_features // 2
        J = np.stack([g.ravel() for g in self._modes()])[:, half + 1 :]
        phase = np.stack(self.lattice.phases(X), axis=1) @ J
        amplitude = math.sqrt(2.0) * self.root_weights.ravel()[half + 1 :]
        Z[:, 0] = self.root_weights.ravel()[half]
        Z[:, 1::2] = np.cos(phase) * amplitude
        Z[:, 2::2] = np.sin(phase) * amplitude
        Z[self.lattice.outside(X)] = np.nan
        return Z

    def _modes(self) -> list[np.ndarray]:
        return list(np.meshgrid(*(np.arange(-m, m + 1) for m in self.lattice.modes), indexing="ij"))

    def values_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return C of each output, a pair of outputs as one complex array: (ceil(k/2), 2·m_1 + 1, …)."""
        C = [self.root_weights * lattice_of(w, self.root_weights.shape) for w in coef.T]
        C.extend([np.zeros_like(C[0])] * (len(C) % 2))
        return np.stack([a + 1j * b for a, b in zip(C[::2], C[1::2], strict=True)])

    def values(self, X: np.ndarray, coef: np.ndarray, n_outputs: int) -> np.ndarray:
        points, F = self.lattice.phases(X), np.empty((len(X), 2 * len(coef)))
        for i, C in enumerate(coef):
            f = values_of_few(points, C) if len(X) <= _FEW_ROWS else values_at(points, C, _EPS)
            F[:, 2 * i], F[:, 2 * i + 1] = f.real, f.imag
        F[self.lattice.outside(X)] = np.nan
        return F[:, :n_outputs]

    def mean_square(self, X: np.ndarray, C: np.ndarray) -> np.ndarray:
        """Return the mean square of real functions, two of which share a place of the leading axis: (r,)."""
        points, total = self.lattice.phases(X), np.zeros(len(X))
        for one in C:
            f = values_at(points, one, _EPS_OF_SAMPLES)
            total += np.square(f.real) + np.square(f.imag)
        total /= 2 * len(C)  # each holds two
        total[self.lattice.outside(X)] = np.nan
        return total

    def values_on_grid(self, axes: Sequence[np.ndarray], coef: np.ndarray) -> np.ndarray | None:
        lattice = self.lattice
        points = [
            lattice.phases(_column(lattice.n_columns, j, axes[j]))[i] for i, j in enumerate(lattice.columns)
        ]
        if max(x.size * n for x, n in zip(points, self.root_weights.shape, strict=True)) > _MAX_AXIS_NUMBERS:
            return None
        shape = [len(x) for x in axes]
        inner = [len(axes[j]) if j in lattice.columns else 1 for j in range(lattice.n_columns)]
        F = np.empty((*shape, coef.shape[1]))
        for output, w in enumerate(coef.T):
            C = self.root_weights * lattice_of(w, self.root_weights.shape)
            F[..., output] = values_on_grid(points, C).reshape(inner)
        for j, (x, bounds) in enumerate(zip(axes, lattice.bounds, strict=True)):
            if bounds is not None:
                F[(slice(None),) * j + (beyond(x, bounds),)] = np.nan
        return F


def _column(n_columns: int, j: int, x: np.ndarray) -> np.ndarray:
    """Return rows with these values in column j, and zeros."""
    X = np.zeros((len(x), n_columns))
    X[:, j] = x
    return X


def lattice_of(coef: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return c_j on the whole lattice, c_{−j} = c̄_j, from real coefficients in the order of the features."""
    half = len(coef) // 2
    flat = np.empty(len(coef), np.complex128)
    flat[half] = coef[0]
    flat[half + 1 :] = (coef[1::2] - 1j * coef[2::2]) / math.sqrt(2.0)
    flat[:half] = flat[:half:-1].conj()
    return flat.reshape(shape)


def coef_of(C: np.ndarray) -> np.ndarray:
    """Return the real coefficients of c_j on the whole lattice; inverse of `lattice_of`."""
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
        Shift-invariant, without a metric. None is `Matern("ard", nu="auto")`: smoothness ν from ½, 3/2, 5/2
        and ∞ (Gaussian) and a width a column, all chosen by the fit. "auto" is one width for all columns.
        Widths are in the columns' own units: an estimator's `scale` does not apply.
    n_components : int, optional
        N = ∏(2m + 1), the most features. Default: as many as `tol` asks for, up to 64 a row, at least 32,768,
        and at most 1,048,576. Where they do not suffice, the report says which widths are resolved.
    tol : float
        Bound of sup|k − k̃|/k(0) over the box. It is not a bound for predictions: a small alpha amplifies it.
    bounds : sequence of pairs, or mapping of column to pair, optional
        Least and largest value of each column, between which models are made and predict. Default: the range
        of the rows of the fit, and a hundredth of it on both sides. Features repeat themselves outside of
        the bounds; predictions there are NaN.
    period : mapping of column to float, optional
        Columns that are periodic, such as an hour of 24 or a longitude of 360, with their periods: the
        kernel becomes periodic in them. Columns are named, or numbered from 0.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    lattice_ : Lattice
        Modes, spacing and bounds.
    kernel_error_ : float
        A bound of sup|k − k̃|/k(0).
    length_scale_search_ : dict or None
        How widths and smoothness were found.
    specification_ : EquispacedSpecification
    seed_, n_features_in_ : int

    Notes
    -----
    Far from all rows predictions are only as good as the kernel: for rows that are fitted closely, by a small
    alpha, an error of `tol` becomes ripples there, as large as the standard deviation. That is estimated by
    64 models drawn from the posterior, and so known to 9 %. They take a pass over the rows and 64 systems.

    Work is in float64. N grows with 1/ℓ^d, and for rough kernels with tol^(−d/2ν): Matérn of ν = ½ at a width
    of a tenth of the box takes 1.8e7 modes in the plane for tol=1e-3. `transform` writes features out, n·N
    cosines and sines; it is for small sizes, and for other estimators.
    """

    _default_kernel = Matern("ard", nu="auto")
    _chooses_smoothness = True
    keeps_units = True

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_components: int | None = None,
        *,
        tol: float = 1e-3,
        bounds: Any = None,
        period: Any = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components  # type: ignore[assignment]
        self.tol = tol
        self.bounds = bounds
        self.period = period

    def check_parameters(self) -> None:
        super().check_parameters()
        kernel = self._chosen_kernel
        if not kernel.is_shift_invariant:
            raise InputError(
                f"equispaced frequencies need a shift-invariant kernel, got {kernel!r}; use NystroemFeatures"
            )
        if kernel.metric is not None:
            raise InputError(
                f"equispaced frequencies need a kernel without a metric, got {kernel!r}; use FourierFeatures"
            )
        check_count("n_components", self.n_components, or_none=True)
        if not is_number(self.tol) or not 0 < self.tol < 1:
            raise InputError(f"the map's tol must be between 0 and 1, got {self.tol!r}: a share of k(0)")
        _pairs(self.bounds, None)
        _periods(self.period, None)

    def check_columns(self, n_columns: int) -> None:
        _check_few(n_columns)
        super().check_columns(n_columns)

    def n_features_for(self, n_columns: int, n_rows: int | None = None) -> int:
        return self._max_modes(n_rows)

    def _max_modes(self, n_rows: int | None) -> int:
        if self.n_components is not None:
            return int(self.n_components)
        return _MAX_MODES if n_rows is None else int(np.clip(_MODES_A_ROW * n_rows, _MIN_MODES, _MAX_MODES))

    def cost_for(self, n_columns: int) -> MapCost:
        return _cost(n_columns)

    def _prepare_trial(self, smaller: Mapping[str, int]) -> None:
        kernel = self._chosen_kernel
        if isinstance(kernel, Matern) and kernel.has_undecided_smoothness:
            kernel = kernel.set_params(nu=_PILOT_SMOOTHNESS)
        # No column is named or bounded: trial rows have neither names nor the data's range.
        self.set_params(kernel=kernel.with_widths(1.0), n_components=3, bounds=None, period=None)

    @property
    def chosen_kernel(self) -> Kernel:
        """The kernel as given, perhaps with undecided parts."""
        return self._chosen_kernel

    @property
    def chooses(self) -> bool:
        """Whether the sums are to choose widths or smoothness."""
        return self._chosen_kernel.is_auto

    @property
    def widths_are_undecided(self) -> bool:
        """Whether the sums are to choose widths."""
        kernel = self._chosen_kernel
        if isinstance(kernel, Matern) and kernel.has_undecided_smoothness:
            kernel = kernel.set_params(nu=_PILOT_SMOOTHNESS)
        return kernel.is_auto

    def search_flops_for(self, n_rows: int, n_columns: int) -> float:
        kernel = self._chosen_kernel
        if not kernel.is_auto:
            return 0.0
        return float(PILOT_ROWS) ** 3 * 60

    def _specify(self, sample: Sample) -> MapSpecification:
        self.check_parameters()
        _check_few(sample.X.shape[1])
        box = self._box(sample)
        pilot = self._pilot_kernel(sample)
        pilot(sample.X[:1], sample.X[:1])  # raises for another number of widths than of columns
        n_rows = sample.n_weighted_rows
        if self.widths_are_undecided:
            lattice, pilot = box.lattice_for_search(pilot, self.tol, self._max_modes(n_rows), n_rows)
        else:
            lattice, _ = box.lattice(pilot, pilot, self.tol, self._max_modes(n_rows))
        self.pilot_kernel_ = pilot
        return self._decided(pilot, lattice)

    def _decided(self, kernel: Kernel, lattice: Lattice) -> EquispacedSpecification:
        self.kernel_, self.lattice_ = kernel, lattice
        self.kernel_error_ = lattice.error(kernel)
        return EquispacedSpecification(
            n_columns=lattice.n_columns,
            kernel_json=canonical_json(kernel.to_dict()),
            lattice_json=canonical_json(lattice.to_dict()),
        )

    def decided(self, kernel: Kernel, lattice: Lattice, search: dict[str, Any] | None) -> Self:
        """Return the fitted map with another kernel, on this lattice or a central part of it."""
        chosen = clone(self)
        for name in ("seed_", "n_features_in_", "pilot_kernel_"):
            setattr(chosen, name, getattr(self, name))
        chosen.length_scale_search_ = search
        chosen.specification_ = chosen._decided(kernel, lattice).with_digest()
        return chosen

    @classmethod
    def of_specification(cls, specification: EquispacedSpecification, kernel: Kernel, tol: float) -> Self:
        """Return the fitted map of this lattice, for a search that begins at the specification's kernel.

        `kernel` is the one that was given, perhaps with undecided parts.
        """
        found = cls(kernel, tol=tol)
        found.seed_, found.n_features_in_ = 0, specification.n_columns
        found.pilot_kernel_, found.length_scale_search_ = specification.kernel, None
        found.specification_ = found._decided(specification.kernel, specification.lattice).with_digest()
        return found

    def _box(self, sample: Sample) -> Box:
        names, d = sample.column_names, sample.X.shape[1]
        periods = _periods(self.period, names or ())
        given = _pairs(self.bounds, names or ())
        if wrong := [j for j in {*periods, *given} if j >= d]:
            raise InputError(f"bounds or period name column {wrong[0]}, but there are {d} columns")
        bounds: list[tuple[float, float] | None] = []
        for j, (low, high) in enumerate(sample.ranges.T.tolist()):
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
                margin = _MARGIN * (high - low)
                bounds.append((low - margin, high + margin))
        return Box(tuple(bounds), tuple(periods.get(j) for j in range(d)))

    def _pilot_kernel(self, sample: Sample) -> Kernel:
        """Set the search and return the kernel, what is undecided found by small models on the sample."""
        kernel, self.length_scale_search_ = self._chosen_kernel, None
        if isinstance(kernel, Matern) and kernel.has_undecided_smoothness:
            kernel = kernel.set_params(nu=_PILOT_SMOOTHNESS)
        if not kernel.is_auto:
            return kernel
        if not (sample.X.max(axis=0) > sample.X.min(axis=0)).any():  # no two rows differ
            return kernel.with_widths(1.0)
        if kernel.is_ard and sample.y is not None and np.count_nonzero(sample.weights) >= _MIN_ROWS_OF_WIDTHS:
            found, search = relevant_length_scales(
                kernel, sample, budget=LikelihoodBudget(max_rows=PILOT_ROWS)
            )
            if "note" not in search:
                self.length_scale_search_ = search
                return found
        if not kernel.is_ard:
            found, self.length_scale_search_ = automatic_length_scale(kernel, sample, self._small_ridge)
            return found
        # Widths in proportion to the columns' deviations.
        deviation = sample.X.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        one = kernel.set_params(length_scale="auto")
        found, search = automatic_length_scale(
            one, replace(sample, X=sample.X / deviation), self._small_ridge
        )
        widths = tuple(float(f"{w:.4g}") for w in search["length_scale"] * deviation)
        self.length_scale_search_ = search | {"length_scale": widths, "column_scale": deviation.tolist()}
        return kernel.with_widths(widths)

    def _small_ridge(self, rows: SearchSample, kernel: Kernel) -> SmallRidge:
        return FourierRidge(rows, kernel, FEATURES)

    @property
    def sparse_entries(self) -> int:
        return 0


def _check_few(n_columns: int) -> None:
    if n_columns > MAX_DIMENSIONS:
        raise InputError(
            f"equispaced frequencies are for 1 to {MAX_DIMENSIONS} columns, got {n_columns}; choose columns, "
            f"or use FourierFeatures"
        )


def _pairs(given: Any, names: Sequence[str] | None) -> dict[int, tuple[float, float]]:
    """Return the bounds by column number; raise InputError for what are none."""
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
    """Return what messages call the columns of a mapping or sequence."""
    keys = list(given) if isinstance(given, Mapping) else range(0 if given is None else len(given))
    return [f"column {key!r}" for key in keys]


def _periods(given: Any, names: Sequence[str] | None) -> dict[int, float]:
    """Return the periods by column number; raise InputError for what are none."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"period must map columns to periods, such as {{'hour': 24}}, got {given!r}")
    found = _by_column("period", given, names)
    for period, called in zip(found.values(), _called(given), strict=True):
        if not is_number(period) or not 0 < period < math.inf:
            raise InputError(f"the period of {called} must be a positive number, got {period!r}")
    return {j: float(period) for j, period in found.items()}


def _by_column(parameter: str, given: Any, names: Sequence[str] | None) -> dict[int, Any]:
    """Return a mapping or sequence with columns as numbers.

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
