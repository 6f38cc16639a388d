"""Kernels as values: their base class, and their sums and products."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, reduce
from importlib import import_module
from numbers import Integral
from reprlib import repr as short
from typing import Any, Self

import numpy as np

from distrff.errors import InputError, InputTypeError
from distrff.utils.text import Bars, Section, html_card, kernel_text, number_text
from distrff.utils.validation import Widths, finite_rows, is_number, positive_number

# By Bochner's theorem a continuous shift-invariant k(x, x') = k(δ), δ = x − x', is k(0) times the
# characteristic function of a probability measure: k(δ) = k(0)·E cos(ωᵀδ) for ω drawn from it (Rahimi and
# Recht 2007, section 3). A `Kernel` holds both sides of this equation.

Streams = Callable[[str], np.random.Generator]


def nested_streams(rng_of: Streams, part: str) -> Streams:
    """The named streams of one part of an expression; no two parts share a stream."""
    return lambda name: rng_of(f"{part}/{name}")


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel and, where it is shift-invariant, the measure its random frequencies are drawn from.

    Kernels are values: immutable, comparable, hashable, with a repr that evaluates. They compose as
    `k1 + k2`, `k1 * k2` and `a * k` with a > 0. `rng_of(name)` returns a named random
    stream (`distrff.utils.random.stream`); draws are *prefix-stable*: the first frequencies or
    radii do not depend on how many are drawn. Methods that need a width raise `InputError` while
    it is undecided, or if per-column widths do not fit the columns.
    """

    # NumPy scalars and arrays leave `a * k` to this class.
    __array_ufunc__ = None

    @property
    @abstractmethod
    def at_zero(self) -> float:
        """k(0), the kernel of a point with itself; nan where that depends on the point."""

    @property
    def is_auto(self) -> bool:
        """True where a width in the expression is undecided, "auto" or "ard", or its metric is "learned"."""
        return False

    @property
    def is_ard(self) -> bool:
        """True where each column gets a width of its own, by "ard"; only for a single base kernel."""
        return False

    @property
    def metric(self) -> Any:
        """The factor of x − x': a `MetricFactor` P, "learned" by a fit, or None; only for a single base
        kernel."""
        return None

    def without_metric(self) -> Kernel:
        """The kernel of the same widths with no metric: that of rows P·x."""
        return self

    @property
    def is_shift_invariant(self) -> bool:
        """True where k(x, x') is a function of x − x'; only then is there a measure."""
        return True

    @property
    def is_spherical(self) -> bool:
        """True where the measure (of a sum: that of each component) is rotation invariant once
        coordinate j is multiplied by width j."""
        return False

    def with_widths(self, factor: Widths) -> Kernel:
        """This kernel with every undecided width replaced by `factor`; explicit widths stay."""
        return self

    @abstractmethod
    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """A new (n, m) matrix k(X, Y) of finite float64 rows."""

    def _column_counts(self) -> set[int]:
        """The numbers of columns that the per-column widths fit."""
        return set()

    def __call__(self, X: Any, Y: Any = None) -> np.ndarray:
        """The exact kernel matrix of the rows of X and Y, in float64.

        Parameters
        ----------
        X : array-like of shape (n, d)
        Y : array-like of shape (m, d), optional
            X when not given.

        Returns
        -------
        ndarray of shape (n, m)

        Raises
        ------
        InputError
            If X or Y is not a finite real matrix, or they differ in columns.

        Notes
        -----
        Distances come from differences of coordinates, not from ‖x‖² + ‖y‖² − 2xᵀy, which loses the
        digits of close rows: O(n·m·d) time, and O(n·m) memory for each level of an expression.
        """
        X = finite_rows(X, "X")
        Y = X if Y is None else finite_rows(Y, "Y")
        if X.shape[1] != Y.shape[1]:
            raise InputError(f"X and Y must have the same columns, got {X.shape[1]} and {Y.shape[1]}")
        return self._evaluate(X, Y)

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """k(X, Y) of finite float64 rows, unchecked, faster than a call if that loses no digits.

        Kernels that are smooth in ‖δ‖² compute it as ‖x‖² + ‖y‖² − 2xᵀy, one matrix product, with the mean
        of Y as the origin. Distances are those of a call for all other kernels, and where rows of Y lie so
        many widths from their mean that digits would be lost: only Y decides, which all blocks share.
        """
        return self._evaluate(X, Y)

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        """Draw independent frequencies, ndarray of shape (n_columns, n_frequencies), float64."""
        raise self._no_measure()

    def n_uniforms(self, n_columns: int) -> int:
        """How many uniform numbers `quantile_frequencies` takes for one frequency.

        Raises InputError for a sum: take its `components`.
        """
        raise self._no_sphere("quantiles")

    def quantile_frequencies(self, U: np.ndarray, n_columns: int) -> np.ndarray:
        """The frequencies at points of the open unit cube, (n_columns, n_frequencies), float64.

        U has the shape (n_frequencies, n_uniforms(n_columns)); its rows are the points, and uniform ones give
        the kernel's measure. Raises InputError for a sum, or widths that do not fit the columns.
        """
        raise self._no_sphere("quantiles")

    def lattice_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        """The Fourier coefficients w_j of this kernel's sum over periods, at the modes j ∈ {−m … m}^d.

        Σ_j w_j·exp(2πi⟨h·j, δ⟩) over all j is Σ_n k(δ + n/h), by Poisson's summation formula, with
        w_j = ∏h·k̂(h·j), where k̂(ξ) = ∫ k(δ)·exp(−2πi⟨ξ, δ⟩) dδ.

        Parameters
        ----------
        spacing, modes : sequences of length d
            h > 0 and m ≥ 0 of each column.

        Returns
        -------
        ndarray of shape (2·m_1 + 1, …, 2·m_d + 1), not negative

        Raises
        ------
        InputError
            If the kernel is not shift-invariant, its metric is not invertible or not of a Gaussian or Matern
            kernel, or its widths are undecided or do not fit.
        """
        raise InputError(f"{self!r} has no Fourier transform that is known here; use FourierFeatures")

    def along(self, columns: Sequence[int]) -> Kernel:
        """The kernel of differences that are zero outside of these columns, as one of those alone."""
        return self

    def envelope(self, column: int, n_columns: int) -> Kernel:
        """A kernel of one column, at each difference at least this one whatever the other columns are."""
        return self.along([column])  # kernels fall in each column

    @property
    def has_undecided_smoothness(self) -> bool:
        """True where the smoothness ν is to be chosen by a fit."""
        return False

    def second_moment(self, n_columns: int) -> float:
        """σ² = E‖ω‖², the trace of the negative Hessian of k/k(0) at 0; may be inf."""
        raise self._no_measure()

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        """Draw ‖diag(widths)·ω‖, ndarray of shape (n,).

        Raises InputError if the measure is not spherical, or is that of a sum: take its `components`.
        """
        raise self._no_sphere("radii")

    def widths(self, n_columns: int) -> np.ndarray:
        """The widths that make the measure rotation invariant, ndarray of shape (n_columns,).

        Raises InputError as `radii`.
        """
        raise self._no_sphere("widths")

    def _profile(self) -> float | tuple[float, ...]:
        """The widths as given, for any number of columns; 1 for an undecided width."""
        raise self._no_sphere("widths")

    def _no_measure(self) -> InputError:
        return InputError(f"{self!r} is not shift-invariant and has no frequencies")

    def _no_sphere(self, what: str) -> InputError:
        why = "is a sum, take its components" if len(self.components()) > 1 else "has no spherical measure"
        return InputError(f"no {what}: {self!r} {why}")

    def components(self) -> list[tuple[float, Kernel]]:
        """The kernel as a flat sum: (share of k(0), component) with shares that add to 1.

        Scaled sums and products of sums are multiplied out; any other kernel is its own component.
        """
        terms = self._terms()
        # A scaled kernel is its own component: a multiple changes no frequency, but k(0).
        return terms if len(terms) > 1 else [(1.0, self)]

    def _terms(self) -> list[tuple[float, Kernel]]:
        return [(1.0, self)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with `deep` also those of operands, as `k1__length_scale`."""
        params = {field.name: getattr(self, field.name) for field in fields(self)}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Kernel):
                    params.update({f"{name}__{inner}": v for inner, v in value.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """A new kernel with these parameters, named as in `get_params`; this one stays as it is.

        Raises
        ------
        InputError
            For a name that is not a parameter, or something that a parameter cannot be.
        """
        own = self.get_params(deep=False)
        # First whole operands, then what is set inside of them: `k1=…, k1__length_scale=…` means the new one.
        nested: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            head, separator, rest = name.partition("__")
            if head not in own or (separator and not isinstance(params.get(head, own[head]), Kernel)):
                valid = ", ".join(self.get_params())
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {valid}")
            if separator:
                nested.setdefault(head, {})[rest] = value
            else:
                own[head] = value
        for head, inner in nested.items():
            own[head] = own[head].set_params(**inner)
        return type(self)(**own)

    def __sklearn_clone__(self) -> Self:
        """The kernel itself, which is immutable and needs no copy."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The kernel as strict JSON data, which `kernel_from_dict` reads."""
        data: dict[str, Any] = {"kernel": type(self).__name__.lower()}
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, Kernel):
                data[name] = value.to_dict()
            elif isinstance(value, MetricFactor):
                data[name] = value.tolist()
            elif name != "metric" or value is not None:  # files without a metric stay as they are
                data[name] = list(value) if isinstance(value, tuple) else value
        return data

    def _repr_html_(self) -> str:
        return kernel_card(self, max(self._column_counts(), default=0))

    def __add__(self, other: Any) -> Sum:
        return Sum(self, other)

    def __mul__(self, other: Any) -> Product | Scaled:
        return Product(self, other) if isinstance(other, Kernel) else Scaled(other, self)

    def __rmul__(self, other: Any) -> Scaled:
        return Scaled(other, self)


