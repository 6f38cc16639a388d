"""The sums of equispaced features: non-uniform FFTs of as many rows at once as memory allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, Self

import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.errors import InputError, ModelFileError
from distrff.features.base import specification_from_dict
from distrff.features.equispaced import EquispacedFourierFeatures, EquispacedSpecification, Lattice
from distrff.fitting.rows import LIKE_THE_FIRST, check_parts, check_same_table, table_metadata, table_parts
from distrff.io.dataset import RowBlock, Rows
from distrff.io.storage import contents_of, read_group, refuse_others, write_group
from distrff.kernels.base import Kernel, kernel_from_dict
from distrff.preprocessing.coding import NumericTargets, Scaling, Targets, coding_from_parts, coding_parts
from distrff.preprocessing.folds import Folds
from distrff.preprocessing.table import TableSteps
from distrff.solvers.toeplitz import SumsOfRows, ToeplitzSums, paired
from distrff.utils.nufft import PointSums
from distrff.utils.random import row_hash
from distrff.utils.validation import check_count, positive

EPS = 1e-10  # of the transforms
_ROWS_A_MODE = (4.0, 1.2, 0.4)  # of a transform of one to three coordinates: the FFT is a fifth of its work
_FEWEST = 4  # two runs from a quarter of the rows on: two workers are the least of a cluster


@dataclass(frozen=True)
class FoldRows:
    """A run of rows, of which a task sums some folds."""

    rows: Rows
    members: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.rows.start

    @property
    def stop(self) -> int:
        return self.rows.stop


def rows_a_call(n_modes: int, d: int) -> int:
    """Return how many rows a transform of d coordinates to so many modes should have at once."""
    return 1 + int(_ROWS_A_MODE[min(d, len(_ROWS_A_MODE)) - 1] * n_modes)


@dataclass(frozen=True)
class FoldCuts:
    """Where rows and folds are cut: `n_runs` equal runs of rows, each of all folds or of one fold a task."""

    n_rows: int
    n_folds: int
    n_runs: int

    @classmethod
    def of(cls, n_rows: int, n_folds: int, call_rows: int) -> FoldCuts:
        """Return cuts with `call_rows` to twice as many rows a fold and run.

        For fewer rows there are two runs from a quarter of `call_rows` on. The number of runs is a power
        of two, so that as many workers end together, and depends on neither their number nor their speed;
        where a worker's memory is short, `call_rows` is smaller. Of terrain (6.5 million rows, 1.8 million
        values of v, without folds) eight runs took two workers 1.8 s, and two runs 1.3 s.
        """
        full = n_rows / (n_folds * call_rows)
        return cls(n_rows, n_folds, 2 ** int(math.log2(max(2, full))) if _FEWEST * full >= 1 else 1)

    @property
    def run_rows(self) -> int:
        return -(-self.n_rows // self.n_runs)

    @property
    def together(self) -> bool:
        """Whether a task sums all folds; of a single run each fold has a task, which reads all rows."""
        return self.n_runs > 1 or self.n_folds == 1

    @property
    def task_rows(self) -> int:
        """Rows that a task sums, about."""
        return self.run_rows if self.together else -(-self.run_rows // self.n_folds)

    def tasks(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return start, stop and folds of each task, the runs of a fold one after another."""
        bounds = [(a, min(a + self.run_rows, self.n_rows)) for a in range(0, self.n_rows, self.run_rows)]
        groups = [tuple(range(self.n_folds))] if self.together else [(f,) for f in range(self.n_folds)]
        return [(start, stop, members) for members in groups for start, stop in bounds]


@dataclass(frozen=True, kw_only=True)
class ToeplitzReduction(Reduction):
    """Reduction to the `ToeplitzSums` of each fold, a dictionary.

    Sums have the same bits for the same cuts: a call has rows of a run and a fold, in their order.
    """

    lattice: Lattice
    targets: Targets
    folds: Folds | None
    eps: float
    tile_rows: int  # that are read at once
    call_rows: int  # that are summed at once, at most

    def size_bytes(self, n_rows: int) -> int:
        n, d = self.lattice.n_modes, len(self.lattice.modes)
        n_folds = 1 if self.folds is None else self.folds.n_folds
        return 8 * n * (2**d + self.targets.n_outputs) * n_folds

    def merge(
        self, first: dict[int, ToeplitzSums] | None, second: dict[int, ToeplitzSums] | None
    ) -> dict[int, ToeplitzSums]:
        first, second = first or {}, second or {}
        both = {fold: first[fold] + second[fold] for fold in first.keys() & second.keys()}
        return first | second | both

    def update(
        self, total: dict[int, ToeplitzSums] | None, rows: FoldRows, arrays: Arrays
    ) -> dict[int, ToeplitzSums]:
        transform = SumsOfRows(self.lattice.modes, self.targets.n_outputs, self.eps)
        waiting = {fold: _Points(self.lattice, self.targets) for fold in rows.members}
        found = dict(total or {})

        def add(fold: int) -> None:
            some = transform.sums(*waiting[fold].joined())
            found[fold] = found[fold] + some if fold in found else some
            waiting[fold] = _Points(self.lattice, self.targets)

        for block in rows.rows.tiles(self.tile_rows):
            for fold, part in self._by_fold(block, rows.members):
                waiting[fold].add(part)
                if waiting[fold].n_rows >= self.call_rows:
                    add(fold)
        for fold in rows.members:
            if waiting[fold].n_rows or fold not in found:
                add(fold)
        return found

    def _by_fold(self, block: RowBlock, members: tuple[int, ...]) -> Iterator[tuple[int, RowBlock]]:
        if self.folds is None:
            yield members[0], block
            return
        of_rows = self.folds.of_rows(block.start, block.start + block.X.shape[0])
        for fold in members:
            mine = np.flatnonzero(of_rows == fold)
            s = block.sample_weight
            yield fold, RowBlock(block.start, block.X[mine], block.y[mine], None if s is None else s[mine])


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
        """Return all phases, targets and weights; the rows are no longer kept here."""
        parts, self._parts = self._parts, []
        if not parts:
            empty = np.empty(0)
            return [empty for _ in self._lattice.modes], np.empty((0, self._targets.n_outputs)), empty
        X, Y, s = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self._lattice.phases(X), Y, s


