"""The dataset that fits, scores and predictions read: numbered rows, in runs or as lazy dask arrays."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import accumulate, islice, pairwise, repeat, takewhile
from numbers import Number
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import dask
import numpy as np
import pandas as pd
from dask.base import unpack_collections
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from distrff.errors import InputError, NonFiniteColumnError, NonFiniteError
from distrff.io.storage import Location
from distrff.preprocessing.coding import is_number_type
from distrff.preprocessing.folds import Keys
from distrff.preprocessing.table import FIELDS, TableSteps
from distrff.utils.arrays import as_columns, in_one_layout, joined_rows
from distrff.utils.process import check_cancelled
from distrff.utils.random import group_of, new_key
from distrff.utils.text import html_card, human_bytes, listed, number_text

if TYPE_CHECKING:  # see arrays
    import dask.array as da


# A decoded span: field name -> array; X may be CSR. All arrays of a span have the same number of rows.
Span = dict[str, Any]


class RowBlock(NamedTuple):
    """Consecutive rows in memory: a tile."""

    start: int  # number of the first row in the dataset
    X: Any  # ndarray or CSR matrix of shape (r, d), of any real type, possibly a read-only view
    y: Any = None  # ndarray of shape (r,) or (r, k)
    sample_weight: Any = None  # float64 ndarray of shape (r,)
    ids: Mapping[str, np.ndarray] = MappingProxyType({})  # columns that no model reads, by name

    @property
    def keys(self) -> Keys:
        """What folds know of the rows."""
        return Keys(np.arange(self.start, self.start + self.X.shape[0]), self.ids, self.X)

    def chosen(self, rows: np.ndarray) -> RowBlock:
        """Some of the rows, by their positions; without their numbers and the columns beside X."""
        y, s = (None if A is None else A[rows] for A in (self.y, self.sample_weight))
        return RowBlock(self.start, self.X[rows], y, s)


@dataclass(frozen=True)
class Rows(ABC):
    """The rows [start, stop) of a dataset, as a small picklable handle from which a task reads them.

    Implementations are dataclasses: `dask.delayed` walks dataclass fields, so a field may be a list of
    Delayed blocks, which are arrays in the task.
    """

    start: int
    stop: int

    @abstractmethod
    def spans(self) -> Iterable[Iterator[Span]]:
        """Iterators over decoded spans, each of some fields; none keeps a span that it has yielded."""

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield blocks cut at start, start + n_rows, ...; the last may be shorter.

        At most one decoded span of each iterator and one tile are in memory, and nothing is decoded twice.

        An InputError says which data are missing, damaged, changed since they were opened, not accessible to
        this process, or lack a required value. After an OSError a retry may succeed.
        """
        readers = [TileReader(spans, self.stop - self.start) for spans in self.spans()]
        for first in range(self.start, self.stop, n_rows):
            # A thread cannot be stopped from outside, so a cancelled fit ends here, between two tiles.
            check_cancelled()
            # Built in a function: a local name here would keep the tile alive while the next one is made.
            yield _tile(first, min(n_rows, self.stop - first), readers)


