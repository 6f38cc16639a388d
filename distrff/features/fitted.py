"""Fitted maps: values of some bytes that travel, and are made ready for rows once in each process.

A `FittedMap` is frozen: sizes, seed and kernel, from which its arrays follow, or the digest of arrays that
are sent beside it. `build` returns the same map with what it needs of them prepared; only then has it an
`apply` that works.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from distrff.errors import FrequencyMismatch, InputError, InputTypeError, ModelFileError
from distrff.kernels.base import Kernel, MetricFactor, kernel_from_dict
from distrff.utils.arrays import in_one_layout
from distrff.utils.jit import COUNTS, scratch
from distrff.utils.linalg import add_transposed_product, values_of, zero_sums
from distrff.utils.validation import FEW_COLUMNS

Arrays = Mapping[str, np.ndarray]


class Trait(Enum):
    """A fact about a map by which sums, solvers and stored models go."""

    SPARSE = "blocks of Z are scipy CSR matrices"
    NESTED = "the leading columns are, up to a factor, the map of that smaller size"
    RESCALED = "that factor of the leading D' of D columns is √(D/D')"
    FROM_ROWS = "its arrays come from rows: they are sent and stored, and cannot be derived"
    NO_ARRAYS = "it has no arrays"
    OWN_UNITS = "it takes columns as they are, unscaled"
    SUMS = "ridge is solved from Fourier sums over the rows, without features"
    BASIS = "it is A·b(x) of a basis b that costs less"
    CHOOSES = "its fit chooses a map of another class"
    TREND = "its last features are covariates, which ridge leaves without a penalty"


@dataclass(frozen=True)
class FittedMap(ABC):
    """Base of all fitted maps z: rows of n_columns numbers in, rows of D features out.

    A subclass says how its arrays are derived, what is prepared of them, and how a ready map applies that.
    Sweeps that only multiply features by a few vectors may do so in a basis b that costs less than z,
    z(x) = A·b(x), and apply A to the vectors; b is z itself unless a map overrides it.
    """

    kind: ClassVar[str]
    # What `prepare` made; only a ready map has it. It never travels, and does not enter comparisons.
    prepared: ClassVar[Any]

    n_columns: int
    digest: str = ""  # of the arrays that the client derived

    # What is known without arrays.

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset()

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns D of Z."""

    @property
    def cost(self) -> MapCost:
        return product_cost(self.n_columns)

    @property
    def at_zero(self) -> float:
        """k(0), the expected squared norm of a row of Z; nan where it depends on the row."""
        return float("nan")

    @property
    def row_entries(self) -> int:
        """Nonzero entries of a row of Z, at most."""
        return self.n_features

    @property
    def rows_at_once(self) -> int:
        """Rows to be predicted together, where their features are not made; 0 where they are."""
        return 0

    @property
    def takes_sparse_rows(self) -> bool:
        """Whether rows may be scipy CSR matrices."""
        return False

    def check_takes_sparse(self, remedy: str) -> None:
        """Raise InputTypeError where sparse rows cannot be taken."""
        if not self.takes_sparse_rows:
            raise InputTypeError(f"X is sparse, but {self.kind} features take no sparse rows; {remedy}")

    @property
    def example(self) -> np.ndarray:
        """A row that the map is for, shape (1, n_columns)."""
        return np.zeros((1, self.n_columns))

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Mask of the rows that the map is not for, shape (n_rows,)."""
        return np.zeros(X.shape[0], dtype=bool)

    def has_columns_within(self, n_stored: int) -> bool:
        """Whether it has few columns, or no more than the numbers stored with it.

        A damaged file may hold anything as their number.
        """
        return type(self.n_columns) is int and 1 <= self.n_columns <= max(FEW_COLUMNS, n_stored)

    def nested_sizes(self) -> tuple[int, ...]:
        """Sizes of the maps that are its leading columns, ascending: D halved down to 16, all even."""
        sizes = [self.n_features]
        # A multiple of four has an even half, which holds whole pairs of a cosine and a sine.
        while Trait.NESTED in self.traits and sizes[-1] % 4 == 0 and sizes[-1] >= 32:
            sizes.append(sizes[-1] // 2)
        return tuple(reversed(sizes))

    # Its arrays: derived in each process, or sent. A map of others has theirs, under a prefix for each.

    @property
    def inside(self) -> dict[str, FittedMap]:
        """The maps that it consists of, by the prefix of their arrays' names."""
        return {}

    def with_inside(self, maps: list[FittedMap]) -> Self:
        """The map with others in their places."""
        return self

    def inside_with(self, arrays: Arrays) -> list[tuple[FittedMap, dict[str, np.ndarray]]]:
        """Each of the maps that it consists of, with its own arrays among these."""
        return [(part, having_prefix(prefix, arrays)) for prefix, part in self.inside.items()]

    def derive(self) -> dict[str, np.ndarray]:
        """The arrays, from nothing but the fields; the costly part."""
        parts = self.inside.items()
        return {prefix + name: A for prefix, part in parts for name, A in part.derive().items()}

    def digest_of(self, arrays: Arrays) -> str:
        """Digest by which maps of other arrays differ."""
        return arrays_digest(arrays)

    def digested(self, arrays: Arrays) -> Self:
        """The map with the digest of these arrays."""
        return replace(self, digest=self.digest_of(arrays))

    def with_digest(self) -> Self:
        """The map with the digest of the arrays derived here, which are kept for `build`."""
        arrays = self.derive()
        digested = self.digested(arrays)
        _CACHE.keep(digested, arrays)
        return digested

    @property
    def arrays_at_hand(self) -> bool:
        """Whether it holds arrays that must be sent beside it."""
        return any(part.arrays_at_hand for part in self.inside.values())

    def without_arrays(self) -> Self:
        """The map to send with every task."""
        return self.with_inside([part.without_arrays() for part in self.inside.values()])

    def with_arrays(self, arrays: Arrays) -> Self:
        """The map with these arrays, if it holds any."""
        return self.with_inside([part.with_arrays(own) for part, own in self.inside_with(arrays)])

    def checked_arrays(self) -> dict[str, np.ndarray]:
        """The arrays; raises InputError if this process derives others than the map's own."""
        arrays = self.derive()
        if self.digest and self.digest_of(arrays) != self.digest:
            raise InputError(
                "this process derives other frequencies from the seed than the process that made the map "
                "(another processor or NumPy version); load the stored model, which holds them, or fit again"
            )
        return arrays

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        """Arrays for other processes, named as `build_sent` expects them.

        With `derived`, also arrays that follow from the seed, for processes that derive different ones.
        """
        return named_to_send(self.checked_arrays()) if derived or self.arrays_at_hand else {}

    def arrays_to_keep(self, *, derived: bool) -> dict[str, np.ndarray] | None:
        """Arrays to store with a model; None if every process derives the same ones."""
        return self.checked_arrays() if derived or Trait.FROM_ROWS in self.traits else None

    def check_storable(self) -> None:
        """Raise InputError if the map cannot be stored."""
        for part in self.inside.values():
            part.check_storable()

    # Ready for rows.

    @abstractmethod
    def prepare(self, arrays: Arrays) -> Any:
        """The form of the arrays that `apply` takes; raises InputError if they do not fit the map."""

    @property
    def prepared_bytes(self) -> int:
        """Memory of large matrices that are made of the arrays."""
        return 0

    def ready(self, arrays: Arrays) -> Self:
        """The map with these arrays prepared."""
        # A shallow copy keeps what is cached, such as the kernel read from its text; it is set past the
        # frozen `__setattr__`, as nobody else has seen the copy yet.
        found = copy(self)
        object.__setattr__(found, "prepared", self.prepare({n: in_one_layout(A) for n, A in arrays.items()}))
        return found

    def build(self, arrays: Arrays | None = None) -> Self:
        """The ready map, prepared at most once in each process.

        `arrays` replace those derived here. Without them it raises FrequencyMismatch if the arrays derived
        here differ from the client's in the sixth digit.
        """
        # Not kept on the map: unpickled in task after task, it would be prepared anew in each.
        return _CACHE.ready(self, arrays)

    def build_sent(self, arrays: Arrays) -> Self:
        """The ready map of its arrays among those sent or, if there are none, derived here."""
        return self.build(sent_arrays(arrays) or None)

    def __getstate__(self) -> dict[str, Any]:
        # What is prepared can take hundreds of megabytes, and may hold a lock, which no pickle takes.
        return {name: value for name, value in vars(self).items() if name != "prepared"}

    @abstractmethod
    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> Any:
        """z(X) in the dtype of X, float32 or float64; a scipy CSR matrix for a sparse map.

        Where `out` is given, z(X) is written there: its rows may be strided, its columns must be adjacent.
        """

    def tile(self, X: np.ndarray) -> Any:
        """z(X) in memory that this thread reuses for its next tile."""
        return self.apply(X, out=scratch("tile", X.shape[0], self.n_features, X.dtype))

    @property
    def has_basis(self) -> bool:
        """Whether its basis b differs from z."""
        return Trait.BASIS in self.traits

    @property
    def n_basis(self) -> int:
        """Functions m in the basis."""
        return self.n_features

    def basis(self, X: np.ndarray) -> Any:
        """b(X), of shape (n_rows, m)."""
        return self.apply(X)

    def basis_tile(self, X: np.ndarray) -> Any:
        """b(X) in memory that this thread may reuse for its next tile."""
        return self.basis(X) if self.has_basis else self.tile(X)

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Aᵀ·coef, of shape (m, k), for tiles of rows of this dtype."""
        return coef.astype(dtype, copy=False)

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        """Weighted sums of z from those of b, one in each row: (k, m) → (k, n_features)."""
        return sums

    def light(
        self,
        X: Any,
        coef: np.ndarray,
        slopes: Callable[[np.ndarray], np.ndarray],
        sums: np.ndarray | None = None,
        kept: Any = None,
    ) -> np.ndarray:
        """A tile of a light sweep: with F = ⟨w, z(x)⟩ of its rows, `sums` + slopes(F)·b(X).

        It is one method so that a map may make its features, multiply them twice and forget them while they
        are in a cache.

        `coef` (m, k) is as `basis_coef` returns it, and `slopes` makes of F, float64 (r, k), the weights
        (p, r) of the rows in p sums. `sums` (p, m) of the tiles before, None for the first, are added to in
        place. `kept` is b(X), where it stayed in memory; it needs no X.
        """
        # Values and sums share one tile, which is made once and still in a cache when it is read again.
        B = self.basis_tile(X) if kept is None else kept
        S = slopes(values_of(B, coef))
        # How many sums there are is known from the slopes alone, and their best layout from the kind of tile.
        sums = zero_sums(len(S), B) if sums is None else sums
        add_transposed_product(sums, S, B)
        return sums

    def values_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The coefficients that `values` takes."""
        return self.basis_coef(coef, dtype)

    def values(self, X: np.ndarray, coef: np.ndarray, n_outputs: int) -> np.ndarray:
        """⟨w, z(x)⟩ of each output, (n_rows, n_outputs), for `coef` as `values_coef` returns it."""
        return np.asarray(self.basis(X) @ coef)

    def cells(self, axes: Sequence[np.ndarray]) -> np.ndarray:
        """The rows of a product grid of the columns, (n_1, …, n_d, n_columns)."""
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)

    def values_on_grid(self, axes: Sequence[np.ndarray], coef: np.ndarray) -> np.ndarray | None:
        """⟨w, z(x)⟩ for all x of a product grid of the columns, one output last: (n_1, …, n_d, k).

        None where the map has no faster way than row by row.
        """
        return None

    def n_phases_beyond(self, limit: float, magnitude: np.ndarray) -> int:
        """Number of frequencies with |ωᵀx| above the limit for some x with |x_j| ≤ magnitude_j."""
        return 0

    # As JSON data. Names of kinds and fields are those of stored models and never change.

    @classmethod
    def _stored_fields(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.compare]  # all but arrays and objects

    def to_dict(self) -> dict[str, Any]:
        """The map as strict JSON data, its `kind` included, without arrays."""
        data: dict[str, Any] = {"kind": self.kind}
        # Fields that end in _json are canonical text in memory, as maps are keys of a cache and must be
        # hashable; in files they are plain data.
        for name in self._stored_fields():
            value = getattr(self, name)
            data[name.removesuffix("_json")] = json.loads(value) if name.endswith("_json") else value
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The map that `to_dict` wrote, without arrays; raises KeyError for a missing field."""
        values = {name: data[name.removesuffix("_json")] for name in cls._stored_fields()}
        texts = {name: canonical_json(value) for name, value in values.items() if name.endswith("_json")}
        return cls(**(values | texts))


@dataclass(frozen=True)
class MapFromRows(FittedMap):
    """Base of the maps whose arrays come from rows: they hold them, but are sent to tasks without them.

    `arrays` is None where they are sent separately. Comparisons use the digest instead.
    """

    arrays: Arrays | None = field(default=None, compare=False, repr=False)

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.FROM_ROWS})

    def derive(self) -> dict[str, np.ndarray]:
        if self.arrays is None:
            raise FrequencyMismatch(f"the arrays of a {self.kind} map were not sent with it")
        # The maps inside add theirs, under their prefixes.
        return dict(self.arrays) | super().derive()

    def digest_of(self, arrays: Arrays) -> str:
        return exact_digest(arrays)

    @property
    def arrays_at_hand(self) -> bool:
        return self.arrays is not None

    def without_arrays(self) -> Self:
        return replace(super().without_arrays(), arrays=None)

    def with_arrays(self, arrays: Arrays) -> Self:
        # No name starts with an empty tuple: a map without others inside takes all.
        own = {name: A for name, A in arrays.items() if not name.startswith(tuple(self.inside))}
        return replace(super().with_arrays(arrays), arrays=own)


@dataclass(frozen=True)
class KernelMap(FittedMap):
    """Base of the maps of a kernel, every width a number."""

    kernel_json: str = ""

    @cached_property
    def kernel(self) -> Kernel:
        return kernel_from_dict(json.loads(self.kernel_json))

    @property
    def at_zero(self) -> float:
        return self.kernel.at_zero


_SENT = "map_"  # the prefix of a map's arrays when they are sent beside others


def named_to_send(arrays: Arrays) -> dict[str, np.ndarray]:
    """A map's arrays under names that no other arrays have."""
    return prefixed(_SENT, arrays)


