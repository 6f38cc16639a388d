"""Rows in arrays and frames, in memory or of dask: tasks carry NumPy rows, or blocks of dask arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.utils import is_dataframe_like, is_series_like
from scipy.sparse import issparse

from distrff.engine.run import ambient_execution
from distrff.errors import DataWarning, InputError, InputTypeError, PlanRefused, warn
from distrff.io.dataset import (
    BLOCK_BYTES,
    Dataset,
    Form,
    Reader,
    Rows,
    Span,
    check_fields,
    check_real,
    check_shape,
    check_target_shape,
    check_weight_shape,
    cuts,
    dataset_of,
    joined,
    native,
    sparse_share,
    with_readers,
)
from distrff.io.storage import one_line
from distrff.preprocessing.coding import plain_values
from distrff.preprocessing.table import FIELDS, RawColumn
from distrff.preprocessing.words import TICKS, word_of
from distrff.utils.random import new_key
from distrff.utils.text import first_repeated, human_bytes, listed

if TYPE_CHECKING:  # dask.array takes .3 s to import, and rows in memory need none of it
    import dask.array as da

logger = logging.getLogger(__name__)

_PERSISTED_SHARE = 0.5  # of the workers' memory; passes need the rest
# In keys of the shuffles without an order, those of threads and of clusters; fused tasks keep the words.
_UNORDERED = ("diskshuffle", "p2pshuffle", "hashjoinp2p")


def paired(given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Sources of rows that are read together, row by row, and the bytes of rows that stay in memory for it.

    Frames whose partitions are made from one another's rows (merged, shuffled, sorted by an index), and
    arrays of such frames, are computed before the passes and stay in memory as long as what is returned; all
    else is returned as it is. Rows are paired by position.

    Raises InputError for rows that cannot be paired, and PlanRefused if the workers lack the memory.
    """
    _warn_of_labels(given)
    lazy = {name: values for name, values in given.items() if dask.is_dask_collection(values)}
    # Without the optimization the columns of one frame keep its tasks under the same keys.
    parts = {name: v.to_delayed(optimize_graph=False) for name, v in lazy.items() if is_frame(v)}
    # An array that was made of a frame may not know its chunks; `check_dask_array` says what to do.
    is_known = {name: hasattr(v, "numblocks") and not np.isnan(v.shape).any() for name, v in lazy.items()}
    arrays = {name: values for name, values in lazy.items() if is_known[name]}
    graphs = {name: run[0].dask for name, run in parts.items()} | {n: A.dask for n, A in arrays.items()}
    present = [name for name, values in given.items() if values is not None]
    # Rows of a shuffle have another order each time that they are computed, in threads and by peer to peer.
    shuffles = {name: _unordered(graphs[name]) if name in graphs else set() for name in present}
    _check_one_order(shuffles, lazy)
    again = {name: run for name, run in parts.items() if _share_tasks(run)}
    arrays = {name: A for name, A in arrays.items() if shuffles[name]}
    if not again and not arrays:
        return dict(given), 0
    # Measured before they are kept: what does not fit could end a worker. Then all in one graph, of which
    # dask computes a merge once.
    (sizes,) = dask.compute([_task(_bytes, part) for run in again.values() for part in run])
    n_bytes = sum(sizes) + sum(A.nbytes for A in arrays.values())
    workers = ambient_execution()
    # Workers without a memory limit leave nothing to compare with.
    room = _PERSISTED_SHARE * workers.n_workers * workers.memory_limit
    if room and n_bytes > room:
        if not any(shuffles.values()):  # a sum of all rows, say: their order is the same each time
            return dict(given), 0
        raise PlanRefused(
            f"the rows of a merged or shuffled dask frame must stay in memory, so that all passes see them "
            f"in one order; they take {human_bytes(n_bytes)}, but {_PERSISTED_SHARE:.0%} of the workers' "
            f"memory is {human_bytes(room)}: write them first, frame.to_parquet(path), and give "
            f"distrff.open_dataset(path)"
        )
    logger.info(
        "%s: rows of several partitions were brought together; %s stay in memory, so that all passes see "
        "them in one order",
        listed([*again, *arrays]),
        human_bytes(n_bytes),
    )
    again, arrays = dask.persist(again, arrays)
    return {**given, **{name: _frame(run, lazy[name]) for name, run in again.items()}, **arrays}, n_bytes


def persisted_text(n_bytes: int) -> str:
    """The words that reports add to the source of rows that stay in memory."""
    return f", of which {human_bytes(n_bytes)} stay in memory" if n_bytes else ""


def has_own_order(frame: Any) -> bool:
    """Whether each partition of a lazy frame is made from its own source alone."""
    return not _share_tasks(frame.to_delayed(optimize_graph=False))


def _warn_of_labels(given: Mapping[str, Any]) -> None:
    indexed = {n: v.index for n, v in given.items() if isinstance(v, pd.DataFrame | pd.Series)}
    first, *others = indexed or [""]
    for name in others:
        a, b = indexed[first], indexed[name]
        if len(a) != len(b) or a.equals(b):
            continue
        # As tuples, since pandas compares a MultiIndex with no other one.
        of_one = a.to_flat_index().symmetric_difference(b.to_flat_index(), sort=False)
        if not len(of_one):
            warn(
                f"{first} and {name} have the same index labels in other orders; rows are paired by "
                f"position. To pair them by label, give {name}.loc[{first}.index]",
                DataWarning,
            )
        # Numbers from 0, as after reset_index, tell nothing.
        elif not any(index.equals(pd.RangeIndex(len(a))) for index in (a, b)):
            _warn_of_other_rows(first, name, f"{of_one[:1].tolist()[0]!r} is a label of one alone")


def _warn_of_other_rows(first: str, name: str, where: str) -> None:
    warn(
        f"{first} and {name} have other index labels ({where}), and may be of other rows; rows are paired by "
        f"position. Take both from one frame or, if they belong together, give {name}.reset_index(drop=True)",
        DataWarning,
    )


def is_frame(values: Any) -> bool:
    """Whether `values` is a DataFrame or Series of pandas or dask."""
    return is_dataframe_like(values) or is_series_like(values)


