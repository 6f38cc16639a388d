"""The sums of equispaced features: non-uniform FFTs of as many rows at once as memory allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.features.equispaced import Lattice
from distrff.io.dataset import RowBlock, Rows
from distrff.preprocessing.coding import Targets
from distrff.preprocessing.folds import Folds
from distrff.solvers.toeplitz import SumsOfRows, ToeplitzSums, paired
from distrff.utils.nufft import PointSums
from distrff.utils.random import row_hash

EPS = 1e-10  # of the transforms
_ROWS_A_MODE = (4.0, 1.2, 0.4)  # of a transform of one to three coordinates: the FFT is a fifth of its work
_FEWEST = 4  # two runs from a quarter of the rows on: two workers are the least of a cluster


@dataclass(frozen=True)
class FoldRows:
    """A run of rows, of which a task makes some sums of the folds."""

    rows: Rows
    members: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.rows.start

    @property
    def stop(self) -> int:
        return self.rows.stop


def rows_a_call(n_modes: int, d: int) -> int:
    """How many rows a transform of d coordinates to so many modes should have at once."""
    return 1 + int(_ROWS_A_MODE[min(d, len(_ROWS_A_MODE)) - 1] * n_modes)


@dataclass(frozen=True)
class FoldCuts:
    """Where rows and sums are cut: `n_runs` equal runs of rows, each of all sums or of one sum a task."""

    n_rows: int
    n_sums: int
    n_runs: int

    @classmethod
    def of(cls, n_rows: int, n_sums: int, call_rows: int) -> FoldCuts:
        """Cuts with `call_rows` to twice as many rows a sum and run.

        For fewer rows there are two runs from a quarter of `call_rows` on. The number of runs is a power
        of two, so that as many workers end together, and depends on neither their number nor their speed;
        where a worker's memory is short, `call_rows` is smaller. Of terrain (6.5 million rows, 1.8 million
        values of v, without folds) eight runs took two workers 1.8 s, and two runs 1.3 s.
        """
        full = n_rows / (n_sums * call_rows)
        return cls(n_rows, n_sums, 2 ** int(math.log2(max(2, full))) if _FEWEST * full >= 1 else 1)

    @property
    def run_rows(self) -> int:
        return -(-self.n_rows // self.n_runs)

    @property
    def together(self) -> bool:
        """Whether a task makes all sums; of a single run each sum has a task, which reads all rows."""
        return self.n_runs > 1 or self.n_sums == 1

    @property
    def task_rows(self) -> int:
        """Rows that a task sums, about."""
        return self.run_rows if self.together else -(-self.run_rows // self.n_sums)

    def tasks(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Start, stop and sums of each task, the runs of a sum one after another."""
        bounds = [(a, min(a + self.run_rows, self.n_rows)) for a in range(0, self.n_rows, self.run_rows)]
        groups = [tuple(range(self.n_sums))] if self.together else [(j,) for j in range(self.n_sums)]
        return [(start, stop, members) for members in groups for start, stop in bounds]


@dataclass(frozen=True, kw_only=True)
class ToeplitzReduction(Reduction):
    """Reduction to the `ToeplitzSums` of each sum of the folds, a dictionary.

    They have the same bits for the same cuts: a call has rows of a run and a sum, in their order.
    """

    lattice: Lattice
    targets: Targets
    folds: Folds
    eps: float
    tile_rows: int  # that are read at once
    call_rows: int  # that are summed at once, at most

    def size_bytes(self, n_rows: int) -> int:
        n, d = self.lattice.n_modes, len(self.lattice.modes)
        return 8 * n * (2**d + self.targets.n_outputs) * self.folds.n_sums

    def merge(
        self, first: dict[int, ToeplitzSums] | None, second: dict[int, ToeplitzSums] | None
    ) -> dict[int, ToeplitzSums]:
        first, second = first or {}, second or {}
        both = {number: first[number] + second[number] for number in first.keys() & second.keys()}
        return first | second | both

    def update(
        self, total: dict[int, ToeplitzSums] | None, rows: FoldRows, arrays: Arrays
    ) -> dict[int, ToeplitzSums]:
        transform = SumsOfRows(self.lattice.modes, self.targets.n_outputs, self.eps)
        waiting = {number: _Points(self.lattice, self.targets) for number in rows.members}
        found = dict(total or {})

        def add(number: int) -> None:
            some = transform.sums(*waiting[number].joined())
            found[number] = found[number] + some if number in found else some
            waiting[number] = _Points(self.lattice, self.targets)

        for block in rows.rows.tiles(self.tile_rows):
            for number, part in self._by_sum(block, rows.members):
                waiting[number].add(part)
                if waiting[number].n_rows >= self.call_rows:
                    add(number)
        for number in rows.members:
            if waiting[number].n_rows or number not in found:
                add(number)
        return found

    def _by_sum(self, block: RowBlock, members: tuple[int, ...]) -> Iterator[tuple[int, RowBlock]]:
        if self.folds.n_sums == 1:
            yield members[0], block
            return
        entered = self.folds.sums(np.arange(block.start, block.start + block.X.shape[0]))
        for number in members:
            mine = entered.of(number)
            s = block.sample_weight
            yield number, RowBlock(block.start, block.X[mine], block.y[mine], None if s is None else s[mine])


