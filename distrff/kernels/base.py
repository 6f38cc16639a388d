"""What a kernel is, and how kernels compose."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any

import numpy as np

from distrff.errors import InputError, InputTypeError
from distrff.kernels.checks import Widths, finite_rows, positive_number
from distrff.kernels.kernel_card import kernel_card
from distrff.kernels.measure import SpectralMeasure, Streams, nested_streams
from distrff.kernels.value import Value


class Kernel(Value, SpectralMeasure):
    """A kernel and, where it is shift-invariant, the measure its random frequencies are drawn from.

    Kernels are values: immutable, comparable, hashable, with a repr that evaluates. They compose as
    `k1 + k2`, `k1 * k2` and `a * k` with a > 0. `rng_of(name)` stands for a named random
    stream (`distrff.random_streams.stream`); draws are *prefix-stable*: the first frequencies or
    radii do not depend on how many are drawn. What needs a width raises `InputError` while it is
    still undecided, and where per-column widths do not fit the columns.
    """

    # NumPy scalars and arrays leave `a * k` to this class.
    __array_ufunc__ = None

    @property
    @abstractmethod
    def at_zero(self) -> float:
        """k(0), the kernel of a point with itself; nan where that depends on the point."""

    @property
    @abstractmethod
    def is_auto(self) -> bool:
        """True where some width in the expression is still to be decided, "auto" or "ard"."""

    @property
    def is_ard(self) -> bool:
        """True where each column's width is to be decided by itself; only for one kernel alone."""
        return False

    @property
    def is_shift_invariant(self) -> bool:
        """True where k(x, x') is a function of x − x', so that there is a measure."""
        return True

    @abstractmethod
    def with_widths(self, factor: Widths) -> Kernel:
        """Return this kernel with every undecided width replaced by `factor`, explicit widths untouched."""

    @abstractmethod
    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """Return a new (n, m) matrix k(X, Y) of finite float64 rows."""

    @abstractmethod
    def _column_counts(self) -> set[int]:
        """Return the numbers of columns that per-column widths ask for."""

    def __call__(self, X: Any, Y: Any = None) -> np.ndarray:
        """Return the exact kernel matrix of the rows of X and Y, in float64.

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
        Distances come from differences of coordinates, not from ‖x‖² + ‖y‖² − 2xᵀy, so that close
        rows lose nothing: O(n·m·d) time, and O(n·m) memory for each level of an expression.
        """
        X = finite_rows(X, "X")
        Y = X if Y is None else finite_rows(Y, "Y")
        if X.shape[1] != Y.shape[1]:
            raise InputError(f"X and Y must have the same columns, got {X.shape[1]} and {Y.shape[1]}")
        return self._evaluate(X, Y)

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """Return k(X, Y) of rows that were checked before, faster than a call where that costs no digits.

        Parameters
        ----------
        X : ndarray of shape (n, d), float64 and finite
        Y : ndarray of shape (m, d), float64 and finite
            What does not change from block to block: it decides how distances are found.

        Returns
        -------
        ndarray of shape (n, m), float64

        Notes
        -----
        Smooth functions of ‖δ‖² take it from ‖x‖² + ‖y‖² − 2xᵀy, one matrix product, with the mean of Y
        as the origin; where the rows of Y lie so far from it, in widths, that digits would be lost, and
        for all other kernels, the distances are those of a call.
        """
        return self._evaluate(X, Y)

    def components(self) -> list[tuple[float, Kernel]]:
        terms = self._terms()
        return terms if len(terms) > 1 else [(1.0, self)]

    def _terms(self) -> list[tuple[float, Kernel]]:
        return [(1.0, self)]

    def _repr_html_(self) -> str:
        return kernel_card(self, max(self._column_counts(), default=0))

    def __add__(self, other: Any) -> Sum:
        return Sum(self, other)

    def __mul__(self, other: Any) -> Product | Scaled:
        return Product(self, other) if isinstance(other, Kernel) else Scaled(other, self)

    def __rmul__(self, other: Any) -> Scaled:
        return Scaled(other, self)


class _Composite(Kernel):
    """A kernel made of others, its operands."""

    def __post_init__(self) -> None:
        for name, operand in self.get_params(deep=False).items():
            if name != "a" and not isinstance(operand, Kernel):
                kind = type(self).__name__
                raise InputTypeError(f"{name} of {kind} must be a kernel, got {short(operand)}")
            if isinstance(operand, Kernel) and operand.is_ard:
                what = f"length_scale='ard' is for one kernel alone, not for {operand!r} in a sum or product"
                raise InputError(f"{what}; use 'auto', one factor for all")
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

    def _column_counts(self) -> set[int]:
        return set().union(*(k._column_counts() for k in self._operands().values()))

    def with_widths(self, factor: Widths) -> Kernel:
        return self.set_params(**{name: k.with_widths(factor) for name, k in self._operands().items()})


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

    @property
    def is_spherical(self) -> bool:
        return self.k1.is_spherical and self.k2.is_spherical

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k1._evaluate(X, Y)
        K += self.k2._evaluate(X, Y)
        return K

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k1.block(X, Y)
        K += self.k2.block(X, Y)
        return K

    def _terms(self) -> list[tuple[float, Kernel]]:
        parts = [(k.at_zero / self.at_zero, k) for k in (self.k1, self.k2)]
        return [(part * share, term) for part, k in parts for share, term in k.components()]

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        terms = self.components()
        edges = np.cumsum([share for share, _ in terms])[:-1]
        chosen = np.searchsorted(edges, rng_of("component").random(n_frequencies), side="right")
        W = np.empty((n_columns, n_frequencies))
        # The j-th frequency of a component is its own j-th draw, so that W is prefix-stable as they are.
        for i, (_, term) in enumerate(terms):
            mine = np.flatnonzero(chosen == i)
            W[:, mine] = term.frequencies(mine.size, n_columns, nested_streams(rng_of, str(i)))
        return W

    def second_moment(self, n_columns: int) -> float:
        # A share that underflowed to 0 must not meet an infinite moment.
        return sum(share * term.second_moment(n_columns) for share, term in self.components() if share)

    def __repr__(self) -> str:
        return f"{self.k1!r} + {_bracketed(self.k2, Sum)}"