def _unordered(graph: Any) -> set[str]:
    """Names of the shuffles of a graph that give their rows in another order each time."""
    # Results that stay in memory keep the names of the tasks that made them, and need no others.
    keys = [key for key, needed in graph.get_all_dependencies().items() if needed]
    names = {str(key[0] if isinstance(key, tuple) else key) for key in keys}
    return {name for name in names if any(kind in name for kind in _UNORDERED)}


def _check_one_order(shuffles: Mapping[str, set[str]], lazy: Mapping[str, Any]) -> None:
    """Refuse rows of a shuffle beside others that do not come from the same one."""
    first, *others = shuffles
    for name in others:
        if shuffles[name] != shuffles[first]:
            shuffled, other = (first, name) if shuffles[first] else (name, first)
            where = "was made apart from it" if other in lazy else "is in memory"
            raise InputError(
                f"{shuffled} comes from a merged or shuffled dask frame, whose rows have another order each "
                f"time that they are computed, and {other} {where}, so that nothing says which rows belong "
                f"together; give both as columns of one frame, or call frame = frame.persist() first and "
                f"take both from it"
            )


def _share_tasks(parts: Sequence[Any]) -> bool:
    """Whether partitions have tasks in common, other than reading: such rows came together from several."""
    needs = parts[0].dask.get_all_dependencies()
    owner: dict[Any, int] = {}
    for i, part in enumerate(parts):
        waiting = [part.key]
        while waiting:
            key = waiting.pop()
            if owner.setdefault(key, i) != i:
                return True
            # Tasks that need no others only read, and two partitions may read one file.
            waiting += [k for k in needs[key] if needs[k] and owner.get(k) != i]
    return False


def _bytes(part: Any) -> int:
    return int(np.sum(part.memory_usage(deep=True)))


def _frame(parts: list[Any], like: Any) -> Any:
    """The frame `like`, with partitions that stay in memory."""
    # By dask's own protocol, which keeps the divisions and the metadata of the frame.
    rebuild, args = like.__dask_postpersist__()
    return rebuild({part.key: part.dask[part.key] for part in parts}, *args)


# Partitions with their numbers of rows, which every pass must find as they were counted.


class Counted(NamedTuple):
    """What is known of a partition before the passes."""

    n_rows: int
    dtypes: tuple[tuple[Any, Any], ...]  # of each column, by name
    digest: np.ndarray
    labels: Labels  # of its index
    has_gaps: bool  # whether a value of a type with nulls is missing
    look: Any  # what a function found in it


class Labels(NamedTuple):
    """Sums of the index of a partition as of a column, in its order and in any, and where numbers start."""

    total: float
    bound: float
    in_any_order: float
    start: int | None


Partitions = list[tuple[Any, Counted]]  # Delayed frames with rows


def counted(frames: Mapping[str, Any], look: Callable[[Any], Any] | None = None) -> dict[str, Partitions]:
    """The partitions of lazy frames, after one pass that counts their rows and takes a `look` at each.

    A task that reads one raises InputError unless it has the rows that were counted.
    """
    # The very partitions that are read: another query of a frame, such as its length, can be optimized to
    # others (two columns of one frame had 6 and 2).
    parts = {name: _in_order(frame).to_delayed() for name, frame in frames.items()}
    # All frames in one call: what they have in common is computed once.
    (found,) = dask.compute(
        {name: [_task(_counted, part, look) for part in run] for name, run in parts.items()}
    )
    partitions = {
        name: [
            (_task(_as_counted, part, known.n_rows, known.digest), known)
            for part, known in zip(parts[name], run, strict=True)
            if known.n_rows  # a filter leaves partitions empty, and a run of rows has one at least
        ]
        for name, run in found.items()
    }
    _warn_of_partitions({name: [known for _, known in run] for name, run in partitions.items()})
    return partitions


def _warn_of_partitions(partitions: Mapping[str, Sequence[Counted]]) -> None:
    first, *others = partitions
    for name in others:
        both, row = (partitions[first], partitions[name]), 0
        of_all = [sum(known.labels.in_any_order for known in run) for run in both]
        are_shuffled = abs(of_all[0] - of_all[1]) <= 1e-10 * abs(of_all[0])
        # Partitions that are cut elsewhere have sums of other rows even if the labels are the same.
        for i, (a, b) in enumerate(zip(*both, strict=False)):
            n, mine, its = a.n_rows, a.labels, b.labels
            if n != b.n_rows:
                break
            is_numbered = {mine.start, its.start} & {0, row}
            differ = abs(mine.total - its.total) > mine.bound + its.bound
            if differ and (are_shuffled or not is_numbered):
                _warn_of_other_rows(first, name, f"in partition {i}")
                break
            row += n


def _task(function: Any, *args: Any) -> Any:
    # By a name of its own, under which Dask's dashboard shows the task as one of distrff.
    return dask.delayed(function)(*args, dask_key_name=new_key(function))


def _in_order(frame: Any) -> Any:
    """The frame, whose partitions have their columns in the order of its own."""
    from dask.dataframe.utils import make_meta

    columns = list(frame.columns) if is_dataframe_like(frame) else None
    return frame.map_partitions(_by_name, columns, meta=make_meta(frame), enforce_metadata=False)


def _by_name(part: Any, columns: list[Any] | None) -> Any:
    # Each partition has the order of its own source, and values go by position from here on.
    if columns is None or list(part.columns) == columns:
        return part
    lacking = [name for name in columns if name not in part.columns]
    if lacking or part.columns.has_duplicates:
        raise InputError(
            f"a partition of the dask DataFrame has the columns {listed(list(part.columns))}, but the "
            f"frame {listed(columns)}; give the frame the metadata that its partitions have"
        )
    return part[columns]


def _counted(part: Any, look: Callable[[Any], Any] | None) -> Counted:
    # A gap among NumPy's types is a NaN of floats or an object: only a nullable type has to become another
    # one for it.
    has_gaps = any(column.hasnans for column in _columns(part) if not isinstance(column.dtype, np.dtype))
    found, index = None if look is None else look(part), part.index
    start = index.start if isinstance(index, pd.RangeIndex) and index.step == 1 else None
    labels = Labels(*_sum(index, _weights(part)), _sum(index, np.ones(len(part)))[0], start)
    return Counted(len(part), dtypes_of(part), _digest(part), labels, has_gaps, found)


