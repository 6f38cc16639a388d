"""Nyström features: coordinates from the kernel with landmark rows, exact on their span."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, eigvalsh

from distrff.errors import DataWarning, InputError, warn
from distrff.features.base import KernelFeatureMap, RowSource, Sample
from distrff.features.fitted import (
    Arrays,
    KernelMap,
    MapCost,
    MapFromRows,
    MapOutline,
    Trait,
    canonical_json,
    product_cost,
)
from distrff.kernels.base import Kernel
from distrff.utils.linalg import factor, pivots_and_rank, solve_factor
from distrff.utils.process import one_blas_thread
from distrff.utils.random import child_seed, row_hash
from distrff.utils.validation import check_count, one_of

_STRIP_ROWS = 512  # the solve of a strip reads the whole factor, which is cheap from some hundred rows on

# A pivot below this share of the largest k(l, l) is noise: an entry of K_LL may be off by as much.
_RELATIVE_TOLERANCE = 2.0**-40


class _Landmarks:
    """Landmarks in the order of their pivots, and the factor L_c of K_LL, made when first needed.

    A client that only sends the map never needs it.
    """

    def __init__(self, kernel: Kernel, rows: np.ndarray) -> None:
        self.rows = rows
        self._kernel = kernel
        self._lock = Lock()
        self._made: np.ndarray | None = None

    @property
    def factor(self) -> np.ndarray:
        with self._lock:
            if self._made is None:
                self._made = _cholesky_factor(self._kernel, self.rows)
            return self._made


# A Gram of the kernel values themselves, with both solves of L_c at the end, would take M³ flops in place of
# the features' n·M²: at n = 36,000 and M = 8192, by the times of its parts, an eighth less for a fit. But its
# rounding is divided by the least eigenvalue of K_LL. With 12,288 rows of kin40k, all in float64, the norm of
# its error was 1.5e-6: nearly the least penalty that is tried, where the noise floor of features is 7e-14.


@dataclass(frozen=True)
class NystroemMap(KernelMap, MapFromRows):
    """z(x) = L_c⁻¹ k(L, x), strip by strip of rows, for landmarks L in the order of their pivots.

    Kernel values and the solve are in float64 whatever the dtype of the rows: the solve magnifies errors by
    up to the root of the condition of K_LL, some 1e6, too much for float32. Only the result is cast; values
    of the basis, the kernel values with the landmarks, are not.
    """

    kind: ClassVar[str] = "nystroem"

    n_components: int = 0
    rank: int = 0

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.FROM_ROWS, Trait.NESTED, Trait.BASIS})

    @property
    def n_features(self) -> int:
        return self.n_components

    @property
    def cost(self) -> MapCost:
        return product_cost(self.n_columns, triangle_share=1.0)  # kernel values, and the solve

    def prepare(self, arrays: Arrays) -> _Landmarks:
        landmarks = arrays["landmarks"]
        # A damaged file may hold any number; the factor is rank x rank numbers.
        if landmarks.ndim != 2 or not 0 <= self.rank <= min(len(landmarks), self.n_components):
            raise InputError("the landmarks of a Nyström map do not fit its sizes; fit the model again")
        # Landmarks beyond the rank lie in the span of those before, to rounding: they would add noise alone.
        return _Landmarks(self.kernel, landmarks[: self.rank])

    @property
    def prepared_bytes(self) -> int:
        return 8 * self.rank * (self.rank + self.n_columns)

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        rank, L = self.rank, self.prepared.factor
        for start in range(0, len(X), _STRIP_ROWS):
            strip = slice(start, start + _STRIP_ROWS)
            if rank:
                K = self.basis(X[strip])
                # Kᵀ is in the order of columns that LAPACK reads and overwrites.
                Z[strip, :rank] = solve_factor(L, K.T, overwrite=True).T
        # `out` may be memory with the features of other rows.
        Z[:, rank:] = 0.0
        return Z

    # For products with few vectors the solve is applied to the vectors instead of the rows.

    @property
    def n_basis(self) -> int:
        return self.rank

    def basis(self, X: np.ndarray) -> np.ndarray:
        return self.kernel.block(X.astype(np.float64, copy=False), self.prepared.rows)

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        # ⟨w, L_c⁻¹·b⟩ = ⟨L_c⁻ᵀ·w, b⟩.
        return self._solved(coef)

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        padded = np.zeros((len(sums), self.n_features))
        padded[:, : self.rank] = self._solved(sums.T, transposed=False).T
        return padded

    def _solved(self, V: np.ndarray, transposed: bool = True) -> np.ndarray:
        """L_c⁻ᵀ or L_c⁻¹ times the leading rows of V, as many as there are landmarks."""
        leading = V[: self.rank].astype(np.float64)
        if not leading.size:
            return leading
        return solve_factor(self.prepared.factor, leading, transposed=transposed)


def _cholesky_factor(kernel: Kernel, landmarks: np.ndarray) -> np.ndarray:
    """The lower factor of K_LL, its rows in LAPACK's order; the same bits in every process."""
    if not len(landmarks):
        return np.empty((0, 0))
    with one_blas_thread():
        K = kernel.block(landmarks, landmarks)
        try:
            # K is symmetric: its transpose is K in LAPACK's order of columns, without a copy. Solves never
            # read above the diagonal of the factor, so nothing there is cleared.
            return factor(K.T, overwrite=True, clean=False)
        except LinAlgError:
            raise InputError(
                "the kernel matrix of the landmarks is not positive definite; "
                "fit the map again with the version of NumPy and SciPy in use"
            ) from None


