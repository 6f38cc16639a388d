"""Pieces of a raw source as rows of X, y and weights, by steps that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import csr_matrix

from distrff.columns.number_step import NumberStep
from distrff.columns.raw_column import RawColumn
from distrff.columns.table_steps import TableSteps
from distrff.errors import InputError, NonFiniteError
from distrff.ingest.sources.libsvm_blocks import LibsvmSource
from distrff.ingest.sources.text_blocks import TextBlock

_WIDE, _FILLED = 2048, 0.1

LABEL = "label"
"""Name of the labels of libsvm files, as a column."""
FIRST_INDEX = {"x": 1, "x0": 0}
"""Names of the list of all their other columns, and the index of the first of these."""


class Encoded(NamedTuple):
    """Rows of one piece: X dense or CSR, y and sample_weight or None, and how many raw rows there were."""

    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None
    n_raw: int


class RawSource(Protocol):
    """A table in some format, read in pieces."""

    name: str
    total: int
    unit: str

    @property
    def kinds(self) -> Mapping[str, str | None]:
        """The columns in their order: a kind of `RawColumn`, as far as known; None if no step takes it."""

    def pieces(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield the pieces in order, each with some of the columns at least.

        Each has a `position`: how much of `total` was read up to its end, in the source's `unit`.
        """

    def raw(self, piece: Any, names: Sequence[str]) -> dict[str, RawColumn]:
        """Return some columns of a piece; called in any thread."""

    def place(self, piece: Any, row: int) -> str:
        """Say where a row of a piece stands, for messages."""

    def follow(self, steps: TableSteps) -> None:
        """Read columns as the steps want them, whatever the first rows look like."""


class Encoder(Protocol):
    """Makes rows of pieces."""

    def encode(self, piece: Any) -> Encoded:
        """Return the rows of a piece; called in any thread."""

    def is_sparse(self, X: Any) -> bool:
        """Tell from the first rows whether X is to be stored as a sparse matrix."""


class TableEncoder:
    """Encodes pieces of a table.

    Parameters
    ----------
    source : RawSource
    steps : TableSteps
    dtype : dtype, or None
        Of X; None for that of the steps.
    """

    def __init__(self, source: RawSource, steps: TableSteps, dtype: np.dtype | None) -> None:
        steps.check_names(source.kinds, source.name)
        self._source, self._steps, self._dtype = source, steps, dtype

    def encode(self, piece: Any) -> Encoded:
        """Return the rows of a piece; called in any thread.

        Raises
        ------
        InputError
            Naming the place of what cannot be used.
        """
        raw = self._source.raw(piece, self._steps.raw_names)
        self._refuse_infinity(piece, raw)
        if not self._steps.drops_missing:
            self._refuse_missing(piece, raw)
        try:
            with np.errstate(over="raise"):
                rows = self._steps.apply(raw)
                assert rows.X is not None
                X = rows.X if self._dtype is None else rows.X.astype(self._dtype, copy=False)
        except FloatingPointError as error:
            raise self._too_large(piece, raw) from error
        return Encoded(X, rows.y, rows.sample_weight, len(next(iter(raw.values()))))

    def _too_large(self, piece: Any, raw: dict[str, RawColumn]) -> InputError:
        """The error that says which number float32 cannot hold."""
        most = np.finfo(np.float32).max
        for step in self._steps.columns:
            values = raw[step.name].values
            if raw[step.name].kind == "number" and (beyond := np.abs(values.astype(np.float64)) > most).any():
                row = int(np.flatnonzero(beyond.reshape(len(values), -1).any(axis=1))[0])
                return InputError(
                    f"{self._source.place(piece, row)}, column {step.name!r}: a number too large for "
                    f"float32; take dtype='float64' (--dtype float64)"
                )
        return InputError(f"{self._source.name} holds numbers too large for float32; take dtype='float64'")

    def _refuse_infinity(self, piece: Any, raw: dict[str, RawColumn]) -> None:
        """Refuse infinity, which no rule for missing values covers, in a row that is kept."""
        for name, column in raw.items():
            if column.kind != "number" or column.values.dtype.kind != "f" or np.isfinite(column.values).all():
                continue
            infinite = np.isinf(column.values).reshape(len(column), -1)
            kept = self._steps.kept(raw)
            places = np.argwhere(infinite if kept is None else infinite & kept[:, None])
            if len(places):
                row, entry = places[0].tolist()
                called = f"column {name!r}" + (f", entry {entry}" if column.values.ndim > 1 else "")
                raise NonFiniteError(
                    f"{self._source.place(piece, row)}, {called}: infinity, or a number too large for "
                    f"{column.values.dtype}; correct the value, or leave it empty if it is missing"
                )

    def _refuse_missing(self, piece: Any, raw: dict[str, RawColumn]) -> None:
        """Refuse a missing value that no step fills, NaN included, and say where it stands."""
        columns = {step.name: step.fill is not None for step in self._steps.columns}
        for name in self._steps.raw_names:
            missing = raw[name].missing_rows()
            if not columns.get(name, False) and missing is not None:
                place = self._source.place(piece, int(np.flatnonzero(missing)[0]))
                rules = "'drop', 'mean' or 'indicator'" if name in columns else "'drop'"
                raise NonFiniteError(
                    f"{place}, column {name!r}: no value; convert or fit with missing={rules} (--missing), "
                    f"or fill it"
                )

    def is_sparse(self, X: np.ndarray) -> bool:
        """Tell from the first rows whether X is to be stored as a sparse matrix."""
        return is_wide_and_empty(X.shape[1], np.count_nonzero(X) / X.size)


class SparseEncoder:
    """Encodes blocks of libsvm files.

    Parameters
    ----------
    source : LibsvmSource
    steps : TableSteps
        One `NumberStep` of a list of all columns, and perhaps the target.
    """

    def __init__(self, source: LibsvmSource, steps: TableSteps) -> None:
        step = steps.columns[0]
        if not isinstance(step, NumberStep) or step.name not in FIRST_INDEX:
            raise InputError(
                f"{source.name} is a libsvm file, but the model was fitted to named columns "
                f"({', '.join(steps.raw_names[:5])}, ...); give a file of the same kind"
            )
        if steps.target is not None and steps.target.names != (LABEL,):
            raise InputError(f"{source.name} is a libsvm file, whose label is the target; name no other")
        self._source, self._target, self._step = source, steps.target, step

    def encode(self, piece: TextBlock) -> Encoded:
        """Return the rows of a block, X in CSR; called in any thread."""
        rows, first_index = self._source.rows(piece), FIRST_INDEX[self._step.name]
        self._source.check_width(piece, rows, first_index, self._step.width)
        X = rows.matrix(first_index, self._step.width).astype(self._step.dtype)
        labels = {LABEL: RawColumn("number", rows.labels)}
        y = None if self._target is None else self._target.apply(labels, 0)
        return Encoded(X, y, None, len(rows.labels))

    def is_sparse(self, X: csr_matrix) -> bool:
        """Tell from the first rows whether X is to be stored as a sparse matrix."""
        return is_wide_and_empty(X.shape[1], X.nnz / (X.shape[0] * X.shape[1]))


def is_wide_and_empty(n_columns: int, share: float) -> bool:
    """Tell whether rows of which a share of the numbers is not zero are to be stored as a sparse matrix."""
    return n_columns > _WIDE and share < _FILLED