def dtypes_of(frame: Any) -> tuple[tuple[Any, Any], ...]:
    """The (column, dtype) pairs of a frame or series."""
    return tuple(frame.dtypes.items()) if is_dataframe_like(frame) else ((frame.name, frame.dtype),)


def _as_counted(part: Any, n_rows: int, digest: np.ndarray) -> Any:
    """The partition, if it has the rows that were counted, in their order."""
    if len(part) != n_rows:
        found = f"has {len(part)} rows, but had {n_rows} when it was opened"
    else:
        (sums, bounds), (expected, _) = _digest(part), digest
        if not (np.abs(sums - expected) > bounds).any():
            return part
        found = "has other rows, or another order of its rows, than when it was opened"
    raise InputError(
        f"a partition of the dask DataFrame {found}: its source was changed, it uses random numbers without "
        f"a seed, or a worker was lost that held shuffled rows; write the frame first, "
        f"frame.to_parquet(path), or keep it in memory, frame = frame.persist()"
    )


def _digest(part: Any) -> np.ndarray:
    """For each column a sum of its values, and by how much it may differ from that of the same rows."""
    weights = _weights(part)
    return np.array([_sum(column, weights) for column in _columns(part)]).reshape(-1, 2).T


def _columns(part: Any) -> list[Any]:
    return [part.iloc[:, j] for j in range(part.shape[1])] if is_dataframe_like(part) else [part]


def _weights(part: Any) -> np.ndarray:
    # Of both signs, so that another order has another sum. It is no hash, since the last bits of a logarithm
    # differ between processors.
    return np.sin(np.arange(1.0, len(part) + 1))


def _sum(column: Any, weights: np.ndarray) -> tuple[float, float]:
    dtype, precision = column.dtype, 1e-10
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        values = column.to_numpy(np.float64)
        precision = 1e-5 if dtype.kind == "f" and dtype.itemsize < 8 else precision
    else:
        values = _hashes(column) * 2.0**-64
    with np.errstate(over="ignore", invalid="ignore"):
        total, square = weights @ values, values @ values
        # With a NaN no comparison of sums is true, so that any rows would pass for these.
        if not np.isfinite(square):
            values = np.where(np.isfinite(values), values, 0.0)
            total, square = weights @ values, values @ values
    # Relative to the norm of the values, and not to their sum, which may be near 0.
    return total, precision * np.sqrt(square)


def _hashes(column: Any) -> np.ndarray:
    try:
        return pd.util.hash_pandas_object(column, index=False).to_numpy()
    except TypeError:  # lists, say
        return pd.util.hash_pandas_object(column.astype(str), index=False).to_numpy()


# Datasets of arrays.


_INDEX_BYTES = 4
_PRESUMED_SHARE = 0.01  # filled columns of lazy sparse rows, whose entries cannot be counted beforehand


@dataclass(frozen=True)
class ArrayRows(Rows):
    """Rows as lists of consecutive blocks: arrays, or Delayed blocks that are arrays in the task.

    Blocks cover exactly [start, stop); those of y and weights may be cut elsewhere than those of X.
    """

    blocks: dict[str, list[Any]]
    dtypes: dict[str, np.dtype]
    is_sparse: bool = False

    def spans(self) -> Iterable[Iterator[Span]]:
        return map(self._spans, self.blocks)

    def _spans(self, field: str) -> Iterator[Span]:
        blocks = [self._plain(block, field) for block in self.blocks[field]]
        # dask believes what an array declares: one row too few would move all later ones against y.
        if (n := sum(block.shape[0] for block in blocks)) != self.stop - self.start:
            raise InputError(
                f"the blocks of {field} for rows {self.start} to {self.stop - 1} hold {n} rows; "
                "the function of a block returned another number of rows than its dask array declares"
            )
        return ({field: block.astype(self.dtypes[field], copy=False)} for block in blocks)

    def _plain(self, block: Any, field: str) -> Any:
        if field != "X" or (not issparse(block) and not self.is_sparse):
            return plain_array(block, field)
        if issparse(block) and self.is_sparse:
            return sparse_rows(block, field)
        declared, found = ("sparse", "dense") if self.is_sparse else ("dense", "sparse")
        raise InputTypeError(
            f"X is a dask array that declares {declared} blocks but has {found} ones; build it with a meta "
            f"of the same kind, for sparse blocks meta=scipy.sparse.csr_matrix((0, 0))"
        )


