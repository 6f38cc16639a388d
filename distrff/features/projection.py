"""How the phases X W of random frequencies are computed: by a product, or by what stands for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.scratch import scratch


class Projection(ABC):
    """Rows in, phases out; W of shape (n_columns, n_frequencies) may exist in disguise only."""

    n_frequencies: int

    @abstractmethod
    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        """Return W of shape (n_columns, n_frequencies) in the dtype asked for."""

    @abstractmethod
    def project(self, X: Any, theta: np.ndarray) -> None:
        """Write X W into `theta`, whose rows are contiguous; X is a matrix of its dtype, perhaps CSR."""

    @abstractmethod
    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        """Return a bound of each frequency's |ωᵀx| over all x with |x_j| ≤ magnitude_j."""


class DenseProduct(Projection):
    """The matrix product with W itself."""

    def __init__(self, W: np.ndarray) -> None:
        self.n_frequencies = W.shape[1]
        self._W = ByDtype(W)

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        return self._W[dtype]

    def project(self, X: Any, theta: np.ndarray) -> None:
        if issparse(X):
            theta[...] = X @ self._W[X.dtype]
        else:
            np.matmul(X, self._W[X.dtype], out=theta)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        return magnitude @ np.abs(self.frequencies())


class Interleaved(Projection):
    """The frequencies of several projections, in the order in which a sum of kernels takes turns.

    Parameters
    ----------
    parts : sequence of Projection
    order : ndarray of shape (n_frequencies,), integer
        Which part each frequency belongs to.
    """

    def __init__(self, parts: Sequence[Projection], order: np.ndarray) -> None:
        self.n_frequencies = len(order)
        self._parts = [(part, np.flatnonzero(order == i)) for i, part in enumerate(parts)]

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        drawn = [(part.frequencies(dtype), members) for part, members in self._parts]
        W = np.empty((len(drawn[0][0]), self.n_frequencies), dtype)
        for W_part, members in drawn:
            W[:, members] = W_part
        return W

    def project(self, X: Any, theta: np.ndarray) -> None:
        for part, members in self._parts:
            phases = scratch("phases of a part", len(theta), len(members), theta.dtype)
            part.project(X, phases)
            theta[:, members] = phases

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        bound = np.empty(self.n_frequencies)
        for part, members in self._parts:
            bound[members] = part.largest_phases(magnitude)
        return bound


class ByDtype:
    """A float64 array that is cast once to each dtype asked for."""

    def __init__(self, A: np.ndarray) -> None:
        self._cast = {np.dtype(np.float64): A}

    def __getitem__(self, dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        if dtype not in self._cast:
            self._cast[dtype] = self._cast[np.dtype(np.float64)].astype(dtype)
        return self._cast[dtype]