class _Points:
    """Rows that wait for a transform, with coded targets and weights."""

    def __init__(self, lattice: Lattice, targets: Targets) -> None:
        self._lattice, self._targets = lattice, targets
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.n_rows = 0

    def add(self, block: RowBlock) -> None:
        """Add a block of rows."""
        s = self._targets.row_weights(block.y, block.sample_weight)
        n = block.X.shape[0]
        weights = np.ones(n) if s is None else np.asarray(s, dtype=np.float64)
        self._parts.append((block.X, self._targets.encode(block.y), weights))
        self.n_rows += n

    def joined(self) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """All phases, targets and weights; the rows are no longer kept here."""
        parts, self._parts = self._parts, []
        if not parts:
            empty = np.empty(0)
            return [empty for _ in self._lattice.modes], np.empty((0, self._targets.n_outputs)), empty
        X, Y, s = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self._lattice.phases(X), Y, s


# The sums of random signs, for samples of the posterior.

N_SAMPLES = 64  # one for each bit of a row's hash
N_GROUPS = 4
_PAIRS = N_SAMPLES // N_GROUPS // 2
_SIGNS_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class SignReduction(Reduction):
    """Reduction to Σ √s·(ε + iε')·exp(−i⟨j, x̃⟩) of pairs of samples: groups of them, a dictionary of arrays.

    ε = ±1 are the bits of a hash of the row number: unlike normal numbers they cost nothing, and their
    covariance, on which alone that of the samples depends, is the same.
    """

    lattice: Lattice
    targets: Targets
    seed: int
    tile_rows: int
    call_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return 8 * _PAIRS * N_GROUPS * self.lattice.n_modes

    def merge(
        self, first: dict[int, np.ndarray] | None, second: dict[int, np.ndarray] | None
    ) -> dict[int, np.ndarray]:
        first, second = first or {}, second or {}
        both = {group: first[group] + second[group] for group in first.keys() & second.keys()}
        return first | second | both

    def update(
        self, total: dict[int, np.ndarray] | None, rows: FoldRows, arrays: Arrays
    ) -> dict[int, np.ndarray]:
        transform = PointSums(self.lattice.modes, _SIGNS_EPS, "complex64")
        found, waiting, n_waiting = dict(total or {}), [], 0
        for block in rows.rows.tiles(self.tile_rows):
            s = self.targets.row_weights(block.y, block.sample_weight)
            root = np.ones(len(block.X), np.float32) if s is None else np.sqrt(s).astype(np.float32)
            numbers = np.arange(block.start, block.start + len(root), dtype=np.uint64)
            phases = [x.astype(np.float32) for x in self.lattice.phases(block.X)]
            waiting.append((*phases, root, row_hash(numbers, self.seed)))
            n_waiting += len(root)
            if n_waiting >= self.call_rows:
                found, waiting, n_waiting = self._with(found, transform, waiting, rows.members), [], 0
        return self._with(found, transform, waiting, rows.members) if waiting else found

    def _with(
        self,
        found: dict[int, np.ndarray],
        transform: PointSums,
        waiting: list[tuple[np.ndarray, ...]],
        members: tuple[int, ...],
    ) -> dict[int, np.ndarray]:
        *phases, root, bits = (np.concatenate(x) for x in zip(*waiting, strict=True))
        found = dict(found)
        for group in members:
            places = range(2 * _PAIRS * group, 2 * _PAIRS * (group + 1), 2)
            strengths = (
                paired(_signed(root, bits, i), _signed(root, bits, i + 1), "complex64") for i in places
            )
            some = np.empty((_PAIRS, *(2 * m + 1 for m in self.lattice.modes)), np.complex64)
            for place, F in zip(some, transform.at(phases, strengths), strict=True):
                place[...] = F
            found[group] = found[group] + some if group in found else some
        return found


def _signed(root: np.ndarray, bits: np.ndarray, place: int) -> np.ndarray:
    """±root by one bit of each row."""
    return np.where((bits >> np.uint64(place)) & np.uint64(1), root, -root)


def bytes_a_row(d: int, n_outputs: int) -> tuple[int, int]:
    """The bytes of a row that waits, and more of one that is summed.

    The latter are its copy while parts are joined, its phases, weighted targets, strengths and sorted place.
    """
    waiting = 8 * (d + n_outputs + 1)
    return waiting, waiting + 8 * (d + n_outputs) + 16 * math.ceil((n_outputs + 1) / 2) + 8
