"""The face of every feature map: a scikit-learn transformer over blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from distrff.errors import ColumnError, InputError
from distrff.features.fitted import (
    FittedMap,
    KernelMap,
    MapOutline,
    ProjectedMap,
    ProjectionMap,
    Trait,
    project,
    projected_cost,
)
from distrff.kernels.base import LEARNED, Kernel, MetricFactor
from distrff.kernels.stationary import Gaussian
from distrff.preprocessing.coding import Moments, Scaling
from distrff.utils.process import one_blas_thread
from distrff.utils.random import group_of, resolve_seed, stream

# The sums over all rows that a map takes before it is fitted, each in one pass.


class MapReduction(Protocol):
    """A sum over blocks of rows: zero, update, merge; a small value that can be pickled.

    Rows come scaled, in the dtype in which the map will be applied to them.
    """

    @property
    def label(self) -> str:
        """The name of the pass in reports."""

    def zero(self) -> Any:
        """A fresh total, of no rows."""

    def update(self, total: Any, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Any:
        """The total with the rows from number `start` on added; it may be changed in place."""

    def merge(self, first: Any, second: Any) -> Any:
        """The total of both, earlier rows first; neither is changed."""

    def size_bytes(self, n_rows: int) -> int:
        """The bytes of the total of that many rows, at most."""


class RowSource(Protocol):
    """All rows of a fit, which a map may reduce before it is fitted."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    def __call__(self, reduction: MapReduction, *, min_features: int = 0) -> Any:
        """The total over all rows.

        Z will have at least `min_features` columns, which a plan may refuse before the pass.
        """

    def run_all(
        self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray], calls: list[tuple]
    ) -> list[Any]:
        """`function(arrays, *call)` for each of the calls, which may run side by side."""

    def of_map(self, features: Any) -> RowSource:
        """The same rows for a fit of this map."""

    def scaled(self, scaling: Scaling) -> RowSource:
        """The same rows, as they are without any scaling, in another one."""

    def check_size(self, n_features: int) -> None:
        """Raise PlanRefused where a model of so many features would not fit in the workers' memory."""

    def after(self, step: FittedMap) -> RowSource:
        """The source of the rows that this map makes of them."""


# The first pass brings these rows to the client: they take 32 MiB in float64, and more only where 2,048 rows
# do.
_SAMPLE_ROWS = 16_384
_SAMPLE_BYTES = 2**25
_MIN_SAMPLE_ROWS = 2_048


