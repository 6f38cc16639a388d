"""Checkpoints: a killed fit goes on from the values and sums that it had finished, to the same bits.

Between passes over the rows, a fit is a sequence of steps in the client, each of which depends on the values
before it only. So a checkpoint holds these values, each under a digest of everything that led to it, and of
the pass under way the sums of its finished segments, as the nodes of the tree in which they are merged, each
written by the process that has it. A fit that is started again takes each value that it would compute from
the checkpoint, runs its own steps between them, and computes what it does not find. No solver has a state to
be stored: L-BFGS, conjugate gradients and SGD go through the same numbers again, without a pass.

The rejected way is to store each solver's state. It takes fewer bytes, as a value per pass is kept here, but
there would be ten states, each with versions, and a mistake in one would show as other bits.
"""

from __future__ import annotations

import hashlib
import logging
import math
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from dask.sizeof import sizeof
from distributed.protocol import pickle

from distrff.engine.reduction import n_levels
from distrff.errors import CheckpointWarning, DistrffError, InputError, Terminated, warn
from distrff.utils.process import signals_raise
from distrff.utils.serialize import NotStorable, encoded, update_digest
from distrff.utils.validation import is_number

logger = logging.getLogger(__name__)

Sweeps = list[tuple[str, float]]
"""Label and seconds of passes."""

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
    """Seconds until the next write, after one that took `last` seconds."""
    return max(MIN_SECONDS, _SHARE * last) if every is None else every


def ending_on_sigterm() -> AbstractContextManager[None]:
    """Turn the first SIGTERM into an exception; a second one ends the process at once."""
    return signals_raise({signal.SIGTERM: Terminated}, once=True)


class DamagedPart(DistrffError):
    """A file of a checkpoint that does not hold what was written to it."""


# The sums of a pass under way. Each process writes its own.


class SumFolder(Protocol):
    """The stored sums of one pass, for tasks: small, picklable and hashable."""

    def nodes(self) -> list[Node]:
        """Nodes whose sums are stored."""

    def write(self, node: Node, partial: Any) -> None:
        """Write a sum, completely or not at all."""

    def read(self, node: Node) -> Any:
        """A sum; a file that is not as it was written is removed, and raises DamagedPart."""

    def remove(self, nodes: Iterable[Node]) -> None:
        """Remove some sums."""


@dataclass(frozen=True)
class PassSums:
    """The sums of one pass: `found` when it began, and more that its tasks store from time to time.

    A process writes all sums that are alive in it and not stored when `every` seconds have passed since it
    wrote, or since the pass began there. It holds them weakly: a sum that was merged with another dies, and
    its numbers are in the merged one.
    """

    folder: SumFolder
    every: float | None
    n_segments: int
    found: tuple[Node, ...] = ()

    def note(self, node: Node, partial: Any) -> None:
        """Take note of a sum that this process has finished; write, if it is time."""
        with _LOCK:
            unwritten = _UNWRITTEN.get(self)
            if unwritten is None:
                # Passes that are over: a worker outlives many fits, and nobody tells it when one ends.
                for other in [one for one, left in _UNWRITTEN.items() if not left.sums]:
                    del _UNWRITTEN[other]
                unwritten = _UNWRITTEN[self] = _Unwritten(time.monotonic() + seconds_between(self.every))
            # Weakly: on a worker Dask holds the partial until it is merged, in the client the tree does.
            unwritten.sums[node] = partial
            is_due = time.monotonic() >= unwritten.due
            if is_due:
                unwritten.due = math.inf  # for the other threads, while this one writes
        if is_due:
            unwritten.write(self)

    def segments_left(self, nodes: Iterable[Node]) -> list[int]:
        """Segments that none of these nodes covers."""
        done = {i for level, index in nodes for i in range(index << level, (index + 1) << level)}
        return [i for i in range(self.n_segments) if i not in done]


