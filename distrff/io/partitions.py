"""Lazy frames whose rows belong together: computed as one graph, in one order for all passes.

Dask optimizes each frame apart. So `frame[["x"]]` and `frame["y"]` of a merged frame are two merges, and the
order of the rows of a merge in threads, or by peer to peer, is another one each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dask
import numpy as np
import pandas as pd
from dask.utils import is_dataframe_like, is_series_like

from distrff.engine.run import ambient_execution
from distrff.errors import DataWarning, InputError, PlanRefused, warn
from distrff.utils.random import new_key
from distrff.utils.text import human_bytes, listed

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
    is_known = {name: hasattr(v, "numblocks") and not np.isnan(v.shape).any() for name, v in lazy.items()}
    arrays = {name: values for name, values in lazy.items() if is_known[name]}
    graphs = {name: run[0].dask for name, run in parts.items()} | {n: A.dask for n, A in arrays.items()}
    present = [name for name, values in given.items() if values is not None]
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
        if len(a) == len(b) and not a.equals(b) and not len(a.symmetric_difference(b, sort=False)):
            warn(
                f"{first} and {name} have the same index labels in other orders; rows are paired by "
                f"position. To pair them by label, give {name}.loc[{first}.index]",
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
            waiting += [k for k in needs[key] if needs[k] and owner.get(k) != i]
    return False


def _bytes(part: Any) -> int:
    return int(np.sum(part.memory_usage(deep=True)))


def _frame(parts: list[Any], like: Any) -> Any:
    """The frame `like`, with partitions that stay in memory."""
    rebuild, args = like.__dask_postpersist__()
    return rebuild({part.key: part.dask[part.key] for part in parts}, *args)


# Partitions with their numbers of rows, which every pass must find as they were counted.


class Counted(NamedTuple):
    """Facts about a partition before the passes."""

    n_rows: int
    dtypes: tuple[tuple[Any, Any], ...]  # of each column, by name
    digest: np.ndarray
    has_gaps: bool
    look: Any


class Partitions(NamedTuple):
    """The partitions of a frame that have rows: Delayed frames, their rows, and all (column, dtype) pairs.

    `has_gaps` says whether a value of a type with nulls is missing; `looks` is what a function found in each.
    """

    parts: list[tuple[Any, int]]
    dtypes: list[tuple[Any, Any]]
    has_gaps: bool
    looks: list[Any]


def counted(frames: Mapping[str, Any], look: Callable[[Any], Any] | None = None) -> dict[str, Partitions]:
    """The partitions of lazy frames, after one pass that counts their rows and takes a `look` at each.

    A task that reads one raises InputError unless it has the rows that were counted.
    """
    # The very partitions that are read: another query of a frame, such as its length, can be optimized to
    # others (two columns of one frame had 6 and 2).
    parts = {name: _in_order(frame).to_delayed() for name, frame in frames.items()}
    (found,) = dask.compute(
        {name: [_task(_counted, part, look) for part in run] for name, run in parts.items()}
    )
    partitions = {}
    for name, frame in frames.items():
        filled = [(part, known) for part, known in zip(parts[name], found[name], strict=True) if known.n_rows]
        checked = [
            (_task(_as_counted, part, known.n_rows, known.digest), known.n_rows) for part, known in filled
        ]
        dtypes = dtypes_of(frame) + tuple(pair for _, known in filled for pair in known.dtypes)
        has_gaps, looks = any(known.has_gaps for _, known in filled), [known.look for _, known in filled]
        partitions[name] = Partitions(checked, list(dict.fromkeys(dtypes)), has_gaps, looks)
    return partitions


def _task(function: Any, *args: Any) -> Any:
    return dask.delayed(function)(*args, dask_key_name=new_key(function))


def _in_order(frame: Any) -> Any:
    """The frame, whose partitions have their columns in the order of its own."""
    from dask.dataframe.utils import make_meta

    columns = list(frame.columns) if is_dataframe_like(frame) else None
    return frame.map_partitions(_by_name, columns, meta=make_meta(frame), enforce_metadata=False)


def _by_name(part: Any, columns: list[Any] | None) -> Any:
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
    columns = [part.iloc[:, j] for j in range(part.shape[1])] if is_dataframe_like(part) else [part]
    has_gaps = any(column.hasnans for column in columns if not isinstance(column.dtype, np.dtype))
    found = None if look is None else look(part)
    return Counted(len(part), dtypes_of(part), _digest(part), has_gaps, found)


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
    # Weights of both signs, so that another order has another sum. It is no hash, since the last bits of a
    # logarithm differ between processors.
    weights = np.sin(np.arange(1.0, len(part) + 1))
    columns = [part.iloc[:, j] for j in range(part.shape[1])] if is_dataframe_like(part) else [part]
    return np.array([_sum(column, weights) for column in columns]).reshape(-1, 2).T


def _sum(column: Any, weights: np.ndarray) -> tuple[float, float]:
    dtype, precision = column.dtype, 1e-10
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        values = column.to_numpy(np.float64)
        precision = 1e-5 if dtype.kind == "f" and dtype.itemsize < 8 else precision
    else:
        values = _hashes(column) * 2.0**-64
    with np.errstate(over="ignore", invalid="ignore"):
        total, square = weights @ values, values @ values
        if not np.isfinite(square):
            values = np.where(np.isfinite(values), values, 0.0)
            total, square = weights @ values, values @ values
    return total, precision * np.sqrt(square)


def _hashes(column: Any) -> np.ndarray:
    try:
        return pd.util.hash_pandas_object(column, index=False).to_numpy()
    except TypeError:  # lists, say
        return pd.util.hash_pandas_object(column.astype(str), index=False).to_numpy()
