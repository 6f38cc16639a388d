"""Maps of projected rows P·x: how a kernel with a metric P becomes one without."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from distrff.errors import InputError
from distrff.features.specification import (
    BlockMap,
    CarryingSpecification,
    MapCost,
    MapSpecification,
    Sample,
    exact_digest,
    named_to_send,
)
from distrff.kernels.base import MetricFactor
from distrff.utils.process import one_blas_thread

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