@dataclass
class _Unwritten:
    """The sums of one pass that are alive in this process and not stored; when to write them."""

    due: float
    sums: WeakValueDictionary[Node, Any] = field(default_factory=WeakValueDictionary)

    def write(self, of: PassSums) -> None:
        """Write the sums, the largest first, and remove smaller ones that they cover."""
        started = time.monotonic()
        try:
            stored = set(of.folder.nodes())
            with _LOCK:  # other threads note sums meanwhile, and a dict that grows cannot be walked through
                nodes = sorted(self.sums.keys(), reverse=True)
            for node in nodes:
                with _LOCK:
                    partial = self.sums.pop(node, None)  # so that no other thread writes it as well
                if partial is not None and not any(_covers(larger, node) for larger in stored):
                    try:
                        of.folder.write(node, partial)
                    except BaseException:
                        with _LOCK:
                            self.sums[node] = partial
                        raise
                    stored.add(node)
        except (OSError, DistrffError) as error:
            _warn_of_failure(error)
            # Not at once: each sum of a pass would wait for a store that is down.
            self.due = time.monotonic() + _RETRY_SECONDS
            return
        self.due = time.monotonic() + seconds_between(of.every, time.monotonic() - started)
        # Only now, so that a death in between leaves one of both. A task that was to read a smaller one,
        # again after its worker's death, fails with DamagedPart, and the pass begins anew from what is there.
        covered = [node for node in stored if any(_covers(one, node) for one in stored - {node})]
        try:
            of.folder.remove(covered)
        except (OSError, DistrffError) as error:  # they take room, but harm nobody
            logger.warning("%s", error)


_UNWRITTEN: dict[PassSums, _Unwritten] = {}
_LOCK = threading.Lock()


def write_finished() -> None:
    """Write all sums that are alive in this process and not stored, as it may end soon."""
    with _LOCK:
        # Written without the lock, which would stop each segment that ends meanwhile.
        unwritten = list(_UNWRITTEN.items())
    for of, sums in unwritten:
        sums.write(of)


def _covers(node: Node, other: Node) -> bool:
    """Whether a node is another or above it."""
    (level, index), (lower, below) = node, other
    return level >= lower and below >> (level - lower) == index


def _largest(nodes: Iterable[Node], n_segments: int) -> tuple[Node, ...]:
    """The largest of some nodes, which do not overlap, by their segments."""
    # Names of files are believed no more than what is in them: the tree of the pass must have the node.
    largest: list[Node] = []
    for level, index in sorted(nodes, reverse=True):
        is_of_pass = level <= n_levels(n_segments) and index << level < n_segments
        if is_of_pass and not any(_covers(larger, (level, index)) for larger in largest):
            largest.append((level, index))
    return tuple(sorted(largest, key=lambda node: node[1] << node[0]))


def _warn_of_failure(reason: object) -> None:
    warn(
        f"the checkpoint could not be written ({reason}); the fit goes on, and tries again", CheckpointWarning
    )


# The values that the client got, one step after another.


