"""What every feature map is to its user: a scikit-learn transformer over blocks of rows."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from distrff.errors import ColumnError, FrequencyMismatch, InputError, ModelFileError
from distrff.kernels.base import LEARNED, Kernel, MetricFactor, kernel_from_dict
from distrff.kernels.stationary import Gaussian
from distrff.utils.arrays import in_one_layout
from distrff.utils.jit import COUNTS, scratch
from distrff.utils.process import one_blas_thread
from distrff.utils.random import group_of, resolve_seed, stream
from distrff.utils.validation import FEW_COLUMNS

# Fitted maps as small values that are sent to workers, and the cache that derives their arrays there.

_MAX_MAPS, _MAX_BYTES = 8, 2**29  # of the block maps that a process keeps, unless one alone is larger
_SENT = "map_"  # the prefix of a map's arrays when they are sent beside others


class BlockMap(ABC):
    """A fitted map with its arrays: blocks of rows in, blocks of Z out."""

    n_features: int
    n_bytes: int = 0
    """Memory of its arrays, where it is large."""
    has_basis: bool = False
    """Whether its basis b differs from z."""

    @property
    def n_basis(self) -> int:
        """Functions m in the basis."""
        return self.n_features

    @abstractmethod
    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return z(X) in the dtype of X, float32 or float64; a scipy CSR matrix for a sparse map.

        Where `out` is given, z(X) is written there: its rows may be strided, its columns must be adjacent.
        """

    def tile(self, X: np.ndarray) -> Any:
        """Return z(X) in memory that this thread reuses for its next tile."""
        return self.apply(X, out=scratch("tile", X.shape[0], self.n_features, X.dtype))

    # The basis b: functions that cost less than z, with z(x) = A·b(x). Sweeps that only multiply features by
    # a few vectors use b, and apply A to the vectors. b is z itself unless a map overrides it.

    def basis(self, X: np.ndarray) -> np.ndarray:
        """Return b(X), of shape (n_rows, m)."""
        return self.apply(X)

    def basis_tile(self, X: np.ndarray) -> Any:
        """Return b(X) in memory that this thread may reuse for its next tile."""
        return self.tile(X)

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return Aᵀ·coef, of shape (m, k), for tiles of rows of this dtype."""
        return coef.astype(dtype, copy=False)

    def values_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the coefficients that `values` takes."""
        return self.basis_coef(coef, dtype)

    def values(self, X: np.ndarray, coef: np.ndarray, n_outputs: int) -> np.ndarray:
        """Return ⟨w, z(x)⟩ of each output, (n_rows, n_outputs), for `coef` as `values_coef` returns it."""
        return np.asarray(self.basis(X) @ coef)

    def values_on_grid(self, axes: Sequence[np.ndarray], coef: np.ndarray) -> np.ndarray | None:
        """Return ⟨w, z(x)⟩ for all x of a product grid of the columns, one output last: (n_1, …, n_d, k).

        None where the map has no faster way than row by row.
        """
        return None

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        """Return weighted sums of z from those of b, one in each row: (k, m) → (k, n_features)."""
        return sums