# The sums as a value: add those of sites or days, subtract rows, keep them in a file, fit models to them.


@dataclass(frozen=True, eq=False)
class ToeplitzStatistics:
    """The sums over some rows that ridge on equispaced features needs; the kernel is still free.

    Parameters
    ----------
    parts : tuple of ToeplitzSums
        Of each fold.
    n_rows : int
    specification : EquispacedSpecification
        The lattice of frequencies, and the kernel from which a search begins.
    kernel : Kernel
        As it was given, perhaps with undecided parts.
    tol : float
        Of `EquispacedFourierFeatures`.
    scaling : Scaling
    targets : Targets
    y_is_1d : bool
    column_names : tuple of str or None
        Of X.
    steps : TableSteps or None
        What made X, y and weights from the raw columns of a table; models of the sums take raw rows by it.

    Notes
    -----
    `+` joins disjoint sets of rows, fold by fold. `−` subtracts rows of the first set; a difference has one
    fold, as the fold of a subtracted row is not known. Both need the same lattice, and so the same bounds:
    make the second one with ``gram(..., like=the first)``.
    """

    parts: tuple[ToeplitzSums, ...]
    n_rows: int
    specification: EquispacedSpecification
    kernel: Kernel
    tol: float
    scaling: Scaling
    targets: Targets
    y_is_1d: bool
    column_names: tuple[str, ...] | None = None
    steps: TableSteps | None = None

    dtype: ClassVar[str] = "float64"

    @property
    def n_columns(self) -> int:
        return self.specification.n_columns

    @property
    def n_folds(self) -> int:
        return len(self.parts)

    @property
    def weight(self) -> float:
        """Σs."""
        return sum(part.weight for part in self.parts)

    @property
    def features(self) -> EquispacedFourierFeatures:
        """The map, as it was before a kernel was chosen."""
        return EquispacedFourierFeatures.of_specification(self.specification, self.kernel, self.tol)

    def __repr__(self) -> str:
        return (
            f"<ToeplitzStatistics of {self.n_rows:,} rows: {self.specification.n_features} features, "
            f"{self.targets.n_outputs} output(s), {self.n_folds} fold(s)>"
        )

    def __add__(self, other: ToeplitzStatistics) -> ToeplitzStatistics:
        moved = self._moved(other)
        if moved is NotImplemented:
            return NotImplemented
        if len(moved) != self.n_folds:
            raise InputError(f"these sums have {self.n_folds} and {len(moved)} folds; {LIKE_THE_FIRST}")
        parts = tuple(a + b for a, b in zip(self.parts, moved, strict=True))
        return replace(self, parts=parts, n_rows=self.n_rows + other.n_rows)

    def __radd__(self, other: Any) -> ToeplitzStatistics:
        """Return the same sums for 0, so that `sum` joins a list of them."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: ToeplitzStatistics) -> ToeplitzStatistics:
        moved = self._moved(other)
        if moved is NotImplemented:
            return NotImplemented
        if other.n_rows > self.n_rows or other.weight > self.weight * (1 + _ROUNDING):
            raise InputError(
                f"cannot subtract {other.n_rows} rows of weight {other.weight:g} from {self.n_rows} rows "
                f"of weight {self.weight:g}; subtract rows that the first sums hold"
            )
        rest = reduce(add, self.parts) - reduce(add, moved)
        return replace(self, parts=(rest,), n_rows=self.n_rows - other.n_rows)

    def _moved(self, other: Any) -> Any:
        """Return the parts of the other sums with targets coded as these; or NotImplemented."""
        if not isinstance(other, ToeplitzStatistics):
            return NotImplemented
        if self.specification.lattice != other.specification.lattice:
            raise InputError(
                f"these sums are of different frequencies, since their bounds or kernels differ: "
                f"{self.specification.lattice.bounds} and {other.specification.lattice.bounds}; "
                f"{LIKE_THE_FIRST}"
            )
        if not self.targets.same_kind(other.targets):
            raise InputError(f"these sums code their targets differently; {LIKE_THE_FIRST}")
        if self.targets.n_outputs != other.targets.n_outputs:
            raise InputError(
                f"these sums have {self.targets.n_outputs} and {other.targets.n_outputs} targets; "
                f"{LIKE_THE_FIRST}"
            )
        check_same_table(self, other)
        if not isinstance(self.targets, NumericTargets) or not isinstance(other.targets, NumericTargets):
            return other.parts
        ratio = other.targets.scale / self.targets.scale
        offset = (other.targets.shift - self.targets.shift) / self.targets.scale
        return tuple(part.recoded(ratio, offset) for part in other.parts)

    def check_for(self, target_kind: str) -> None:
        """Raise InputError unless models for "numeric" or "classes" can be fitted."""
        has_classes = self.targets.kind != "numeric"
        if has_classes != (target_kind == "classes"):
            raise InputError(
                "these sums have class labels as targets; use KernelRidgeClassifier"
                if has_classes
                else "these sums have numbers as targets; use KernelRidge, or targets='classes' in gram"
            )
        if self.n_rows < 1 or not self.weight > 0:
            raise InputError(
                f"these sums have {self.n_rows} rows of weight {self.weight:g}; add rows before fitting"
            )

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the sums as a Zarr group.

        Raises
        ------
        InputError
            If something is there already and `overwrite` is not given.
        """
        arrays, metadata = coding_parts(self.scaling, self.targets)
        v, b = np.stack([p.v for p in self.parts]), np.stack([p.b for p in self.parts])
        arrays |= {"v": v.view(np.float64), "b": b.view(np.float64)}
        arrays |= {"squares": np.stack([p.squares for p in self.parts])}
        metadata |= {
            "specification": self.specification.to_dict(),
            "kernel": self.kernel.to_dict(),
            "tol": self.tol,
            "fold_rows": [p.n_rows for p in self.parts],
            "y_is_1d": self.y_is_1d,
            **table_metadata(self.column_names, self.steps),
        }
        write_group(
            url, arrays, metadata, kind="toeplitz", overwrite=overwrite, storage_options=storage_options
        )

    @classmethod
    def load(cls, url: str, *, storage_options: dict[str, Any] | None = None) -> ToeplitzStatistics:
        """Read what `save` wrote.

        Raises
        ------
        ModelFileError
            If it is incomplete, altered, newer, or no such sums.
        """
        return cls.of_group(url, *read_group(url, kind="toeplitz", storage_options=storage_options))

    @classmethod
    def of_group(cls, url: str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Self:
        """Return the sums of a group read from `url`; raise ModelFileError if they do not fit together."""
        with contents_of(url, "toeplitz"):
            scaling, targets = coding_from_parts(arrays, metadata)
            specification = specification_from_dict(metadata["specification"])
            if not isinstance(specification, EquispacedSpecification):
                raise ModelFileError("it is of another map; write the sums again")
            refuse_others(arrays, {"v", "b", "squares", *coding_parts(scaling, targets)[0]})
            if any(arrays[name].dtype != np.float64 for name in ("v", "b", "squares")):
                raise ModelFileError("its sums are not float64; write them again")
            v, b = (arrays[name].view(np.complex128) for name in ("v", "b"))
            rows = list(metadata["fold_rows"])
            for n in rows:
                check_count("fold_rows", n, 0)
            modes, k = specification.lattice.modes, targets.n_outputs
            n_folds, last = len(rows), modes[-1]
            of_v = (n_folds, *(4 * m + 1 for m in modes[:-1]), 2 * last + 1)
            of_b = (n_folds, k, *(2 * m + 1 for m in modes[:-1]), last + 1)
            if v.shape != of_v or b.shape != of_b or arrays["squares"].shape != (n_folds, k) or not n_folds:
                raise ModelFileError("it has sums of other shapes; write them again")
            tol, y_is_1d = metadata["tol"], metadata["y_is_1d"]
            positive("tol", tol)
            check_parts(specification, scaling, targets, n_stored=v.size + b.size, y_is_1d=y_is_1d)
            parts = zip(v, b, arrays["squares"], rows, strict=True)
            return cls(
                parts=tuple(ToeplitzSums(*part) for part in parts),
                n_rows=sum(rows),
                specification=specification,
                kernel=kernel_from_dict(metadata["kernel"]),
                tol=float(tol),
                scaling=scaling,
                targets=targets,
                y_is_1d=y_is_1d,
                **table_parts(metadata, specification.n_columns),
            )


_ROUNDING = 1e-8  # of sums of weights, which come from transforms


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
    """Return ±root by one bit of each row."""
    return np.where((bits >> np.uint64(place)) & np.uint64(1), root, -root)


def bytes_a_row(d: int, n_outputs: int) -> tuple[int, int]:
    """Return the bytes of a row that waits, and more of one that is summed.

    The latter are its copy while parts are joined, its phases, weighted targets, strengths and sorted place.
    """
    waiting = 8 * (d + n_outputs + 1)
    return waiting, waiting + 8 * (d + n_outputs) + 16 * math.ceil((n_outputs + 1) / 2) + 8
