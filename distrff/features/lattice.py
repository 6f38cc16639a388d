"""Equispaced frequencies: the lattice, what it resolves of a kernel, and the one that a box asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any, Self

import numpy as np

from distrff.errors import ModelFileError
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Matern
from distrff.utils.nufft import MAX_DIMENSIONS
from distrff.utils.validation import is_number

# The lattice of frequencies: what the sums over rows depend on, whatever the kernel.


@dataclass(frozen=True)
class Lattice:
    """The frequencies h·j, j ∈ {−m … m}^d, of the columns that vary, and the box that they are for.

    Parameters
    ----------
    n_columns : int
        Of the rows.
    columns : tuple of int
        Those that vary. The others have one value, which every row to predict must have.
    modes : tuple of int
        m of each of `columns`.
    spacing, centre : tuples of float
        h and c of each of `columns`: its phase is 2πh(x − c).
    bounds : tuple of pairs of float, or None
        Of all columns: the box outside of which features repeat themselves. None where a column is periodic.
    """

    n_columns: int
    columns: tuple[int, ...]
    modes: tuple[int, ...]
    spacing: tuple[float, ...]
    centre: tuple[float, ...]
    bounds: tuple[tuple[float, float] | None, ...]

    def __post_init__(self) -> None:
        d = len(self.columns)
        is_valid = (
            is_number(self.n_columns)
            and 1 <= d <= MAX_DIMENSIONS
            and len(self.modes) == len(self.spacing) == len(self.centre) == d
            and len(self.bounds) == self.n_columns
            and list(self.columns) == sorted(set(self.columns) & set(range(self.n_columns)))
            and all(isinstance(m, int) and 0 <= m < 2**31 for m in self.modes)
            and all(is_number(h) and 0 < h < math.inf for h in self.spacing)
            and all(is_number(c) and math.isfinite(c) for c in self.centre)
            and all(
                b is None or (len(b) == 2 and all(map(is_number, b)) and b[0] <= b[1]) for b in self.bounds
            )
        )
        if not is_valid:
            raise ModelFileError("a stored lattice of frequencies is damaged; write the model again")

    @property
    def n_modes(self) -> int:
        """N = ∏(2m + 1), the real features."""
        return math.prod(2 * m + 1 for m in self.modes)

    def phases(self, X: np.ndarray) -> list[np.ndarray]:
        """Return 2πh(x − c) of each column that varies, in [−π, π]: float64 arrays of shape (n_rows,)."""
        found = []
        for j, h, c in zip(self.columns, self.spacing, self.centre, strict=True):
            turns = (X[:, j].astype(np.float64) - c) * h
            if self.bounds[j] is None:
                turns -= np.rint(turns)
            found.append(2.0 * math.pi * turns)
        return found

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Return which rows are outside of the bounds, shape (n_rows,)."""
        outside = np.zeros(len(X), dtype=bool)
        for x, bounds in zip(X.T, self.bounds, strict=True):
            if bounds is not None:
                outside |= beyond(x, bounds)
        return outside

    def weights(self, kernel: Kernel) -> np.ndarray:
        """Return w_j = ∏h·k̂(h·j), shape (2·m_1 + 1, …)."""
        return kernel.along(self.columns).lattice_weights(self.spacing, self.modes)

    def error(self, kernel: Kernel) -> float:
        """Return a bound of sup|k − k̃|/k(0) in the box: of modes left out, and of periodic images."""
        total = 0.0
        for i, j in enumerate(self.columns):
            line, others = _Line(kernel.along([j])), self._images_elsewhere(kernel, j)
            total += others * line.tail(self.spacing[i], self.modes[i])
            bounds = self.bounds[j]
            if bounds is not None:
                total += others * line.images(bounds[1] - bounds[0], self.spacing[i])
        return total

    def _images_elsewhere(self, kernel: Kernel, column: int) -> float:
        """Return how many times k(0) the kernel's sum over the periods of other columns is."""
        periodic = [(h, j) for h, j in zip(self.spacing, self.columns, strict=True) if self.bounds[j] is None]
        return images_elsewhere(kernel, periodic, column)

    def resolving(self, kernel: Kernel, tol: float) -> Lattice | None:
        """Return the smallest central part on which the kernel is within `tol`; None if there is none."""
        budget = tol
        for i, j in enumerate(self.columns):
            if (bounds := self.bounds[j]) is not None:
                images = _Line(kernel.along([j])).images(bounds[1] - bounds[0], self.spacing[i])
                budget -= self._images_elsewhere(kernel, j) * images
        if budget <= 0:
            return None
        share, modes = budget / len(self.columns), []
        for i, j in enumerate(self.columns):
            error = share / self._images_elsewhere(kernel, j)
            m = _Line(kernel.along([j])).modes(self.spacing[i], error, self.modes[i])
            if m is None:
                return None
            modes.append(m)
        return replace(self, modes=tuple(modes))

    def to_dict(self) -> dict[str, Any]:
        """Return the lattice as strict JSON data."""
        return {
            "n_columns": self.n_columns,
            "columns": list(self.columns),
            "modes": list(self.modes),
            "spacing": list(self.spacing),
            "centre": list(self.centre),
            "bounds": [None if b is None else list(b) for b in self.bounds],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the lattice of what `to_dict` returned; raise ModelFileError for anything else."""
        try:
            return cls(
                data["n_columns"],
                tuple(map(index, data["columns"])),
                tuple(map(index, data["modes"])),
                tuple(map(_number, data["spacing"])),
                tuple(map(_number, data["centre"])),
                tuple(None if b is None else (_number(b[0]), _number(b[1])) for b in data["bounds"]),
            )
        except (TypeError, KeyError, IndexError, OverflowError) as error:
            raise ModelFileError(f"a stored lattice of frequencies is damaged ({error!r})") from error


def _number(value: Any) -> float:
    if not is_number(value):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def beyond(x: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return where numbers are outside of bounds, which float32 rounds by up to one part in 2²⁴."""
    slack = max(map(abs, bounds)) * 2.0**-24
    return np.asarray((x < bounds[0] - slack) | (x > bounds[1] + slack))


# One coordinate: how many modes a kernel needs, and how far away its periodic images must be.

_MAX_LINE_MODES = 2**22
_FIRST_MODES = 1024
_N_IMAGES = 256


@dataclass(frozen=True)
class _Line:
    """A kernel of one column; all errors are shares of k(0)."""

    kernel: Kernel

    def _at(self, distances: np.ndarray) -> np.ndarray:
        return self.kernel(distances[:, None], np.zeros((1, 1)))[:, 0] / self.kernel.at_zero

    def images(self, width: float, spacing: float) -> float:
        """Return Σ k(δ + n/h) over n ≠ 0 at most, for differences |δ| up to the width of the box."""
        nearest = 1.0 / spacing - width
        if nearest <= 0:
            return math.inf
        return 2.0 * float(self._at(nearest + np.arange(_N_IMAGES) / spacing).sum())

    def spacing(self, width: float, error: float) -> float:
        """Return the largest h whose images add up to `error` at most."""
        low, high = 0.0, width
        while self.images(width, 1.0 / (width + high)) > error:
            low, high = high, 2.0 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.images(width, 1.0 / (width + middle)) > error else (low, middle)
            )
        return 1.0 / (width + high)

    def total(self, spacing: float) -> float:
        """Return Σ w_j over all j, by Poisson's formula: the kernel and its images at 0."""
        return 1.0 + 2.0 * float(self._at(np.arange(1, _N_IMAGES) / spacing).sum())

    def _shells(self, spacing: float, m: int) -> np.ndarray:
        """Return Σ_{|j| ≤ i} w_j for i = 0 … m."""
        w = self.kernel.lattice_weights([spacing], [m])[m:] / self.kernel.at_zero
        return np.asarray(2.0 * np.cumsum(w) - w[0])

    def tail(self, spacing: float, m: int) -> float:
        """Return Σ w_j over |j| > m."""
        # A kernel that falls slowly has more images than are added up, but then its weights fall fast.
        sums = self._shells(spacing, max(4 * m, _FIRST_MODES))
        return max(0.0, max(self.total(spacing), float(sums[-1])) - float(sums[m]))

    def modes(self, spacing: float, error: float, max_modes: int = _MAX_LINE_MODES) -> int | None:
        """Return the smallest m whose tail is at most `error`; None if it is above `max_modes`."""
        total, n = self.total(spacing), _FIRST_MODES
        while True:
            sums = self._shells(spacing, n)
            if max(total, sums[-1]) - sums[n // 2] <= error:
                m = int(np.searchsorted(sums, max(total, sums[-1]) - error))
                return m if m <= max_modes else None
            if n > 2 * max_modes:
                return None
            n *= 2


def images_elsewhere(kernel: Kernel, periodic: Sequence[tuple[float, int]], column: int) -> float:
    """Return ∏ Σ_n k_j(n/h_j)/k_j(0) over periodic columns but one, given as pairs of spacing and column.

    By so much the errors of a column may count, as they meet all periodic images in the others.
    """
    return math.prod(_Line(kernel.along([j])).total(h) for h, j in periodic if j != column)


# The lattice that the range of the columns and a kernel ask for.

_FEWEST_MODES = 5
_IMAGE_SHARE = 0.25  # of tol, for periodic images; the rest is for the modes that are left out
_LONGEST, _SHORTEST = (2.0, 1.0, 0.5, 0.25, 0.125), 4.0  # widths to be compared, by that of the pilot
_ENOUGH = 0.25  # shortest by longest width; where the range is smaller, longer ones are given up
PILOT_ROWS = 1000  # of the likelihood: widths are only to start from, and 2,000 rows took four times as long


def scaled_widths(kernel: Kernel, factors: Any) -> Kernel:
    """Return the kernel with its widths multiplied by one factor or one a column, to four digits."""
    operands = {name: k for name, k in kernel.get_params(deep=False).items() if isinstance(k, Kernel)}
    if operands:
        return kernel.set_params(**{name: scaled_widths(k, factors) for name, k in operands.items()})
    widths = kernel.get_params(deep=False)["length_scale"]
    if np.ndim(widths) == 0 and np.ndim(factors) == 0:
        return kernel.set_params(length_scale=float(f"{widths * factors:.4g}"))
    scaled = np.asarray(widths) * np.asarray(factors)
    return kernel.set_params(length_scale=tuple(float(f"{w:.4g}") for w in scaled))


@dataclass(frozen=True)
class Box:
    """Bounds and periods of the columns, one of both each."""

    bounds: tuple[tuple[float, float] | None, ...]
    periods: tuple[float | None, ...]

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns that vary; the first one where none does."""
        moving = [j for j, b in enumerate(self.bounds) if b is None or b[1] > b[0]]
        return tuple(moving) or (0,)

    def _width(self, j: int) -> float:
        bounds = self.bounds[j]
        assert bounds is not None
        # A single value has no width, and any will do.
        return bounds[1] - bounds[0] or 1.0

    def lattice(
        self, kernel: Kernel, longest: Kernel, tol: float, max_modes: int, *, shortest: float = 1.0
    ) -> tuple[Lattice, float]:
        """Return a lattice with margins for the longest widths, and the factor of the shortest resolved.

        It resolves the kernel with its widths times a factor: `shortest`, or as little more as brings the
        modes down to `max_modes`.
        """
        columns, bounds = self.columns, list(self.bounds)
        spacing, centre = [], []
        periodic = [(1.0 / p, j) for j in columns if (p := self.periods[j]) is not None]
        tolerances = [tol / (images_elsewhere(longest, periodic, j) * len(columns)) for j in columns]
        for j, error in zip(columns, tolerances, strict=True):
            period = self.periods[j]
            if period is not None:
                spacing.append(1.0 / period)
                centre.append(0.0)
            else:
                b = bounds[j]
                assert b is not None
                spacing.append(_Line(longest.along([j])).spacing(self._width(j), _IMAGE_SHARE * error))
                centre.append((b[0] + b[1]) / 2)

        shares = [(1 - _IMAGE_SHARE) * error for error in tolerances]
        narrow = kernel if shortest == 1 else scaled_widths(kernel, shortest)
        lines = [_Line(narrow.along([j])) for j in columns]
        needed = [line.modes(h, e) for line, h, e in zip(lines, spacing, shares, strict=True)]
        modes = np.array([_MAX_LINE_MODES if m is None else m for m in needed])

        def counted(factor: float) -> np.ndarray:
            """Return the modes of wider kernels: frequencies are in inverse proportion to widths."""
            return np.ceil(modes / factor).astype(np.int64)

        low, high = 0.0, 40.0
        for _ in range(50 if math.prod((2 * modes + 1).tolist()) > max_modes else 0):
            middle = (low + high) / 2
            too_many = math.prod((2 * counted(math.exp(middle)) + 1).tolist()) > max_modes
            low, high = (middle, high) if too_many else (low, middle)
        factor = math.exp(high) if low > 0 else 1.0
        kept = tuple(int(m) for m in counted(factor))
        while len(kept) > 0 and math.prod(2 * m + 1 for m in kept) > max_modes:
            kept = tuple(max(0, m - 1) for m in kept)  # of a single mode a column nothing is left to divide
        # Grids of transforms have at least 32 places a coordinate, for 21 modes of v: fewer save nothing.
        more = tuple(max(m, _FEWEST_MODES) for m in kept)
        if math.prod(2 * m + 1 for m in more) <= max_modes:
            kept = more
        lattice = Lattice(len(bounds), columns, kept, tuple(spacing), tuple(centre), tuple(bounds))
        return lattice, shortest * factor

    def lattice_for_search(
        self, pilot: Kernel, tol: float, max_modes: int, n_rows: int
    ) -> tuple[Lattice, Kernel]:
        """Return the lattice of most use for comparing widths around those of the pilot, and where to begin.

        From twice the pilot's widths down to a quarter of them, and less where there are more rows than the
        pilot had: n rows resolve widths in proportion to n^(−1/d). Long widths take a wide margin, and so
        many modes; where these do not suffice, the longest are given up first. Little is lost: with a smaller
        alpha a shorter width fits a smooth function as well.
        """
        wanted = 1.0 / (_SHORTEST * max(1.0, n_rows / PILOT_ROWS) ** (1.0 / len(self.columns)))
        best = None
        for longest in _LONGEST:
            wide = scaled_widths(pilot, longest * (1 + 1e-3))  # widths are rounded to four digits
            lattice, kept = self.lattice(pilot, wide, tol, max_modes, shortest=wanted)
            if best is None or kept <= longest:
                best = lattice, scaled_widths(pilot, min(longest, max(1.0, kept * (1 + 1e-3))))
            if kept <= max(wanted, longest * _ENOUGH):
                break
        assert best is not None
        return best


_FIRST_SHARE, _SETTLED = 1e-5, 1.02


@lru_cache(maxsize=64)
def resolved_share(n_modes: int, n_columns: int, tol: float = 1e-3) -> float:
    """Return the shortest width, as a share of the box, that so many modes resolve for Matérn 3/2."""
    box = Box(((0.0, 1.0),) * n_columns, (None,) * n_columns)
    share, factor = _FIRST_SHARE, math.inf
    while factor > _SETTLED and share < 1:  # the margin of the box grows with the width
        kernel = Matern(share)
        _, factor = box.lattice(kernel, kernel, tol, n_modes)
        share *= factor
    return share