@dataclass(frozen=True)
class MapSpecification(ABC):
    """A fitted map as a value of a few bytes, from which its arrays can be derived anywhere.

    `digest` is that of the arrays that the client derived; it is empty until then.
    """

    kind: ClassVar[str]
    needs_arrays: ClassVar[bool] = True
    """Whether a block map is made of arrays, which a stored model then holds."""
    carries_arrays: ClassVar[bool] = False
    """Whether the arrays come from rows, and must be sent."""
    is_sparse: ClassVar[bool] = False
    """Whether blocks of Z are scipy CSR matrices."""
    nested: ClassVar[bool] = False
    """Whether the leading columns are, up to a factor, the map of that smaller size."""
    rescaled_when_nested: ClassVar[bool] = False
    """Whether the leading D' columns must be multiplied by √(D/D') to be that map."""

    n_columns: int
    digest: str = ""

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Return which rows the map is not for, shape (n_rows,); most maps are for all."""
        return np.zeros(X.shape[0], dtype=bool)

    @property
    def example(self) -> np.ndarray:
        """A row that the map is for, shape (1, n_columns)."""
        return np.zeros((1, self.n_columns))

    def has_columns_within(self, n_stored: int) -> bool:
        """Return whether it has few columns, or no more than the numbers stored with it.

        A damaged file may hold anything as their number.
        """
        return type(self.n_columns) is int and 1 <= self.n_columns <= max(FEW_COLUMNS, n_stored)

    @property
    def takes_sparse_rows(self) -> bool:
        """Whether rows may be scipy CSR matrices."""
        return False

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns D of Z."""

    @property
    def row_entries(self) -> int:
        """Entries of a row of Z that are not zero, at most."""
        return self.n_features

    @property
    def rows_at_once(self) -> int:
        """Rows to be predicted together, where their features are not made; 0 where they are."""
        return 0

    @property
    def at_zero(self) -> float:
        """k(0), the expected squared norm of a row of Z; nan where it depends on the row."""
        return float("nan")

    @property
    def cost(self) -> MapCost:
        """What applying the map costs."""
        return product_cost(self.n_columns)

    @abstractmethod
    def derive_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of the map; this is the costly part."""

    @abstractmethod
    def block_map(self, arrays: Mapping[str, np.ndarray]) -> BlockMap:
        """Return the block map with these arrays."""

    @classmethod
    def _stored_fields(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.compare]  # all but arrays and objects

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as strict JSON data, its `kind` included, without arrays."""
        data: dict[str, Any] = {"kind": self.kind}
        for name in self._stored_fields():
            value = getattr(self, name)
            data[name.removesuffix("_json")] = json.loads(value) if name.endswith("_json") else value
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the specification of what `to_dict` returned, without arrays."""
        values = {name: data[name.removesuffix("_json")] for name in cls._stored_fields()}
        texts = {name: canonical_json(value) for name, value in values.items() if name.endswith("_json")}
        return cls(**(values | texts))

    def with_digest(self) -> Self:
        """Return the specification with the digest of the arrays derived here, and cache them for `build`."""
        arrays = self.derive_arrays()
        digested = self.digested(arrays)
        _CACHE.keep(digested, arrays)
        return digested

    def digested(self, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the specification with the digest of these arrays."""
        return replace(self, digest=self.digest_of(arrays))

    def digest_of(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Return the digest by which maps of different arrays differ."""
        return arrays_digest(arrays)

    @property
    def arrays_at_hand(self) -> bool:
        """Whether it holds arrays that must be sent separately."""
        return False

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        """Return the arrays to send to other processes, named as `build_sent` expects them.

        With `derived`, also arrays that follow from the seed, for processes that derive different ones.
        """
        if not (derived or self.arrays_at_hand):
            return {}
        return named_to_send(self.checked_arrays())

    def arrays_to_keep(self, *, derived: bool) -> dict[str, np.ndarray] | None:
        """Return the arrays to store with a model; None if every process derives the same ones."""
        return self.checked_arrays() if derived or self.carries_arrays else None

    def build_sent(self, arrays: Mapping[str, np.ndarray]) -> BlockMap:
        """Return the block map of its arrays among those sent or, if there are none, derived here."""
        return self.build(sent_arrays(arrays) or None)

    def without_arrays(self) -> Self:
        """Return the specification to send with every task."""
        return self

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the specification with these arrays, if it holds any."""
        return self

    def check_storable(self) -> None:  # noqa: B027
        """Raise InputError if the map cannot be stored."""

    def checked_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays; raise InputError if this process derives others than the map's own."""
        arrays = self.derive_arrays()
        if self.digest and self.digest_of(arrays) != self.digest:
            raise InputError(
                "this process derives other frequencies from the seed than the process that made the map "
                "(another processor or NumPy version); load the stored model, which holds them, or fit again"
            )
        return arrays

    def build(self, arrays: Mapping[str, np.ndarray] | None = None) -> BlockMap:
        """Return the block map, derived at most once in each process.

        `arrays` replace those derived here. Without them it raises FrequencyMismatch if the arrays derived
        here differ from the client's in the sixth digit.
        """
        return _CACHE.block_map(self, arrays)


@dataclass(frozen=True)
class CarryingSpecification(MapSpecification):
    """A fitted map with arrays that come from rows: it holds them, but is sent to tasks without them.

    `arrays` is None where they are sent separately. Comparisons use the digest instead.
    """

    carries_arrays: ClassVar[bool] = True

    arrays: Mapping[str, np.ndarray] | None = field(default=None, compare=False, repr=False)

    def derive_arrays(self) -> dict[str, np.ndarray]:
        if self.arrays is None:
            raise FrequencyMismatch(f"the arrays of a {self.kind} map were not sent with it")
        return dict(self.arrays)

    def digest_of(self, arrays: Mapping[str, np.ndarray]) -> str:
        return exact_digest(arrays)

    @property
    def arrays_at_hand(self) -> bool:
        return self.arrays is not None

    def without_arrays(self) -> Self:
        return replace(self, arrays=None)

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Self:
        return replace(self, arrays=dict(arrays))


def named_to_send(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a map's arrays under names that no other arrays have."""
    return {_SENT + name: A for name, A in arrays.items()}


def sent_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of `named_to_send` among these, under the map's own names."""
    return {name.removeprefix(_SENT): A for name, A in arrays.items() if name.startswith(_SENT)}


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of the arrays' first six significant digits (20 bits of the mantissa).

    Processors and NumPy versions may differ in the last bits of a logarithm or a QR
    factor; maps that differ by no more count as equal.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        mantissa, exponent = np.frexp(np.asarray(arrays[name], dtype=np.float64))
        digest.update(f"{name}{mantissa.shape}".encode())
        digest.update(np.rint(mantissa * 2**20).astype("<i4").tobytes())
        digest.update(exponent.astype("<i2").tobytes())
    return digest.hexdigest()[:32]


def exact_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of all bits of arrays that are sent and never derived again."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def canonical_json(data: Any) -> str:
    """Return JSON text that is equal for equal data."""
    return json.dumps(data, sort_keys=True, allow_nan=False)


class _BlockMapCache:
    """The block maps used last, bounded in number and in bytes; safe for threads, and not picklable."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._maps: OrderedDict[tuple[MapSpecification, bool], BlockMap] = OrderedDict()

    def block_map(self, spec: MapSpecification, arrays: Mapping[str, np.ndarray] | None) -> BlockMap:
        key = (spec, arrays is None)
        with self._lock:  # held while deriving: a second thread waits instead of deriving again
            if key not in self._maps:
                self._add(key, self._derive(spec) if arrays is None else arrays)
            self._maps.move_to_end(key)
            return self._maps[key]

    def keep(self, spec: MapSpecification, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the map of arrays that this process just derived from the specification."""
        with self._lock:
            COUNTS["derivations"] += 1
            self._add((spec, True), arrays)

    def _add(self, key: tuple[MapSpecification, bool], arrays: Mapping[str, np.ndarray]) -> None:
        self._maps[key] = key[0].block_map({name: in_one_layout(A) for name, A in arrays.items()})
        while len(self._maps) > 1 and (
            len(self._maps) > _MAX_MAPS or sum(kept.n_bytes for kept in self._maps.values()) > _MAX_BYTES
        ):
            self._maps.popitem(last=False)

    def _derive(self, spec: MapSpecification) -> dict[str, np.ndarray]:
        arrays = spec.derive_arrays()
        COUNTS["derivations"] += 1
        if spec.digest and spec.digest_of(arrays) != spec.digest:
            raise FrequencyMismatch(
                "this process derives other frequencies from the seed than the client does "
                "(another processor or NumPy version)"
            )
        return arrays


_CACHE = _BlockMapCache()


# What applying a map costs, as a polynomial in the number of its features.


@dataclass(frozen=True)
class MapCost:
    """Flops of a row and numbers kept by a map of D features; cosines are counted separately.

    Parameters
    ----------
    row_flops, product_flops, feature_flops : float
        A row takes row_flops + (product_flops + feature_flops)·D + triangle_share·D² flops, D being the
        number of entries of a row for a sparse map. The first two are those of a dense row of X, and
        proportional to its entries.
    fixed_numbers, feature_numbers : float
        The arrays hold at most fixed_numbers + feature_numbers·D numbers besides triangular factors.
    triangle_share : float
        Numbers in triangular factors, zeros included, divided by D²: each row is solved against them.
    """

    row_flops: float = 0.0
    product_flops: float = 0.0
    feature_flops: float = 0.0
    fixed_numbers: float = 0.0
    feature_numbers: float = 0.0
    triangle_share: float = 0.0

    @property
    def min_tile_rows(self) -> int:
        """Rows of a tile below which reading the map's arrays takes as long as computing with them.

        With 8192 landmarks in 784 columns, a row of a tile of 128 takes half as long again as one of 512.
        """
        return 512 if self.triangle_share else 128

    def flops(self, n_features: int, column_share: float = 1.0) -> float:
        """Return the flops of a row that has entries in a share of the columns."""
        of_entries = column_share * (self.row_flops + self.product_flops * n_features)
        return of_entries + self.feature_flops * n_features + self.triangle_numbers(n_features)

    def numbers(self, n_features: int) -> float:
        """Return the numbers in its arrays, without triangular factors."""
        return self.fixed_numbers + self.feature_numbers * n_features

    def triangle_numbers(self, n_features: int) -> float:
        """Return the numbers in its triangular factors."""
        return self.triangle_share * float(n_features) ** 2


def product_cost(n_columns: int, *, triangle_share: float = 0.0) -> MapCost:
    """Return the cost of an inner product of n_columns numbers for each feature."""
    return MapCost(
        product_flops=2.0 * n_columns, feature_numbers=float(n_columns), triangle_share=triangle_share
    )


def cost_of_parts(parts: Iterable[tuple[MapCost, int]]) -> MapCost:
    """Return the cost of maps of D_i features side by side, with fixed shares of D."""
    costs = list(parts)
    n_features = sum(n for _, n in costs)
    return MapCost(
        row_flops=sum(cost.row_flops for cost, _ in costs),
        product_flops=sum(cost.product_flops * n for cost, n in costs) / n_features,
        feature_flops=sum(cost.feature_flops * n for cost, n in costs) / n_features,
        fixed_numbers=sum(cost.fixed_numbers for cost, _ in costs),
        feature_numbers=sum(cost.feature_numbers * n for cost, n in costs) / n_features,
        triangle_share=sum(cost.triangle_numbers(n) for cost, n in costs) / float(n_features) ** 2,
    )


# The sums over all rows that a map takes before it is fitted, each in one pass.


class MapReduction(Protocol):
    """A sum over blocks of rows: zero, update, merge; a small value that can be pickled.

    Rows come scaled, in the dtype in which the map will be applied to them.
    """

    @property
    def label(self) -> str:
        """The name of the pass in reports."""

    def zero(self) -> Any:
        """Return a fresh total, of no rows."""

    def update(self, total: Any, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Any:
        """Return the total with the rows from number `start` on added; it may be changed in place."""

    def merge(self, first: Any, second: Any) -> Any:
        """Return the total of both, earlier rows first; neither is changed."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of the total of that many rows, at most."""


class RowSource(Protocol):
    """All rows of a fit, which a map may reduce before it is fitted."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    def __call__(self, reduction: MapReduction, *, min_features: int = 0) -> Any:
        """Return the total over all rows.

        Z will have at least `min_features` columns, which a plan may refuse before the pass.
        """

    def run_all(
        self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray], calls: list[tuple]
    ) -> list[Any]:
        """Return `function(arrays, *call)` for each of the calls, which may run side by side."""

    def of_map(self, features: Any) -> RowSource:
        """Return the same rows for a fit of this map."""

    def check_size(self, n_features: int) -> None:
        """Raise PlanRefused where a model of so many features would not fit in the workers' memory."""

    def after(self, step: MapSpecification) -> RowSource:
        """Return the source of the rows that this map makes of them."""


_SAMPLE_ROWS = 16_384
_SAMPLE_BYTES = 2**25
_MIN_SAMPLE_ROWS = 2_048


def sample_rows(n_columns: int) -> int:
    """Return how many rows are sampled: 16,384, fewer but at least 2,048 of more than 256 columns."""
    return min(_SAMPLE_ROWS, max(_MIN_SAMPLE_ROWS, _SAMPLE_BYTES // (8 * n_columns)))


@dataclass(frozen=True, eq=False)
class Sample:
    """What a map is fitted to: a sample of rows in memory, and the source of all rows.

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
    """What the columns were divided by; None for 1."""
    column_shift: np.ndarray | None = None
    """What was subtracted from the columns before; None for 0."""
    penalty: float | None = None
    """The ridge penalty that the model will have, for each unit of weight; None where it is to be chosen."""
    column_ranges: np.ndarray | None = None
    """Least and largest values of the columns over all rows, unscaled, (2, n_columns); None: the sample's."""
    column_names: tuple[str, ...] | None = None

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
        """Return the sample with its columns as they were before they were scaled."""
        X = self.X if self.column_scale is None else self.X * self.column_scale
        X = X if self.column_shift is None else X + self.column_shift
        return replace(self, X=X, column_scale=None, column_shift=None)

    def shuffled_rows(self, name: str) -> np.ndarray:
        """Return the numbers of the rows of positive weight in the random order of that name."""
        return stream(self.seed, name).permutation(np.flatnonzero(self.weights > 0))

    @property
    def n_weighted_rows(self) -> int:
        """About how many of all rows have a positive weight, from their share in the sample."""
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

    def check_size(self, n_features: int) -> None:
        """Rows in memory have no workers."""

    def after(self, step: MapSpecification) -> RowsInMemory:
        with one_blas_thread():  # the same bits whatever the threads
            return RowsInMemory(step.build().apply(self.X), self.sample_weight)


# Maps of projected rows P·x: how a kernel with a metric P becomes one without.

_STRIP_ROWS = 512  # of float64, beside the rows and their projections

# A metric is a linear step before the map: k(P(x − x')) is the kernel without it of the rows P·x. So the map
# inside is fitted to projected rows and knows nothing of the metric.


def project(X: Any, P: np.ndarray) -> np.ndarray:
    """Return the rows P·x in the dtype of X, a matrix of rows of float32 or float64, perhaps CSR.

    The products are in float64, so that rows of float32 hardly depend on the block in which they are
    projected, and keep the bins they are in. 2·r·d flops a row; sparse rows become dense ones of r numbers.
    """
    U = np.empty((X.shape[0], len(P)), X.dtype)
    for start in range(0, len(U), _STRIP_ROWS):
        strip = slice(start, start + _STRIP_ROWS)
        U[strip] = X[strip].astype(np.float64, copy=False) @ P.T
    return U


def projected_sample(sample: Sample, metric: MetricFactor) -> Sample:
    """Return the sample with its rows, and those of its source, projected."""
    step = ProjectionSpecification.of(metric, sample.X.shape[1])
    with one_blas_thread():  # the same bits whatever the client's threads
        X = project(sample.X, np.asarray(metric))
    return replace(sample, X=X, row_source=sample.row_source.after(step))


@dataclass(frozen=True)
class ProjectionSpecification(CarryingSpecification):
    """The projection alone, z(x) = P·x: what rows go through before a map is fitted to them."""

    kind: ClassVar[str] = "projection"

    n_coordinates: int = 0

    @classmethod
    def of(cls, metric: MetricFactor, n_columns: int) -> Self:
        """Return the projection of rows of so many columns; raise InputError if the metric has others."""
        r, d = metric.shape
        if d != n_columns:
            raise InputError(
                f"the metric has {d} columns, the data {n_columns}; give a matrix of shape (r, {n_columns})"
            )
        arrays = {"metric": np.asarray(metric)}
        return cls(n_columns=d, n_coordinates=r, arrays=arrays).digested(arrays)

    @property
    def n_features(self) -> int:
        return self.n_coordinates

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> ProjectionBlockMap:
        return ProjectionBlockMap(arrays["metric"])


class ProjectionBlockMap(BlockMap):
    """z(x) = P·x."""

    def __init__(self, P: np.ndarray) -> None:
        self.P = P
        self.n_features = len(P)
        self.n_bytes = P.nbytes

    def apply(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        U = project(X, self.P)
        if out is None:
            return U
        out[...] = U
        return out


_INNER = "inner_"  # the prefix of the arrays of the map inside


@dataclass(frozen=True)
class ProjectedSpecification(CarryingSpecification):
    """A map of the rows P·x: P of shape (r, n_columns), and the specification of a map of r columns."""

    kind: ClassVar[str] = "projected"

    inner: MapSpecification = field(kw_only=True)

    @property
    def n_features(self) -> int:
        return self.inner.n_features

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return self.inner.is_sparse

    @property
    def nested(self) -> bool:  # type: ignore[override]
        return self.inner.nested

    @property
    def rescaled_when_nested(self) -> bool:  # type: ignore[override]
        return self.inner.rescaled_when_nested

    @property
    def takes_sparse_rows(self) -> bool:
        return True  # their projections are dense

    @property
    def row_entries(self) -> int:
        return self.inner.row_entries

    @property
    def at_zero(self) -> float:
        return self.inner.at_zero

    @property
    def kernel(self) -> Any:
        """The kernel with its metric; without it where the arrays are not at hand."""
        inner: Any = self.inner
        if self.arrays is None:
            return inner.kernel
        return inner.kernel.set_params(metric=self.arrays["metric"])

    @property
    def cost(self) -> MapCost:
        return projected_cost(self.inner.cost, self.inner.n_columns, self.n_columns)

    def derive_arrays(self) -> dict[str, np.ndarray]:
        return super().derive_arrays() | _prefixed(self.inner.derive_arrays())

    def digest_of(self, arrays: Mapping[str, np.ndarray]) -> str:
        digests = exact_digest({"metric": arrays["metric"]}), self.inner.digest_of(arrays_inside(arrays))
        return hashlib.sha256("/".join(digests).encode()).hexdigest()[:32]

    def digested(self, arrays: Mapping[str, np.ndarray]) -> Self:
        # The map inside has a digest of its own: workers that derive its arrays compare them with it.
        inner = self.inner.digested(arrays_inside(arrays))
        return replace(self, inner=inner, digest=self.digest_of(arrays))

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        if not derived and self.arrays is not None and not self.inner.arrays_at_hand:
            return named_to_send({"metric": self.arrays["metric"]})  # workers derive the rest
        return super().arrays_to_send(derived=derived)

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> ProjectedBlockMap:
        P = arrays["metric"]
        if P.shape != (self.inner.n_columns, self.n_columns):
            raise InputError(
                f"a metric of shape {P.shape} does not lead from {self.n_columns} columns to the "
                f"{self.inner.n_columns} of the map"
            )
        return ProjectedBlockMap(P, self.inner.build(arrays_inside(arrays) or None))

    def without_arrays(self) -> Self:
        return replace(self, arrays=None, inner=self.inner.without_arrays())

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Self:
        inner = self.inner.with_arrays(arrays_inside(arrays))
        return replace(self, arrays={"metric": arrays["metric"]}, inner=inner)

    def check_storable(self) -> None:
        self.inner.check_storable()

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"inner": self.inner.to_dict()}


def _prefixed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {_INNER + name: A for name, A in arrays.items()}


def arrays_inside(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the map inside among those of a projected map, under its own names."""
    return {name.removeprefix(_INNER): A for name, A in arrays.items() if name.startswith(_INNER)}


def projected_cost(inner: MapCost, n_coordinates: int, n_columns: int) -> MapCost:
    """Return the cost of a map of projected rows: 2·r·d flops more a row, and r·d numbers.

    Only the projection gets cheaper for sparse rows: the rows that the map inside sees are dense.
    """
    return replace(
        inner,
        row_flops=inner.row_flops + 2.0 * n_coordinates * n_columns,
        product_flops=0.0,
        feature_flops=inner.feature_flops + inner.product_flops,
        fixed_numbers=inner.fixed_numbers + float(n_coordinates) * n_columns,
    )


class ProjectedBlockMap(BlockMap):
    """z(P·x) for the map z inside."""

    def __init__(self, P: np.ndarray, inner: BlockMap) -> None:
        self.P = P
        self.inner = inner
        self.n_features = inner.n_features
        self.n_bytes = P.nbytes + inner.n_bytes
        self.has_basis = inner.has_basis

    def apply(self, X: Any, out: np.ndarray | None = None) -> Any:
        return self.inner.apply(project(X, self.P), out)

    def tile(self, X: Any) -> Any:
        return self.inner.tile(project(X, self.P))

    @property
    def n_basis(self) -> int:
        return self.inner.n_basis

    def basis(self, X: Any) -> np.ndarray:
        return self.inner.basis(project(X, self.P))

    def basis_tile(self, X: Any) -> Any:
        return self.inner.basis_tile(project(X, self.P))

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return self.inner.basis_coef(coef, dtype)

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        return self.inner.feature_sums(sums)


# From stored specifications back to maps.

_KINDS = {
    "fourier": "fourier.FourierSpecification",
    "equispaced": "equispaced.EquispacedSpecification",
    "linear": "compose.LinearSpecification",
    "nystroem": "nystroem.NystroemSpecification",
    "transformer": "transformer.TransformerSpecification",
    "binning": "binning.BinningSpecification",
    "hashed binning": "binning.HashedBinningSpecification",
    "concatenated": "compose.ConcatenatedSpecification",
    "projected": "base.ProjectedSpecification",
}
"""The class of each kind by name: the modules of maps import this one."""


def _class_of(kind: str) -> type[MapSpecification]:
    module, _, name = _KINDS[kind].partition(".")
    found: type[MapSpecification] = getattr(import_module(f"distrff.features.{module}"), name)
    return found


def specification_from_dict(data: Mapping[str, Any]) -> MapSpecification:
    """Return the specification of what `to_dict` returned.

    Raises ModelFileError if its kind is unknown, or a field is missing.
    """
    kind = data.get("kind")
    if kind not in _KINDS:
        raise ModelFileError(
            f"feature map of kind {kind!r} is not known to this version; update distrff "
            f"(known: {', '.join(_KINDS)})"
        )
    try:
        if kind == "concatenated":
            parts = tuple(map(specification_from_dict, data["parts"]))
            data = {**data, "parts": parts, "weights": tuple(data["weights"])}
        if kind == "projected":
            inner = specification_from_dict(data["inner"])
            if not isinstance(inner, KernelMapSpecification):
                raise ModelFileError(f"a stored projected map holds a {inner.kind} map, which has no kernel")
            data = {**data, "inner": inner}
        return _class_of(kind).from_dict(data)
    except KeyError as error:
        raise ModelFileError(f"the stored {kind} map lacks {error}") from error


SPARSE_REMEDY = (
    "FourierFeatures do with widths other than 'ard', no metric to be learned, and sampling='iid', "
    "'orthogonal', 'qmc' or 'countsketch'; or write the rows out with X.toarray()"
)


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of all maps: `fit` makes a specification, `transform` applies it block by block.

    Subclasses store their constructor's parameters unchanged and implement `_specify`.
    """

    random_state: int | None = None
    keeps_units: ClassVar[bool] = False
    """Whether estimators leave the columns of its rows unscaled."""

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
        try:
            names = getattr(self, "feature_names_in_", None)
            return self.fit_sample(
                X,
                y,
                sample_weight,
                seed=resolve_seed(self.random_state),
                column_names=None if names is None else tuple(names),
            )
        except ColumnError as error:
            raise error.named(getattr(self, "feature_names_in_", None)) from None

    @property
    def takes_sparse_rows(self) -> bool:
        """Whether `fit` takes SciPy's CSR matrices."""
        return False

    def _rows(self, X: Any, *, reset: bool) -> Any:
        takes_sparse = self.takes_sparse_rows if reset else self.specification_.takes_sparse_rows
        sparse = "csr" if takes_sparse else False
        return validate_data(
            self, X, dtype=[np.float64, np.float32], order="C", accept_sparse=sparse, reset=reset
        )

    def fit_sample(
        self,
        X: np.ndarray,
        y: Any,
        sample_weight: Any,
        *,
        seed: int,
        row_source: RowSource | None = None,
        has_classes: bool | None = None,
        column_scale: np.ndarray | None = None,
        column_shift: np.ndarray | None = None,
        penalty: float | None = None,
        column_ranges: np.ndarray | None = None,
        column_names: tuple[str, ...] | None = None,
    ) -> Self:
        """Fit to a sample of checked rows with this seed.

        `row_source` reduces all rows; it is None if the sample holds all rows. `has_classes` says whether y
        stands for classes; None is where it does not hold numbers. `column_scale` is what the columns were
        divided by, if they were, after `column_shift` was subtracted. `penalty` is that of ridge for each
        unit of weight, if it is given. `column_ranges` are those of all rows, (2, n_columns), unscaled; None
        stands for those of the sample.
        """
        row_source = RowsInMemory(X, sample_weight) if row_source is None else row_source
        if has_classes is None:
            has_classes = y is not None and np.asarray(y).dtype.kind not in "fiu"
        sample = Sample(
            X,
            y,
            sample_weight,
            seed,
            row_source,
            has_classes,
            column_scale,
            column_shift,
            penalty,
            column_ranges,
            column_names,
        )
        return self._fit(sample)

    def _fit(self, sample: Sample, *, is_part: bool = False) -> Self:
        """Fit to a sample; a part of a concatenated map is not built, as only the whole map is applied."""
        self.seed_ = sample.seed
        self.n_features_in_ = sample.X.shape[1]
        specification = self._specify(sample)
        self.specification_ = (
            specification.digested(specification.derive_arrays()) if is_part else specification.with_digest()
        )
        return self

    def check_parameters(self) -> None:
        """Raise InputError for parameters that are wrong whatever the data."""

    def check_columns(self, n_columns: int) -> None:
        """Raise InputError before the first pass if the map cannot be fitted to so many columns."""
        self.trial(n_columns, n_components=2)

    def n_features_for(self, n_columns: int, n_rows: int | None = None) -> int:
        """Return the number of columns of Z, before fitting; None stands for as many rows as it takes."""
        raise NotImplementedError

    @property
    def sparse_entries(self) -> int:
        """Entries of a row of Z where it is sparse, 0 where it is dense."""
        return 0

    @property
    def n_passes(self) -> int:
        """Passes over all rows that the fit takes, beside the one that draws the sample."""
        return 0

    def cost_for(self, n_columns: int) -> MapCost:
        """Return the cost of applying the map to rows of that many columns, before fitting."""
        return product_cost(n_columns)

    def search_flops_for(self, n_rows: int, n_columns: int) -> float:
        """Return about how many flops `fit` takes to find undecided widths."""
        return 0.0

    def search_bytes_for(self, n_rows: int, n_columns: int) -> int:
        """Return the most bytes that a thread of a worker holds in a search; 0 where the client searches."""
        return 0

    @property
    def resolved(self) -> FeatureMap:
        """The fitted map itself, or the one that it chose."""
        return self

    def for_gram(self) -> FeatureMap:
        """Return a map of dense features, for a Gram: itself, unless it could choose sparse ones."""
        return self

    def resolved_as(self, features: FeatureMap) -> FeatureMap:
        """Return this fitted map with what the fit has made of the one that it chose."""
        return features

    def for_rows(
        self, n_rows: int, n_columns: int, *, is_sparse: bool, has_targets: bool, by_sums: bool
    ) -> FeatureMap:
        """Return a map for rows like these: itself, unless they leave less to choose from.

        `by_sums` says whether the model can be solved from the sums of equispaced features.
        """
        return self

    def trial(self, n_columns: int, **smaller: int) -> Self:
        """Return a clone fitted to random rows, with the parameters in `smaller` reduced to these at most.

        Automatic widths are 1.
        """
        trial = clone(self)
        trial._prepare_trial(smaller)
        n_rows = trial._trial_rows(n_columns)
        X = stream(0, "trial rows").lognormal(size=(n_rows, n_columns))  # positive: some maps need it
        return trial.fit_sample(X, None, None, seed=0)

    def _prepare_trial(self, smaller: Mapping[str, int]) -> None:
        at_most = {name: min(getattr(self, name), n) for name, n in smaller.items() if hasattr(self, name)}
        self.set_params(**at_most)

    def _trial_rows(self, n_columns: int) -> int:
        """Return how many rows a fit needs."""
        return 1

    def _specify(self, sample: Sample) -> MapSpecification:
        raise NotImplementedError

    def transform(self, X: Any) -> Any:
        """Return Z = z(X).

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
        if hasattr(X, "map_blocks") and hasattr(X, "chunks"):
            return self._transform_lazily(X)
        return self.specification_.build().apply(self._rows(X, reset=False))

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Write z(X) into `out` without copies or checks; see `BlockMap.apply`."""
        return self._block_map().apply(X, out)

    def _block_map(self) -> BlockMap:
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
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})
        dtype = self.output_dtype(X.dtype)
        return X.map_blocks(
            transform_block,
            self.specification_,
            token=group_of("transform"),
            dtype=dtype,
            chunks=(X.chunks[0], (self.specification_.n_features,)),
            meta=csr_matrix((0, 0), dtype=dtype)
            if self.specification_.is_sparse
            else np.empty((0, 0), dtype=dtype),
        )

    def output_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of Z for rows of this dtype."""
        return np.dtype(np.float32 if dtype == np.float32 else np.float64)

    def nested_sizes(self) -> tuple[int, ...]:
        """Return the sizes D' ≤ D of the maps that are leading columns of this one, ascending.

        Halvings of D down to 16; only (D,) for a map that is not nested.
        """
        check_is_fitted(self, "specification_")
        return nested_sizes(self.specification_)

    @property
    def _n_features_out(self) -> int:
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


def transform_block(X: Any, specification: MapSpecification) -> np.ndarray:
    """Return z(X) for one block of a dask array."""
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    rows = X.tocsr().astype(dtype, copy=False) if issparse(X) else np.ascontiguousarray(X, dtype=dtype)
    return specification.build().apply(rows)


def nested_sizes(specification: MapSpecification) -> tuple[int, ...]:
    """Return the sizes of the nested maps, ascending: D halved down to 16, even numbers only."""
    sizes = [specification.n_features]
    while specification.nested and sizes[-1] % 4 == 0 and sizes[-1] >= 32:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def search_module(name: str) -> Any:
    """A module of the search, loaded when widths are first searched for.

    By name: the search draws maps itself, and so imports this module.
    """
    return import_module(f"distrff.features.search.{name}")


# The base of the maps of a kernel: the parameter, its widths, and the kernel in the specification.


@dataclass(frozen=True)
class KernelMapSpecification(MapSpecification):
    """A fitted map of a kernel, every width a number."""

    kernel_json: str = ""

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        return kernel_from_dict(json.loads(self.kernel_json))

    @property
    def at_zero(self) -> float:
        return self.kernel.at_zero


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
            raise InputError(f"kernel must be a distrff kernel or None, got {self.kernel!r}")
        if self._chosen_kernel.has_undecided_smoothness and not self._chooses_smoothness:
            raise InputError(
                f"nu='auto' is chosen by EquispacedFourierFeatures alone, not by {type(self).__name__}; give "
                f"a number, or take AutoFeatures, which compares kernels of several nu"
            )

    def n_features_for(self, n_columns: int, n_rows: int | None = None) -> int:
        return int(self.n_components)

    @property
    def _chosen_kernel(self) -> Kernel:
        """The kernel as given, perhaps with undecided widths."""
        return self._default_kernel if self.kernel is None else self.kernel

    def _small_ridge(self, rows: Any, kernel: Kernel) -> Any:
        """The `SmallRidge` that widths are judged by; that of Fourier features by default."""
        ridge = search_module("ridge")
        return ridge.FourierRidge(rows, kernel, min(int(self.n_components), ridge.FEATURES))

    def _small_flops(self, n_rows: int, n_columns: int) -> float:
        """About the flops of one held-out error of the small model."""
        return float(search_module("ridge").dense_flops(n_rows, int(self.n_components)))

    def _metric_components(self) -> int:
        """Features of the small models by which a metric is learned, at most."""
        return int(self.n_components)

    def _decide_widths(self, sample: Sample) -> Kernel:
        """Set and return the kernel with every width a number; explicit widths stay as they are."""
        kernel, search = self._chosen_kernel, None
        if kernel.metric == LEARNED:
            kernel, search = search_module("metric").learned_metric(
                kernel, sample, self._metric_components(), by_bins=self.sparse_entries > 0
            )
        elif kernel.is_ard:
            kernel, search = search_module("widths").learned_length_scales(
                kernel, sample, self._small_ridge, shrinks=self._shrinks_ard
            )
        elif kernel.is_auto:
            metric = kernel.metric
            judged = sample if metric is None else projected_sample(sample, metric)
            kernel, search = search_module("widths").automatic_length_scale(
                kernel.without_metric(), judged, self._small_ridge
            )
            kernel = kernel if metric is None else kernel.set_params(metric=metric)
        self.kernel_, self.length_scale_search_ = kernel, search
        return kernel

    def _specify(self, sample: Sample) -> MapSpecification:
        self.check_parameters()
        kernel = self._decide_widths(sample)
        metric = kernel.metric
        if metric is None:
            return self._specify_kernel(kernel, sample)
        inner = self._specify_kernel(kernel.without_metric(), projected_sample(sample, metric))
        arrays = {"metric": np.asarray(metric)}
        return ProjectedSpecification(n_columns=sample.X.shape[1], inner=inner, arrays=arrays)

    def _specify_kernel(self, kernel: Kernel, sample: Sample) -> KernelMapSpecification:
        """Return the specification of the map of a kernel without metric, every width a number."""
        raise NotImplementedError

    def cost_for(self, n_columns: int) -> MapCost:
        kernel = self._chosen_kernel
        if kernel.metric is None:
            return self._kernel_cost(kernel, n_columns)
        # A learned metric has at most one direction for each column.
        r = kernel.metric.shape[0] if isinstance(kernel.metric, MetricFactor) else n_columns
        return projected_cost(self._kernel_cost(kernel.without_metric(), r), r, n_columns)

    def _kernel_cost(self, kernel: Kernel, n_columns: int) -> MapCost:
        """Return the cost of the map of a kernel without metric."""
        return product_cost(n_columns)

    @property
    def takes_sparse_rows(self) -> bool:
        # A given metric makes them dense before anything looks at them, a search for the width included.
        return isinstance(self.kernel, Kernel) and isinstance(self.kernel.metric, MetricFactor)

    def search_flops_for(self, n_rows: int, n_columns: int) -> float:
        if not self._chosen_kernel.is_auto:
            return 0.0
        if self._chosen_kernel.metric == LEARNED:
            return float(search_module("metric").metric_flops(n_rows, n_columns, self._metric_components()))
        widths = search_module("widths")
        small_flops = self._small_flops(min(n_rows, widths.SAMPLE_ROWS), n_columns)
        if not self._chosen_kernel.is_ard:
            return float(widths.SEARCH_ERRORS * small_flops)
        shrinking = widths.shrinking_errors(n_columns) * small_flops if self._shrinks_ard else 0.0
        return float(widths.LikelihoodBudget().flops(n_rows, n_columns) + shrinking)

    def _prepare_trial(self, smaller: Mapping[str, int]) -> None:
        kernel = self._chosen_kernel.with_widths(1.0)
        if self._chosen_kernel.is_auto:
            self.set_params(kernel=kernel.without_metric() if kernel.metric == LEARNED else kernel)
        super()._prepare_trial(smaller)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `kernel__…` replaces the kernel, which is an immutable value."""
        inner = {
            name.removeprefix("kernel__"): v for name, v in params.items() if name.startswith("kernel__")
        }
        super().set_params(**{name: v for name, v in params.items() if not name.startswith("kernel__")})
        if inner:
            if self.kernel is None:
                raise InputError("kernel__… parameters need an explicit kernel; the map's kernel is None")
            super().set_params(kernel=self.kernel.set_params(**inner))
        return self