class TileReader:
    """Takes runs of rows from consecutive decoded spans, which together hold `n_rows` rows."""

    def __init__(self, spans: Iterable[Span], n_rows: int) -> None:
        self._spans = iter(spans)
        self._span: Span = {}
        self._at = 0  # rows of the current span already taken
        self._size = 0  # rows of the current span
        self._left = n_rows

    def take(self, n: int) -> Span:
        """The next `n` rows, 1 <= n <= rows left."""
        self._refill()
        # A run inside one span is a view of it. One across several is copied piece by piece, so that a span
        # is released before the next one is decoded: two of them need not fit in memory.
        if n > self._size - self._at:
            return self._gather(n)
        part = self._next(n)
        if self._size - self._at < min(n, self._left) and n < self._size:
            # The next run needs the next span, and a view would keep this one alive until then.
            part = {name: values.copy() for name, values in part.items()}
        # Or this reader would hold the span while the next one is decoded.
        if self._at == self._size:
            self._span = {}
        return part

    def _next(self, n: int) -> Span:
        part = {name: values[self._at : self._at + n] for name, values in self._span.items()}
        self._at += n
        self._left -= n
        return part

    def _gather(self, n: int) -> Span:
        if any(map(issparse, self._span.values())):
            return self._gather_sparse(n)
        # Filled as spans come: to join pieces at the end would need the room twice.
        out = {name: np.empty((n, *v.shape[1:]), v.dtype) for name, v in self._span.items()}
        filled = 0
        while filled < n:
            self._refill()
            r = min(n - filled, self._size - self._at)
            # In a function: a local name here would keep the span alive while the next one is decoded.
            _fill(out, filled, self._next(r))
            filled += r
        return out

    def _gather_sparse(self, n: int) -> Span:
        pieces: list[Span] = []  # the number of their entries is not known beforehand
        while n:
            self._refill()
            r = min(n, self._size - self._at)
            pieces.append(self._next(r))
            n -= r
        return {name: joined_rows([piece[name] for piece in pieces]) for name in pieces[0]}

    def _refill(self) -> None:
        while self._at == self._size:
            self._span = {}
            span = next(self._spans, None)
            if span is None:
                raise InputError(
                    f"the data ended {self._left} rows early; open it again if it was changed meanwhile"
                )
            self._span = span
            self._at, self._size = 0, next(iter(span.values())).shape[0]


def _fill(out: Span, at: int, part: Span) -> None:
    for name, values in part.items():
        out[name][at : at + len(values)] = values


def _tile(first: int, n: int, readers: Sequence[TileReader]) -> RowBlock:
    taken: dict[str, Any] = {"X": None}
    for reader in readers:
        taken.update(reader.take(n))
    # Only y, weights and ids, which enter sums as they are; X is copied when it is scaled.
    taken = {name: A if name == "X" else in_one_layout(A) for name, A in taken.items()}
    ids = {name.removeprefix(_ID): taken.pop(name) for name in list(taken) if name.startswith(_ID)}
    return RowBlock(first, **taken, ids=ids)