@dataclass(frozen=True)
class Product(_Composite):
    """k1 * k2: each frequency is the sum of independent frequencies of the factors."""

    k1: Kernel
    k2: Kernel

    @property
    def at_zero(self) -> float:
        return self.k1.at_zero * self.k2.at_zero

    @property
    def is_spherical(self) -> bool:
        if not (self.k1.is_spherical and self.k2.is_spherical):
            return False
        terms = self._terms()
        if len(terms) > 1:
            return all(term.is_spherical for _, term in terms)
        ratio = np.atleast_1d(np.divide(self.k2._profile(), self.k1._profile()))
        # Proportional up to the rounding of widths that were computed.
        return bool(np.allclose(ratio, ratio[0], rtol=1e-12, atol=0.0))

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k1._evaluate(X, Y)
        K *= self.k2._evaluate(X, Y)
        return K

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k1.block(X, Y)
        K *= self.k2.block(X, Y)
        return K

    def _terms(self) -> list[tuple[float, Kernel]]:
        pairs = [(p, q) for p in self.k1.components() for q in self.k2.components()]
        return [(share1 * share2, Product(term1, term2)) for (share1, term1), (share2, term2) in pairs]

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        W = self.k1.frequencies(n_frequencies, n_columns, nested_streams(rng_of, "k1"))
        return W + self.k2.frequencies(n_frequencies, n_columns, nested_streams(rng_of, "k2"))

    def second_moment(self, n_columns: int) -> float:
        # The factors' frequencies are independent and symmetric: no cross term.
        return self.k1.second_moment(n_columns) + self.k2.second_moment(n_columns)

    def _profile(self) -> float | tuple[float, ...]:
        return self.k1._profile()

    def widths(self, n_columns: int) -> np.ndarray:
        if len(self._terms()) > 1 or not self.is_spherical:
            raise self._no_sphere("widths")
        self.k2.widths(n_columns)  # refuses columns that its own widths do not fit
        return self.k1.widths(n_columns)

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        if len(self._terms()) > 1 or not self.is_spherical:
            raise self._no_sphere("radii")
        ratio = np.ravel(self._profile())[0] / np.ravel(self.k2._profile())[0]
        r1 = self.k1.radii(n, n_columns, nested_streams(rng_of, "k1"))
        r2 = self.k2.radii(n, n_columns, nested_streams(rng_of, "k2")) * ratio
        # The second direction, uniform on the sphere, has the component along/norm on the first one
        # and a remainder of length across/norm: the sum of both arrows by Pythagoras.
        along = rng_of("along").standard_normal(n)
        across = np.sqrt(2.0 * rng_of("across").standard_gamma((n_columns - 1) / 2, n))
        norm = np.hypot(along, across)
        return np.hypot(r1 + r2 * (along / norm), r2 * (across / norm))

    def __repr__(self) -> str:
        return f"{_bracketed(self.k1, Sum)} * {_bracketed(self.k2, Sum, Product, Scaled)}"


@dataclass(frozen=True)
class Scaled(_Composite):
    """a * k with a number a > 0: the same measure, and k(0) times a."""

    a: float
    k: Kernel

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", positive_number(self.a, "the factor of a kernel"))
        super().__post_init__()

    @property
    def at_zero(self) -> float:
        return self.a * self.k.at_zero

    @property
    def is_spherical(self) -> bool:
        return self.k.is_spherical

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k._evaluate(X, Y)
        K *= self.a
        return K

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = self.k.block(X, Y)
        K *= self.a
        return K

    def _terms(self) -> list[tuple[float, Kernel]]:
        return self.k.components()

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        return self.k.frequencies(n_frequencies, n_columns, rng_of)

    def second_moment(self, n_columns: int) -> float:
        return self.k.second_moment(n_columns)

    def _profile(self) -> float | tuple[float, ...]:
        return self.k._profile()

    def widths(self, n_columns: int) -> np.ndarray:
        return self.k.widths(n_columns)

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        return self.k.radii(n, n_columns, rng_of)

    def __repr__(self) -> str:
        return f"{self.a!r}*{_bracketed(self.k, Sum, Product, Scaled)}"
