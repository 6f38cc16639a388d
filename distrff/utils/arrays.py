"""Rows as matrices, dense or in SciPy's CSR; the layout of arrays in memory; sums added field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse, vstack


def joined_rows(parts: Sequence[Any]) -> Any:
    """Rows of all parts, one after the other; CSR where the parts are."""
    if issparse(parts[0]):
        # vstack copies a single part as well.
        return vstack(parts, format="csr", dtype=parts[0].dtype) if len(parts) > 1 else parts[0]
    return np.concatenate(parts)


def dense_rows(X: Any) -> np.ndarray:
    """Rows as an array; CSR is written out, so it should be of a tile only."""
    return X.toarray() if issparse(X) else np.asarray(X)


def chosen_rows(X: Any, rows: np.ndarray) -> Any:
    """A copy of some rows, of the kind that X is."""
    return X[rows] if issparse(X) else np.asarray(X)[rows]


def as_columns(values: np.ndarray) -> np.ndarray:
    """Values of shape (n,) or (n, k) as (n, k); there may be no rows."""
    return values[:, None] if values.ndim == 1 else values


# The one layout in memory of arrays that enter products.
#
# BLAS takes another path for a matrix that is stored by columns, or with gaps, than for one that is stored by
# rows, and its sums then differ in the last bits. A file knows one layout only, and a pickle keeps some.


def in_one_layout(A: np.ndarray) -> np.ndarray:
    """A by rows without gaps, aligned and in native byte order; itself if it is so already.

    Sums over it then have the same bits wherever its numbers come from: a solver, a view, a file, another
    process. What only enters operations entry by entry may have any layout.
    """
    if A.flags.c_contiguous and A.flags.aligned and A.dtype.isnative:
        return A
    return np.array(A, A.dtype.newbyteorder("="), order="C")


def lay_out(made: object, *names: str) -> None:
    """Bring these fields of a frozen dataclass into the one layout; for its ``__post_init__``."""
    for name in names:
        # Frozen for everyone else; here the value is still being made.
        object.__setattr__(made, name, in_one_layout(getattr(made, name)))


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows, one a field: two runs of rows are added field by field.

    Fields that have a `merge` are merged; tuples are added item by item, and None stays None.
    """

    def __add__(self, other: Self) -> Self:
        return type(self)(*(_added(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


def _added(first: Any, second: Any) -> Any:
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(map(_added, first, second))
    return first.merge(second) if hasattr(first, "merge") else first + second