def pivoted(kernel: Kernel, landmarks: np.ndarray) -> tuple[np.ndarray, int]:
    """The landmarks in the order of pivoted Cholesky, and the numerical rank of K_LL.

    The next landmark is always the one that the previous ones explain least (LAPACK's dpstrf; Higham 2002,
    "Accuracy and Stability of Numerical Algorithms", section 10.3). M³/3 flops.
    """
    with one_blas_thread():
        K = kernel.block(landmarks, landmarks)
        tolerance = _RELATIVE_TOLERANCE * K.diagonal().max()
        pivots, rank = pivots_and_rank(K.T, tolerance, overwrite=True)
    return landmarks[pivots], rank


class NystroemFeatures(KernelFeatureMap):
    """Nyström features of any kernel: exact on the span of landmark rows.

    With landmarks L from the rows and K_LL = L_c L_cᵀ by pivoted Cholesky, z(x) = L_c⁻¹ k(L, x), hence
    ⟨z(x), z(x')⟩ = k(x, L) K_LL⁻¹ k(L, x') (Williams and Seeger 2001, "Using the Nyström method to speed
    up kernel machines"; Rudi, Camoriano and Rosasco 2015, "Less is more", for the model in these
    coordinates). With all rows as landmarks the model is that of the exact kernel.

    The leading columns are the map of the leading landmarks in pivot order. Columns beyond the numerical
    rank of K_LL are zero.

    Parameters
    ----------
    kernel : Kernel, optional
        Any kernel, `Polynomial` included; None is `Gaussian("auto")`. A width "auto" is chosen as
        `FourierFeatures` does.
    n_components : int, default=1024
        Landmarks M, and columns of Z. Where fewer rows have a positive weight, a warning says so and all
        of them are landmarks.
    landmarks : {"uniform", "leverage"}
        "uniform" draws from all rows of positive weight alike, in one pass; "leverage" in proportion to
        approximate ridge leverage scores, which favours rare rows, in two passes.
    random_state : int or None
        Seed of the draw; None is fresh entropy, kept as `seed_`.

    Attributes
    ----------
    kernel_ : Kernel
        Every width a number.
    length_scale_search_ : dict or None
        How an automatic width was found.
    landmarks_ : ndarray of shape (n_components, n_columns), float64
        In the order of the pivots; with a metric P of r rows their projections, of r columns.
    rank_ : int
        Numerical rank of K_LL.
    specification_ : NystroemMap or ProjectedMap
    seed_, n_features_in_ : int

    Notes
    -----
    A row of weight 0 is never a landmark; otherwise the draw depends on row numbers and the seed, not on
    weights. So the draw differs between a row of weight 2 and two rows, which are drawn twice and shift the
    numbers of later rows. For given landmarks both give the same model.

    `fit` costs 2M³/3 flops and 8M² bytes, and once more in each process that applies the map. `transform`
    costs n·(2dM + M²) flops and n·M exponentials, in float64 also for rows of float32. Light sweeps and
    predictions, which only multiply features with k vectors, cost n·(2dM + 2kM) flops, and kM² for each task:
    they solve for the vectors instead of the rows. With a metric of r rows, rows are first projected by n·d·r
    multiply-adds, and d is r from there on; they may then be scipy sparse matrices.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        n_components: int = 1024,
        *,
        landmarks: str = "uniform",
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.landmarks = landmarks
        self.random_state = random_state

    def check_parameters(self) -> None:
        super().check_parameters()
        if self.chosen_kernel.is_auto and not self.chosen_kernel.is_shift_invariant:
            raise InputError(
                f'a width "auto" needs a shift-invariant kernel, got {self.kernel!r}; give the width a number'
            )
        one_of("landmarks", self.landmarks, LANDMARKS)
        check_count("n_components", self.n_components)

    def _outline(self, kernel: Kernel, n_columns: int, n_rows: int) -> MapOutline:
        return MapOutline(
            min(int(self.n_components), n_rows),
            product_cost(n_columns, triangle_share=1.0),
            n_passes=2 if self.landmarks == "leverage" else 1,
        )

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        super()._prepare_trial(n_columns, most_components)
        # A trial has a row for each landmark.
        return int(self.n_components)

    def _frozen(self, kernel: Kernel, sample: Sample) -> NystroemMap:
        M, d = int(self.n_components), sample.X.shape[1]
        chosen = chosen_landmarks(
            sample.row_source, kernel, landmarks=self.landmarks, n_landmarks=M, n_columns=d, seed=sample.seed
        )
        if len(chosen) < M:
            warn(
                f"n_components={M} landmarks need as many rows, but only {len(chosen)} have a positive "
                f"weight; the map has {len(chosen)} features",
                DataWarning,
            )
        # In the order of the pivots leading columns are the map of fewer landmarks, for the learning curve.
        self.landmarks_, self.rank_ = pivoted(kernel, chosen)
        return NystroemMap(
            n_columns=d,
            kernel_json=canonical_json(kernel.to_dict()),
            n_components=len(chosen),
            rank=self.rank_,
            arrays={"landmarks": self.landmarks_},
        )


# The draw of the landmarks: the rows of the smallest random keys, uniform or by leverage.

LANDMARKS = ("uniform", "leverage")

PILOT_ROWS = 1024
_PILOT_NUMBERS = 2**19  # of 8 bytes, which are sent with every task
_STRIP_BYTES = 2**23  # of kernel values of some rows and the pilot rows
_MIN_SCORE = 2.0**-40


class Lowest(NamedTuple):
    """The rows of the lowest keys so far, by ascending key."""

    keys: np.ndarray
    rows: np.ndarray
    X: np.ndarray


@dataclass(frozen=True)
class LowestKeys:
    """The reduction to the rows of positive weight with the `n_landmarks` smallest keys.

    A row's key is a function of its number and the seed, and of two equal keys the smaller number comes
    first: the result does not depend on the order or the chunks in which rows are read.
    """

    n_landmarks: int
    n_columns: int
    seed: int
    label = "landmarks"

    def zero(self) -> Lowest:
        # Types that turn into those of any rows by concatenation.
        none = np.empty(0, np.uint64)
        return Lowest(none, none, np.empty((0, self.n_columns), np.float32))

    def update(self, total: Lowest, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Lowest:
        chosen = np.arange(len(X)) if sample_weight is None else np.flatnonzero(sample_weight > 0)
        if not len(chosen):
            return total
        numbers, rows = chosen.astype(np.uint64) + np.uint64(start), X[chosen]
        return self.merge(total, self._lowest(self.keys(numbers, rows), numbers, rows))

    def keys(self, numbers: np.ndarray, X: np.ndarray) -> np.ndarray:
        """The keys of rows with these numbers."""
        return row_hash(numbers, self.seed)

    def merge(self, first: Lowest, second: Lowest) -> Lowest:
        # The lowest of two parts are among the lowest of each, so nothing is lost whatever the cuts.
        return self._lowest(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))

    def _lowest(self, keys: np.ndarray, numbers: np.ndarray, X: np.ndarray) -> Lowest:
        # Two rows with one key would be in the order of their arrival: the number decides, on any cuts.
        order = np.lexsort((numbers, keys))[: self.n_landmarks]
        return Lowest(keys[order], numbers[order], X[order])

    def size_bytes(self, n_rows: int) -> int:
        return min(n_rows, self.n_landmarks) * 8 * (self.n_columns + 2)


@dataclass(frozen=True, eq=False)
class LowestLeverageKeys(LowestKeys):
    """The reduction to rows drawn without replacement in proportion to their leverage.

    The key of a row is an exponential variate divided by its score: the next smallest key is always that of
    a row drawn in proportion to the scores of the remaining rows (Efraimidis and Spirakis 2006, "Weighted
    random sampling with a reservoir", use u^(1/score); these keys are minus its logarithm).

    `pilot` holds rows drawn uniformly, and `penalty` is that of the ridge leverage scores.
    """

    kernel: Kernel
    pilot: np.ndarray
    penalty: float
    label = "landmarks by leverage"

    def keys(self, numbers: np.ndarray, X: np.ndarray) -> np.ndarray:
        # 53 bits and a half: uniform on (0, 1) after the division, and never 0, whose logarithm is infinite.
        u = (row_hash(numbers, self.seed) >> np.uint64(11)).astype(np.float64) + 0.5
        n_rows = max(1, _STRIP_BYTES // (8 * len(self.pilot)))  # a tile may have 64 times as many
        strips = [self.scores(X[i : i + n_rows].astype(np.float64)) for i in range(0, len(X), n_rows)]
        return -np.log(u * 2.0**-53) / np.concatenate(strips)

    def scores(self, X: np.ndarray) -> np.ndarray:
        """k(x, x) − k(x, P)(K_PP + penalty·I)⁻¹k(P, x), proportional to ridge leverage scores."""
        K = self.kernel.block(X, self.pilot)
        norms = squared_norms(self.kernel, X)
        U = solve_factor(self._factor, K.T, overwrite=True)
        explained = np.einsum("ji,ji->i", U, U)
        # Rounding can leave a pilot row less than nothing, and a score of 0 an infinite key.
        return np.maximum(norms - explained, _MIN_SCORE * np.maximum(norms, _MIN_SCORE))

    @cached_property
    def _factor(self) -> np.ndarray:
        K = self.kernel.block(self.pilot, self.pilot)
        K[np.diag_indices(len(K))] += self.penalty
        return factor(K.T, overwrite=True, clean=False)

    def __getstate__(self) -> dict[str, object]:
        # Up to 8 MB, which a task makes from the pilot rows sooner than it receives them.
        return {name: value for name, value in self.__dict__.items() if name != "_factor"}


def squared_norms(kernel: Kernel, X: np.ndarray) -> np.ndarray:
    """k(x, x) of each row."""
    if kernel.is_shift_invariant:
        return np.full(len(X), kernel.at_zero)
    return np.asarray([kernel.block(x, x)[0, 0] for x in X[:, None, :]])


def chosen_landmarks(
    row_source: RowSource, kernel: Kernel, *, landmarks: str, n_landmarks: int, n_columns: int, seed: int
) -> np.ndarray:
    """The landmark rows, float64 of shape (n_landmarks, n_columns), in the order of their keys.

    Where fewer rows have a positive weight, these are all of them.

    "uniform" takes one pass over the rows, "leverage" two: the first draws m ≤ 1024 uniform pilot rows P, the
    second draws landmarks in proportion to approximate ridge leverage scores. The score of a row is
    k(x, x) − k(x, P)(K_PP + γI)⁻¹k(P, x) (Rudi, Calandriello, Carratino and Rosasco 2018, "On fast leverage
    score sampling and optimal learning"), with γ = (2/m)·Σ_{i>m/2} σ_i(K_PP), the mean of the m/2 smallest
    eigenvalues (after the penalty of Musco and Musco 2017, "Recursive sampling for the Nyström method").
    """
    uniform_seed = child_seed(seed, "landmarks")
    if landmarks == "uniform":
        return _lowest_rows(row_source, LowestKeys(n_landmarks, n_columns, uniform_seed))
    n_pilot = max(1, min(n_landmarks, PILOT_ROWS, _PILOT_NUMBERS // n_columns))
    # The scores of all rows need landmarks themselves, which are drawn alike first.
    pilot = _lowest_rows(row_source, LowestKeys(n_pilot, n_columns, uniform_seed))
    reduction = LowestLeverageKeys(
        n_landmarks, n_columns, child_seed(seed, "leverage"), kernel, pilot, _penalty(kernel, pilot)
    )
    return _lowest_rows(row_source, reduction)


def _penalty(kernel: Kernel, pilot: np.ndarray) -> float:
    eigenvalues = eigvalsh(kernel.block(pilot, pilot), check_finite=False)
    # `eigvalsh` returns them in ascending order.
    smaller = eigenvalues[: max(1, len(pilot) // 2)]
    # Pilot rows that repeat each other make K_PP singular; the factor of K_PP + γI must exist all the same.
    rounding = np.finfo(np.float64).eps * len(pilot) * eigenvalues[-1]
    return float(max(smaller.mean(), 16 * rounding, np.finfo(np.float64).tiny))


def _lowest_rows(row_source: RowSource, reduction: LowestKeys) -> np.ndarray:
    return np.asarray(row_source(reduction).X, dtype=np.float64)
