"""Reductions over rows, as data: the engine runs anything that implements `Reduction`."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from distrff.engine.record import WorkRecord, begin_task, end_task
from distrff.utils.process import working_for

logger = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 1.0)

Arrays = Mapping[str, np.ndarray]
R = TypeVar("R")


class Rows(Protocol):
    """The rows [start, stop), as a small picklable dataclass from which a reduction reads them."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


class SharedArrays(Protocol):
    """What all tasks of a run need beside the rows; hashable, and equal only if the arrays are equal."""

    def arrays_to_send(self, *, derived: bool) -> dict[str, np.ndarray]:
        """Return the arrays that tasks cannot derive; with `derived` also those that they could."""


class Reduction(ABC):
    """A monoid over runs of rows, as a frozen dataclass; its result does not depend on the worker."""

    def zero(self) -> Any:
        """Return the sum of no rows, a new one for each task."""
        return None

    @abstractmethod
    def update(self, total: Any, rows: Any, arrays: Arrays) -> Any:
        """Return the total with the rows added; `total` may be changed in place.

        `arrays` are those that were sent apart from the task.
        """

    def merge(self, first: Any, second: Any) -> Any:
        """Return the sum of two partials, neither of which is changed; None is the sum of no rows."""
        if first is None or second is None:
            return second if first is None else first
        return first + second

    def finish(self, total: Any) -> Any:
        """Return the partial of a total: the form in which it is kept and sent."""
        return total

    @abstractmethod
    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of a partial of `n_rows` rows."""

    def shared(self) -> SharedArrays | None:
        """Return the arrays that its tasks share with those of other passes; None if there are none."""
        return None

    def light(self) -> Self:
        """Return itself without the arrays that are sent apart."""
        return self


@dataclass(frozen=True)
class Partial:
    """The sum of some rows, with the record of the work behind it."""

    value: Any
    record: WorkRecord


def reduce_rows(reduction: Reduction, rows: Rows, sent: list[Arrays], fit: str, of_pass: str = "") -> Partial:
    """Return the partial of one segment, from the rows and the arrays that were sent.

    `of_pass` names the pass in this process, by which it can be abandoned.
    """
    begin_task(fit)
    started, arrays = time.perf_counter(), joined(sent)
    with working_for(of_pass):
        value = with_retries(lambda: reduction.finish(reduction.update(reduction.zero(), rows, arrays)), rows)
    return Partial(value, end_task(rows.stop - rows.start, time.perf_counter() - started))


def joined(sent: list[Arrays]) -> Arrays:
    """Return all arrays that were sent."""
    return {name: A for part in sent for name, A in part.items()}


def with_retries(work: Callable[[], R], rows: Rows) -> R:
    """Return the result of work on the rows of a segment, begun again after an error of the storage."""
    for wait in _RETRY_SECONDS:
        try:
            return work()
        except OSError as error:
            logger.warning(
                "rows %d to %d could not be read (%s); again in %.1f s", rows.start, rows.stop, error, wait
            )
            time.sleep(wait)
    return work()


def merge_partials(reduction: Reduction, partial: Partial, neighbours: list[Neighbour]) -> Partial:
    """Return the sum of a partial with its neighbours, one after another, each before or after it."""
    started = time.perf_counter()
    merged = merged_here(reduction, partial, neighbours)
    return Partial(merged.value, merged.record.merge(end_task(0, time.perf_counter() - started)))


def merged_here(reduction: Reduction, partial: Partial, neighbours: list[Neighbour]) -> Partial:
    """Return the same sum, without a record of the process that computes it."""
    value, record = partial.value, partial.record
    for neighbour, is_before in neighbours:
        first, second = (neighbour.value, value) if is_before else (value, neighbour.value)
        value, record = reduction.merge(first, second), record.merge(neighbour.record)
    return Partial(value, record)


# The fixed order in which partials are merged: a binary tree over segment numbers.

Neighbour = tuple[Any, bool]


class OrderedMerge:
    """Merges neighbours as soon as both have arrived.

    Node i of level l covers the segments [i·2ˡ, (i+1)·2ˡ). Which partials are added, and in which order,
    depends only on the number of segments, so the total has the same bits in whatever order they arrive. If
    they arrive in order, at most one per level waits; if one is late, those behind it are merged among
    themselves, and at most two per level wait. With several workers that each take neighbours in order, at
    most two per level wait on each worker.

    `merge(partial, neighbours)` is the sum of a partial with its neighbours, one after another; each is a
    pair of its partial and whether it lies before. All merges that one arrival makes possible are one call,
    so that they are one task.
    """

    def __init__(self, n_segments: int, merge: Callable[[Any, list[Neighbour]], Any]) -> None:
        self._level_sizes = [n_segments]
        while self._level_sizes[-1] > 1:
            self._level_sizes.append(-(-self._level_sizes[-1] // 2))
        self._merge = merge
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, index: int, partial: Any, level: int = 0) -> None:
        """Take the partial of a segment, or of a node above, and do all merges that it makes possible."""
        neighbours = []
        while self._level_sizes[level] > 1:
            neighbour = index ^ 1
            if neighbour < self._level_sizes[level]:
                if (level, neighbour) not in self._waiting:
                    break
                neighbours.append((self._waiting.pop((level, neighbour)), neighbour < index))
            level, index = level + 1, index // 2
        self._waiting[level, index] = self._merge(partial, neighbours) if neighbours else partial

    @property
    def n_waiting(self) -> int:
        """The number of partials that wait for their neighbour."""
        return len(self._waiting)

    @property
    def waiting(self) -> Mapping[tuple[int, int], Any]:
        """The partials that wait for their neighbour, by level and index; the total at the end."""
        return dict(self._waiting)

    def replace(self, node: tuple[int, int], partial: Any) -> None:
        """Put an equal partial in the place of one that waits."""
        self._waiting[node] = partial

    def result(self) -> Any:
        """Return the total."""
        root = (len(self._level_sizes) - 1, 0)
        if set(self._waiting) != {root}:
            raise RuntimeError(f"{len(self._waiting)} partials were not merged")
        return self._waiting[root]


def n_levels(n_segments: int) -> int:
    """Return the levels of the tree above its leaves: the most partials that wait if all arrive in order."""
    return (n_segments - 1).bit_length()
