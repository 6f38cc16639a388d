"""What a killed fit had finished, and how the same fit goes on from there with the same bits.

Between passes over the rows, a fit is a sequence of steps in the client, each of which depends on the values
before it only. So a checkpoint holds these values, each under a digest of everything that led to it, and of
the pass under way the sums of its finished segments, as the nodes of the tree in which they are merged. A fit
that is started again takes each value that it would compute from the checkpoint, runs its own steps between
them, and computes what it does not find. No solver has a state to be stored: L-BFGS, conjugate gradients and
SGD go through the same numbers again, without a pass.

The rejected way is to store each solver's state. It takes fewer bytes, as a value per pass is kept here, but
there would be ten states, each with versions, and a mistake in one would show as other bits.
"""

from __future__ import annotations

import hashlib
import logging
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from distrff.engine.reduction import n_levels
from distrff.engine.tasks import Partial
from distrff.errors import CheckpointWarning, DistrffError, InputError, Terminated, warn
from distrff.utils.process import signals_raise
from distrff.utils.serialize import NotStorable, encoded, update_digest
from distrff.utils.validation import is_number

logger = logging.getLogger(__name__)

T = TypeVar("T")

Node = tuple[int, int]
"""Level and index in the tree of merges; see `OrderedMerge`."""

_OF_PASS = ("label", "n_segments", "n_segments_done", "seconds_left_of_pass")  # in the progress

MIN_SECONDS = 10.0
"""The least time between two writes, where it is not given."""
_SHARE = 40.0  # of the time that the last write took, until the next one: 2.5 %
_MAX_WAITING_BYTES = 64 * 2**20  # of values that are not written yet
_RETRY_SECONDS = 60.0  # after a write that failed


def check_every(every: Any) -> None:
    """Raise InputError for a time between two checkpoints that is none."""
    if every is not None and not (is_number(every) and 0 <= every < math.inf):
        raise InputError(f"checkpoint_every must be a number of seconds, at least 0, got {every!r}")


def seconds_between(every: float | None, last: float = 0.0) -> float:
    """Return the seconds until the next write, after one that took `last` seconds."""
    return max(MIN_SECONDS, _SHARE * last) if every is None else every


def ending_on_sigterm() -> AbstractContextManager[None]:
    """Turn the first SIGTERM into an exception; a second one ends the process at once."""
    return signals_raise({signal.SIGTERM: Terminated}, once=True)


