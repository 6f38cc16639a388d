"""The Gram sweep: A = Σ s·ttᵀ over rows t = [z | 1 | y], per fold, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.errors import InputError, ModelFileError, column_called
from distrff.features.base import (
    BlockMap,
    MapSpecification,
    named_to_send,
    sent_arrays,
    specification_from_dict,
)
from distrff.fitting.rows import (
    LIKE_THE_FIRST,
    RowReduction,
    check_parts,
    check_same_table,
    table_metadata,
    table_parts,
)
from distrff.io.dataset import RowBlock, Rows
from distrff.io.storage import contents_of, read_group, refuse_others, write_group
from distrff.preprocessing.coding import NumericTargets, Scaling, Targets, coding_from_parts, coding_parts
from distrff.preprocessing.folds import Folds
from distrff.preprocessing.table import TableSteps
from distrff.solvers.losses import Loss
from distrff.solvers.ridge import pack, packed_length, recoded
from distrff.utils.arrays import in_one_layout
from distrff.utils.linalg import add_lower_triangle, add_square, values_of
from distrff.utils.text import in_one_line
from distrff.utils.validation import check_count, one_of


@dataclass(frozen=True, kw_only=True)
class GramReduction(RowReduction):
    """Reduction to the Grams of some folds.

    Partials are a packed lower triangle for each member, p = D + 1 + k; for the total see `empty_sums`. A row
    costs 2dD + p² flops and D cosines. Memory beside the total: one tile, its rows, and one p × p product of
    float32 rows, or at the end the packed copy of float64 sums.

    Without folds a product takes T = `tile_rows` consecutive rows. With K folds, K·T rows are read, ordered
    by fold, and each fold's rows, about T, are one product. Targets without an output give the Gram of
    [z | 1], whether the rows have a y or not.
    """

    folds: Folds | None = None
    members: tuple[int, ...] = (0,)  # the folds that are summed; (0,) without folds

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
        tile = _Tile(self, self.block_map(arrays))
        n_folds = 1 if self.folds is None else self.folds.n_folds
        # Ordering K tiles by fold costs at most 5 % more than no folds; cutting each tile into K small
        # products would cost 75 % more.
        for block in rows.tiles(n_folds * self.tile_rows):
            for position, X, y, s in self.by_fold(block, tile.capacity):
                tile.add_product(total[position], X, y, s)
        return total

    def by_fold(
        self, block: RowBlock, max_rows: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield position, X, y and sample weights of each member fold, at most `max_rows` rows at a time.

        Without folds it yields the whole block, which has at most `max_rows` rows.
        """
        X, s = block.X, block.sample_weight
        y = block.y if self.targets.n_outputs else np.empty((X.shape[0], 0))
        if self.folds is None:
            yield 0, X, y, s
            return
        fold = self.folds.of_rows(block.start, block.start + X.shape[0])
        for position, member in enumerate(self.members):
            members = np.flatnonzero(fold == member)
            for start in range(0, len(members), max_rows):
                rows = members[start : start + max_rows]
                yield position, X[rows], y[rows], None if s is None else s[rows]


