"""What stays on the workers between the passes of a fit: the rows of segments, or what was made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from distrff.engine.record import begin_task
from distrff.engine.reduction import Arrays, Rows, SharedArrays, joined, with_retries
from distrff.utils.process import working_for


class Keeping(ABC):
    """What is kept of a segment, as a frozen dataclass; the same bits on every worker."""

    @abstractmethod
    def keep(self, rows: Any, arrays: Arrays) -> Rows:
        """Return the rows in memory, with all that reductions take from them."""

    @abstractmethod
    def shared(self) -> SharedArrays | None:
        """Return the arrays that it shares with the passes; None if there are none."""

    def light(self) -> Self:
        """Return itself without the arrays that are sent apart."""
        return self


def keep_rows(keeping: Keeping, rows: Rows, sent: list[Arrays], fit: str, of_pass: str = "") -> Rows:
    """Return what is kept of one segment; `of_pass` is as in `reduce_rows`."""
    begin_task(fit)  # or a worker that has just joined would count what it keeps as idle memory
    arrays = joined(sent)
    with working_for(of_pass):
        return with_retries(lambda: keeping.keep(rows, arrays), rows)


@dataclass(frozen=True)
class Level:
    """One way to keep a segment, and the most segments that a worker keeps so."""

    keeping: Keeping
    max_segments: int


@dataclass(frozen=True)
class _Place:
    worker: str
    level: int
    value: Any


@dataclass(eq=False)
class Kept:
    """The segments of one pass that stay where they are, by their numbers, for all passes of the same cuts.

    A worker keeps the segments that it sums first, at the first level that has room for them; what is beyond
    its room is read again in each pass. A value is a task's result that no worker is bound to: tasks follow
    it. What was on a worker that has gone, or is paused, is forgotten as soon as a pass sees that, and kept
    again by the workers with room. Until then the scheduler makes it anew on the other workers, whatever room
    they have.
    """

    levels: Sequence[Level]
    arrays: Callable[[], list[Any]]
    """Handles on the arrays that keeping shares with the passes."""
    _places: dict[int, _Place] = field(default_factory=dict)

    def value(self, segment: int) -> Any:
        """Return the handle on a kept segment; None if it is not kept."""
        place = self._places.get(segment)
        return None if place is None else place.value

    def by_worker(self) -> dict[str, list[int]]:
        """Return the numbers of the segments that each worker keeps, ascending."""
        found: dict[str, list[int]] = {}
        for segment, place in sorted(self._places.items()):
            found.setdefault(place.worker, []).append(segment)
        return found

    def level_with_room(self, worker: str, threads: Mapping[str, int], n_segments: int) -> int | None:
        """Return the first level with room on a worker; None if there is none.

        A worker takes no more than its part of all segments, so that later passes end together.
        """
        here = Counter(place.level for place in self._places.values() if place.worker == worker)
        if here.total() >= _part(worker, threads, n_segments):
            return None
        return next((i for i, level in enumerate(self.levels) if here[i] < level.max_segments), None)

    def put(self, segment: int, worker: str, level: int, value: Any) -> None:
        """Note where a segment is kept from now on."""
        self._places[segment] = _Place(worker, level, value)

    def forget_gone(self, threads: Mapping[str, int]) -> None:
        """Forget what was on workers that take no tasks."""
        for segment in [i for i, place in self._places.items() if place.worker not in threads]:
            del self._places[segment]

    def forget_beyond(self, threads: Mapping[str, int], n_segments: int) -> None:
        """Forget what was on workers that take no tasks, or is beyond the part of those that do."""
        for worker, segments in self.by_worker().items():
            for segment in segments[_part(worker, threads, n_segments) :]:
                del self._places[segment]

    def forget(self) -> None:
        """Forget all."""
        self._places.clear()


def _part(worker: str, threads: Mapping[str, int], n_segments: int) -> int:
    """Return how many of all segments are a worker's, by its threads."""
    return -(-n_segments * threads.get(worker, 0) // max(1, sum(threads.values())))
