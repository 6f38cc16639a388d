"""Rows as matrices of either kind, dense or in scipy's CSR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack


def joined_rows(parts: Sequence[Any]) -> Any:
    """Return the rows of all parts, one after the other; CSR where the parts are."""
    if issparse(parts[0]):
        return vstack(parts, format="csr", dtype=parts[0].dtype) if len(parts) > 1 else parts[0]
    return np.concatenate(parts)


def dense_rows(X: Any) -> np.ndarray:
    """Return the rows as an array; those of CSR are written out, so of a tile only."""
    return X.toarray() if issparse(X) else np.asarray(X)


def chosen_rows(X: Any, rows: np.ndarray) -> Any:
    """Return a copy of some rows, of the kind that X is."""
    return X[rows] if issparse(X) else np.asarray(X)[rows]


def as_columns(values: np.ndarray) -> np.ndarray:
    """Return values of shape (n,) or (n, k) as (n, k); there may be no rows."""
    return values[:, None] if values.ndim == 1 else values