def cuts(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, stop) between multiples of `step`."""
    # At multiples of the step and not from `start`, since that is where chunks begin.
    while start < stop:
        end = min(stop, (start // step + 1) * step)
        yield start, end
        start = end


# Work ahead of its consumer: reading from stores with high latency, and decoding.

P = TypeVar("P")
R = TypeVar("R")


def prefetched(calls: Iterable[Callable[[], R]], n_threads: int, n_ahead: int) -> Iterator[R]:
    """An iterator over the results of `calls`, in order, up to `n_ahead` computed ahead in threads.

    Work begins at once. At most n_ahead + 1 results are in memory, if the caller releases each before it
    takes the next. An exception is raised in the place of the result; after that, or when the iterator is
    closed, no further call begins.
    """
    calls = iter(calls)
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="distrff-ahead")
    # Submitted one by one: the map of a pool would take all pieces at once, and hold their results.
    waiting = deque(pool.submit(call) for call in islice(calls, n_ahead))

    def results() -> Iterator[R]:
        try:
            while waiting:
                taken = [waiting.popleft().result()]
                waiting.extend(pool.submit(call) for call in islice(calls, 1))
                yield taken.pop()  # a local name would keep it alive while the next one is awaited
        finally:
            # A consumer that ends early must not wait for reads that nobody takes any more.
            pool.shutdown(wait=False, cancel_futures=True)

    return results()


def read_ahead(spans: Iterable[Span], n_ahead: int) -> Iterator[Span]:
    """The spans in order, up to `n_ahead` read ahead in a thread; see `prefetched`."""
    source = iter(spans)  # of which that thread alone takes
    # {} is the end: a StopIteration from a call would become a RuntimeError in the generator.
    return takewhile(bool, prefetched(repeat(partial(next, source, {})), 1, n_ahead))


def in_order(function: Callable[[P], R], pieces: Iterable[P]) -> Iterator[tuple[P, R]]:
    """Yield each piece with `function(piece)`, in the order of the pieces; see `prefetched`."""

    # Threads, since the slow parts (Arrow's decoders, compiled loops, NumPy on large arrays, compression)
    # run without the interpreter's lock.
    def with_result(piece: P) -> tuple[P, R]:
        return piece, function(piece)

    # One more than threads: none is idle while the consumer works on a result.
    return prefetched((partial(with_result, piece) for piece in pieces), CPU_COUNT, CPU_COUNT + 1)


BLOCK_BYTES = 64 * 2**20  # approximate size of a block of a lazy array, where the storage leaves a choice

_SAMPLED_ROWS = 8
_OBJECT_BYTES = 64  # of a text and the reference to it


class Form(NamedTuple):
    """What is known of X, y or the weights before a row is read."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Reader(ABC):
    """Reads the rows of one source: `fields` are X, and y and sample_weight if there are any."""

    fields: Collection[str]
    are_delayed = False  # whether handles of rows hold Delayed objects
    has_rates = False  # whether y is divided by exposures

    @abstractmethod
    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> Rows:
        """The rows [start, stop), with the `fields` that the source has."""

    @abstractmethod
    def form(self, field: str) -> Form:
        """The form of a field, as its values are stored."""

    @abstractmethod
    def row_chunks(self, field: str) -> Sequence[int]:
        """The rows of each block of a lazy array."""

    def lazy(self, field: str) -> da.Array:
        """One field as a lazy dask array with known chunks."""
        import dask.array as da

        (_, *columns), dtype = self.form(field)
        dtype, row_chunks = read_type(field, dtype), tuple(self.row_chunks(field))
        bounds = pairwise(accumulate(row_chunks, initial=0))
        # The graph holds one handle a block, so that a block is read where it is needed.
        handles = [self.rows(start, stop, (field,)) for start, stop in bounds]
        # Given, so that dask reads no block to learn the type.
        meta = np.empty((0,) * (1 + len(columns)), dtype)
        if self.are_delayed:  # dask finds Delayed objects only in the arguments of tasks
            read = dask.delayed(_read_field)
            blocks = [read(rows, field, dask_key_name=new_key("read")) for rows in handles]
            A = joined(blocks, row_chunks, columns, meta)
            # A graph that is made of nested arguments refers to the futures of persisted rows without keeping
            # them, so that the cluster would forget the rows once their frame is gone.
            held = [part.dask for part in unpack_collections(handles)[0]]
            return da.Array(HighLevelGraph.merge(A.dask, *held), A.name, A.chunks, meta=meta)
        # One handle a chunk, which dask sends along with its task alone.
        named = da.from_array(np.fromiter(handles, dtype=object), chunks=1, name=new_key("rows"))
        return named.map_blocks(
            _read_block,
            field=field,
            token=group_of("read"),
            dtype=dtype,
            chunks=(row_chunks, *((c,) for c in columns)),
            new_axis=list(range(1, 1 + len(columns))) or None,
            meta=meta,
        )