class DamagedPart(DistrffError):
    """A file of a checkpoint that does not hold what was written to it; `node` is that of a sum."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        super().__init__(message, node)
        self.node = node

    def __str__(self) -> str:
        return str(self.args[0])


class SumFile(Protocol):
    """The place of one sum, from which and to which tasks read and write; small and picklable."""

    def write(self, partial: Partial) -> None:
        """Write a sum, completely or not at all."""

    def read(self) -> Partial:
        """Return the sum; a file that is not as it was written is removed, and raises DamagedPart."""


@dataclass(frozen=True)
class Step:
    """The values that a client took from its workers at once, and the passes that led to them."""

    key: str
    sweeps: list[tuple[str, float]]  # label and seconds of each pass since the step before
    tree: Any  # the values, as `encoded` gives them
    arrays: list[Any]

    @property
    def n_bytes(self) -> int:
        return sum(A.nbytes for A in self.arrays)


class PartialStore(Protocol):
    """Where a checkpoint is kept."""

    def keys(self) -> Iterable[str]:
        """Return the keys of all stored steps."""

    def step(self, key: str) -> tuple[list[tuple[str, float]], list[Any]]:
        """Return the sweeps and the values of a stored step; raise DamagedPart if it cannot be read."""

    def append(self, steps: list[Step], progress: Mapping[str, Any]) -> None:
        """Store some steps, all or none, and how far the fit is."""

    def progress(self) -> Mapping[str, Any]:
        """Return how far the fit was at the last write."""

    def passes(self) -> Iterable[str]:
        """Return the keys of the passes of which sums are stored."""

    def nodes(self, key: str) -> list[Node]:
        """Return the nodes of a pass whose sums are stored."""

    def sum_file(self, key: str, node: Node) -> SumFile:
        """Return the place of the sum of a node."""

    def remove(self, key: str, nodes: Iterable[Node] | None = None) -> None:
        """Remove the sums of a pass, or those of some nodes."""


class Later:
    """A handle that is made when it is first needed, as a step that was stored makes most of them useless."""

    def __init__(self, begin: Callable[[], Any], key: str = "") -> None:
        self._begin: Callable[[], Any] | None = begin
        self._handle: Any = None
        self.key = key  # of the pass whose sum it is

    def handle(self) -> Any:
        """Return the handle itself."""
        if self._begin is not None:
            self._handle, self._begin = self._begin(), None
        return self._handle


def handles_in(args: Any) -> Any:
    """Return arguments with each `Later` replaced by its handle, also in lists and tuples."""
    if isinstance(args, Later):
        return args.handle()
    return type(args)(map(handles_in, args)) if type(args) in (list, tuple) else args


class Checkpoint:
    """The checkpoint of one fit, in its client.

    `every` are the seconds between two writes; without it there are at least ten, and forty times as many as
    the last write took.
    """

    def __init__(self, store: PartialStore, every: float | None = None) -> None:
        self.store, self.every = store, every
        self._digest = hashlib.sha256()
        self._unread = set(store.keys())
        self._waiting: list[Step] = []
        self._finished: list[str] = []  # passes whose sums can go once these steps are written
        self._with_sums = set(store.passes())  # whose sums, or some of them, are stored
        self._progress = {k: v for k, v in store.progress().items() if k not in _OF_PASS}
        self._due = time.monotonic() + seconds_between(every)
        self.n_read = 0  # passes whose values were found
        self.has_read = False  # any value or sum
        self.is_written = True  # whether the last write succeeded

    # What the fit does, step by step.

    def next_key(self, *what: Any) -> str:
        """Return the key of the next action, which depends on it and on all before."""
        for value in what:
            update_digest(self._digest, value)
        return self._digest.hexdigest()[:32]

    @property
    def may_skip(self) -> bool:
        """Whether more steps are stored, so that handles made now may never be needed."""
        return bool(self._unread)

    def found(self, key: str) -> tuple[list[tuple[str, float]], list[Any]] | None:
        """Return the sweeps and the values of a step, if they are stored."""
        if key not in self._unread:
            return None
        self._unread.discard(key)
        try:
            sweeps, values = self.store.step(key)
        except DamagedPart as damaged:
            logger.warning("%s; it is computed again", damaged)
            return None
        self.n_read += len(sweeps)
        self.has_read = True
        return sweeps, values

    def keep(self, key: str, sweeps: list[tuple[str, float]], values: list[Any]) -> bool:
        """Store a step with the next write, if it can be stored; return whether.

        Arrays are copied, as the solver may go on in them.
        """
        try:
            tree, arrays = encoded(values)
        except NotStorable as reason:
            logger.warning("%s; it will be computed again", reason)
            return False
        self._waiting.append(Step(key, sweeps, tree, [A.copy(order="K") for A in arrays]))
        return True

    def finish(self, passes: Iterable[str]) -> None:
        """Remove the sums of passes with the next write, as a step has the values that they led to."""
        self._finished += passes

    # When to write, and what.

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._due or self._waiting_bytes > _MAX_WAITING_BYTES

    @property
    def _waiting_bytes(self) -> int:
        return sum(step.n_bytes for step in self._waiting)

    def see(self, **progress: Any) -> None:
        """Note how far the fit is, for whoever looks at the checkpoint; None for what is over."""
        self._progress = {k: v for k, v in (self._progress | progress).items() if v is not None}

    def write(self) -> None:
        """Write the steps since the last write."""
        started = time.monotonic()
        try:
            self.store.append(self._waiting, self._progress | {"written": time.time()})
            self._waiting = []
            for key in self._finished:
                if key in self._with_sums:
                    self.store.remove(key)
            self._finished = []
        except (OSError, DistrffError) as error:
            self.failed(str(error))
        else:
            self.wrote(time.monotonic() - started)

    def wrote(self, seconds: float) -> None:
        """Set the time of the next write after one that took some seconds."""
        self.is_written = True
        self._due = max(self._due, time.monotonic() + seconds_between(self.every, seconds))

    def failed(self, reason: str) -> None:
        """Go on without a write that failed: the fit itself is well.

        Many values are not held until the store is well again. A fit that needs them computes them anew.
        """
        self.is_written = False
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._waiting, self._finished = [], []  # whose sums are needed again
        warn(
            f"the checkpoint could not be written ({reason}); the fit goes on, and tries again",
            CheckpointWarning,
        )
        self._due = time.monotonic() + _RETRY_SECONDS

    def nodes(self, key: str) -> list[Node]:
        """Return the nodes of a pass whose sums are stored; a pass of which none are costs no request."""
        found = self.store.nodes(key) if key in self._with_sums else []
        self.has_read = self.has_read or bool(found)
        return found

    def has_sums(self, key: str) -> None:
        """Note that some sums of a pass are stored."""
        self._with_sums.add(key)

    def sums(self, key: str, n_segments: int, label: str) -> PassSums:
        """Return the stored sums of a pass."""
        return PassSums(self, key, n_segments, label)


@dataclass
class PassSums:
    """The sums of one pass, after `look`: which nodes of its tree are stored, and when to store more."""

    checkpoint: Checkpoint
    key: str
    n_segments: int
    label: str
    stored: set[Node] = field(default_factory=set)
    _left_out: set[Node] = field(default_factory=set)  # damaged files, which may be there still

    def look(self) -> None:
        """Find the largest nodes that are stored, which do not overlap; smaller ones are left over."""
        self.stored = set()
        for node in sorted(filter(self._is_of_pass, self.checkpoint.nodes(self.key)), reverse=True):
            if node not in self._left_out and not any(_covers(larger, node) for larger in self.stored):
                self.stored.add(node)
        self._began, self._n_left_at_first = time.monotonic(), len(self.segments_left())

    def _is_of_pass(self, node: Node) -> bool:
        """Whether the tree has this node: names of files are believed no more than what is in them."""
        return node[0] <= n_levels(self.n_segments) and _first_segment(node) < self.n_segments

    def leave_out(self, damaged: DamagedPart) -> None:
        """Look for other nodes in the place of a damaged one from now on."""
        if damaged.node is None:
            raise damaged
        self._left_out.add(damaged.node)

    @property
    def root(self) -> Node:
        """The node of all segments."""
        return n_levels(self.n_segments), 0

    @property
    def is_complete(self) -> bool:
        """Whether the sum of all segments is stored."""
        return self.root in self.stored

    def in_order(self) -> list[Node]:
        """Return the stored nodes, by their segments."""
        return sorted(self.stored, key=_first_segment)

    def segments_left(self) -> list[int]:
        """Return the segments that no stored node covers."""
        done = {i for level, index in self.stored for i in range(index << level, (index + 1) << level)}
        return [i for i in range(self.n_segments) if i not in done]

    def is_due(self) -> bool:
        return self.checkpoint.is_due()

    def file(self, node: Node) -> SumFile:
        return self.checkpoint.store.sum_file(self.key, node)

    def unsaved(self, waiting: Iterable[Node]) -> list[Node]:
        """Return those of the nodes of an `OrderedMerge` that are not stored."""
        return [node for node in waiting if node not in self.stored]

    def add(self, node: Node, *, is_read_from_now_on: bool = True) -> None:
        """Take note that a node is stored.

        Those that it covers can go, unless the scheduler would still read them to compute a sum again.
        """
        self._left_out.discard(node)
        self.checkpoint.has_sums(self.key)
        covered = [smaller for smaller in self.stored if _covers(node, smaller)]
        self.stored.add(node)
        if not is_read_from_now_on:
            return
        self.stored.difference_update(covered)
        try:
            self.checkpoint.store.remove(self.key, covered)
        except (OSError, DistrffError) as error:  # they take room, but harm nobody
            logger.warning("%s", error)

    def write(self, waiting: Mapping[Node, Partial]) -> None:
        """Write sums that are in this process, and the steps before them."""
        started = time.monotonic()
        for node in self.unsaved(waiting):
            _, error = write_sum(self.file(node), waiting[node])
            if error is not None:
                self.checkpoint.failed(error)
                return
            self.add(node)
        self.finish_write(time.monotonic() - started)

    def finish_write(self, seconds: float) -> None:
        """Write the steps before the pass once its own sums are written, which took some seconds."""
        left, spent = len(self.segments_left()), time.monotonic() - self._began
        done_here = self._n_left_at_first - left
        self.checkpoint.see(
            label=self.label,
            n_segments=self.n_segments,
            n_segments_done=self.n_segments - left,
            seconds_left_of_pass=spent * left / done_here if done_here else None,
        )
        self.checkpoint.write()
        self.checkpoint.wrote(seconds)


def without_damaged(sums: PassSums | None, attempt: Callable[[], T]) -> T:
    """Return what one pass returns; a pass that meets a damaged sum is made again without it."""
    while True:
        if sums is not None:
            sums.look()
        try:
            return attempt()
        except DamagedPart as damaged:
            if sums is None:
                raise
            logger.warning("%s; its rows are summed again", damaged)
            sums.leave_out(damaged)


def _covers(node: Node, other: Node) -> bool:
    """Whether a node is another or above it."""
    (level, index), (lower, below) = node, other
    return level >= lower and below >> (level - lower) == index


def _first_segment(node: Node) -> int:
    return node[1] << node[0]


# Tasks.


def write_sum(file: SumFile, partial: Partial) -> tuple[float, str | None]:
    """Write a sum where it is; return the seconds, and what went wrong if it could not be written."""
    started = time.monotonic()
    try:
        file.write(partial)
    except (OSError, DistrffError) as error:
        return 0.0, str(error)
    return time.monotonic() - started, None


def read_sum(file: SumFile, node: Node) -> Partial:
    """Return the stored sum of a node."""
    try:
        return file.read()
    except DamagedPart as damaged:
        raise DamagedPart(str(damaged), node) from damaged