_ALONE: tuple[tuple[Callable[[Kernel], bool], str, str], ...] = (
    (lambda k: k.is_ard, "length_scale='ard' is", "use 'auto', one factor for all"),
    (lambda k: k.has_undecided_smoothness, "nu='auto' is", "give nu a number"),
    (
        lambda k: isinstance(k.metric, str),
        "a learned metric is",
        "give a matrix, or one width a column",
    ),
)
"""Choices that a fit makes for a single kernel, which an operand may not have, and the remedy."""


class _Composite(Kernel):
    """A kernel made of others, its operands."""

    @abstractmethod
    def _combine(self, *K: np.ndarray) -> np.ndarray:
        """The kernel matrix from those of the operands, in the memory of the first."""

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return self._combine(*(k._evaluate(X, Y) for k in self._operands().values()))

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return self._combine(*(k.block(X, Y) for k in self._operands().values()))

    def __post_init__(self) -> None:
        for name, operand in self.get_params(deep=False).items():
            if name != "a" and not isinstance(operand, Kernel):
                kind = type(self).__name__
                raise InputTypeError(f"{name} of {kind} must be a kernel, got {short(operand)}")
        for operand in self._operands().values():
            for is_so, what, remedy in _ALONE:
                if is_so(operand):
                    raise InputError(
                        f"{what} for one kernel alone, not for {operand!r} in a sum or product; {remedy}"
                    )
        counts = sorted(self._column_counts())
        if len(counts) > 1:
            raise InputError(f"per-column widths of one kernel must be equally many, got {counts}")
        if self.is_shift_invariant:
            positive_number(self.at_zero, "k(0)")

    def _operands(self) -> dict[str, Kernel]:
        return {name: k for name, k in self.get_params(deep=False).items() if isinstance(k, Kernel)}

    @property
    def is_auto(self) -> bool:
        return any(k.is_auto for k in self._operands().values())

    @property
    def is_shift_invariant(self) -> bool:
        return all(k.is_shift_invariant for k in self._operands().values())

    @property
    def is_spherical(self) -> bool:
        return all(k.is_spherical for k in self._operands().values())

    def _column_counts(self) -> set[int]:
        return set().union(*(k._column_counts() for k in self._operands().values()))

    def with_widths(self, factor: Widths) -> Kernel:
        return self.set_params(**{name: k.with_widths(factor) for name, k in self._operands().items()})

    def along(self, columns: Sequence[int]) -> Kernel:
        return self.set_params(**{name: k.along(columns) for name, k in self._operands().items()})

    def envelope(self, column: int, n_columns: int) -> Kernel:
        own = {name: k.envelope(column, n_columns) for name, k in self._operands().items()}
        return self.set_params(**own)