class ArrayReader(Reader):
    """Reads rows of arrays, which are all NumPy or all dask arrays."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.fields = self._arrays = arrays
        self._dtypes = {field: values.dtype for field, values in arrays.items()}
        # X and y of one frame or array: what they have in common must be computed once.
        layers = [set(a.dask.layers) for a in arrays.values() if is_dask_array(a)]
        self._have_common_layers = len(set().union(*layers)) < sum(map(len, layers))

    def form(self, field: str) -> Form:
        return Form(self._arrays[field].shape, self._dtypes[field])

    def row_chunks(self, field: str) -> Sequence[int]:
        values, X = self._arrays[field], self._arrays["X"]
        if is_dask_array(values):
            return values.chunks[0]
        return [stop - start for start, stop in cuts(0, X.shape[0], block_rows(X))]

    def rows(self, start: int, stop: int, fields: tuple[str, ...] = FIELDS) -> ArrayRows:
        blocks = {f: self._blocks(self._arrays[f][start:stop]) for f in fields if f in self._arrays}
        return ArrayRows(start, stop, blocks, self._dtypes, _is_sparse(self._arrays["X"]))

    def _blocks(self, part: Any) -> list[Any]:
        if not is_dask_array(part):
            return [part]
        # An optimized graph reads and slices a block in one task. But arrays are optimized one by one, so
        # that layers common to X and y would be computed for each.
        return part.to_delayed(optimize_graph=not self._have_common_layers).ravel().tolist()

    def lazy(self, field: str) -> da.Array:
        values = self._arrays[field]
        if is_dask_array(values):
            return values
        return in_chunks(values, (tuple(self.row_chunks(field)), *values.shape[1:]))


def as_dataset(X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Dataset:
    """The user's data as a `Dataset`.

    Costs nothing, except for dask DataFrames: their partitions are computed once to count their rows. Those
    of merged or shuffled ones stay in memory as long as the dataset; see `paired`.
    If one of the three is a dask collection, the others become dask arrays with the same row chunks.

    Parameters
    ----------
    X : array-like, DataFrame, scipy sparse matrix, dask Array, dask DataFrame or Dataset, (n, d)
        Frames of pandas, polars or pyarrow. A dask array of CSR chunks must have a CSR meta. A Dataset is
        returned as it is; `y`, `sample_weight` and `groups` must then be None.
    y : array-like, Series, DataFrame or their dask kinds, of shape (n,) or (n, k), optional
        Of any type.
    sample_weight : the same, of shape (n,), optional
        Real numbers.
    groups : the same, of shape (n,), optional
        Of any type: which group each row belongs to. It becomes the column "groups" beside X.

    Raises
    ------
    InputError
        If shapes, lengths or types do not fit, or the chunk sizes of a dask array are unknown.
    """
    if isinstance(X, Dataset):
        if not (y is None and sample_weight is None and groups is None):
            raise InputError(
                "a Dataset carries its own y, sample_weight and groups; name them in open_dataset instead"
            )
        return X
    if isinstance(X, str | PathLike):
        raise InputTypeError(f"X is a path, {X!r}; open it with distrff.open_dataset")
    fields = {"X": X, "y": y, "sample_weight": sample_weight, "groups": groups}
    # X stays even as None, which is refused further on, with what to pass.
    given = {name: as_frame(values) for name, values in fields.items() if name == "X" or values is not None}
    given, persisted_bytes = paired(given)
    groups = given.pop("groups", None)
    return with_groups(arrays_dataset(given, persisted_bytes), groups)


def with_groups(dataset: Dataset, groups: Any) -> Dataset:
    """The dataset with the column "groups" beside X, given as `paired` has it; as it is without."""
    return dataset if groups is None else with_columns(dataset, {"groups": groups}, groups="groups")


def with_columns(dataset: Dataset, columns: Mapping[str, Any], **roles: Any) -> Dataset:
    """The dataset with columns beside X, each an array-like, a Series or a dask collection of any type.

    `roles` are `ids` and `groups` of the dataset. Raises InputError for one that is no column, or of another
    length.
    """
    # Each is read as targets are, beside an X of no bytes.
    placeholder = np.broadcast_to(np.float32(0), (dataset.n_rows, 1))
    readers = {}
    if dataset.block_rows == 0:  # rows in memory, which this process reads as well
        (columns,) = dask.compute(dict(columns))
    for name, values in columns.items():
        given = {"y": as_frame(values)}
        try:
            if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
                raise InputError(
                    f"got {values!r}, and a value of each row is needed; give the column itself, and an X "
                    f"without it, or its name to open_dataset(..., groups=...)"
                )
            arrays, _ = _lazy_arrays(given) if dask.is_dask_collection(values) else _arrays(given)
        except InputError as error:
            raise InputError(f"{name} cannot be used, which is read as y is: {error}") from error
        readers[name] = ArrayReader({"X": placeholder, "y": only_column(arrays["y"])})
    return with_readers(dataset, readers, **roles)


def only_column(values: Any) -> Any:
    """The column of a matrix of one, as df[["site"]] is; other arrays as they are."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def arrays_dataset(given: dict[str, Any], persisted_bytes: int = 0) -> Dataset:
    """The dataset of X, y and sample_weight as `paired` has them."""
    are_lazy = any(map(dask.is_dask_collection, given.values()))
    arrays, names = _lazy_arrays(given) if are_lazy else _arrays(given)
    A = arrays["X"]
    return dataset_of(
        ArrayReader(arrays),
        _kind(given["X"]) + persisted_text(persisted_bytes),
        names,
        row_bytes=sum(map(_row_bytes, arrays.values())),
        chunk_rows=max(A.chunks[0]) if is_dask_array(A) else block_rows(A),
        block_rows=max(A.chunks[0]) if is_dask_array(A) else 0,
        persisted_bytes=persisted_bytes,
        column_share=_column_share(A),
    )


Named = tuple[dict[str, Any], dict[str, tuple[str, ...] | None]]


def _arrays(given: dict[str, Any]) -> Named:
    arrays: dict[str, Any] = {}
    names = {}
    if "X" in given:
        arrays["X"], names["X"] = block_of(given["X"])
    if "y" in given:
        arrays["y"], names["y"] = targets_of(given["y"])
    if "sample_weight" in given:
        arrays["sample_weight"] = weights_of(given["sample_weight"])
    return arrays, names


def _lazy_arrays(given: dict[str, Any]) -> Named:
    frames = {f: v for f, v in given.items() if dask.is_dask_collection(v) and is_frame(v)}
    concrete, names = _arrays({f: v for f, v in given.items() if not dask.is_dask_collection(v)})
    arrays, frame_names = frame_arrays(frames) if frames else ({}, {})
    arrays |= {f: v for f, v in given.items() if f not in frames and f not in concrete}
    for field, values in arrays.items():
        check_dask_array(values, field)
        # Whether all objects are numbers would be seen in the tasks only, perhaps hours later.
        if field != "y" and values.dtype.kind == "O":
            raise InputError(
                f"{field} is a dask array of dtype object; convert it with {field}.astype(float)"
            )
    check_fields({field: (concrete | arrays)[field] for field in given})
    # What is in memory is cut like the first lazy field, so that blocks of X and y meet in one task.
    row_chunks = next(iter(arrays.values())).chunks[0]
    for field, values in concrete.items():
        arrays[field] = in_chunks(values, (row_chunks, *values.shape[1:]))
    return {f: whole_rows(a, f) for f, a in arrays.items()}, names | frame_names