class _Tile:
    """The buffer of one task: it is filled with rows t, and the product is added to a Gram."""

    def __init__(self, reduction: GramReduction, block_map: BlockMap) -> None:
        self._reduction = reduction
        self._block_map = block_map
        self._dtype = np.dtype(reduction.dtype)
        # Of K·T hashed rows a fold has T ± √T. With room for six standard deviations, folds are practically
        # never split.
        spread = 0 if reduction.folds is None else 6 * int(np.sqrt(reduction.tile_rows))
        self.capacity = reduction.tile_rows + spread
        self._rows = np.empty((self.capacity, reduction.size), self._dtype)

    def add_product(
        self, A: np.ndarray, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> None:
        """Add Σ s·ttᵀ of at most `capacity` rows to A."""
        reduction, D = self._reduction, self._block_map.n_features
        t = self._rows[: X.shape[0]]
        self._block_map.apply(reduction.scaled(X), out=t[:, :D])
        t[:, D] = 1.0
        t[:, D + 1 :] = reduction.targets.encode(y)
        s = reduction.targets.row_weights(y, sample_weight)
        if s is not None:
            t *= np.sqrt(s).astype(self._dtype)[:, None]
        add_squares(A, t)


def empty_sums(m: int, p: int, dtype: np.dtype) -> np.ndarray:
    """Return m float64 sums of products tᵀt of this dtype, of p columns, to be added to by `add_squares`.

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
        block_map = self.block_map(arrays)
        coef = block_map.basis_coef(arrays["coef"], np.dtype(self.dtype))
        gathered = [_Gathered(A, np.empty((self.tile_rows, self.size), self.dtype)) for A in total]
        n_folds = 1 if self.folds is None else self.folds.n_folds
        for block in rows.tiles(n_folds * self.light_rows):
            for _, X, y, s in self.by_fold(block, block.X.shape[0]):
                scaled = self.scaled(X)
                B = block_map.basis_tile(scaled)
                F, Y = values_of(B, coef) + arrays["intercept"], self.targets.encode(y)
                weights = self.loss.second_derivative(F, Y[:, list(self.outputs)])
                row_weight = self.targets.row_weights(y, s)
                if row_weight is not None:
                    weights *= row_weight[:, None]
                curved = np.flatnonzero(weights.any(axis=1))
                Z = block_map.apply(scaled[curved]) if block_map.has_basis else B[curved]
                for of_problem, weight in zip(gathered, weights[curved].T, strict=True):
                    own = np.flatnonzero(weight)
                    of_problem.add(self._weighted(Z[own], weight[own]))
        for of_problem in gathered:
            of_problem.multiply()
        return total

    def _weighted(self, Z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the rows √(s·ℓ″)·[z | 1]."""
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


# A Gram as a value: add those of sites or days, subtract rows, keep it in a file, fit models to it.


@dataclass(frozen=True, eq=False)
class GramStatistics:
    """The sums over some rows that ridge needs.

    Parameters
    ----------
    A : ndarray of shape (n_folds, p, p), float64
        Σ s·ttᵀ over the rows t = [z | 1 | y] of each fold, p = D + 1 + k.
    n_rows : int
    specification : MapSpecification
    scaling : Scaling
    targets : Targets
    dtype : str
        Of the products that were summed.
    tile_rows : int
        Rows a product.
    y_is_1d : bool
    column_names : tuple of str or None
        Of X.
    steps : TableSteps or None
        What made X, y and weights from the raw columns of a table; models of the sums take raw rows by it.

    Notes
    -----
    `+` joins disjoint sets of rows, fold by fold. `−` subtracts rows of the first set; a
    difference has one fold, as the fold of a subtracted row is not known. Both need the
    same map, scaling and classes, and refuse others.
    """

    A: np.ndarray
    n_rows: int
    specification: MapSpecification
    scaling: Scaling
    targets: Targets
    dtype: str
    tile_rows: int
    y_is_1d: bool
    column_names: tuple[str, ...] | None = None
    steps: TableSteps | None = None

    @property
    def n_columns(self) -> int:
        return self.specification.n_columns

    @property
    def n_folds(self) -> int:
        return len(self.A)

    @property
    def weight(self) -> float:
        """Σs."""
        D = self.specification.n_features
        return float(self.A[:, D, D].sum())

    def __add__(self, other: GramStatistics) -> GramStatistics:
        return self._combine(other, 1)

    def __radd__(self, other: Any) -> GramStatistics:
        """Return the same Gram for 0, so that `sum` joins a list of them."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __repr__(self) -> str:
        return (
            f"<GramStatistics of {self.n_rows:,} rows: {self.specification.n_features} features, "
            f"{self.targets.n_outputs} output(s), {self.n_folds} fold(s), {self.dtype}>"
        )

    def __sub__(self, other: GramStatistics) -> GramStatistics:
        difference = self._combine(other, -1)
        if difference is NotImplemented:
            return NotImplemented
        if difference.n_rows < 0 or difference.weight < 0:
            raise InputError(
                f"cannot subtract {other.n_rows} rows of weight {other.weight:g} from {self.n_rows} rows "
                f"of weight {self.weight:g}; subtract rows that the first Gram holds"
            )
        return difference

    def _combine(self, other: GramStatistics, sign: int) -> GramStatistics:
        if not isinstance(other, GramStatistics):
            return NotImplemented
        self._check_compatible(other)
        moved = other.with_targets(self.targets) if isinstance(self.targets, NumericTargets) else other
        joined = (
            self.A + moved.A if sign > 0 else self.A.sum(0, keepdims=True) - moved.A.sum(0, keepdims=True)
        )
        return replace(
            self,
            A=joined,
            n_rows=self.n_rows + sign * other.n_rows,
            dtype=self.dtype if self.dtype == other.dtype else "float32",
            tile_rows=max(self.tile_rows, other.tile_rows),
        )

    def _check_compatible(self, other: GramStatistics) -> None:
        remedy = LIKE_THE_FIRST
        if self.specification != other.specification:
            raise InputError(f"these Grams are of different maps ({_differing(self, other)}); {remedy}")
        if not self.scaling.equals(other.scaling):
            raise InputError(f"these Grams scale their columns differently{_scaled(self, other)}; {remedy}")
        if self.A.shape != other.A.shape:
            raise InputError(
                f"these Grams have {self.n_folds} and {other.n_folds} folds of {self.A.shape[1:]} and "
                f"{other.A.shape[1:]} sums; they need the same number of folds, features and targets"
            )
        if not self.targets.same_kind(other.targets):
            raise InputError(
                f"these Grams code their targets differently (other classes or class weights); {remedy}"
            )
        check_same_table(self, other)

    def with_targets(self, targets: NumericTargets) -> GramStatistics:
        """Return the same Gram with its numeric targets shifted and scaled as in `targets`.

        It is exact up to rounding: the coding is a linear map of the rows t.
        """
        ratio = self.targets.scale / targets.scale
        A = recoded(self.A, ratio, (self.targets.shift - targets.shift) / targets.scale)
        return replace(self, A=A, targets=targets)

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the Gram as a Zarr group.

        Raises
        ------
        InputError
            If something is there already and `overwrite` is not given.
        """
        self.specification.check_storable()
        arrays, metadata = coding_parts(self.scaling, self.targets)
        arrays |= self.specification.arrays_to_send(derived=self.specification.carries_arrays)
        metadata |= {
            "specification": self.specification.to_dict(),
            "n_rows": self.n_rows,
            "dtype": self.dtype,
            "tile_rows": self.tile_rows,
            "y_is_1d": self.y_is_1d,
            **table_metadata(self.column_names, self.steps),
        }
        write_group(
            url,
            {"A": self.A, **arrays},
            metadata,
            kind="gram",
            overwrite=overwrite,
            storage_options=storage_options,
        )

    @classmethod
    def load(cls, url: str, *, storage_options: dict[str, Any] | None = None) -> GramStatistics:
        """Read what `save` wrote.

        Raises
        ------
        ModelFileError
            If it is incomplete, altered, newer, or no Gram.
        """
        return cls.of_group(url, *read_group(url, kind="gram", storage_options=storage_options))

    @classmethod
    def of_group(cls, url: str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Self:
        """Return the Gram of a group read from `url`; raise ModelFileError if its parts do not fit together.

        Arrays of a map that follow from its seed are not derived.
        """
        with contents_of(url, "gram"):
            scaling, targets = coding_from_parts(arrays, metadata)
            specification = specification_from_dict(metadata["specification"])
            of_map = sent_arrays(arrays) if specification.carries_arrays else {}
            refuse_others(arrays, {"A", *coding_parts(scaling, targets)[0], *named_to_send(of_map)})
            fields = {name: metadata[name] for name in ("n_rows", "dtype", "tile_rows", "y_is_1d")}
            check_count("n_rows", fields["n_rows"], 0)
            check_count("tile_rows", fields["tile_rows"])
            one_of("dtype", fields["dtype"], ("float32", "float64"))
            A, p = arrays["A"], specification.n_features + 1 + targets.n_outputs
            if A.dtype != np.float64 or A.ndim != 3 or not len(A) or A.shape[1:] != (p, p):
                raise ModelFileError(f"its sums are {A.dtype} of shape {A.shape}, not of (folds, {p}, {p})")
            n_stored = sum(A.size for A in arrays.values())
            check_parts(specification, scaling, targets, n_stored=n_stored, y_is_1d=fields["y_is_1d"])
            if specification.carries_arrays:
                # The digest in the file may belong to other arrays, as in a model.
                specification = specification.with_arrays(of_map).digested(of_map)
                _check_map(specification, of_map)
            fields |= table_parts(metadata, specification.n_columns)
            return cls(A=A, specification=specification, scaling=scaling, targets=targets, **fields)


def _check_map(specification: MapSpecification, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelFileError unless these arrays make the map."""
    with np.errstate(all="ignore"):
        block_map = specification.block_map({name: in_one_layout(A) for name, A in arrays.items()})
        b = block_map.basis(specification.example)  # of landmarks without their factor
    if block_map.n_features != specification.n_features or b.shape != (1, block_map.n_basis):
        raise ModelFileError("the arrays of its map do not fit its sizes")


def _differing(first: GramStatistics, second: GramStatistics) -> str:
    """Return the parameters in which two maps differ, with both values."""
    one, other = first.specification.to_dict(), second.specification.to_dict()
    # A digest says no more than that arrays differ.
    names = [name for name in {**one, **other} if name != "digest" and one.get(name) != other.get(name)]
    found = [f"{name}: {one.get(name)} and {other.get(name)}" for name in names]
    return in_one_line("; ".join(found)) or "their frequencies or landmarks"


def _scaled(first: GramStatistics, second: GramStatistics) -> str:
    """Return the first column that is scaled otherwise, with both ways."""
    for name, words in (("shift", "by a shift of"), ("scale", "by a scale of")):
        one, other = getattr(first.scaling, name), getattr(second.scaling, name)
        if (one is None) != (other is None):
            return f": one has a {name} and the other none"
        if one is not None and (j := np.flatnonzero(one != other)).size:
            names = first.column_names
            called = column_called(int(j[0]), None if names is None else names[j[0]])
            return f": {called} {words} {one[j[0]]:.6g} and of {other[j[0]]:.6g}"
    return ""