class Replay:
    """The values of a solve, in their order, for the case that its cluster is lost and it begins again.

    Beyond 64 MB they are in a temporary file. Larger ones, such as a Gram that is fetched at the end, are
    computed again.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MAX_WAITING_BYTES)  # noqa: SIM115
        self._sizes: list[int] = []  # of the steps so far; 0 of those that are computed again
        self._n_steps = 0  # since the beginning

    @property
    def may_skip(self) -> bool:
        """Whether more values are stored, so that handles made now may never be needed."""
        return self._n_steps < len(self._sizes)

    def next_key(self, *what: Any) -> str:
        """Nothing: the order alone says which values are meant, as the same process gets them."""
        return ""

    def found(self, key: str) -> tuple[Sweeps, list[Any]] | None:
        """Sweeps and values of the next step, if it is stored."""
        self._n_steps += 1
        # The file is read in the order of writing, so its position is that of the next step, or the end.
        if self._n_steps > len(self._sizes) or not (size := self._sizes[self._n_steps - 1]):
            return None
        step: tuple[Sweeps, list[Any]] = pickle.loads(self._file.read(size))
        return step

    def keep(self, key: str, sweeps: Sweeps, values: list[Any]) -> bool:
        """Store the step that was not found."""
        if self._n_steps > len(self._sizes):
            is_small = sizeof(values) <= _MAX_WAITING_BYTES
            self._sizes.append(self._file.write(pickle.dumps((sweeps, values))) if is_small else 0)
        return True

    def rewind(self) -> None:
        """Begin again with the first step."""
        self._file.seek(0)
        self._n_steps = 0

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Step:
    """The values that a client took from its workers at once, and the passes that led to them."""

    key: str
    sweeps: Sweeps  # since the step before
    tree: Any  # the values, as `encoded` gives them
    arrays: list[Any]

    @property
    def n_bytes(self) -> int:
        return sum(A.nbytes for A in self.arrays)


class PartialStore(Protocol):
    """Where a checkpoint is kept."""

    def keys(self) -> Iterable[str]:
        """Keys of all stored steps."""

    def step(self, key: str) -> tuple[Sweeps, list[Any]]:
        """Read the sweeps and the values of a stored step; raise DamagedPart if it cannot be read."""

    def append(self, steps: list[Step], progress: Mapping[str, Any]) -> None:
        """Store some steps, all or none, and how far the fit is."""

    def progress(self) -> Mapping[str, Any]:
        """How far the fit was at the last write."""

    def passes(self) -> Iterable[str]:
        """Keys of the passes of which sums are stored."""

    def sums(self, key: str) -> SumFolder:
        """The sums of a pass."""

    def remove(self, key: str) -> None:
        """Remove the sums of a pass."""


class Checkpoint:
    """The checkpoint of one fit, in its client.

    `every` are the seconds between two writes; without it there are at least ten, and forty times as many as
    the last write took.
    """

    def __init__(self, store: PartialStore, every: float | None = None) -> None:
        self.store, self.every = store, every
        self._waiting: list[Step] = []
        self._finished: set[str] = set()  # passes whose sums can go once these steps are written
        self._progress = {k: v for k, v in store.progress().items() if k not in _OF_PASS}
        self._due = time.monotonic() + seconds_between(every)
        self.is_written = True  # whether the last write succeeded
        self._begin()

    def _begin(self) -> None:
        self._digest = hashlib.sha256()
        self._unread = set(self.store.keys())
        self._with_sums = set(self.store.passes())
        self.n_read = 0  # passes whose values were found

    def rewind(self) -> None:
        """Begin again with the first step, as the cluster was lost."""
        # Steps are found in the store alone, so those that wait are written first.
        self.write()
        self._begin()

    def next_key(self, *what: Any) -> str:
        """Key of the next action, which depends on it and on all before."""
        # One digest for all steps, so that a key stands for all steps before as well.
        for value in what:
            update_digest(self._digest, value)
        return self._digest.hexdigest()[:32]

    @property
    def may_skip(self) -> bool:
        """Whether more steps are stored, so that handles made now may never be needed."""
        return bool(self._unread)

    def found(self, key: str) -> tuple[Sweeps, list[Any]] | None:
        """Sweeps and values of a step, if they are stored."""
        if key not in self._unread:
            return None
        self._unread.discard(key)
        try:
            sweeps, values = self.store.step(key)
        except DamagedPart as damaged:
            logger.warning("%s; it is computed again", damaged)
            return None
        self.n_read += len(sweeps)
        return sweeps, values

    def keep(self, key: str, sweeps: Sweeps, values: list[Any]) -> bool:
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

    def sums(self, key: str, n_segments: int) -> PassSums:
        """The sums of a pass; a pass without stored sums costs no request."""
        folder = self.store.sums(key)
        found = _largest(folder.nodes(), n_segments) if key in self._with_sums else ()
        return PassSums(folder, self.every, n_segments, found)

    def finish(self, passes: Iterable[str]) -> None:
        """Remove the sums of passes with the next write, as a step has the values that they led to."""
        self._finished.update(passes)

    def record(self, **progress: Any) -> None:
        """Note how far the fit is, for `distrff inspect`; None for what is over."""
        self._progress = {k: v for k, v in (self._progress | progress).items() if v is not None}

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._due or self._waiting_bytes > _MAX_WAITING_BYTES

    @property
    def _waiting_bytes(self) -> int:
        return sum(step.n_bytes for step in self._waiting)

    def write(self) -> None:
        """Write the steps since the last write, and how far the fit is.

        A fit goes on without a write that failed. Many values are not held until the store is well again: a
        fit that needs them computes them anew, from the sums, which stay.
        """
        started = time.monotonic()
        try:
            self.store.append(self._waiting, self._progress | {"written": time.time()})
            self._waiting = []
            # After their values: a death between the two leaves sums that nobody needs, not a gap.
            for key in self._finished.intersection(self.store.passes() if self._finished else ()):
                self.store.remove(key)
            self._finished = set()
        except (OSError, DistrffError) as error:
            self.is_written = False
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                self._waiting, self._finished = [], set()
            self._due = time.monotonic() + _RETRY_SECONDS
            _warn_of_failure(error)
        else:
            self.is_written = True
            self._due = time.monotonic() + seconds_between(self.every, time.monotonic() - started)