def is_dask_array(values: Any) -> bool:
    if not dask.is_dask_collection(values):
        return False
    import dask.array as da

    return isinstance(values, da.Array)


def in_chunks(values: Any, chunks: tuple[Any, ...]) -> da.Array:
    """A NumPy array or scipy sparse matrix as a dask array."""
    import dask.array as da

    # A name of its own: hashing the data for a name would be a pass over it.
    return da.from_array(values, chunks=chunks, name=new_key("rows"), asarray=not issparse(values))


def check_dask_array(values: Any, name: str) -> None:
    """Refuse other dask collections, and arrays with an unknown number of rows."""
    if not is_dask_array(values):
        raise InputTypeError(
            f"{name} is a dask {type(values).__name__}; pass a dask Array, DataFrame or Series"
        )
    if np.isnan(values.shape).any():
        raise InputError(
            f"{name} is a dask array with unknown chunk sizes; call {name}.compute_chunk_sizes() first"
        )


def whole_rows(values: da.Array, field: str) -> da.Array:
    """The array in one block across the columns, in the dtype of tiles."""
    if values.ndim == 2 and values.numblocks[1] > 1:
        values = values.rechunk({1: -1})
    if field == "sample_weight":
        return values.astype(np.float64)
    # Text blocks can have different widths, and the dtype of one would truncate another.
    return values.astype(native(values.dtype) if values.dtype.kind in "biufmM" else object)


def _row_bytes(values: Any) -> int:
    dense = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    if not _is_sparse(values):
        return dense
    # Each entry has an index beside its value, and each row an index of its first entry.
    with_index = dense * (1 + _INDEX_BYTES / values.dtype.itemsize)
    return int(np.ceil(_column_share(values) * with_index)) + _INDEX_BYTES


def _column_share(values: Any) -> float:
    """The share of columns in which a row has entries: 1 for dense rows, below 1 for sparse ones."""
    if not _is_sparse(values):
        return 1.0
    n_rows, n_columns = values.shape
    entries = _PRESUMED_SHARE * n_columns if is_dask_array(values) else values.nnz / n_rows
    return sparse_share(entries, n_columns)


def _is_sparse(values: Any) -> bool:
    return issparse(getattr(values, "_meta", values))


