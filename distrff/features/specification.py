"""Fitted maps as small values that are sent to workers, and the cache that derives their arrays there."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from distrff.errors import FrequencyMismatch, InputError
from distrff.utils.arrays import in_one_layout
from distrff.utils.jit import COUNTS, scratch
from distrff.utils.process import one_blas_thread
from distrff.utils.random import stream
from distrff.utils.validation import FEW_COLUMNS

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