def sent_arrays(arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays of `named_to_send` among these, under the map's own names."""
    return having_prefix(_SENT, arrays)


def prefixed(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    return {prefix + name: A for name, A in arrays.items()}


def having_prefix(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays whose names have this prefix, under the rest of their names."""
    return {name.removeprefix(prefix): A for name, A in arrays.items() if name.startswith(prefix)}


def arrays_digest(arrays: Arrays) -> str:
    """Digest of the arrays' first six significant digits (20 bits of the mantissa).

    Processors and NumPy versions may differ in the last bits of a logarithm or a QR
    factor; maps that differ by no more count as equal.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        mantissa, exponent = np.frexp(np.asarray(arrays[name], dtype=np.float64))
        digest.update(f"{name}{mantissa.shape}".encode())
        # Rounded, not cut: a number just below a step and one just above it are then the same.
        digest.update(np.rint(mantissa * 2**20).astype("<i4").tobytes())
        digest.update(exponent.astype("<i2").tobytes())
    return digest.hexdigest()[:32]


def exact_digest(arrays: Arrays) -> str:
    """Digest of all bits of arrays that are sent and never derived again."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def joined_digest(digests: Iterable[str]) -> str:
    """Digest of a map that consists of others."""
    return hashlib.sha256("/".join(digests).encode()).hexdigest()[:32]


def canonical_json(data: Any) -> str:
    """JSON text that is equal for equal data."""
    return json.dumps(data, sort_keys=True, allow_nan=False)


_MAX_MAPS, _MAX_BYTES = 8, 2**29  # of the ready maps that a process keeps, unless one alone is larger


class _ReadyMaps:
    """The ready maps used last, bounded in number and in bytes; safe for threads, and not picklable."""

    def __init__(self) -> None:
        # Preparing a projected map builds the map inside it through this cache, in the same thread.
        self._lock = threading.RLock()
        self._maps: OrderedDict[tuple[FittedMap, bool], Any] = OrderedDict()

    def ready(self, map_: FittedMap, arrays: Arrays | None) -> Any:
        # Arrays that were sent are not those derived here, not to the last bit; equal maps of both kinds are
        # kept apart.
        key = (map_, arrays is None)
        with self._lock:  # held while deriving: a second thread waits instead of deriving again
            if key not in self._maps:
                self._add(key, self._derive(map_) if arrays is None else arrays)
            self._maps.move_to_end(key)
            return self._maps[key]

    def keep(self, map_: FittedMap, arrays: Arrays) -> None:
        """Keep the map of arrays that this process just derived."""
        with self._lock:
            COUNTS["derivations"] += 1
            # The client derives arrays for their digest; `build` for its own rows would draw the same again.
            self._add((map_, True), arrays)

    def _add(self, key: tuple[FittedMap, bool], arrays: Arrays) -> None:
        # Prepared under the lock as well: threads that begin at once would each make a copy.
        self._maps[key] = key[0].ready(arrays)
        while len(self._maps) > 1 and (len(self._maps) > _MAX_MAPS or self._n_bytes > _MAX_BYTES):
            self._maps.popitem(last=False)

    @property
    def _n_bytes(self) -> int:
        return sum(kept.prepared_bytes for kept in self._maps.values())

    def _derive(self, map_: FittedMap) -> dict[str, np.ndarray]:
        arrays = map_.derive()
        COUNTS["derivations"] += 1
        if map_.digest and map_.digest_of(arrays) != map_.digest:
            raise FrequencyMismatch(
                "this process derives other frequencies from the seed than the client does "
                "(another processor or NumPy version)"
            )
        return arrays


_CACHE = _ReadyMaps()


# What applying a map costs, as a polynomial in the number of its features.

KEY_ROWS = 2**13  # rows whose keys of bins a map has at a time: some megabytes


@dataclass(frozen=True)
class MapCost:
    """Flops of a row and numbers kept by a map of D features; cosines are counted separately.

    A row takes row_flops + (product_flops + feature_flops)·D + triangle_share·D² flops, D being the number of
    entries of a row for a sparse map. The first two are those of a dense row of X, and proportional to its
    entries. The arrays hold at most fixed_numbers + feature_numbers·D numbers, and triangle_share·D² in
    triangular factors, zeros included, against which each row is solved.
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
        """Flops of a row that has entries in a share of the columns."""
        # Only products with the row itself get cheaper for sparse rows; what follows meets dense features.
        of_entries = column_share * (self.row_flops + self.product_flops * n_features)
        return of_entries + self.feature_flops * n_features + self.triangle_numbers(n_features)

    def numbers(self, n_features: int) -> float:
        """Numbers in its arrays, without triangular factors."""
        return self.fixed_numbers + self.feature_numbers * n_features

    def triangle_numbers(self, n_features: int) -> float:
        return self.triangle_share * float(n_features) ** 2


@dataclass(frozen=True)
class MapOutline:
    """Numbers that a plan needs of a map before its fit."""

    n_features: int  # for bins that are not counted yet a lower bound, one a grid
    cost: MapCost
    sparse_entries: int = 0  # of a row of Z; 0 where it is dense
    n_passes: int = 0  # over all rows for the fit of the map, beside the one that draws the sample
    search_flops: float = 0.0  # about
    search_bytes: int = 0  # at most, of a thread of a worker; 0 where the client searches
    likely_features: int | None = None  # for seconds, where a fit chooses how many of `n_features` it takes


def product_cost(n_columns: int, *, triangle_share: float = 0.0) -> MapCost:
    """Cost of an inner product of n_columns numbers for each feature."""
    return MapCost(
        product_flops=2.0 * n_columns, feature_numbers=float(n_columns), triangle_share=triangle_share
    )


def cost_of_parts(parts: Iterable[tuple[MapCost, int]]) -> MapCost:
    """Cost of maps of D_i features side by side, with fixed shares of D."""
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


# A metric is a linear step before the map: k(P(x − x')) is the kernel without it of the rows P·x. So the map
# inside is fitted to projected rows and knows nothing of the metric.

_STRIP_ROWS = 512  # of float64, beside the rows and their projections


def project(X: Any, P: np.ndarray) -> np.ndarray:
    """The rows P·x in the dtype of X, a matrix of rows of float32 or float64, perhaps CSR.

    The products are in float64, so that rows of float32 hardly depend on the block in which they are
    projected, and keep the bins they are in. 2·r·d flops a row; sparse rows become dense ones of r numbers.
    """
    U = np.empty((X.shape[0], len(P)), X.dtype)
    for start in range(0, len(U), _STRIP_ROWS):
        strip = slice(start, start + _STRIP_ROWS)
        # A CSR strip times a dense matrix is dense; so only the strip is ever held in float64.
        U[strip] = X[strip].astype(np.float64, copy=False) @ P.T
    return U


@dataclass(frozen=True)
class ProjectionMap(MapFromRows):
    """The projection alone, z(x) = P·x: what rows go through before a map is fitted to them."""

    kind: ClassVar[str] = "projection"

    n_coordinates: int = 0

    @classmethod
    def of(cls, metric: MetricFactor, n_columns: int) -> Self:
        """The projection of rows of so many columns; raises InputError if the metric has others."""
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

    def prepare(self, arrays: Arrays) -> np.ndarray:
        return arrays["metric"]

    def apply(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        U = project(X, self.prepared)
        if out is None:
            return U
        out[...] = U
        return out


_INNER = "inner_"  # the prefix of the arrays of the map inside


@dataclass(frozen=True)
class ProjectedMap(MapFromRows):
    """z(P·x): P of shape (r, n_columns), and the map z of r columns inside."""

    kind: ClassVar[str] = "projected"

    inner: FittedMap = field(kw_only=True)

    @property
    def traits(self) -> frozenset[Trait]:
        return self.inner.traits | {Trait.FROM_ROWS}

    @property
    def n_features(self) -> int:
        return self.inner.n_features

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

    @property
    def inside(self) -> dict[str, FittedMap]:
        return {_INNER: self.inner}

    def with_inside(self, maps: list[FittedMap]) -> Self:
        return replace(self, inner=maps[0])

    def digest_of(self, arrays: Arrays) -> str:
        own = exact_digest({"metric": arrays["metric"]})
        return joined_digest([own, self.inner.digest_of(arrays_inside(arrays))])

    def digested(self, arrays: Arrays) -> Self:
        # The map inside has a digest of its own: workers that derive its arrays compare them with it.
        inner = self.inner.digested(arrays_inside(arrays))
        return replace(self, inner=inner, digest=self.digest_of(arrays))

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        if not derived and self.arrays is not None and not self.inner.arrays_at_hand:
            return named_to_send({"metric": self.arrays["metric"]})  # workers derive the rest
        return super().arrays_to_send(derived=derived)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"inner": self.inner.to_dict()}

    def prepare(self, arrays: Arrays) -> tuple[np.ndarray, FittedMap]:
        P = arrays["metric"]
        if P.shape != (self.inner.n_columns, self.n_columns):
            raise InputError(
                f"a metric of shape {P.shape} does not lead from {self.n_columns} columns to the "
                f"{self.inner.n_columns} of the map"
            )
        return P, self.inner.build(arrays_inside(arrays) or None)

    @property
    def prepared_bytes(self) -> int:
        P, inner = self.prepared
        return int(P.nbytes + inner.prepared_bytes)

    @property
    def n_basis(self) -> int:
        return self.inner.n_basis

    def _then(self, method: str, X: Any, *arguments: Any) -> Any:
        """A method of the map inside for the projected rows."""
        P, inner = self.prepared
        return getattr(inner, method)(project(X, P), *arguments)

    def apply(self, X: Any, out: np.ndarray | None = None) -> Any:
        return self._then("apply", X, out)

    def tile(self, X: Any) -> Any:
        return self._then("tile", X)

    def basis(self, X: Any) -> Any:
        return self._then("basis", X)

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.prepared[1].basis_coef(coef, dtype))

    def n_phases_beyond(self, limit: float, magnitude: np.ndarray) -> int:
        P, inner = self.prepared
        # |(Px)_i| ≤ Σ_j |P_ij|·|x_j|.
        return int(inner.n_phases_beyond(limit, np.abs(P) @ magnitude))

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        return np.asarray(self.prepared[1].feature_sums(sums))


def arrays_inside(arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays of the map inside among those of a projected map, under its own names."""
    return having_prefix(_INNER, arrays)


def projected_cost(inner: MapCost, n_coordinates: int, n_columns: int) -> MapCost:
    """Cost of a map of projected rows: 2·r·d flops more a row, and r·d numbers.

    Only the projection gets cheaper for sparse rows: the rows that the map inside sees are dense.
    """
    return replace(
        inner,
        row_flops=inner.row_flops + 2.0 * n_coordinates * n_columns,
        # Proportional to D, but of dense projections: `feature_flops` has it, which no share of the columns
        # reduces.
        product_flops=0.0,
        feature_flops=inner.feature_flops + inner.product_flops,
        fixed_numbers=inner.fixed_numbers + float(n_coordinates) * n_columns,
    )


# From stored data back to maps.

_CLASSES = {
    "fourier": "fourier.FourierMap",
    "equispaced": "equispaced.EquispacedMap",
    "equispaced with trend": "equispaced.TrendMap",
    "linear": "compose.LinearMap",
    "nystroem": "nystroem.NystroemMap",
    "transformer": "transformer.TransformerMap",
    "binning": "binning.BinningMap",
    "hashed binning": "binning.HashedBinningMap",
    "concatenated": "compose.ConcatenatedMap",
    "projected": "fitted.ProjectedMap",
}
"""The class of each kind by name: the modules of maps import this one, and a model needs only its own."""


def _class_of(kind: str) -> type[FittedMap]:
    module, _, name = _CLASSES[kind].partition(".")
    found: type[FittedMap] = getattr(import_module(f"distrff.features.{module}"), name)
    return found


def map_from_dict(data: Mapping[str, Any]) -> FittedMap:
    """The map that `to_dict` wrote, without arrays.

    Raises ModelFileError if its kind is unknown, or a field is missing.
    """
    kind = data.get("kind")
    if kind not in _CLASSES:
        raise ModelFileError(
            f"feature map of kind {kind!r} is not known to this version; update distrff "
            f"(known: {', '.join(_CLASSES)})"
        )
    try:
        if kind == "concatenated":
            parts = tuple(map(map_from_dict, data["parts"]))
            data = {**data, "parts": parts, "weights": tuple(data["weights"])}
        if kind == "projected":
            inner = map_from_dict(data["inner"])
            # Its kernel and k(0) are asked for as if they were the projected map's own.
            if not isinstance(inner, KernelMap):
                raise ModelFileError(f"a stored projected map holds a {inner.kind} map, which has no kernel")
            data = {**data, "inner": inner}
        return _class_of(kind).from_dict(data)
    except KeyError as error:
        raise ModelFileError(f"the stored {kind} map lacks {error}") from error