def _bracketed(kernel: Kernel, *kinds: type) -> str:
    return f"({kernel!r})" if isinstance(kernel, kinds) else repr(kernel)


@dataclass(frozen=True)
class Sum(_Composite):
    """k1 + k2: each frequency is that of a component drawn in proportion to its k(0)."""

    k1: Kernel
    k2: Kernel

    @property
    def at_zero(self) -> float:
        return self.k1.at_zero + self.k2.at_zero

    def _combine(self, *K: np.ndarray) -> np.ndarray:
        return np.add(K[0], K[1], out=K[0])

    def _terms(self) -> list[tuple[float, Kernel]]:
        parts = [(k.at_zero / self.at_zero, k) for k in (self.k1, self.k2)]
        return [(part * share, term) for part, k in parts for share, term in k.components()]

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        terms = self.components()
        edges = np.cumsum([share for share, _ in terms])[:-1]
        # One uniform a frequency, from a stream of its own: more frequencies leave the first ones as they
        # are.
        chosen = np.searchsorted(edges, rng_of("component").random(n_frequencies), side="right")
        W = np.empty((n_columns, n_frequencies))
        # The j-th frequency of a component is its own j-th draw, which keeps W prefix-stable.
        for i, (_, term) in enumerate(terms):
            mine = np.flatnonzero(chosen == i)
            W[:, mine] = term.frequencies(mine.size, n_columns, nested_streams(rng_of, str(i)))
        return W

    def second_moment(self, n_columns: int) -> float:
        # A share that underflowed to 0 must not meet an infinite moment.
        return sum(share * term.second_moment(n_columns) for share, term in self.components() if share)

    def lattice_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        return self.k1.lattice_weights(spacing, modes) + self.k2.lattice_weights(spacing, modes)

    def __repr__(self) -> str:
        return f"{self.k1!r} + {_bracketed(self.k2, Sum)}"