def block_rows(X: np.ndarray) -> int:
    return max(1, min(X.shape[0], BLOCK_BYTES // (X.dtype.itemsize * X.shape[1])))


def _kind(X: Any) -> str:
    if dask.is_dask_collection(X):
        return "dask DataFrame" if is_dataframe_like(X) else "dask array"
    return "pandas DataFrame" if is_dataframe_like(X) else "NumPy array"


# Data in memory (NumPy, lists, pandas, Arrow) as plain arrays.


def is_table(data: Any) -> bool:
    """Whether data are a DataFrame, or an xarray Dataset."""
    return is_dataframe_like(data) or (hasattr(data, "data_vars") and hasattr(data, "sizes"))


def as_frame(values: Any) -> Any:
    """A table of Arrow's, as polars and pyarrow have them, as a pandas DataFrame; all else as it is."""
    # By its name, so that polars need not be installed.
    if type(values).__name__ == "LazyFrame":
        raise InputTypeError("a LazyFrame has no rows yet; pass its collect()")
    # A single column (a Series of polars, a ChunkedArray) is a stream as well, but has no columns.
    is_table = hasattr(values, "__arrow_c_stream__") and hasattr(values, "columns")
    if not is_table or is_frame(values):
        return values
    # Columns keep their Arrow types, without a copy: integers with nulls stay integers, text stays text.
    # polars' own conversion gives types that all of pyarrow can cut and join, which its stream does not.
    try:
        table = values.to_arrow() if hasattr(values, "to_arrow") else pa.table(values)
    except pa.ArrowException as error:  # such as polars' integers of 128 bits
        raise InputTypeError(f"the table has a column that Arrow cannot hold ({error}); cast it") from error
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def holds_more_than_numbers(frame: Any) -> bool:
    """Whether a DataFrame has columns other than numbers and booleans, by their types."""
    return not all(_is_number(dtype) for dtype in frame.dtypes)  # complex ones are refused as numbers


def block_of(X: Any, name: str = "X") -> tuple[Any, tuple[str, ...] | None]:
    """`X` as a 2-D array of real numbers, or CSR, and its column names if all are strings.

    Data are copied only if necessary. Anything else, and a matrix without rows or columns, is refused.
    """
    if issparse(X):
        check_shape(X.shape, name)
        return sparse_rows(X, name), None
    if isinstance(X, pd.DataFrame):
        check_shape(X.shape, name)
        return frame_matrix(X, frame_dtype(X.dtypes.items(), name)), feature_names(X.columns)
    values = plain_array(X, name)
    check_shape(values.shape, name)
    return real_numbers(values, name), None


def sparse_rows(X: Any, name: str) -> Any:
    """A scipy sparse matrix of real numbers as CSR, in native byte order."""
    check_real(X.dtype, name)
    return X.tocsr().astype(native(X.dtype), copy=False)


def targets_of(y: Any) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """`y` as an array of shape (n,) or (n, k) of any type, and the target names."""
    if isinstance(y, pd.Series):
        values, names = series_values(y), names_of([y.name])
    elif isinstance(y, pd.DataFrame):
        # Column by column: nullable integers have no other type than that of floats in common with gaps.
        columns = [series_values(y.iloc[:, j]) for j in range(y.shape[1])]
        values, names = np.column_stack(columns) if columns else y.to_numpy(), names_of(y.columns)
    else:
        values, names = plain_array(y, "y"), None
    check_target_shape(values.shape, values.dtype)
    # Objects that are all booleans, or all numbers, get a type of these: a frame has no other one for labels.
    return plain_values(in_native(values)), names


def weights_of(sample_weight: Any) -> np.ndarray:
    """`sample_weight` as a float64 array of shape (n,), without checking its values."""
    if isinstance(sample_weight, pd.Series):
        sample_weight = series_values(sample_weight)
    values = plain_array(sample_weight, "sample_weight")
    try:
        values = real_numbers(values, "sample_weight")
    except InputError as error:  # as the third of fit's arguments without a name
        raise type(error)(f"{error}; groups of rows are given by name: groups=...") from error
    check_weight_shape(values.shape)
    return np.asarray(values, dtype=np.float64)


def plain_array(values: Any, name: str) -> np.ndarray:
    """Array-like `values` as a base-class ndarray of any type."""
    # NumPy would make a single object of SciPy's; those of other packages have `todense` as well.
    if issparse(values) or hasattr(values, "todense"):
        raise InputTypeError(
            f"{name} is a sparse {type(values).__name__}, but only X may be sparse, as a scipy matrix; "
            f"pass {name}.toarray() if it fits in memory"
        )
    # np.asarray would take what lies behind the mask as values.
    if isinstance(values, np.ma.MaskedArray):
        raise InputTypeError(
            f"masked arrays are not supported: pass {name}.filled(np.nan), or drop the masked rows"
        )
    if isinstance(values, np.matrix):
        raise InputTypeError(f"{name} is an np.matrix, which scikit-learn refuses; pass np.asarray({name})")
    if values is None:
        raise InputTypeError(f"{name} is None; pass an array or a DataFrame")
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} cannot be converted to an array: {' '.join(str(error).split())}") from error


def real_numbers(values: np.ndarray, name: str) -> np.ndarray:
    """`values` as real numbers: objects converted, long doubles to float64."""
    if values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except TypeError as error:
            raise InputTypeError(f"{name} holds objects that are not numbers: {error}") from error
        except ValueError as error:
            raise InputError(f"{name} holds objects that are not numbers: {error}") from error
    check_real(values.dtype, name)
    return in_native(values)


def in_native(values: np.ndarray) -> np.ndarray:
    return values.astype(native(values.dtype), copy=False)


def names_of(columns: Iterable[Any]) -> tuple[str, ...] | None:
    """Column names if every one is a string."""
    names = tuple(columns)
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


def feature_names(columns: Iterable[Any]) -> tuple[str, ...] | None:
    """The names of the columns of X, as `names_of`; refuse names by which predictions could not find them."""
    names = tuple(columns)
    if (twice := first_repeated(names)) is not None:
        raise InputError(f"the DataFrame has two columns named {twice!r}; rename one")
    others = [name for name in names if not isinstance(name, str)]  # beside strings scikit-learn refuses them
    if others and len(others) < len(names):
        raise InputTypeError(
            f"the names of the columns must all be strings, or none, got {others[0]!r} of type "
            f"{type(others[0]).__name__} beside strings; convert them, X.columns = X.columns.astype(str)"
        )
    return names_of(names)


# Columns of pandas as NumPy arrays.


def frame_dtype(dtypes: Iterable[tuple[Any, Any]], name: str = "X") -> np.dtype:
    """The common NumPy type of the numeric columns of a frame, from its (column, dtype) pairs."""
    # Of dtypes alone, so that a lazy frame is refused before it is computed.
    found = []
    for column, dtype in dtypes:
        if dtype.kind == "c":
            raise InputError(f"Complex data not supported: column {column!r} of {name} has dtype {dtype}")
        if not _is_number(dtype):
            raise InputError(
                f"column {column!r} of {name} has dtype {dtype}, which is not a number; convert it to "
                f"numbers or drop it, or encode it with distrff.open_dataset(frame, one_hot=True)"
            )
        found.append(_numpy_dtype(dtype))  # of nullable types floats, even if there are no nulls yet
    return native(np.result_type(*found))


def frame_matrix(frame: pd.DataFrame, dtype: np.dtype) -> np.ndarray:
    """The values of a frame of numeric columns as one array; nulls become NaN."""
    # Given a value for nulls, pandas copies integers even where nothing is missing.
    if all(isinstance(d, np.dtype) for d in frame.dtypes):
        return frame.to_numpy(dtype=dtype)
    return frame.to_numpy(dtype=dtype, na_value=np.nan)


def series_values(series: pd.Series) -> np.ndarray:
    """A column of any type; nullable numbers become floats, other extension types objects."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        # A missing value has code -1, which is no label of the index, so that it becomes NaN.
        return series_values(
            dtype.categories.to_series(range(len(dtype.categories))).reindex(series.cat.codes)
        )
    if isinstance(dtype, np.dtype):
        return series.to_numpy()
    if not _is_number(dtype):
        return series.to_numpy(dtype=object)
    if series.hasnans:
        return series.to_numpy(dtype=_numpy_dtype(dtype), na_value=np.nan)
    # Without gaps integers stay integers: labels beyond 2⁵³ keep all digits.
    return series.to_numpy(dtype=getattr(dtype, "numpy_dtype", None))


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" and not isinstance(dtype, pd.CategoricalDtype)


def _numpy_dtype(dtype: Any) -> np.dtype:
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(dtype, pd.SparseDtype):
        return np.dtype(dtype.subtype)
    # float32 holds integers of 16 bits; longer ones make float64 of it.
    return np.result_type(dtype.numpy_dtype, np.float32)


# dask DataFrames and Series as dask arrays with known chunks.

OBJECT = np.dtype(object)


def frame_arrays(frames: dict[str, Any]) -> Named:
    """The frames, keyed X, y or sample_weight, as dask arrays, and their column names."""
    # One pass counts the rows of all partitions of all frames: each frame alone would be a pass more.
    names = {f: names_of(v.columns if is_dataframe_like(v) else [v.name]) for f, v in frames.items()}
    for field, frame in frames.items():  # what is refused is so before the pass
        _dtype(dtypes_of(frame), field)
        if field == "X" and is_dataframe_like(frame):
            feature_names(frame.columns)
    arrays, values = {}, dask.delayed(_values)
    for field, found in counted(frames).items():
        # A partition may hold other types than its frame declares, such as floats for integers.
        every = (dtypes_of(frames[field]), *(known.dtypes for _, known in found))
        dtypes = list(dict.fromkeys(pair for pairs in every for pair in pairs))
        if field == "y" and not any(known.has_gaps for _, known in found):
            # Labels keep their type, and their digits beyond 2⁵³.
            dtypes = [(name, getattr(dtype, "numpy_dtype", dtype)) for name, dtype in dtypes]
        dtype, columns = _dtype(dtypes, field), frames[field].shape[1:]
        row_chunks = [known.n_rows for _, known in found]
        check_shape((sum(row_chunks), *(columns or (1,))), field)
        meta = np.empty((0,) * (1 + len(columns)), dtype)
        blocks = [values(part, dtype, dask_key_name=new_key("read")) for part, _ in found]
        arrays[field] = joined(blocks, row_chunks, columns, meta)
    return arrays, names


def _dtype(pairs: Sequence[tuple[Any, Any]], field: str) -> np.dtype:
    """The dtype of the array of columns, from their (column, dtype) pairs in all partitions."""
    if field != "y":
        return frame_dtype(pairs, field)
    if pairs and all(_is_number(dtype) for _, dtype in pairs):
        return frame_dtype(pairs, field)
    dtypes = {dtype for _, dtype in pairs}
    times = dtypes.pop() if len(dtypes) == 1 else OBJECT  # their type says that they are times
    return times if isinstance(times, np.dtype) and times.kind == "M" else OBJECT


def _values(part: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(part, pd.Series):
        return series_values(part).astype(dtype, copy=False)
    return part.to_numpy(dtype=object) if dtype == OBJECT else frame_matrix(part, dtype)


# Arrow columns as NumPy values: numbers, codes of words, or ticks of time, and a mask of the nulls.

_DAY = 86_400


def raw_columns(batch: pa.RecordBatch, names: Iterable[str]) -> dict[str, RawColumn]:
    """Columns of a batch by their names; raise InputError for one that is missing."""
    columns = {}
    for name in names:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise InputError(f"there is no column {name!r} among {listed(batch.schema.names)}")
        columns[name] = raw_column(batch.column(position), name)
    return columns


def raw_kind(column_type: pa.DataType) -> str | None:
    """The kind of `RawColumn` of values of an Arrow type; None if there is none."""
    t = pa.types
    if isinstance(column_type, pa.BaseExtensionType):
        return raw_kind(column_type.storage_type)
    if t.is_fixed_size_list(column_type) or is_number_list(column_type):
        return "number" if is_number(column_type.value_type) else None
    if t.is_null(column_type):
        return "null"
    if t.is_timestamp(column_type) or t.is_date(column_type):
        return "time"
    if t.is_time(column_type) or t.is_duration(column_type):
        return "clock"
    if is_number(column_type):
        return "number"
    # Categories are no quantities, also where numbers name them.
    if t.is_dictionary(column_type):
        return None if raw_kind(column_type.value_type) is None else "text"
    return "text" if _is_text(column_type) else None


def raw_column(column: pa.Array, name: str) -> RawColumn:
    """The values of a column; raise InputError for a type that no step encodes."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = raw_kind(column.type)
    if kind is None:
        raise InputError(
            f"column {name!r} has the type {column.type}, which cannot be encoded; convert it to numbers, "
            f"text or times (lists of text to one text a row, or to a column for each word), or leave it out"
        )
    if kind == "null":  # no value, so no type: what another batch holds is that of the column
        return RawColumn("null", np.zeros(len(column)))
    if kind == "text":
        return _text(column)
    if kind == "time":
        return _times(column)
    return _lists(column) if pa.types.is_fixed_size_list(column.type) else _numbers(column)


def is_number(t: pa.DataType) -> bool:
    """Whether values of an Arrow type are real numbers or booleans."""
    return (
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t) or pa.types.is_decimal(t)
    )


