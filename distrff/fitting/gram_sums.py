"""The Gram sweep: A = Σ s·ttᵀ over rows t = [z | 1 | y], one for each sum of the folds, a tile at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.features.fitted import FittedMap
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import RowBlock, Rows
from distrff.preprocessing.folds import NO_FOLDS, Folds
from distrff.solvers.losses import Loss
from distrff.solvers.ridge import pack, packed_length
from distrff.utils.linalg import add_lower_triangle, add_square, values_of


@dataclass(frozen=True, kw_only=True)
class GramReduction(RowReduction):
    """Reduction to the Grams of some sums of the folds.

    Partials are a packed lower triangle for each member, p = D + 1 + k; for the total see `empty_sums`. A row
    costs 2dD + p² flops and D cosines. Memory beside the total: one tile, its rows, and one p × p product of
    float32 rows, or at the end the packed copy of float64 sums.

    Without folds a product takes T = `tile_rows` consecutive rows. With K sums, K·T rows are read, ordered
    by sum, and each sum's rows, about T, are one product. Rows that enter several sums are mapped for each.
    Targets without an output give the Gram of [z | 1], whether the rows have a y or not.
    """

    folds: Folds = NO_FOLDS
    members: tuple[int, ...] = (0,)  # the sums that are made

    @property
    def size(self) -> int:
        """p, the columns of t."""
        return self.specification.n_features + 1 + self.targets.n_outputs

    @property
    def n_sums(self) -> int:
        return len(self.members)

    def size_bytes(self, n_rows: int) -> int:
        return 8 * self.n_sums * packed_length(self.size)

    def zero(self) -> np.ndarray:
        return empty_sums(self.n_sums, self.size, np.dtype(self.dtype))

    def finish(self, total: np.ndarray) -> np.ndarray:
        return total if total.ndim == 2 else pack(total)

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        tile = _Tile(self, self.ready_map(arrays))
        # Ordering K tiles by sum costs at most 5 % more than no folds; cutting each tile into K small
        # products would cost 75 % more.
        for block in rows.tiles(self.folds.n_sums * self.tile_rows):
            for position, X, y, s in self.by_sum(block, tile.capacity):
                tile.add_product(total[position], X, y, s)
        return total

    def by_sum(
        self, block: RowBlock, max_rows: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield position, X, y and sample weights of each member, at most `max_rows` rows at a time.

        A single sum is of the whole block, which has at most `max_rows` rows and is not copied.
        """
        X, s = block.X, block.sample_weight
        y = block.y if self.targets.n_outputs else np.empty((X.shape[0], 0))
        if self.folds.n_sums == 1:
            yield 0, X, y, s
            return
        entered = self.folds.sums(np.arange(block.start, block.start + X.shape[0]))
        for position, member in enumerate(self.members):
            members = entered.of(member)
            for start in range(0, len(members), max_rows):
                rows = members[start : start + max_rows]
                yield position, X[rows], y[rows], None if s is None else s[rows]