_POINTS = 2**18  # of which a product is evaluated at once


class _Factors(_Composite):
    """A multiple or a product: frequencies are sums of independent ones of the factors, if it is one term."""

    def _streams(self, rng_of: Streams) -> list[tuple[Kernel, Streams]]:
        """Each factor with the streams of its own draws."""
        return [(k, nested_streams(rng_of, name)) for name, k in self._operands().items()]

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        drawn = (k.frequencies(n_frequencies, n_columns, own) for k, own in self._streams(rng_of))
        # By the characteristic functions: a product of kernels is the kernel of a sum of independent
        # frequencies.
        return reduce(np.add, drawn)

    def n_uniforms(self, n_columns: int) -> int:
        return sum(k.n_uniforms(n_columns) for k in self._operands().values())

    def quantile_frequencies(self, U: np.ndarray, n_columns: int) -> np.ndarray:
        factors = list(self._operands().values())
        # The first coordinates of a Sobol point, which are the most even, go to the first factor.
        parts = np.split(U, np.cumsum([k.n_uniforms(n_columns) for k in factors])[:-1], axis=1)
        return reduce(np.add, map(lambda k, own: k.quantile_frequencies(own, n_columns), factors, parts))

    def second_moment(self, n_columns: int) -> float:
        # The factors' frequencies are independent and symmetric: no cross term.
        return sum(k.second_moment(n_columns) for k in self._operands().values())

    def _profile(self) -> float | tuple[float, ...]:
        return next(iter(self._operands().values()))._profile()

    def widths(self, n_columns: int) -> np.ndarray:
        if len(self._terms()) > 1 or not self.is_spherical:
            raise self._no_sphere("widths")
        # Of each: its own widths may not fit the columns, and then it refuses them.
        first, *_ = [k.widths(n_columns) for k in self._operands().values()]
        return first