def is_feature(t: pa.DataType) -> bool:
    """Whether a column is numeric or boolean, or a list of a fixed number of such values."""
    return is_number(t.value_type if pa.types.is_fixed_size_list(t) else t)


@cache  # for tables of ten thousand columns
def numpy_type(t: pa.DataType, nulls: bool) -> np.dtype:
    """The NumPy type of a column's values, or of their entries: objects for all but numbers and times."""
    # Integers and booleans with nulls count as floats that hold them, so that the type is known before a row
    # is read. A time with a zone is a point in time, in UTC: NumPy has no zones.
    t = t.value_type if pa.types.is_dictionary(t) or pa.types.is_fixed_size_list(t) else t
    if not (is_number(t) or pa.types.is_temporal(t)):
        return OBJECT
    # Of decimals Arrow makes objects, which no product takes.
    empty = pa.array([], pa.float64() if pa.types.is_decimal(t) else t)
    dtype: np.dtype = empty.to_numpy(zero_copy_only=False).dtype
    return np.result_type(dtype, np.float32) if nulls and dtype.kind in "iub" else dtype


def is_number_list(t: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists of numbers, each with a length of its own."""
    return (pa.types.is_list(t) or pa.types.is_large_list(t)) and is_number(t.value_type)


def _is_text(t: pa.DataType) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


# One type for the values of several files.


def common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type that holds the values of all types, in whatever order; None if there is none."""
    # Not by pyarrow.unify_schemas: even when permissive it has no type for booleans beside integers, text
    # beside categories, dates beside times or times of two zones, and makes int64 of uint64. Whether each
    # value fits is seen when it is cast, see `in_type`.
    t = pa.types
    # Sorted, so that the order of the files decides nothing.
    found = sorted({one for one in types if not t.is_null(one)}, key=str)
    if len(found) < 2:
        return found[0] if found else pa.null()
    if any(map(t.is_dictionary, found)):
        # Categories of text are plain text, which is coded anew; those of numbers must not become numbers.
        values = common_type(one.value_type if t.is_dictionary(one) else one for one in found)
        return values if values is None or _is_text(values) else pa.dictionary(pa.int32(), values)
    if all(map(is_number, found)):  # as NumPy joins columns of X
        if any(map(t.is_decimal, found)):
            return pa.float64()
        return pa.from_numpy_dtype(np.result_type(*(one.to_pandas_dtype() for one in found)))
    if all(map(_is_text, found)):
        return pa.large_string()
    if all(t.is_timestamp(one) or t.is_date(one) for one in found):
        zones = {None if t.is_date(one) else one.tz for one in found}
        if None in zones and len(zones) > 1:
            return None  # a time without a zone is no point in time
        # Times of several zones are points in time all the same, and go on in UTC.
        units = ["s" if t.is_date(one) else one.unit for one in found]
        return pa.timestamp(max(units, key=TICKS.__getitem__), zones.pop() if len(zones) == 1 else "UTC")
    for is_kind, of_unit in ((t.is_duration, pa.duration), (t.is_time, _time_of_day)):
        if all(map(is_kind, found)):
            return of_unit(max((one.unit for one in found), key=TICKS.__getitem__))
    if all(t.is_fixed_size_list(one) or is_number_list(one) for one in found):
        sizes = {one.list_size for one in found if t.is_fixed_size_list(one)}
        values = common_type(one.value_type for one in found)
        if values is not None and len(sizes) < 2:
            return pa.list_(values, sizes.pop()) if sizes else pa.list_(values)
    return None


def _time_of_day(unit: str) -> pa.DataType:
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def in_type(column: pa.Array, to: pa.DataType, source: str, first_row: int) -> pa.Array:
    """A column in a type that `common_type` found; raise InputError for a value that it cannot hold."""
    if column.null_count == len(column) or pa.types.is_null(to):  # a null type is that of empty lists
        return pa.nulls(len(column), to)
    # Arrow's cast would refuse another length without the row.
    if pa.types.is_fixed_size_list(to) and is_number_list(column.type):
        _check_lengths(column, to.list_size, source, first_row)
    if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(to):
        column = column.dictionary_decode()
    try:
        if pa.types.is_dictionary(to):
            return column.cast(to.value_type).dictionary_encode()
        return column.cast(to)
    except pa.ArrowException as error:
        last = first_row + len(column) - 1
        raise InputError(
            f"{source} of type {column.type} has a value in rows {first_row} to {last} that {to}, the type "
            f"for all files, cannot hold ({one_line(error)}); write the files with one schema"
        ) from error


def of_one_length(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Lists of numbers as lists of the size of the first; other columns as they are."""
    # A matrix has one width, which the first list decides.
    if not is_number_list(column.type):
        return column
    width = list_width(column)
    to = pa.list_(column.type.value_type, width) if width else pa.null()
    return in_type(column, to, f"column {name!r}", first_row)


def list_width(column: pa.Array) -> int:
    """The length of the first list that is not empty; 0 if there is none."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return int(next(iter(lengths[lengths > 0]), 0))


def _check_lengths(column: pa.Array, width: int, source: str, first_row: int) -> None:
    # A missing list is a row of missing values, of any length.
    lengths = pc.fill_null(pc.list_value_length(column), width).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(lengths != width)
    if len(others):
        row = others[0]
        raise InputError(
            f"{source} holds a list of {lengths[row]} numbers in row {first_row + row}, but one of {width} "
            f"before it; give every list the same length, or leave the column out"
        )


def _nulls(column: pa.Array) -> np.ndarray | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _numbers(column: pa.Array) -> RawColumn:
    t, nulls = column.type, _nulls(column)
    if pa.types.is_time(t) or pa.types.is_duration(t):
        ticks = _integers(column.view(pa.int32() if t.bit_width == 32 else pa.int64()))
        return RawColumn("clock", ticks / TICKS[t.unit], nulls)
    if pa.types.is_decimal(t):
        column = column.cast(pa.string()).cast(pa.float64())  # Arrow's own cast misses the nearest float
    elif pa.types.is_float16(t) and nulls is not None:
        column = column.cast(pa.float32())
    if nulls is not None:
        column = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    return RawColumn("number", column.to_numpy(zero_copy_only=False), nulls)


def _lists(column: pa.FixedSizeListArray) -> RawColumn:
    k = column.type.list_size
    if column.null_count:  # a null list has no elements in `flatten`
        entries = [_numbers(pc.list_element(column, j)) for j in range(k)]
        nulls = [np.zeros(len(column), bool) if e.nulls is None else e.nulls for e in entries]
        return RawColumn("number", np.stack([e.values for e in entries], 1), np.stack(nulls, 1))
    flat = _numbers(column.flatten())
    mask = None if flat.nulls is None else flat.nulls.reshape(-1, k)
    return RawColumn("number", flat.values.reshape(-1, k), mask)


def _integers(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _times(column: pa.Array) -> RawColumn:
    t, nulls = column.type, _nulls(column)
    if pa.types.is_date32(t):
        return RawColumn("time", _integers(column.view(pa.int32())) * _DAY, nulls, zoned=False)
    unit, zone = ("ms", None) if pa.types.is_date64(t) else (t.unit, t.tz)
    ticks = _integers(column.view(pa.int64()))
    return RawColumn("time", ticks, nulls, ticks=TICKS[unit], zoned=zone is not None)


def _text(column: pa.Array) -> RawColumn:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = pc.fill_null(column.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    words = column.dictionary.to_pylist()
    if None in words:  # a dictionary may hold a null as well
        absent = np.asarray([word is None for word in words] + [False])  # False: for code -1
        codes = np.where(absent[codes], -1, codes)
    nulls = codes < 0
    texts, dtype = _words_of(column.dictionary, words)
    return RawColumn("text", codes.astype(np.int32), nulls if nulls.any() else None, texts, dtype=dtype)


def _words_of(values: pa.Array, items: list[Any]) -> tuple[tuple[str, ...], str]:
    """The word of each value of a dictionary, also given as `items`, and the dtype of numbers."""
    if _is_text(values.type):
        return tuple(item or "" for item in items), ""
    kind = raw_kind(values.type)
    if kind in ("number", "time") and not pa.types.is_decimal(values.type):
        column = raw_column(values, "")
        # By the rule for plain columns that are declared as text, so that a model of either takes both.
        of_values = column.of_kind("text", "")
        words = tuple("" if code < 0 else of_values.words[code] for code in of_values.values.tolist())
        return words, str(column.values.dtype) if kind == "number" else ""
    words = tuple("" if item is None else word_of(item) for item in items)
    return words, "float64" if kind == "number" else ""