def sample_rows(n_columns: int) -> int:
    """Number of sampled rows: 16,384, fewer but at least 2,048 of more than 256 columns."""
    return min(_SAMPLE_ROWS, max(_MIN_SAMPLE_ROWS, _SAMPLE_BYTES // (8 * n_columns)))


class Split(NamedTuple):
    """How folds split rows."""

    held_out: np.ndarray  # whether a search judges each row
    fitted: np.ndarray  # whether its models may be fitted to it
    units: np.ndarray | None  # which rows are held out together, as numbers; None where each is for itself
    go_by_places: bool = False  # as of the folds


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that a map is fitted to: a sample in memory, and the source of all rows.

    A `y` that does not hold numbers is taken as class labels.
    """

    X: Any  # (n_samples, n_columns), dense or CSR
    y: Any
    sample_weight: Any
    seed: int
    row_source: RowSource
    has_classes: bool = False
    """Whether y stands for classes: labels, or ±1 by class."""
    column_scale: np.ndarray | None = None
    """Divisors of the columns; None for 1."""
    column_shift: np.ndarray | None = None
    """Numbers subtracted from the columns before that; None for 0."""
    penalty: float | None = None
    """The ridge penalty that the model will have, for each unit of weight; None where it is to be chosen."""
    column_ranges: np.ndarray | None = None
    """Least and largest values of the columns over all rows, unscaled, (2, n_columns); None: the sample's."""
    column_names: tuple[str, ...] | None = None
    split: Split | None = None
    """As the fit's folds split the rows; None where a search draws those that it judges itself."""
    may_be_warped: bool = False
    """Whether a search may bend the columns."""

    @property
    def ranges(self) -> np.ndarray:
        """Least and largest values of the columns over all rows of positive weight, (2, n_columns)."""
        if self.column_ranges is not None:
            return self.column_ranges
        X = self.X[self.weights > 0]
        return np.stack([X.min(axis=0), X.max(axis=0)]).astype(np.float64)

    @property
    def weights(self) -> np.ndarray:
        """One weight a row, float64."""
        if self.sample_weight is None:
            return np.ones(self.X.shape[0])
        return np.asarray(self.sample_weight, dtype=np.float64)

    def in_own_units(self) -> Sample:
        """The sample with its columns as they were before they were scaled."""
        # Scaling subtracts before it divides; this undoes it in the reverse order.
        X = self.X if self.column_scale is None else self.X * self.column_scale
        X = X if self.column_shift is None else X + self.column_shift
        return replace(self, X=X, column_scale=None, column_shift=None)

    def warped(self, name: str) -> tuple[Sample, Scaling]:
        """The sample with its columns, as they were, bent by a function of `WARPS` and scaled again."""
        own = self.in_own_units()
        moments = Moments.of(own.X, self.weights)
        if self.column_ranges is not None:
            low, high = self.column_ranges
            moments = replace(moments, min=low, max=high)
        scaling = Scaling.warped(name, own.X, self.weights, moments).without_constants(moments)
        X, source = scaling.apply(own.X, np.dtype(np.float64)), self.row_source.scaled(scaling)
        bent = replace(self, X=X, row_source=source, column_scale=scaling.scale, column_shift=scaling.shift)
        return bent, scaling

    def shuffled_rows(self, name: str) -> np.ndarray:
        """The numbers of the rows of positive weight in the random order of that name."""
        # Rows of weight 0 are left out before the draw: a sample without them has the others in the same
        # order.
        rows = stream(self.seed, name).permutation(np.flatnonzero(self.weights > 0))
        if self.split is None or self.split.units is None:
            return rows
        # A row of each group, then a second one, and so on: few rows are then of as many groups as there are.
        units = pd.Series(self.split.units[rows])
        return rows[np.argsort(units.groupby(units).cumcount().to_numpy(), kind="stable")]

    @property
    def n_weighted_rows(self) -> int:
        """About how many of all rows have a positive weight, from their share in the sample."""
        # The sample is drawn evenly over all rows, whatever their weights.
        return round(np.count_nonzero(self.weights) / self.X.shape[0] * self.row_source.n_rows)


@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """All rows in memory, as a `RowSource`."""

    X: Any
    sample_weight: np.ndarray | None

    @property
    def n_rows(self) -> int:
        return int(self.X.shape[0])

    def __call__(self, reduction: MapReduction, *, min_features: int = 0) -> Any:
        return reduction.update(reduction.zero(), 0, self.X, self.sample_weight)

    def run_all(
        self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray], calls: list[tuple]
    ) -> list[Any]:
        return [function(arrays, *call) for call in calls]

    def of_map(self, features: Any) -> RowSource:
        return self

    def scaled(self, scaling: Scaling) -> RowSource:
        return RowsInMemory(scaling.apply(self.X, np.dtype(np.float64)), self.sample_weight)

    def check_size(self, n_features: int) -> None:
        """Rows in memory have no workers."""

    def after(self, step: FittedMap) -> RowsInMemory:
        with one_blas_thread():  # the same bits whatever the threads
            return RowsInMemory(step.build().apply(self.X), self.sample_weight)


def projected_sample(sample: Sample, metric: MetricFactor) -> Sample:
    """The sample with its rows, and those of its source, projected."""
    step = ProjectionMap.of(metric, sample.X.shape[1])
    with one_blas_thread():  # the same bits whatever the client's threads
        X = project(sample.X, np.asarray(metric))
    return replace(sample, X=X, row_source=sample.row_source.after(step))


SPARSE_REMEDY = (
    "FourierFeatures do with widths other than 'ard', no metric to be learned, and sampling='iid', "
    "'orthogonal', 'qmc' or 'countsketch'; or write the rows out with X.toarray()"
)


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of all maps: `fit` makes a `FittedMap`, `transform` applies it block by block.

    Subclasses store their constructor's parameters unchanged. They implement `check_parameters`, `outline`,
    `freeze` and, where parameters leave something undecided, `decide`.
    """

    random_state: int | None = None
    traits: ClassVar[frozenset[Trait]] = frozenset()
    """Of every fitted map of the class, as far as they are known before a fit."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fix the map for rows like those of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            In memory; most maps use the values only to find automatic length scales.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
            Targets; an automatic length scale is more accurate with them.
        sample_weight : array-like of shape (n_samples,), optional

        Raises
        ------
        InputError
            If the parameters, targets or weights cannot be used for these rows.
        """
        X = self._rows(X, reset=True)
        if y is not None and np.asarray(y).shape[:1] != X.shape[:1]:
            raise InputError(
                f"X has {X.shape[0]} rows but y has shape {np.asarray(y).shape}; "
                f"they must be of the same length"
            )
        if sample_weight is not None:
            sample_weight = _usable_weights(sample_weight, X.shape[0])
        names = getattr(self, "feature_names_in_", None)
        sample = Sample(
            X,
            y,
            sample_weight,
            seed=resolve_seed(self.random_state),
            row_source=RowsInMemory(X, sample_weight),
            # Text and booleans are labels; numbers of classes come as ±1, from the estimators.
            has_classes=y is not None and np.asarray(y).dtype.kind not in "fiu",
            column_names=None if names is None else tuple(names),
        )
        try:
            return self.fit_sample(sample)
        # Below here columns have numbers alone; only this map knows what the user calls them.
        except ColumnError as error:
            raise error.named(names) from None

    @property
    def takes_sparse_rows(self) -> bool:
        """Whether `fit` takes SciPy's CSR matrices."""
        return False

    def _rows(self, X: Any, *, reset: bool) -> Any:
        # After a fit the fitted map decides: `set_params` may have changed the parameters since.
        takes_sparse = self.takes_sparse_rows if reset else self.specification_.takes_sparse_rows
        sparse = "csr" if takes_sparse else False
        return validate_data(
            self, X, dtype=[np.float64, np.float32], order="C", accept_sparse=sparse, reset=reset
        )

    def fit_sample(self, sample: Sample, *, is_part: bool = False) -> Self:
        """Fit to a sample of checked rows: decide what is undecided, then freeze the map.

        A part of another map is not made ready, as only the whole map is applied.
        """
        self.check_parameters()
        self.seed_, self.n_features_in_ = sample.seed, sample.X.shape[1]
        # First all that the rows decide, then the draws: the seed alone gives the same map again.
        self.decide(sample)
        frozen = self.freeze(sample)
        self.specification_ = frozen.digested(frozen.derive()) if is_part else frozen.with_digest()
        return self

    def check_parameters(self) -> None:
        """Raise InputError for parameters that are wrong whatever the data."""

    def check_columns(self, n_columns: int) -> None:
        """Raise InputError before the first pass if the map cannot be fitted to so many columns."""
        self.trial(n_columns, 2)

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        """The numbers that a plan needs of the map, before its fit."""
        raise NotImplementedError

    def decide(self, sample: Sample) -> None:
        """Set what the parameters leave undecided, such as widths."""

    def freeze(self, sample: Sample) -> FittedMap:
        """The fitted map, once all is decided."""
        raise NotImplementedError

    @property
    def size_limit(self) -> str | None:
        """The parameter that bounds the number of features where a fit chooses it."""
        return None

    @property
    def chooses_weights(self) -> bool:
        """Whether a ridge model has yet to choose the weights of its parts."""
        return False

    def trial(self, n_columns: int, most_components: int | None = None) -> Self:
        """A clone fitted to random rows, with so many components at most; automatic widths are 1."""
        # Its sizes are those of any fit: a plan asks them before a row is read, for the time of a few rows.
        trial = clone(self)
        n_rows = trial._prepare_trial(n_columns, most_components)
        X = stream(0, "trial rows").lognormal(size=(n_rows, n_columns))  # positive: some maps need it
        return trial.fit_sample(Sample(X, None, None, 0, RowsInMemory(X, None)))

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        """Set the parameters for a trial; the number of rows that its fit needs."""
        return 1

    def transform(self, X: Any) -> Any:
        """Z = z(X).

        Parameters
        ----------
        X : array-like or dask array of shape (n_samples, n_columns)

        Returns
        -------
        ndarray or dask array of shape (n_samples, n_features)
            float32 for float32 rows, else float64. A dask array gives a lazy dask array
            with the same row chunks. A map of sparse features returns a scipy CSR matrix, or a dask
            array of such blocks.
        """
        check_is_fitted(self, "specification_")
        # Dask arrays are known by their methods: feature maps import no Dask.
        if hasattr(X, "map_blocks") and hasattr(X, "chunks"):
            return self._transform_lazily(X)
        return self.specification_.build().apply(self._rows(X, reset=False))

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Write z(X) into `out` without copies or checks; see `FittedMap.apply`."""
        return self._ready().apply(X, out)

    def _ready(self) -> FittedMap:
        check_is_fitted(self, "specification_")
        return self.specification_.build()

    def _transform_lazily(self, X: Any) -> Any:
        n_columns = self.specification_.n_columns
        if X.ndim != 2 or X.shape[1] != n_columns:
            raise InputError(
                f"X must have shape (n_samples, {n_columns}), got a dask array of shape {X.shape}"
            )
        if issparse(X._meta) and not self.specification_.takes_sparse_rows:
            raise InputError(
                f"{type(self).__name__} takes no sparse rows with these parameters; {SPARSE_REMEDY}"
            )
        # A frequency, a landmark or a grid takes all columns of a row at once.
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})
        dtype = self.output_dtype(X.dtype)
        # Given `meta`, Dask does not call the function on an empty block to learn its type. The token begins
        # the keys of the tasks, by which Dask's dashboard groups them.
        return X.map_blocks(
            transform_block,
            self.specification_,
            token=group_of("transform"),
            dtype=dtype,
            chunks=(X.chunks[0], (self.specification_.n_features,)),
            meta=csr_matrix((0, 0), dtype=dtype)
            if Trait.SPARSE in self.specification_.traits
            else np.empty((0, 0), dtype=dtype),
        )

    def output_dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype of Z for rows of this dtype."""
        return np.dtype(np.float32 if dtype == np.float32 else np.float64)

    def nested_sizes(self) -> tuple[int, ...]:
        """The sizes D' ≤ D of the maps that are leading columns of this one, ascending.

        Halvings of D down to 16; only (D,) for a map that is not nested.
        """
        check_is_fitted(self, "specification_")
        return self.specification_.nested_sizes()

    @property
    def _n_features_out(self) -> int:
        # ClassNamePrefixFeaturesOutMixin counts the names of its features by it.
        return self.specification_.n_features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.takes_sparse_rows
        return tags


def _usable_weights(sample_weight: Any, n_rows: int) -> np.ndarray:
    s = np.asarray(sample_weight, dtype=np.float64)
    if s.shape != (n_rows,):
        raise InputError(f"sample_weight must be one number per row, shape ({n_rows},), got shape {s.shape}")
    if not (np.isfinite(s) & (s >= 0)).all() or not s.any():
        raise InputError(
            "sample_weight must be finite and not negative, and not all zero; correct or drop it"
        )
    return s


def transform_block(X: Any, specification: FittedMap) -> np.ndarray:
    """z(X) for one block of a dask array."""
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    # A sparse block may come in any of SciPy's formats, and a dense one as a slice of a wider array.
    rows = X.tocsr().astype(dtype, copy=False) if issparse(X) else np.ascontiguousarray(X, dtype=dtype)
    return specification.build().apply(rows)


def search_module(name: str) -> Any:
    """A module of the search, loaded when widths are first searched for.

    By name: the search draws maps itself, and so imports this module.
    """
    return import_module(f"distrff.features.search.{name}")


# The base of the maps of a kernel: the parameter, its widths, and the kernel of the fitted map.


class KernelFeatureMap(FeatureMap):
    """Base of the maps with a parameter `kernel`; `fit` finds its undecided widths."""

    kernel: Kernel | None
    n_components: int
    kernel_: Kernel
    length_scale_search_: dict[str, Any] | None
    _default_kernel: ClassVar[Kernel] = Gaussian("auto")
    _chooses_smoothness: ClassVar[bool] = False
    _shrinks_ard: ClassVar[bool] = False  # whether its small model also shrinks the widths that "ard" learned

    def check_parameters(self) -> None:
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise InputError(
                f"kernel must be a distrff kernel or None, got {self.kernel!r}; give an object such as "
                f"drf.Gaussian() or drf.Matern()"
            )
        if self.chosen_kernel.has_undecided_smoothness and not self._chooses_smoothness:
            raise InputError(
                f"nu='auto' is chosen by EquispacedFourierFeatures alone, not by {type(self).__name__}; give "
                f"a number, or take AutoFeatures, which compares kernels of several nu"
            )

    @property
    def chosen_kernel(self) -> Kernel:
        """The kernel as given, perhaps with undecided widths."""
        return self._default_kernel if self.kernel is None else self.kernel

    def _small_ridge(self, rows: Any, kernel: Kernel) -> Any:
        """The `SmallRidge` that widths are judged by; that of Fourier features by default."""
        ridge = search_module("ridge")
        # The best width falls with the number of features, so the small model has the map's own number where
        # it can.
        return ridge.FourierRidge(rows, kernel, min(int(self.n_components), ridge.FEATURES))

    def _small_flops(self, n_rows: int, n_columns: int) -> float:
        """About the flops of one held-out error of the small model."""
        return float(search_module("ridge").dense_flops(n_rows, int(self.n_components)))

    def _metric_components(self) -> int:
        """Features of the small models by which a metric is learned, at most."""
        return int(self.n_components)

    def decide(self, sample: Sample) -> None:
        """Set the kernel with every width a number; explicit widths stay as they are."""
        kernel, search = self.chosen_kernel, None
        # First the metric: its width is sought together with it, and belongs to the projected rows.
        if kernel.metric == LEARNED:
            kernel, search = search_module("metric").learned_metric(
                kernel, sample, self._metric_components(), by_bins=Trait.SPARSE in self.traits
            )
        elif kernel.is_ard:
            kernel, search = search_module("widths").learned_length_scales(
                kernel, sample, self._small_ridge, shrinks=self._shrinks_ard
            )
        elif kernel.is_auto:
            metric = kernel.metric
            # Under a given metric widths are distances of projected rows, so they are sought among these.
            judged = sample if metric is None else projected_sample(sample, metric)
            kernel, search = search_module("widths").automatic_length_scale(
                kernel.without_metric(), judged, self._small_ridge
            )
            kernel = kernel if metric is None else kernel.set_params(metric=metric)
        self.kernel_, self.length_scale_search_ = kernel, search

    def freeze(self, sample: Sample) -> FittedMap:
        kernel, metric = self.kernel_, self.kernel_.metric
        if metric is None:
            return self._frozen(kernel, sample)
        # Kernels of projected rows know nothing of the metric: one step before serves every kind of map.
        inner = self._frozen(kernel.without_metric(), projected_sample(sample, metric))
        return ProjectedMap(n_columns=sample.X.shape[1], inner=inner, arrays={"metric": np.asarray(metric)})

    def _frozen(self, kernel: Kernel, sample: Sample) -> KernelMap:
        """The fitted map of a kernel without metric, every width a number."""
        raise NotImplementedError

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        kernel, search_flops = self.chosen_kernel, self._search_flops(n_rows, n_columns)
        if kernel.metric is None:
            return replace(self._outline(kernel, n_columns, n_rows), search_flops=search_flops)
        # A learned metric has at most one direction for each column.
        r = kernel.metric.shape[0] if isinstance(kernel.metric, MetricFactor) else n_columns
        inner = self._outline(kernel.without_metric(), r, n_rows)
        return replace(inner, cost=projected_cost(inner.cost, r, n_columns), search_flops=search_flops)

    def _outline(self, kernel: Kernel, n_columns: int, n_rows: int) -> MapOutline:
        """The outline for a kernel without metric, beside the search."""
        raise NotImplementedError

    @property
    def takes_sparse_rows(self) -> bool:
        # A given metric makes them dense before anything looks at them, a search for the width included.
        return isinstance(self.kernel, Kernel) and isinstance(self.kernel.metric, MetricFactor)

    def _search_flops(self, n_rows: int, n_columns: int) -> float:
        if not self.chosen_kernel.is_auto:
            return 0.0
        if self.chosen_kernel.metric == LEARNED:
            return float(search_module("metric").metric_flops(n_rows, n_columns, self._metric_components()))
        widths = search_module("widths")
        small_flops = self._small_flops(min(n_rows, widths.SAMPLE_ROWS), n_columns)
        if not self.chosen_kernel.is_ard:
            return float(widths.SEARCH_ERRORS * small_flops)
        shrinking = widths.shrinking_errors(n_columns) * small_flops if self._shrinks_ard else 0.0
        # The search by likelihood samples rows itself, within its own budget.
        return float(widths.LikelihoodBudget().flops(n_rows, n_columns) + shrinking)

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        kernel = self.chosen_kernel
        if kernel.is_auto:
            # The random rows of a trial have no targets, from which alone a metric is learned.
            learned = kernel.metric == LEARNED
            # Sizes and costs of a map do not depend on widths.
            kernel = kernel.with_widths(1.0)
            self.set_params(kernel=kernel.without_metric() if learned else kernel)
        if most_components is not None and hasattr(self, "n_components"):
            self.set_params(n_components=min(int(self.n_components), most_components))
        return 1

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `kernel__…` replaces the kernel, which is an immutable value."""
        inner = {
            name.removeprefix("kernel__"): v for name, v in params.items() if name.startswith("kernel__")
        }
        # A kernel that comes in the same call is set first: `kernel__…` are then its parameters. Kernels are
        # immutable, so scikit-learn's way of setting them in place does not serve.
        super().set_params(**{name: v for name, v in params.items() if not name.startswith("kernel__")})
        if inner:
            if self.kernel is None:
                raise InputError("kernel__… parameters need an explicit kernel; the map's kernel is None")
            super().set_params(kernel=self.kernel.set_params(**inner))
        return self