@dataclass(frozen=True)
class Product(_Factors):
    """k1 * k2: each frequency is the sum of independent frequencies of the factors."""

    k1: Kernel
    k2: Kernel

    @property
    def at_zero(self) -> float:
        return self.k1.at_zero * self.k2.at_zero

    @property
    def is_spherical(self) -> bool:
        if not super().is_spherical:
            return False
        terms = self._terms()
        if len(terms) > 1:
            return all(term.is_spherical for _, term in terms)
        # Each factor is rotation invariant in its own coordinates; their sum is only where these are the
        # same.
        ratio = np.atleast_1d(np.divide(self.k2._profile(), self.k1._profile()))
        # Proportional up to the rounding of widths that were computed.
        return bool(np.allclose(ratio, ratio[0], rtol=1e-12, atol=0.0))

    def _combine(self, *K: np.ndarray) -> np.ndarray:
        return np.multiply(K[0], K[1], out=K[0])

    def _terms(self) -> list[tuple[float, Kernel]]:
        pairs = [(p, q) for p in self.k1.components() for q in self.k2.components()]
        return [(share1 * share2, Product(term1, term2)) for (share1, term1), (share2, term2) in pairs]

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        if len(self._terms()) > 1 or not self.is_spherical:
            raise self._no_sphere("radii")
        ratio = np.ravel(self._profile())[0] / np.ravel(self.k2._profile())[0]
        r1 = self.k1.radii(n, n_columns, nested_streams(rng_of, "k1"))
        r2 = self.k2.radii(n, n_columns, nested_streams(rng_of, "k2")) * ratio
        # The second direction is uniform on the sphere: its component along the first one is along/norm,
        # that across it has the length across/norm. The norm of the sum follows by Pythagoras.
        along = rng_of("along").standard_normal(n)
        across = np.sqrt(2.0 * rng_of("across").standard_gamma((n_columns - 1) / 2, n))
        norm = np.hypot(along, across)
        return np.hypot(r1 + r2 * (along / norm), r2 * (across / norm))

    def lattice_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        # The transform of a product has no closed form. Its values at points a quarter of the shortest wave
        # apart give the coefficients of its sum over periods, each with those of some far higher modes.
        shape = [2 * (2 * m + 1) for m in modes]
        axes = [np.fft.fftfreq(n) / h for n, h in zip(shape, spacing, strict=True)]
        points = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
        # With the nearest images, so that the function has no jump where the period ends.
        images = np.array(list(itertools.product((-1, 0, 1), repeat=len(axes)))) / np.asarray(spacing)
        K = np.zeros(len(points))
        # Strips: in three columns the points are millions, and a matrix of each product takes their bytes.
        for strip in range(0, len(points), _POINTS):
            rows = slice(strip, strip + _POINTS)
            for image in images:
                K[rows] += self._evaluate(points[rows], image[None])[:, 0]
        K = K.reshape(shape)
        w = np.fft.fftshift(np.fft.fftn(K).real) / K.size
        central = tuple(slice(n // 2 - m, n // 2 + m + 1) for n, m in zip(shape, modes, strict=True))
        # Rounding may leave the smallest coefficients below 0.
        return np.maximum(w[central], 0.0)

    def __repr__(self) -> str:
        return f"{_bracketed(self.k1, Sum)} * {_bracketed(self.k2, Sum, Product, Scaled)}"


@dataclass(frozen=True)
class Scaled(_Factors):
    """a * k with a number a > 0: the same measure, and k(0) times a."""

    a: float
    k: Kernel

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", positive_number(self.a, "the factor of a kernel"))
        super().__post_init__()

    @property
    def at_zero(self) -> float:
        return self.a * self.k.at_zero

    def _combine(self, *K: np.ndarray) -> np.ndarray:
        return np.multiply(K[0], self.a, out=K[0])

    def _terms(self) -> list[tuple[float, Kernel]]:
        return self.k.components()

    def _streams(self, rng_of: Streams) -> list[tuple[Kernel, Streams]]:
        return [(self.k, rng_of)]  # as of the kernel alone: a factor changes no frequency

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        return self.k.radii(n, n_columns, rng_of)

    def lattice_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        return self.a * self.k.lattice_weights(spacing, modes)

    def __repr__(self) -> str:
        return f"{self.a!r}*{_bracketed(self.k, Sum, Product, Scaled)}"


# A kernel as a card of a notebook: its parameters, and how fast it falls along each column.

_MAX_COLUMNS = 12  # as bars


def kernel_card(kernel: Kernel, n_widths: int) -> str:
    """The card of a kernel with per-column widths for `n_widths` columns; 0 for any number."""
    shown = {
        "kernel": kernel_text(repr(kernel)),
        "k(0)": number_text(kernel.at_zero) if math.isfinite(kernel.at_zero) else "depends on the row",
        "columns": str(n_widths) if n_widths else "any",
        "widths": "to be found by the fit" if kernel.is_auto else "decided",
        "frequencies": _frequencies(kernel.without_metric()),
    }
    sections = [_by_column(kernel, n_widths)] if kernel.is_shift_invariant and n_widths else []
    return html_card(type(kernel).__name__, shown.items(), sections=sections)


def _frequencies(kernel: Kernel) -> str:
    if not kernel.is_shift_invariant:
        return "none: evaluated exactly, or approximated by NystroemFeatures"
    if kernel.is_spherical:
        return "spherical: any sampling of FourierFeatures"
    return "not spherical: independent draws or Sobol points"


def _by_column(kernel: Kernel, n_columns: int) -> Section:
    """The distance along each column at which the kernel is half of k(0)."""
    kernel = kernel.with_widths(1.0)
    reach = np.array([half_distance(kernel, j, n_columns) for j in range(min(n_columns, _MAX_COLUMNS))])
    bars = [(f"column {j}", 1 / r, number_text(float(r))) for j, r in enumerate(reach)]
    more = f" Of {n_columns} columns the first {len(reach)}." if n_columns > len(reach) else ""
    caption = "The longer a bar, the faster the kernel falls; the number is the distance at which it is half."
    return Section("By column", [Bars(bars), caption + more])


def half_distance(kernel: Kernel, j: int, n_columns: int) -> float:
    """Distance along a column where the kernel is half of k(0), by bisection of its logarithm."""
    x, origin = np.zeros((1, n_columns)), np.zeros((1, n_columns))
    # By the exponent: widths of any size are as near.
    low, high = -300.0, 300.0
    for _ in range(40):
        middle = (low + high) / 2
        x[0, j] = 10.0**middle
        low, high = (middle, high) if kernel(x, origin)[0, 0] > kernel.at_zero / 2 else (low, middle)
    return 10.0**high


# The matrix of a metric as a value: immutable, comparable, hashable.

LEARNED = "learned"
"""The metric that a fit finds."""


_MOST_SHOWN = 3  # columns of a square matrix, as of a map


class MetricFactor:
    """P of shape (r, d), which makes ‖P(x − x')‖ the distance of rows x and x' of d columns.

    `np.asarray` returns P itself, float64 and read-only. Two are equal if all numbers are.

    Parameters
    ----------
    P : array-like of shape (r, d)

    Raises
    ------
    InputError
        If P is no finite real matrix, is empty or all zeros, or if its squares overflow or vanish.
    """

    def __init__(self, P: Any) -> None:
        P = np.array(finite_rows(P, "metric"), order="C") + 0.0  # without −0.0, whose bytes differ from 0.0
        if not P.any():
            raise InputError(
                f"metric must be a matrix that is not all zeros, got one of shape {P.shape}; "
                f"give a row for each direction that matters"
            )
        with np.errstate(over="ignore", under="ignore"):
            square = float(np.square(P).sum())
        if not 0 < square < math.inf:
            raise InputError(
                f"metric must have squares that neither overflow nor vanish in float64, got a largest number "
                f"of {np.abs(P).max():.3g}; divide it and the kernel's length scale by the same number"
            )
        P.setflags(write=False)
        self._P = P

    @property
    def shape(self) -> tuple[int, int]:
        """(r, d)."""
        r, d = self._P.shape
        return r, d

    def tolist(self) -> list[list[float]]:
        """P as lists of its rows."""
        rows: list[list[float]] = self._P.tolist()
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._P, dtype=dtype) if copy else np.asarray(self._P, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self._P, other._P) if isinstance(other, MetricFactor) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._P.shape, self._P.tobytes()))

    def __reduce__(self) -> tuple[type[MetricFactor], tuple[np.ndarray]]:
        # Through the constructor: a pickled array forgets that it is read-only.
        return type(self), (self._P,)

    def __repr__(self) -> str:
        r, d = self.shape
        return repr(self.tolist()) if r == d <= _MOST_SHOWN else f"ndarray[{r}, {d}]"