def read_type(field: str, dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if field == "sample_weight" else dtype


def joined(blocks: list[Any], row_chunks: Sequence[int], columns: Sequence[int], meta: Any) -> da.Array:
    """Delayed blocks of rows as one dask array, whose blocks are named as reading."""
    import dask.array as da

    # By functions that dask documents, as the form of its graphs differs between versions.
    return da.concatenate(
        [
            da.from_delayed(block, (n, *columns), meta=meta, name=new_key("read"))
            for block, n in zip(blocks, row_chunks, strict=True)
        ]
    )


def _read_block(handles: np.ndarray, field: str) -> Any:
    return _read_field(handles[0], field)


def _read_field(rows: Rows, field: str) -> Any:
    return getattr(next(rows.tiles(rows.stop - rows.start)), field)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Rows X, with targets y and weights if there are any, wherever they are stored.

    Made by `open_dataset` and `as_dataset`. Rows are read in the tasks; so values (finite or not, negative
    weights) are not checked here.

    Attributes
    ----------
    n_rows, n_columns : int
    dtype : dtype
        Of X: the common type of its columns.
    source : str
        Where the rows come from, for reports; without credentials.
    row_bytes : int
        Decoded bytes of one row.
    chunk_rows : int
        Rows that are typically decoded at once.
    column_names, target_names : tuple of str, or None
    y_dtype : dtype, or None without y
    n_targets : int
        0 without y, 1 for a 1-D y.
    y_is_1d : bool
    has_weights : bool
    steps : TableSteps or None
        What made X, y and weights from the raw columns of a table; None if they are stored as they are.
    table_report : dict or None
        What was done to the table: rows read and dropped, columns made, columns dropped and why.
    id_dtypes : mapping of str to dtype
        Dtypes of the columns that come beside X, by name: those of `ids`, `groups` and `extra` of
        `open_dataset`.
    ids : tuple of str
        Those of them that `write_predictions` writes.
    groups : str or None
        The one that says which group a row belongs to.
    """

    reader: Reader
    n_rows: int
    n_columns: int
    dtype: np.dtype
    source: str
    row_bytes: int
    chunk_rows: int
    column_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    y_dtype: np.dtype | None = None
    n_targets: int = 0
    y_is_1d: bool = True
    has_weights: bool = False
    steps: TableSteps | None = None
    table_report: dict[str, Any] | None = None
    # Of the columns beside X, each as y.
    id_readers: Mapping[str, Reader] = dataclasses.field(default_factory=dict)
    ids: tuple[str, ...] = ()
    groups: str | None = None
    column_share: float = 1.0  # of columns in which a row has entries: below 1 for scipy CSR matrices
    held_bytes: int = 0  # that a reading task holds beside decoded rows: stored bytes, pages, rest of chunks
    whole_rows: int = 0  # of the largest row group that a task decodes before it uses its first row
    places: tuple[Location, ...] = ()  # of the files that hold the rows
    # Of the blocks that come with a task, the largest; 0 where they are cut for it, None where it reads them.
    block_rows: int | None = None
    persisted_bytes: int = 0  # of rows that stay in the workers' memory as long as the dataset
    # By field and column, how many values are known to lack before a row is read; there may be more.
    known_missing: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def id_dtypes(self) -> Mapping[str, np.dtype]:
        return {name: reader.form("y").dtype for name, reader in self.id_readers.items()}

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of all rows."""
        return self.n_rows * self.row_bytes

    @property
    def is_sparse(self) -> bool:
        """Whether rows are read as scipy CSR matrices."""
        return self.column_share < 1.0

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> Rows:
        """The rows [start, stop), to be read in a task, with those of the fields that there are.

        Raises
        ------
        InputError
            If not 0 <= start < stop <= n_rows.
        """
        if not 0 <= start < stop <= self.n_rows:
            raise InputError(
                f"rows {start} to {stop} are outside of {self.source}, which has {self.n_rows} rows"
            )
        rows = self.reader.rows(start, stop, fields)
        if not self.id_readers:
            return rows
        # Each as the y of a reader, so that readers need to know nothing of ids.
        ids = {name: reader.rows(start, stop, ("y",)) for name, reader in self.id_readers.items()}
        return IdentifiedRows(start, stop, rows, ids)

    def sampled_rows(self) -> list[Rows]:
        """A few single rows, by which the same dataset is recognized."""
        # From all over the rows, so that rows that were added, left out or sorted have another digest.
        numbers = np.unique(np.linspace(0, self.n_rows - 1, _SAMPLED_ROWS).astype(np.int64))
        return [self.rows(int(i), int(i) + 1) for i in numbers]

    @property
    def skipped_columns(self) -> tuple[str, ...]:
        """The columns of a table that no option took."""
        return tuple((self.table_report or {}).get("columns_dropped", ()))

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The columns of a table that no option took, by the reason."""
        by_reason: dict[str, list[str]] = {}
        for name, why in (self.table_report or {}).get("columns_dropped", {}).items():
            by_reason.setdefault(why, []).append(name)
        return by_reason

    @property
    def unseen_categories(self) -> dict[str, Any]:
        """The entry of reports for rows with categories that the fit never saw; empty without such rows."""
        found = (self.table_report or {}).get("n_unseen_categories")
        return {"n_unseen_categories": found} if found else {}

    @property
    def raw_features(self) -> Sequence[str]:
        """The names of the columns that X is made of; of a table more than X has may be read for it."""
        return self.column_names or () if self.steps is None else [step.name for step in self.steps.columns]

    @property
    def X(self) -> da.Array:
        """Lazy dask array of shape (n_rows, n_columns)."""
        return self.reader.lazy("X")

    @property
    def y(self) -> da.Array | None:
        """Lazy dask array of shape (n_rows,) or (n_rows, n_targets), or None."""
        return self.reader.lazy("y") if self.n_targets else None

    @property
    def sample_weight(self) -> da.Array | None:
        """Lazy float64 dask array of shape (n_rows,), or None."""
        return self.reader.lazy("sample_weight") if self.has_weights else None

    def _repr_html_(self) -> str:
        return dataset_card(self)

    def __repr__(self) -> str:
        shape = f"{self.n_rows} rows x {self.n_columns} columns of {self.dtype}"
        y = f", {self.n_targets} target(s) of {self.y_dtype}" if self.n_targets else ", no target"
        return f"<Dataset {self.source}: {shape}{y}{', weighted' if self.has_weights else ''}>"


def dataset_of(reader: Reader, source: str, names: Mapping[str, Any], **more: Any) -> Dataset:
    """The dataset of a reader's rows; `names` are those of the columns of X and y, if there are any.

    `more` are further attributes of the dataset. Raises InputError as `check_fields` does.
    """
    # Forms alone, which every storage has in its metadata.
    forms = {field: reader.form(field) for field in reader.fields}
    # Before any pass, so that what no model takes costs none.
    check_fields(forms)
    X, y = forms["X"], forms.get("y")
    return Dataset(
        reader=reader,
        n_rows=X.shape[0],
        n_columns=X.shape[1],
        dtype=X.dtype,
        source=source,
        column_names=names.get("X"),
        target_names=names.get("y"),
        y_dtype=None if y is None else y.dtype,
        n_targets=0 if y is None else math.prod(y.shape[1:]),
        y_is_1d=y is None or len(y.shape) == 1,
        has_weights="sample_weight" in forms,
        **more,
    )


def check_fields(fields: Mapping[str, Form]) -> None:
    """Refuse X, y and weights whose shapes, types or lengths no model can use."""
    for name, values in fields.items():
        if name == "y":  # of any type: labels
            check_target_shape(values.shape, values.dtype)
            continue
        if name == "X":
            check_shape(values.shape, name)
        else:
            check_weight_shape(values.shape)
        check_real(values.dtype, name)
    check_lengths({name: values.shape[0] for name, values in fields.items()})


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Refuse y or sample_weight of another length than X; `lengths` is keyed by field."""
    for field, length in lengths.items():
        if length != lengths.get("X", length):
            raise InputError(
                f"X has {lengths['X']} rows but {field} has {length}; they must have the same length"
            )


def sparse_share(row_entries: float, n_columns: int) -> float:
    """The `column_share` of sparse rows with `row_entries` entries, below 1 even if all are filled."""
    # Below 1 by definition, as readers and plans know sparse rows by it.
    return min(row_entries / n_columns, 1.0 - 2.0**-20)


# A dataset as a notebook card: what is known without reading a row.


def dataset_card(dataset: Dataset) -> str:
    """The card; nothing is read."""
    shown = {
        "rows from": dataset.source,
        "rows": number_text(dataset.n_rows),
        "columns": f"{number_text(dataset.n_columns)} of {dataset.dtype}"
        + (f", {dataset.column_share:.2%} filled" if dataset.is_sparse else ""),
        "target": _target(dataset),
        "weights": "yes" if dataset.has_weights else "none",
        "decoded": f"{human_bytes(dataset.decoded_bytes)}, {dataset.row_bytes:,} bytes a row",
        "decoded at once": f"{number_text(dataset.chunk_rows)} rows",
    }
    if dataset.column_names is not None:
        shown["column names"] = listed(dataset.column_names)
    if dataset.id_dtypes:
        shown["columns beside X"] = listed(dataset.id_dtypes)
    if dataset.steps is not None:
        shown["made of the raw columns"] = listed(dataset.steps.raw_names)
    table, remarks = dataset.table_report or {}, []
    if table.get("rows_dropped"):
        remarks.append(
            f"{table['rows_dropped']:,} of {table['rows_read']:,} rows lack a value and are left out"
        )
    if table.get("columns_dropped"):
        remarks.append(f"columns left out: {listed(table['columns_dropped'])}")
    return html_card("Dataset", shown.items(), remarks)


def _target(dataset: Dataset) -> str:
    if not dataset.n_targets:
        return "none"
    names = "y" if dataset.target_names is None else listed(dataset.target_names)
    return f"{names}, {dataset.y_dtype}"


# Rows with columns that no model reads: by some its folds are made, others stand beside its predictions.


@dataclass(frozen=True)
class IdentifiedRows(Rows):
    """The rows of a dataset, and the same rows of each id column: the y of one of `ids`."""

    rows: Rows
    ids: dict[str, Rows]

    def spans(self) -> Iterable[Iterator[Span]]:
        yield from self.rows.spans()
        for name, column in self.ids.items():
            (spans,) = column.spans()
            yield map(partial(_as_id, name), spans)


def _as_id(name: str, span: Span) -> Span:
    return {_ID + name: span["y"]}


_ID = "id: "  # begins the names of id columns among the fields of a span


def values_of(dataset: Dataset) -> Any:
    """X of a table in memory as an array, of a lazy one as a dask array."""
    if dataset.block_rows is not None:
        return dataset.X
    (block,) = dataset.rows(0, dataset.n_rows).tiles(dataset.n_rows)
    return block.X


def with_readers(dataset: Dataset, columns: Mapping[str, Reader], **roles: Any) -> Dataset:
    """The dataset with columns beside X, each as the y of a reader; `roles` are `ids` and `groups`."""
    # The one place of further columns: each has a reader of its own, whatever holds it, and comes with a
    # block beside X, y and weights; see `IdentifiedRows`.
    beside = 0
    for name, reader in columns.items():
        (n_rows, *others), dtype = reader.form("y")
        beside += _OBJECT_BYTES if dtype.kind in "OT" else dtype.itemsize
        if n_rows != dataset.n_rows:
            raise InputError(
                f"{name} has {n_rows} rows but X has {dataset.n_rows}; they must have the same length"
            )
        if others:
            raise InputError(f"{name} has {math.prod(others)} columns; give one, with one value per row")
    readers = {**dataset.id_readers, **columns}
    return replace(dataset, id_readers=readers, row_bytes=dataset.row_bytes + beside, **roles)


# Shapes and types that no model can use, and the types that rows are read as.


def check_shape(shape: tuple[Any, ...], name: str) -> None:
    """Refuse a matrix that is not 2-D or has no rows or columns."""
    # These messages begin like scikit-learn's own, by which its check_estimator knows them.
    if len(shape) == 1:
        raise InputError(
            f"Expected 2D array, got 1D array instead: {name} has shape {shape}. Reshape your data with "
            f"{name}.reshape(-1, 1) if it is one column, or {name}.reshape(1, -1) if it is one row."
        )
    if len(shape) != 2:
        raise InputError(f"Expected 2D array, got {len(shape)}D array instead: {name} has shape {shape}")
    for axis, what in enumerate(("sample(s)", "feature(s)")):
        if shape[axis] == 0:
            raise InputError(
                f"{name}: Found array with 0 {what} (shape={shape}) while a minimum of 1 is required; "
                f"check the path, or what was selected from it"
            )


def check_target_shape(shape: tuple[Any, ...], dtype: np.dtype) -> None:
    """Refuse a y that is complex or neither 1-D nor 2-D with at least one column."""
    if dtype.kind == "c":
        raise InputError("Complex data not supported: y is complex")
    if len(shape) not in (1, 2) or shape[1:] == (0,):
        raise InputError(f"y must have shape (n,) or (n, k), got {shape}")


def check_weight_shape(shape: tuple[Any, ...]) -> None:
    """Refuse weights that are not 1-D."""
    if len(shape) != 1:
        raise InputError(f"sample_weight must be 1-D, one number per row, got shape {shape}")


def check_real(dtype: np.dtype, name: str) -> None:
    """Refuse a dtype that is neither integer, floating nor boolean."""
    if dtype.kind == "c":
        raise InputError(
            f"Complex data not supported: {name} has dtype {dtype}; pass real and imaginary parts as columns"
        )
    if dtype.kind not in "biuf":
        raise InputError(
            f"{name} must hold numbers, got dtype {dtype}; convert its columns to numbers or drop them"
        )


def native(dtype: np.dtype) -> np.dtype:
    """`dtype` in native byte order, long double as float64, variable-length text as objects."""
    # BLAS has no long double, and its bytes differ between processors.
    if dtype.kind == "T":
        return np.dtype(object)
    return np.dtype(np.float64) if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("=")


# Numbers that no model can use, found block by block and reported by array, row and column.


def check_known(dataset: Dataset, target_kind: str) -> None:
    """Raise NonFiniteError for values that are known to be missing before any row is read."""
    # Footers of Parquet count nulls: so a fit of hours is refused before its first task.
    for name in ("X", "sample_weight", *(() if target_kind == "none" else ("y",))):
        for column, n in dataset.known_missing.get(name, {}).items():
            raise NonFiniteError(
                f"{name} contains NaN: column {column!r} of {dataset.source} lacks {n} of "
                f"{dataset.n_rows} values; drop or fill such rows, as open_dataset(..., missing='drop') does"
            )


def check_label_types(dataset: Dataset) -> None:
    """Raise InputError for labels that are known to be of a wrong type before the first pass."""
    # Of labels in memory all are looked at, of stored ones the first, which have one type.
    is_lazy = dataset.block_rows is not None and dataset.block_rows > 0
    if dataset.y_dtype is None or dataset.y_dtype.kind in "biufU":
        return
    if not is_lazy or dataset.y_dtype.kind != "O":
        n = 1 if is_lazy or dataset.block_rows is None else dataset.n_rows
        (rows,) = dataset.reader.rows(0, n, ("y",)).tiles(n)
        check_finite("y", rows.y, 0)
        _check_labels(rows.y, 0)


def check_rows(rows: Rows, target_kind: str) -> None:
    """Raise for a value in some rows that no model can use; see `check_block`."""
    for block in rows.tiles(rows.stop - rows.start):
        check_block(block, target_kind)


def check_block(block: RowBlock, target_kind: str, least_target: float = -np.inf) -> None:
    """Raise for a value that no model can use, naming its array, row and column; of numbers the loss may have
    a least one."""
    check_finite("X", block.X, block.start)
    if block.sample_weight is not None:
        check_weights(block.sample_weight, block.start)
    if block.y is not None and target_kind != "none":
        check_finite("y", block.y, block.start)
        if target_kind == "numeric":
            _check_numbers(block.y, block.start)
            _check_least(block.y, block.start, least_target)
        if target_kind == "multilabel":
            _check_indicators(block.y, block.start)
        if target_kind == "classes":
            _check_labels(block.y, block.start)


def check_weights(sample_weight: np.ndarray, start: int) -> None:
    """Raise for a missing, infinite or negative weight, naming its row; the first one is row `start`."""
    check_finite("sample_weight", sample_weight, start)
    if (sample_weight < 0).any():
        row = int(np.flatnonzero(sample_weight < 0)[0])
        raise InputError(
            f"sample_weight must not be negative, "
            f"got {sample_weight[row]:g} in row {start + row}; drop such rows"
        )


def _check_numbers(y: np.ndarray, start: int) -> None:
    """Refuse targets that are not numbers; text that spells a number is not one."""
    if y.dtype.kind in "biuf":
        return
    for row, values in enumerate(as_columns(y).tolist(), start):
        for value in values:
            # float() would take text that spells a number, and so fit class labels such as "3" as quantities.
            if not isinstance(value, Number):
                raise InputError(
                    f"y must hold numbers for a regressor, got {value!r} in row {row}; "
                    f"use KernelRidgeClassifier for class labels"
                )


def _check_least(y: np.ndarray, start: int, least: float) -> None:
    if least > -np.inf and (below := as_columns(np.asarray(y, dtype=np.float64)) < least).any():
        row, column = np.argwhere(below)[0]
        raise InputError(
            f"y must be {'≥' if least == 0 else '>'} 0 for this loss, got {as_columns(y)[row, column]:g} in "
            f"row {start + row}; drop such rows, or use another loss"
        )


def _check_labels(y: np.ndarray, start: int) -> None:
    """Refuse labels of types that no model and no file of predictions keeps."""
    if y.dtype.kind in "biufU":
        return
    labels = list(y.ravel())  # not tolist(), which makes integers of times
    # By their types, which are few however many the labels are.
    others = tuple(
        kind for kind in set(map(type, labels)) if not (issubclass(kind, str) or is_number_type(kind))
    )
    if not others:
        return
    row = next(i for i, label in enumerate(labels) if isinstance(label, others))
    remedy = "y.astype(str)"
    if isinstance(labels[row], bytes):
        remedy = "[label.decode() for label in y]"
    elif isinstance(labels[row], Decimal):
        remedy = "[float(label) for label in y]"
    raise InputError(
        f"class labels must be numbers, booleans or text, got {labels[row]} of type "
        f"{type(labels[row]).__name__} in row {start + row}; convert them, as by {remedy}"
    )


def _check_indicators(y: np.ndarray, start: int) -> None:
    """Refuse labels other than 0 and 1, or False and True."""
    # Text is refused as a whole: NumPy would compare it to 0 and 1 as text.
    is_other = ~np.isin(y, (0, 1)) if y.dtype.kind in "biufO" else np.ones(y.shape, bool)
    if is_other.any():
        row, column = np.argwhere(is_other)[0].tolist()
        raise InputError(
            f"several columns of y are several labels of a row, 0 or 1 each, got "
            f"{y[row].tolist()[column]!r} in row {start + row}, column {column}; give one column of class "
            f"labels, or KernelRidge for numbers"
        )


def check_finite(name: str, values: Any, start: int) -> None:
    """Raise NonFiniteError for a missing or infinite value, naming its row; the first one is row `start`."""
    # Entries that a sparse row lacks are zeros, and finite.
    if issparse(values):
        bad_entries = np.flatnonzero(~np.isfinite(values.data))
        if len(bad_entries):
            row = int(np.searchsorted(values.indptr, bad_entries[0], "right")) - 1
            check_finite(name, values[row].toarray(), start + row)
        return
    if values.dtype.kind == "O":
        # pandas counts no infinity as missing, and NumPy's test takes no objects.
        infinite = [isinstance(v, float) and math.isinf(v) for v in values.flat]
        bad = pd.isna(values) | np.reshape(infinite, values.shape)
    elif values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum()
        if np.isfinite(total):  # one fast pass; a sum may overflow although no value does
            return
        bad = ~np.isfinite(values)
    else:
        return
    if not bad.any():
        return
    position = np.argwhere(bad)[0]
    value = values[tuple(position)]
    what = "infinity" if isinstance(value, float | np.floating) and np.isinf(value) else "NaN"
    message = f"{name} contains {what} in row {start + position[0]}"
    if name == "X":
        # The names of columns are not known here: whoever has them fills in {column}.
        raise NonFiniteColumnError(f"{message}, {{column}}; drop or fill such rows", int(position[1]))
    where = f", column {position[1]}" if values.ndim == 2 else ""
    raise NonFiniteError(f"{message}{where}; drop or fill such rows")