class _Tile:
    """The buffer of one task: it is filled with rows t, and the product is added to a Gram."""

    def __init__(self, reduction: GramReduction, ready: FittedMap) -> None:
        self._reduction = reduction
        self._map = ready
        self._dtype = np.dtype(reduction.dtype)
        # Of K·T hashed rows a fold has T ± √T. With room for six standard deviations, folds are practically
        # never split.
        spread = 6 * int(np.sqrt(reduction.tile_rows)) if reduction.folds.n_sums > 1 else 0
        self.capacity = reduction.tile_rows + spread
        self._rows = np.empty((self.capacity, reduction.size), self._dtype)

    def add_product(
        self, A: np.ndarray, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> None:
        """Add Σ s·ttᵀ of at most `capacity` rows to A."""
        reduction, D = self._reduction, self._map.n_features
        t = self._rows[: X.shape[0]]
        self._map.apply(reduction.scaled(X), out=t[:, :D])
        t[:, D] = 1.0
        t[:, D + 1 :] = reduction.targets.encode(y)
        s = reduction.targets.row_weights(y, sample_weight)
        if s is not None:
            t *= np.sqrt(s).astype(self._dtype)[:, None]
        add_squares(A, t)


def empty_sums(m: int, p: int, dtype: np.dtype) -> np.ndarray:
    """M float64 sums of products tᵀt of this dtype, of p columns, to be added to by `add_squares`.

    Those of float64 products are square, (m, p, p), since BLAS adds to them itself; what is above their
    diagonals is undefined. Others are packed from the start, (m, p(p + 1)/2). Squares that are packed in the
    end touch three times as much fresh memory, .25 GB for five folds of 2050 columns: a gigabyte takes .13 s,
    and 2.3 s where the machine has not given it out before. It was 1 to 3 % of a sweep over 62,500 rows.
    """
    return np.zeros((m, p, p) if dtype == np.float64 else (m, packed_length(p)))


def add_squares(A: np.ndarray, t: np.ndarray) -> None:
    """Add tᵀt to one of `empty_sums`.

    Products of float64 rows go straight into A. NumPy's own takes fresh memory, fills its other triangle, and
    is then added: 3 % more for tiles of 4096 × 2050, 10 % of 2048 × 2050. Those of float32 are added in
    float64, and have no buffer of their own: reusing one, or BLAS's rank-k update into it, saves a hundredth
    at most, and it would stay in memory while the next chunk is decoded.
    """
    if A.ndim == 2:
        add_square(A, t)
    else:
        add_lower_triangle(A, t.T @ t)


# The Gram of rows that are weighted by the curvature of their losses at a point: the objective's Hessian.


@dataclass(frozen=True, kw_only=True)
class CurvatureGramReduction(GramReduction):
    """The sums Σ s·ℓ″(f, y)·ttᵀ over rows t = [z | 1] for m binary problems, at a point each.

    Tasks are sent `coef` of shape (D, m) and `intercept` of shape (m,).

    A row costs 2dD + 2Dm flops and D cosines, and p² flops more for each problem in which its loss is curved.
    Features are made for `light_rows` rows at a time, few enough to stay in a cache, once for all problems.
    Rows with a curved loss are gathered for products of `tile_rows`.
    """

    loss: Loss
    outputs: tuple[int, ...]  # which of the targets each problem is for
    light_rows: int

    @property
    def size(self) -> int:
        return self.specification.n_features + 1

    @property
    def n_sums(self) -> int:
        return len(self.outputs)

    def update(self, total: np.ndarray, rows: Rows, arrays: Arrays) -> np.ndarray:
        ready = self.ready_map(arrays)
        coef = ready.basis_coef(arrays["coef"], np.dtype(self.dtype))
        gathered = [_Gathered(A, np.empty((self.tile_rows, self.size), self.dtype)) for A in total]
        for block in rows.tiles(self.folds.n_sums * self.light_rows):
            for _, X, y, s in self.by_sum(block, block.X.shape[0]):
                scaled = self.scaled(X)
                B = ready.basis_tile(scaled)
                F, Y = values_of(B, coef) + arrays["intercept"], self.targets.encode(y)
                weights = self.loss.second_derivative(F, Y[:, list(self.outputs)])
                row_weight = self.targets.row_weights(y, s)
                if row_weight is not None:
                    weights *= row_weight[:, None]
                curved = np.flatnonzero(weights.any(axis=1))
                Z = ready.apply(scaled[curved]) if ready.has_basis else B[curved]
                for of_problem, weight in zip(gathered, weights[curved].T, strict=True):
                    own = np.flatnonzero(weight)
                    of_problem.add(self._weighted(Z[own], weight[own]))
        for of_problem in gathered:
            of_problem.multiply()
        return total

    def _weighted(self, Z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The rows √(s·ℓ″)·[z | 1]."""
        t = np.ones((len(Z), self.size), Z.dtype)
        t[:, :-1] = Z
        t *= np.sqrt(weight).astype(Z.dtype)[:, None]
        return t


class _Gathered:
    """Rows are gathered until they fill a tile; its product is then added to A."""

    def __init__(self, A: np.ndarray, tile: np.ndarray) -> None:
        self._A, self._tile, self._n_rows = A, tile, 0

    def add(self, t: np.ndarray) -> None:
        """Gather some rows."""
        while len(t):
            room = self._tile[self._n_rows :]
            taken = t[: len(room)]
            room[: len(taken)] = taken
            self._n_rows += len(taken)
            t = t[len(taken) :]
            if self._n_rows == len(self._tile):
                self.multiply()

    def multiply(self) -> None:
        """Add the product of the gathered rows."""
        add_squares(self._A, self._tile[: self._n_rows])
        self._n_rows = 0