def checked_metric(value: Any) -> MetricFactor | str | None:
    """The value as a `MetricFactor`, "learned" or None; raises InputError for any other value."""
    if value is None or isinstance(value, MetricFactor):
        return value
    if isinstance(value, str):
        if value == LEARNED:
            return value
        raise InputError(f'metric must be None, "learned" or a matrix of shape (r, d), got {short(value)}')
    return MetricFactor(value)


# Kernels from their names and from JSON data.


@cache
def _kinds() -> dict[str, type[Kernel]]:
    """All classes by name. The stationary kernels import this module, so theirs is loaded here by name."""
    stationary = import_module("distrff.kernels.stationary")
    others = (Polynomial, Sum, Product, Scaled)
    return dict(stationary.KERNELS) | {kind.__name__.lower(): kind for kind in others}


def kernel_from_dict(data: Any) -> Kernel:
    """The kernel of `{"kernel": name, parameter: value, ...}`, as `Kernel.to_dict` writes it.

    Parameters that are left out have their default values. Raises InputError if `data` is not such a
    dictionary, or a name or value in it cannot be used.
    """
    if not isinstance(data, dict):
        raise InputError(f'a kernel must be a dictionary like {{"kernel": "gaussian"}}, got {short(data)}')
    kind = data.get("kernel")
    if not isinstance(kind, str) or kind not in _kinds():
        raise InputError(f'"kernel" must be one of {", ".join(_kinds())}, got {short(kind)}')
    known = {field.name: field.default is MISSING for field in fields(_kinds()[kind])}
    given = {name: value for name, value in data.items() if name != "kernel"}
    unknown = [name for name in given if name not in known]
    missing = [name for name, needed in known.items() if needed and name not in given]
    if unknown or missing:
        what = f"lacks {missing[0]!r}" if missing else f"has no parameter {unknown[0]!r}"
        raise InputError(f"the kernel {kind!r} {what}; its parameters are {', '.join(map(repr, known))}")
    try:
        operands = {n: kernel_from_dict(v) if n in ("k", "k1", "k2") else v for n, v in given.items()}
        return _kinds()[kind](**operands)
    except RecursionError as error:
        raise InputError("a kernel is nested too deeply; write it with fewer operations") from error


# The polynomial kernel, which depends on more than the difference of its points.


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, x') = (⟨x, x'⟩ + bias)^degree: all monomials of at most that degree.

    It is not shift-invariant and has no frequencies: it is evaluated exactly, or approximated by
    `NystroemFeatures`.

    Parameters
    ----------
    degree : int
        q, at least 1.
    bias : float
        At least 0; 0 leaves the monomials of exactly that degree.

    Raises
    ------
    InputError
        For other values.
    """

    degree: int
    bias: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.degree) or not isinstance(self.degree, Integral):
            raise InputTypeError(f"degree must be an integer, got {self.degree!r}")
        if self.degree < 1:
            raise InputError(f"degree must be at least 1, got {self.degree}")
        # A NumPy integer would be another value in a repr, and none in JSON.
        object.__setattr__(self, "degree", int(self.degree))
        object.__setattr__(self, "bias", positive_number(self.bias, "bias", minimum=0.0))

    @property
    def at_zero(self) -> float:
        return math.nan

    @property
    def is_shift_invariant(self) -> bool:
        return False

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = X @ Y.T
        K += self.bias
        return np.power(K, self.degree, out=K)
