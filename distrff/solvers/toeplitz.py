"""Ridge on a lattice of frequencies: its Gram is a Toeplitz matrix, which FFTs apply.

The features are √w_j·exp(i⟨j, x̃⟩) for j ∈ {−m … m}^d. With the sums v_k = Σ s·exp(−i⟨k, x̃⟩) for |k| ≤ 2m and
b_j = Σ s·y·exp(−i⟨j, x̃⟩), their Gram is √w·T(v)·√w with T(v)_{jj'} = v_{j−j'}, and ridge solves

    (√w·T(v)·√w + alpha·I)·c = √w·b.

An intercept is the mode 0 with weight 1 and without a penalty. Targets are real, so that c_{−j} is the
conjugate of c_j: of the last coordinate only j ≥ 0 is kept, which is how FFTs of real functions are laid
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from scipy import fft
from scipy.linalg import cho_solve, eigh, eigh_tridiagonal, qr

from distrff.errors import InputError
from distrff.utils.arrays import Sums
from distrff.utils.linalg import factor, inner, inverse_of_triangle, norm, solve_factor
from distrff.utils.nufft import PointSums
from distrff.utils.random import stream

# The sums over rows, which are free of the kernel.


@dataclass(frozen=True, eq=False)
class ToeplitzSums(Sums):
    """The sums over some rows.

    Parameters
    ----------
    v : complex128 ndarray of shape (4·m_1 + 1, …, 2·m_d + 1)
        Σ s·exp(−i⟨k, x̃⟩), the last coordinate of k from 0 on.
    b : complex128 ndarray of shape (n_targets, 2·m_1 + 1, …, m_d + 1)
        Σ s·y·exp(−i⟨j, x̃⟩), likewise.
    squares : ndarray of shape (n_targets,)
        Σ s·y².
    n_rows : int
    """

    v: np.ndarray
    b: np.ndarray
    squares: np.ndarray
    n_rows: int

    @property
    def modes(self) -> tuple[int, ...]:
        """m of each coordinate."""
        return (*(n // 2 for n in self.b.shape[1:-1]), self.b.shape[-1] - 1)

    @property
    def weight(self) -> float:
        """Σs."""
        return float(self.v[(*(n // 2 for n in self.v.shape[:-1]), 0)].real)

    @property
    def sums(self) -> np.ndarray:
        """Σ s·y of each target."""
        return np.array([_at_zero(b).real for b in self.b])

    def __sub__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def central(self, modes: Sequence[int]) -> Self:
        """The sums of fewer modes, which are the central part of these."""
        v = central_part(self.v, [2 * m for m in modes])
        return replace(self, v=v, b=np.stack([central_part(b, modes) for b in self.b]))

    def part(self, modes: Sequence[int], offset: np.ndarray | None) -> Self:
        """The sums of fewer modes, of targets that are shifted by the offset."""
        own = self.central(modes)
        return own if offset is None else own.recoded(np.ones(len(offset)), offset)

    def recoded(self, ratio: np.ndarray, offset: np.ndarray) -> Self:
        """The sums of the targets ratio·y + offset."""
        v = central_part(self.v, self.modes)
        wide = (slice(None), *[None] * v.ndim)
        squares = ratio**2 * self.squares + 2.0 * ratio * offset * self.sums + offset**2 * self.weight
        return replace(self, b=ratio[wide] * self.b + offset[wide] * v, squares=squares)


class SumsOfRows:
    """The transforms of rows to their sums: v with the first target, and the other targets in pairs.

    Strengths are complex: s + i·s·y gives the transforms A + iB of two real ones, each of which has
    A_{−k} = Ā_k. Other targets need the modes of b alone, one in 2^d of those of v.

    Parameters
    ----------
    modes : sequence of int
        m of each coordinate.
    n_outputs : int
        Targets.
    eps : float
        Relative error of the sums, about.
    """

    def __init__(self, modes: Sequence[int], n_outputs: int, eps: float) -> None:
        self._modes = tuple(modes)
        self._n_outputs = n_outputs
        self._of_v = PointSums([2 * m for m in modes], eps)
        self._of_b = PointSums(modes, eps) if n_outputs > 1 else None

    def sums(self, phases: Sequence[np.ndarray], Y: np.ndarray, s: np.ndarray) -> ToeplitzSums:
        """The sums over rows of phases x̃, a coordinate each, targets (n, n_outputs) and weights."""
        n_rows, k, shape = len(s), self._n_outputs, [2 * m + 1 for m in self._modes]
        if not n_rows:
            v = np.zeros([*(4 * m + 1 for m in self._modes[:-1]), 2 * self._modes[-1] + 1], np.complex128)
            b0 = np.zeros((k, *shape[:-1], self._modes[-1] + 1), np.complex128)
            return ToeplitzSums(v, b0, np.zeros(k), 0)
        sY = s[:, None] * Y
        (F,) = self._of_v.at(phases, [_paired(s, sY[:, 0])])
        v = _real_part(F)
        b = np.empty((k, *shape[:-1], self._modes[-1] + 1), np.complex128)
        b[0] = _imaginary_part(_centre(F, self._modes))
        del F
        if self._of_b is not None:
            pairs = [(i, min(i + 1, k - 1)) for i in range(1, k, 2)]
            strengths = (_paired(sY[:, i], sY[:, j]) for i, j in pairs)
            for (i, j), F in zip(pairs, self._of_b.at(phases, strengths), strict=True):
                b[i] = _real_part(F)
                if j > i:
                    b[j] = _imaginary_part(F)
        return ToeplitzSums(v, b, np.einsum("ij,ij->j", sY, Y), n_rows)


def _paired(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + ib."""
    c = np.empty(len(a), np.complex128)
    c.real, c.imag = a, b
    return c


def _real_part(F: np.ndarray) -> np.ndarray:
    """A of F = A + iB, where A_{−k} = Ā_k and B likewise, the half of it that is kept."""
    # The conjugate of F_{−k} is A_k − i·B_k, as both have real strengths.
    A = np.conjugate(half_of(np.flip(F)))
    A += half_of(F)
    A *= 0.5
    return A


def _imaginary_part(F: np.ndarray) -> np.ndarray:
    """B of F = A + iB, likewise."""
    B = np.conjugate(half_of(np.flip(F)))
    B -= half_of(F)
    B *= 0.5j
    return B


def _centre(F: np.ndarray, modes: Sequence[int]) -> np.ndarray:
    """The modes |j| ≤ m of a whole lattice."""
    return F[tuple(slice(n // 2 - m, n // 2 + m + 1) for n, m in zip(F.shape, modes, strict=True))]


def central_part(A: np.ndarray, modes: Sequence[int]) -> np.ndarray:
    """The modes |j| ≤ m of an array whose last coordinate begins at 0."""
    leading = tuple(slice(n // 2 - m, n // 2 + m + 1) for n, m in zip(A.shape[:-1], modes[:-1], strict=True))
    return A[(*leading, slice(modes[-1] + 1))]


def half_of(full: np.ndarray) -> np.ndarray:
    """The half of a whole lattice that is kept."""
    return full[..., full.shape[-1] // 2 :]


def whole_of(half: np.ndarray) -> np.ndarray:
    """The whole lattice, c_{−j} = c̄_j; inverse of `half_of`."""
    return np.concatenate([np.flip(half)[..., :-1].conj(), half], axis=-1)


def _at_zero(C: np.ndarray) -> complex:
    return complex(C[_zero(C.shape)])


def _zero(shape: Sequence[int]) -> tuple[int, ...]:
    """The place of mode 0 on the half that is kept."""
    return (*(n // 2 for n in shape[:-1]), 0)


# The Toeplitz matrix: embedded in a circulant one of at least 4m + 1 in each coordinate.


class Toeplitz:
    """T(v) for arrays of modes |j| ≤ m, by two FFTs of real functions.

    T(v)·C is the convolution of C with v: both are the Fourier coefficients of real functions on a grid,
    which are multiplied there. Costs about 5·N'·log₂N' flops for N' = ∏(4m + 1) a product.
    """

    def __init__(self, v: np.ndarray, modes: Sequence[int]) -> None:
        self._modes = tuple(modes)
        # Differences of modes reach 2m: on 4m + 1 places none of the modes kept gets a wave that has wrapped
        # around.
        self._shape = tuple(fft.next_fast_len(4 * m + 1, real=True) for m in modes)
        # Without the 1/N of the inverse, which C brings: the FFT back of their product takes it once.
        self._symbol = self._on_grid(v, norm="forward")

    def _symbol_in(self, dtype: np.dtype) -> np.ndarray:
        return self._symbol if dtype == self._symbol.dtype else self._single

    @cached_property
    def _single(self) -> np.ndarray:
        return self._symbol.astype(np.float32)

    def _on_grid(self, C: np.ndarray, norm: Any = "backward") -> np.ndarray:
        """The real function with these coefficients on the grid."""
        # Coordinate by coordinate: those still to come have few modes, which saves a third of the work of one
        # call for all.
        for axis, n in enumerate(self._shape[:-1]):
            m = C.shape[axis] // 2
            padded = np.zeros((*C.shape[:axis], n, *C.shape[axis + 1 :]), C.dtype)
            at = (slice(None),) * axis
            padded[(*at, slice(m + 1))] = C[(*at, slice(m, None))]
            if m:
                padded[(*at, slice(-m, None))] = C[(*at, slice(m))]
            C = fft.ifft(padded, axis=axis, norm=norm, overwrite_x=True)
        return np.asarray(fft.irfft(C, n=self._shape[-1], axis=-1, norm=norm, overwrite_x=True))

    def product(self, C: np.ndarray) -> np.ndarray:
        """T(v)·C."""
        F = self._on_grid(C)
        F *= self._symbol_in(F.dtype)
        out = np.asarray(fft.rfft(F, axis=-1, overwrite_x=True))[..., : self._modes[-1] + 1]
        for axis in reversed(range(len(self._shape) - 1)):
            out = fft.fft(out, axis=axis)
            m, at = self._modes[axis], (slice(None),) * axis
            high = out[(*at, slice(out.shape[axis] - m, None))]
            out = np.concatenate([high, out[(*at, slice(m + 1))]], axis=axis)
        return out


# An approximate inverse: exact for the modes of most weight, which alone reach across gaps.

_FEWEST_PAIRS, _MOST_PAIRS, _MODES_A_PAIR = 250, 1000, 32  # of modes ±j


class CoarseModes:
    """Mode 0 and pairs ±j of most weight, as the real numbers (c_0, Re √2·c_j, Im √2·c_j).

    Parameters
    ----------
    weights : ndarray of shape (2·m_1 + 1, …, m_d + 1)
        The half of w that is kept.
    n_pairs : int
        Pairs; fewer where the lattice has fewer.
    """

    def __init__(self, weights: np.ndarray, n_pairs: int) -> None:
        self._zero = int(np.ravel_multi_index(_zero(weights.shape), weights.shape))
        flat = weights.ravel()
        # Where the last coordinate is 0 both of a pair are kept: those after mode 0 stand for it.
        places = np.arange(flat.size)
        is_first = (places % weights.shape[-1] > 0) | (places > self._zero)
        firsts = places[is_first]
        n = min(n_pairs, len(firsts))
        chosen = firsts[np.argpartition(-flat[firsts], n - 1)[:n]] if n else firsts[:0]
        self._places = np.sort(chosen)
        self.modes = np.stack(np.unravel_index(self._places, weights.shape), axis=1)
        self.modes -= np.array(_zero(weights.shape))
        self._on_plane = self.modes[:, -1] == 0
        self._mirrored = (2 * self._zero - self._places)[self._on_plane]
        # The layout has √2·c_j already but on the plane.
        self._scale = np.where(self._on_plane, np.sqrt(2.0), 1.0)

    def taken(self, c: np.ndarray) -> np.ndarray:
        """The numbers of c, in the layout of `ToeplitzProblem`; of several c those of each in a row."""
        flat = c.reshape(*c.shape[: -self.modes.shape[1]], -1)
        u = flat[..., self._places] * self._scale
        zero = flat[..., [self._zero]].real
        return np.concatenate([zero, u.real, u.imag], axis=-1).astype(np.float64, copy=False)

    def put(self, x: np.ndarray, c: np.ndarray) -> None:
        """Set these numbers of c, or of several."""
        flat, n = c.reshape(*c.shape[: -self.modes.shape[1]], -1), len(self._places)
        u = (x[..., 1 : n + 1] + 1j * x[..., n + 1 :]) / self._scale
        flat[..., self._zero] = x[..., 0]
        flat[..., self._places] = u
        flat[..., self._mirrored] = u[..., self._on_plane].conj()

    def gram(self, v: np.ndarray, root: np.ndarray) -> np.ndarray:
        """√w·T(v)·√w of these modes, for √w on the half that is kept."""
        J, n = self.modes, len(self.modes)
        r = root.reshape(-1)[self._places]
        at = partial(_differences, v)
        P = at(J[:, None] - J[None]) * np.outer(r, r)
        Q = at(J[:, None] + J[None]) * np.outer(r, r)
        G = np.empty((2 * n + 1, 2 * n + 1))
        # Re[ū_j·P·u_k + ū_j·Q·ū_k] for u = x + iy.
        G[1 : n + 1, 1 : n + 1], G[n + 1 :, n + 1 :] = P.real + Q.real, P.real - Q.real
        G[n + 1 :, 1 : n + 1] = P.imag + Q.imag
        G[1 : n + 1, n + 1 :] = G[n + 1 :, 1 : n + 1].T
        at_zero = root.reshape(-1)[self._zero]
        line = at(J) * r * (np.sqrt(2.0) * at_zero)
        G[0, 0] = at_zero**2 * _at_zero(v).real
        G[0, 1 : n + 1], G[0, n + 1 :] = line.real, line.imag
        G[1:, 0] = G[0, 1:]
        return G


def _differences(v: np.ndarray, K: np.ndarray) -> np.ndarray:
    """v_k at differences k of modes, (…, d), of which the array has those with last coordinate ≥ 0."""
    is_mirrored = K[..., -1] < 0
    K = np.where(is_mirrored[..., None], -K, K) + np.array(_zero(v.shape))
    found = v[tuple(np.moveaxis(K, -1, 0))]
    return np.where(is_mirrored, found.conj(), found)


class Preconditioner:
    """P ≈ √w·T(v)·√w + alpha·P: exact within the coarse modes, and the diagonal elsewhere.

    Where rows fill the box evenly the matrix is nearly diagonal. Gaps, and the margin around the box, make
    it far from that for the long waves that reach across them: held-out errors in the gaps of a map of
    105,000 rows settled after 40 to 80 steps, where the diagonal alone took more than 1,000. Two triangular
    solves of 2,000 numbers take about as long as the product with 65,000 modes.
    """

    def __init__(self, problem: ToeplitzProblem, alpha: float, coarse: CoarseModes, gram: np.ndarray) -> None:
        self._coarse = coarse
        self._root_diagonal = np.sqrt(problem.diagonal(alpha))
        G = gram.copy()
        penalty = np.full(len(G), alpha)
        if problem.fit_intercept:
            penalty[0] = 0.0
        G[np.diag_indices_from(G)] += penalty
        try:
            self._L: np.ndarray | None = factor(G, overwrite=True)
        except np.linalg.LinAlgError:  # by rounding of the sums; conjugate gradients then end by themselves
            self._L = None

    @property
    def log_determinant(self) -> float:
        """log det P over the real numbers of the lattice."""
        logs = 2.0 * np.log(self._root_diagonal)
        # Where the last coordinate is 0 the lattice has both of a pair.
        total = 2.0 * float(logs[..., 1:].sum()) + float(logs[..., 0].sum())
        if self._L is not None:
            places = self._coarse.taken(logs.astype(np.complex128))
            n = len(places) // 2
            scale = self._coarse.taken(np.ones(logs.shape, np.complex128))[1 : n + 1]
            total += 2.0 * float(np.log(np.diag(self._L)).sum()) - places[0]
            total -= 2.0 * float((places[1 : n + 1] / scale).sum())
        return total

    def variances(self) -> np.ndarray:
        """E|x|² of each mode that is kept, for x = P^{−½ᵀ}z of a normal z."""
        # A mode whose conjugate is left out has two independent parts.
        x = np.full(self._root_diagonal.shape, np.sqrt(2.0) + 0j)
        x[..., 0] = 1.0
        x /= self._root_diagonal
        if self._L is not None:
            own = np.square(inverse_of_triangle(self._L)).sum(axis=0)
            self._coarse.put(np.sqrt(own), x)
        return np.square(np.abs(x))

    def half(self, r: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """P^{−½}r for P = P^½·P^{½ᵀ}, or P^{−½ᵀ}r, of one r or several."""
        z = r / self._root_diagonal.astype(r.real.dtype)
        if self._L is not None:
            x = self._coarse.taken(r)
            columns = x.reshape(-1, x.shape[-1]).T
            solved = solve_factor(self._L, columns, transposed=transposed, overwrite=True)
            self._coarse.put(solved.T.reshape(x.shape), z)
        return z

    def inverse(self, r: np.ndarray) -> np.ndarray:
        """P⁻¹r."""
        return self.half(self.half(r), transposed=True)


# The ridge problem of a kernel.

# Deviations in gaps are the last to settle. Beside those at rows they were right to 6 % for 3,000 rows, with
# 1e-2 and a thousand coarse pairs; with 3e-2 from 13 % too small to 21 % too large; with 250 pairs and 3e-2 7
# to 31 % too small. Of a million modes steps cost more: with 3e-2 those of all terrain were 8 % smaller than
# with 1e-2, in half the time.
_OF_SAMPLE, _OF_LARGE, _FEW_MODES = 1e-2, 3e-2, 2**16
MAX_LANCZOS, _LOOK = 120, 5  # steps, and how many from one look at the change to the next
_DIAGONAL_STEPS = 30  # after which the coarse modes are solved exactly
_RECENT = 3  # steps that must have gained little
_ROUNDING = 1e-14  # a relative residual that no step lowers
_NO_WEIGHT = 1e-100  # of √w, which for a smooth kernel may be as small as floats go
# Σs·w/alpha that is solved from zero, from one alpha to the next, and how many of these at most.
_CONTRAST, _RUNG, _MOST_RUNGS = 1e6, 30.0, 5
_CONSTANT = 1e-24  # mean square of coded targets: of others it is about 1


class Ending(NamedTuple):
    """Where a solution ends, unless rounding ends it before.

    The last few steps together lowered J by at most objective_tol·|J|, and ‖B − A·c‖ ≤ tol·‖B‖; or so many
    steps were taken.
    """

    objective_tol: float
    max_steps: int
    tol: float = 1.0  # any residual
    descends: bool = True  # whether a small alpha is begun from larger ones, for the sake of gaps


@dataclass(frozen=True, eq=False)
class ToeplitzProblem:
    """(√w·T(v)·√w + alpha·P)·c = √w·b for one kernel and some rows.

    Parameters
    ----------
    sums : ToeplitzSums
        Of the kernel's modes.
    weights : ndarray of shape (2·m_1 + 1, …, m_d + 1)
        w.
    fit_intercept : bool
        Then mode 0 has weight 1, and P is 0 there.
    """

    sums: ToeplitzSums
    weights: np.ndarray
    fit_intercept: bool

    @cached_property
    def _root(self) -> np.ndarray:
        root = np.sqrt(self.weights)
        if self.fit_intercept:
            root[self.zero] = 1.0
        return root

    @property
    def zero(self) -> tuple[int, ...]:
        """The place of mode 0."""
        return _zero(self.weights.shape)

    @cached_property
    def coarse(self) -> CoarseModes:
        n_pairs = max(_FEWEST_PAIRS, _n_real(self.weights.shape) // _MODES_A_PAIR)
        return CoarseModes(self.weights, min(n_pairs, _MOST_PAIRS))

    @cached_property
    def coarse_gram(self) -> np.ndarray:
        return self.coarse.gram(self.sums.v, self._root)

    @cached_property
    def toeplitz(self) -> Toeplitz:
        return Toeplitz(self.sums.v, self.sums.modes)

    # Of the modes with last coordinate > 0 their conjugates are left out: multiplied by √2 both have the
    # inner product of the whole lattice.

    @cached_property
    def _scale(self) -> np.ndarray:
        scale = np.full(self.weights.shape[-1], np.sqrt(2.0))
        scale[0] = 1.0
        return scale

    def product(self, c: np.ndarray, alpha: float) -> np.ndarray:
        """(√w·T(v)·√w + alpha·P)·c."""
        root = self._root.astype(c.real.dtype, copy=False)
        out = self.toeplitz.product(root * c / self._scale.astype(c.real.dtype))
        out *= root * self._scale.astype(c.real.dtype)
        out += alpha * c
        if self.fit_intercept:
            out[self.zero] -= alpha * c[self.zero]
        return out

    def preconditioner(self, alpha: float) -> Preconditioner:
        """The approximate inverse for this alpha; the last one is kept."""
        if self._kept.get("alpha") != alpha:
            found = Preconditioner(self, alpha, self.coarse, self.coarse_gram)
            self._kept.update(alpha=alpha, preconditioner=found)
        return self._kept["preconditioner"]

    def finer_preconditioner(self, alpha: float) -> Preconditioner:
        """One of more coarse modes where there are such, for many products with one alpha."""
        n_pairs = finer_pairs(_n_real(self.weights.shape))
        if n_pairs <= len(self.coarse.modes):
            return self.preconditioner(alpha)
        if self._kept.get("finer_alpha") != alpha:
            coarse = CoarseModes(self.weights, n_pairs)
            finer = Preconditioner(self, alpha, coarse, coarse.gram(self.sums.v, self._root))
            self._kept.update(finer_alpha=alpha, finer=finer)
        return self._kept["finer"]

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def right_side(self, target: int) -> np.ndarray:
        """√w·b."""
        return self.lifted(self.sums.b[target])

    def lifted(self, b: np.ndarray) -> np.ndarray:
        """√w·b of any b."""
        return self._root * self._scale * b

    def functions(self, c: np.ndarray) -> np.ndarray:
        """The Fourier coefficients of f, the half of them that is kept: √w·c."""
        return self._root * c / self._scale

    def coefficients(self, f: np.ndarray) -> np.ndarray:
        """c of a function, of which modes without weight are left out."""
        return np.divide(f * self._scale, self._root, out=np.zeros_like(f), where=self._root > _NO_WEIGHT)

    def diagonal(self, alpha: float) -> np.ndarray:
        """The diagonal of the system, Σs·w + alpha·P; every row counts alike at every mode."""
        diagonal = self.sums.weight * self.weights + alpha
        if self.fit_intercept:
            diagonal[self.zero] = self.sums.weight
        return diagonal

    def solve(
        self, target: int, alpha: float, ending: Ending, start: np.ndarray | None = None
    ) -> ToeplitzSolution:
        """c for one target; see `solve_for`."""
        squares = float(self.sums.squares[target])
        if squares <= _CONSTANT * self.sums.weight:
            return ToeplitzSolution(np.zeros_like(self.sums.b[target]), 0.0, 0, squares)
        return self.solve_for(self.right_side(target), alpha, squares, ending, start)

    def solve_for(
        self, B: np.ndarray, alpha: float, at_zero: float, ending: Ending, start: np.ndarray | None
    ) -> ToeplitzSolution:
        """The minimum of J(c) = at_zero − 2·Re B*c + c*·A·c by conjugate gradients.

        Algorithm 9.1 of Saad, Iterative Methods for Sparse Linear Systems, 2nd edition; a step lowers J by
        step·(r*·z), section 4 of Strakoš and Tichý 2002.
        """
        n_before = 0
        if start is None and ending.descends:
            for larger in self._larger(alpha):
                before_it = self._by_conjugate_gradients(B, larger, at_zero, ending, start)
                start, n_before = before_it.c, n_before + before_it.steps
        found = self._by_conjugate_gradients(B, alpha, at_zero, ending, start)
        return replace(found, steps=n_before + found.steps)

    def _larger(self, alpha: float) -> list[float]:
        """Larger alphas, descending, from whose solutions that of a small one is begun.

        J hardly tells the values in gaps, which few rows at their ends decide: the smaller alpha is beside
        Σs·w, the more steps they take after J has settled. They depend little on alpha. Of terrain with discs
        cut out (5.7 million rows, a million modes, alpha 2·10⁷ times smaller) errors in the discs were 150 m
        after 100 steps from zero, and 22.3 m after 63 with an alpha that was 1,000 times as large.
        """
        largest = self.sums.weight * float(self.weights.max()) / _CONTRAST
        # Of alphas that rounding hides there would be hundreds.
        n = min(math.ceil(math.log(largest / alpha, _RUNG)), _MOST_RUNGS) if largest > alpha else 0
        return [alpha * _RUNG**k for k in range(n, 0, -1)]

    def _by_conjugate_gradients(
        self, B: np.ndarray, alpha: float, at_zero: float, ending: Ending, start: np.ndarray | None
    ) -> ToeplitzSolution:
        objective_tol, max_steps, tol, _ = ending
        # A factor of 2,000 numbers takes as long as some dozen steps, which suffice where rows fill the box.
        is_coarse = self._kept.get("alpha") == alpha
        diagonal, size = self.diagonal(alpha), norm(B)
        c = np.zeros_like(B) if start is None else start.copy()
        r = B.copy() if start is None else B - self.product(c, alpha)
        objective = at_zero - inner(B, c) - inner(r, c)
        p, before, gains = np.zeros_like(B), np.inf, list[float]()
        while len(gains) < max_steps:
            error = norm(r)
            # The residual alone would end too early: B is mostly of long waves, and what short waves explain
            # of the rows is small beside it and large beside J. On terrain of 6.5 million rows a residual of
            # 1e-3 came after 6 to 15 steps, when held-out errors were up to 4 % above their last ones.
            has_settled = len(gains) >= _RECENT and sum(gains[-_RECENT:]) <= objective_tol * abs(objective)
            if error <= tol * size and (has_settled or error <= _ROUNDING * size):
                break
            if len(gains) == _DIAGONAL_STEPS and not is_coarse:
                is_coarse, before = True, np.inf  # begins anew from here
            z = self.preconditioner(alpha).inverse(r) if is_coarse else r / diagonal
            decrease = inner(r, z)
            p *= decrease / before
            p += z
            Ap = self.product(p, alpha)
            curvature = inner(p, Ap)
            if not (0 < curvature < np.inf and decrease > 0):  # T is definite up to the error of its sums
                break
            step, before = decrease / curvature, decrease
            c += step * p
            r -= step * Ap
            gains.append(step * decrease)
            objective -= gains[-1]
        return ToeplitzSolution(c, float(norm(r) / size) if size > 0 else 0.0, len(gains), objective)

    def squared_error(self, target: int, found: ToeplitzSolution) -> float:
        """Σ s(y − f)² of the rows of the fit."""
        return squared_error(self.sums, self.toeplitz, target, self.functions(found.c))

    def norm(self, c: np.ndarray) -> float:
        """‖c‖ without the intercept."""
        own = abs(c[self.zero]) ** 2 if self.fit_intercept else 0.0
        return float(np.sqrt(max(0.0, inner(c, c) - own)))

    # How the model varies.

    def normal(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers of independent unit normals on the whole lattice."""
        return _hermitian_normal(rng, self.weights.shape)

    def probe(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers of the same covariance whose sizes are given, so that the diagonal of a trace is exact."""
        z = self.normal(rng)
        z /= np.abs(z)
        z[..., 1:] *= np.sqrt(2.0)
        return z

    def root_inverses(
        self,
        Z: np.ndarray,
        alpha: float,
        preconditioner: Preconditioner,
        tol: float,
        max_steps: int = MAX_LANCZOS,
    ) -> RootInverses:
        """M^{−½}z of the covariance M⁻¹ for some normal z, and each zᵀlog(M)z, M = √w·T·√w + alpha·P.

        With the preconditioner P = LLᵀ, x = L⁻ᵀH^{−½}z for H = L⁻¹ML⁻ᵀ, whose functions the Lanczos process
        approximates: f(H)z ≈ ‖z‖·V·f(T)·e_1 (Golub and Van Loan, Matrix Computations, 4th edition, sections
        10.1 and 10.2). It ends when the last few steps changed each x by `tol`, in the norm of H^½L⁻¹.
        Several z are solved together, as a triangular solve of 2,000 numbers mostly waits for L: it took
        3.3 ms for one vector and 4.2 ms for eight.
        """
        real = Z.real.dtype

        def times(V: np.ndarray, numbers: Any) -> np.ndarray:
            return V * np.asarray(numbers, dtype=real).reshape(-1, *[1] * self.weights.ndim)

        sizes = np.array([norm(z) for z in Z])
        v = times(Z, 1.0 / sizes)
        V, diagonal, beside = [v], list[np.ndarray](), list[np.ndarray]()
        y, has_settled = np.zeros((len(Z), 0)), False
        for step in range(1, max_steps + 1):
            U = np.stack([self.product(u, alpha) for u in preconditioner.half(v, transposed=True)])
            U = preconditioner.half(U.astype(Z.dtype, copy=False))
            diagonal.append(np.array([inner(a, b) for a, b in zip(v, U, strict=True)]))
            U -= times(v, diagonal[-1])
            if step > 1:
                U -= times(V[-2], beside[-1])
            rest = np.array([norm(u) for u in U])
            is_whole = not (rest > _ROUNDING * diagonal[0]).any()  # the space of all powers of H
            if is_whole or step % _LOOK == 0 or step == max_steps:
                # H is definite up to rounding, and up to the error of its sums.
                is_definite, least, roots = True, np.finfo(real).eps, list[np.ndarray]()
                logs = np.empty(len(Z))
                for i, (own, others) in enumerate(
                    zip(np.array(diagonal).T, np.array(beside).reshape(-1, len(Z)).T, strict=True)
                ):
                    values, vectors = eigh_tridiagonal(own, others)
                    is_definite &= bool(values[0] > least * values[-1])
                    values = np.maximum(values, least * values[-1])
                    roots.append(vectors @ (vectors[0] / np.sqrt(values)))
                    logs[i] = sizes[i] ** 2 * float(np.square(vectors[0]) @ np.log(values))
                before, y = y, np.array(roots)
                changes = y - np.pad(before, ((0, 0), (0, step - before.shape[1])))
                change = float((np.linalg.norm(changes, axis=1) / np.linalg.norm(y, axis=1)).max())
                # Ended by the number of steps, x may still be near enough.
                has_settled = is_definite and (is_whole or change <= max(tol, _OF_LARGE))
                if is_whole or change <= tol:
                    break
            beside.append(rest)
            v = times(U, 1.0 / np.where(rest > 0, rest, 1.0))
            V.append(v)
        X = np.zeros_like(Z)
        for numbers, v in zip((y * sizes[:, None]).T, V, strict=False):
            X += times(v, numbers)
        return RootInverses(preconditioner.half(X, transposed=True), logs, y.shape[1], has_settled)

    def samples(self, alpha: float, rng: np.random.Generator, n: int) -> tuple[list[np.ndarray], list[float]]:
        """Functions of the posterior for noise of variance 1, and an estimate of the dimension by each.

        x of the covariance M⁻¹, and zᵀz − alpha·xᵀP·x, whose mean tr(A·M⁻¹) is the effective dimension.
        """
        X, dimensions = self._roots(alpha, rng, n)
        return [whole_of(self.functions(x)).astype(np.complex64) for x in X], dimensions

    def _roots(self, alpha: float, rng: np.random.Generator, n: int) -> tuple[np.ndarray, list[float]]:
        Z = np.stack([self.normal(rng) for _ in range(n)])
        X = self._solved_roots(alpha, Z)
        return X, [norm(z) ** 2 - alpha * self.norm(x) ** 2 for z, x in zip(Z, X, strict=True)]

    def _solved_roots(self, alpha: float, Z: np.ndarray) -> np.ndarray:
        if self.sums.weight * float(self.weights.max()) <= _SINGLE * alpha:
            tol = _OF_SAMPLE if _n_real(self.weights.shape) <= _FEW_MODES else _OF_LARGE
            found = self.root_inverses(Z.astype(np.complex64), alpha, self.finer_preconditioner(alpha), tol)
            if found.has_settled and all(self._is_root(x, z, alpha) for x, z in zip(found.X, Z, strict=True)):
                return found.X
        is_small = span_numbers(self.sums.n_rows, _n_real(self.weights.shape)) > 0
        each = self._by_span(alpha, Z) if is_small else self._one_by_one(alpha, Z)
        if each is None or not all(self._is_root(x, z, alpha) for x, z in zip(each, Z, strict=True)):
            raise InputError(NO_DEVIATIONS.format(alpha))
        return each

    def _by_span(self, alpha: float, Z: np.ndarray) -> np.ndarray | None:
        if self._kept.get("span_alpha") != alpha:
            self._kept.update(span_alpha=alpha, span=SpanOfRows.of(self, alpha))
        span: SpanOfRows | None = self._kept["span"]
        return None if span is None else np.stack([span.root_inverse(z) for z in Z])

    def _one_by_one(self, alpha: float, Z: np.ndarray) -> np.ndarray | None:
        """In double precision, of no more memory than several of single precision."""
        finer, n = self.finer_preconditioner(alpha), 2 * MAX_LANCZOS
        found = [self.root_inverses(z[None], alpha, finer, _OF_SAMPLE, n) for z in Z]
        return np.concatenate([one.X for one in found]) if all(one.has_settled for one in found) else None

    def _is_root(self, x: np.ndarray, z: np.ndarray, alpha: float) -> bool:
        """Whether x*·M·x = z*·z, as of every approximation of the Lanczos process but for rounding."""
        x = x.astype(np.complex128)
        return abs(inner(x, self.product(x, alpha)) / norm(z) ** 2 - 1.0) <= _ROUNDED


_SINGLE = 1e8  # of Σs·w by alpha, above which rounding of single precision hides alpha; below it may
_ROUNDED = 1e-2  # vectors of the process that are no longer orthogonal give some 1e-3, and do no harm

NO_DEVIATIONS = (
    "the standard deviations of this model cannot be computed: for its rows an alpha of {:.3g} is too small; "
    "use a larger alpha"
)


_MOST_SPANNED, _SPAN_NUMBERS = 1000, 2**25  # vectors, and their numbers: a quarter of a gigabyte
_MORE_VECTORS = 8
_NO_RANK = 1e-12  # of the largest of random vectors, below which what is new in one is rounding alone
# Of the largest eigenvalue, below which errors of the sums hide alpha: deviations of 400 rows were right at
# 2e-12 of it, and 1.6 to 1.8 times too large at 2e-13.
_HIDDEN = 1e-12


_FEWEST_FINER, _MOST_FINER, _MODES_A_FINER = 1000, 2000, 512


def finer_pairs(n_real: int) -> int:
    """The pairs of coarse modes for samples on a lattice of so many."""
    return min(max(_FEWEST_FINER, n_real // _MODES_A_FINER), _MOST_FINER)


def span_numbers(n_rows: int, n_real: int) -> int:
    """The numbers of `SpanOfRows.Q` on a lattice of so many; 0 where it is too large to be used."""
    n_vectors = min(n_rows, n_real) + _MORE_VECTORS + 1
    n = n_vectors * n_real
    return n if n_vectors <= _MOST_SPANNED and n <= _SPAN_NUMBERS else 0


@dataclass(frozen=True, eq=False)
class SpanOfRows:
    """M^{−½} of few rows, for small alphas as well.

    A = √w·T·√w of n rows has a range of n dimensions. Beyond an orthonormal basis Q of it and of mode 0,
    which may have no penalty, M is alpha·I, and so

        M^{−½}z = (z − Q·Qᵀz)/√alpha + Q·(QᵀMQ)^{−½}·Qᵀz.

    A times a few more random vectors than n spans the range (Halko, Martinsson and Tropp 2011, SIAM Review
    53, section 4.1). That is 2·n products for any number of samples: the Lanczos process may take as many for
    each, and not end.

    Parameters
    ----------
    Q : ndarray of shape (n_numbers, r)
        r ≤ n + 9.
    root : ndarray of shape (r, r)
        (QᵀMQ)^{−½}.
    alpha : float
    """

    Q: np.ndarray
    root: np.ndarray
    alpha: float

    @classmethod
    def of(cls, problem: ToeplitzProblem, alpha: float) -> Self | None:
        """That of a problem; None where rounding hides alpha."""
        shape, rng = problem.weights.shape, stream(0, "span")
        n = min(problem.sums.n_rows, _n_real(shape)) + _MORE_VECTORS
        Y = np.zeros((2 * math.prod(shape), n + 1), order="F")
        constant = np.zeros(shape, np.complex128)
        constant[problem.zero] = 1.0
        Y[:, 0] = _flat(constant)
        for i in range(1, n + 1):
            Y[:, i] = _flat(problem.product(problem.normal(rng), 0.0))
        # Without pivots, which random vectors do not need: the last ones are within the span of the others.
        Q, R = qr(Y, mode="economic", overwrite_a=True)
        sizes = np.abs(np.diag(R))
        is_new = sizes > _NO_RANK * sizes.max()
        Q = Q if is_new.all() else Q[:, is_new]
        M = np.stack([_flat(problem.product(_lattice(q, shape), alpha)) @ Q for q in Q.T])
        values, U = eigh((M + M.T) / 2)
        if not values[0] > 0 or alpha < _HIDDEN * values[-1]:
            return None
        return cls(Q, (U / np.sqrt(values)) @ U.T, alpha)

    def root_inverse(self, z: np.ndarray) -> np.ndarray:
        """M^{−½}z."""
        flat, beyond = _flat(z), 1.0 / math.sqrt(self.alpha)
        within = flat @ self.Q
        return _lattice(beyond * flat + self.Q @ (self.root @ within - beyond * within), z.shape)


def _flat(c: np.ndarray) -> np.ndarray:
    """The real numbers of an array on the lattice, of the same inner product."""
    return np.ascontiguousarray(c).view(np.float64).ravel()


def _lattice(flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(flat).view(np.complex128).reshape(shape)


class RootInverses(NamedTuple):
    """x = M^{−½}z and zᵀ·log(L⁻¹ML⁻ᵀ)·z of each z, the steps taken, and whether they led to an end."""

    X: np.ndarray
    logs: np.ndarray
    steps: int
    has_settled: bool


def _n_real(shape: tuple[int, ...]) -> int:
    """The real numbers of the whole lattice of a half of this shape."""
    return math.prod(shape[:-1]) * (2 * shape[-1] - 1)


def _hermitian_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers of variance 1 in the layout of `ToeplitzProblem`."""
    # E|ξ|² is 1; multiplied by the layout's √2 each of its two parts has the variance 1.
    xi = rng.standard_normal((*shape, 2)).view(np.complex128)[..., 0]
    # Where the last coordinate is 0, the lattice holds both j and −j.
    xi[..., 0] = (xi[..., 0] + np.flip(xi[..., 0]).conj()) / 2.0
    xi[(*(n // 2 for n in shape[:-1]), 0)] = rng.standard_normal()
    return xi


@dataclass(frozen=True, eq=False)
class ToeplitzSolution:
    """c, in the layout of `ToeplitzProblem`, the relative residual ‖B − A·c‖/‖B‖, the steps, and J(c)."""

    c: np.ndarray
    error: float
    steps: int
    objective: float
    beta: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of covariates, where there are some
    beta_error: np.ndarray = field(default_factory=lambda: np.zeros(0))  # their standard errors


def squared_error(sums: ToeplitzSums, toeplitz: Toeplitz, target: int, C: np.ndarray) -> float:
    """Σ s(y − f)² of rows from their own sums: Σ s·y² − 2·Re b*C + C*·T(v)·C, exact for every f.

    C are the Fourier coefficients of f, the half of them that is kept.
    """
    TC = toeplitz.product(C)
    TC -= 2.0 * sums.b[target]
    # For the conjugates that are not kept.
    twice = np.full(C.shape[-1], 2.0)
    twice[0] = 1.0
    return max(
        0.0, float(sums.squares[target]) + inner(np.ascontiguousarray(C * twice), np.ascontiguousarray(TC))
    )


# The choice of alpha for a kernel, by rows that are held out.


def held_out_path(
    training: ToeplitzProblem,
    held_out: ToeplitzSums,
    alphas: Sequence[float],
    ending: Ending,
    patience: int,
) -> Iterator[tuple[float, np.ndarray, int]]:
    """Yield alpha, the squared errors of the held-out rows a target, and steps, from the largest alpha down.

    Each solution starts from the one before. It ends when the summed error has risen `patience` times.
    """
    toeplitz = Toeplitz(held_out.v, held_out.modes)
    starts: list[np.ndarray | None] = [None] * len(held_out.b)
    best, n_risen = np.inf, 0
    for alpha in alphas:
        errors, steps = np.empty(len(starts)), 0
        for target, start in enumerate(starts):
            found = training.solve(target, alpha, ending, start)
            starts[target], steps = found.c, steps + found.steps
            errors[target] = squared_error(held_out, toeplitz, target, training.functions(found.c))
        yield alpha, errors, steps
        n_risen = 0 if errors.sum() < best else n_risen + 1
        best = min(best, errors.sum())
        if n_risen >= patience:
            return


# Covariates u beside the lattice: universal kriging.
#
# With M = √w·T(v)·√w + alpha·P, B the right sides of the covariates as of targets, and S_ab = Σ s·a·b,
#
#     M·c + B·beta = b_y,    Bᵀ·c + S_uu·beta = S_uy.
#
# With c_y = M⁻¹b_y, C = M⁻¹B and the Schur complement S = S_uu − Bᵀ·C follow beta = S⁻¹(S_uy − Bᵀ·c_y), the
# estimate of generalised least squares, and c = c_y − C·beta (Rasmussen and Williams 2006, Gaussian Processes
# for Machine Learning, section 2.7). The inverse of the whole has the blocks M⁻¹ + C·S⁻¹·Cᵀ, −C·S⁻¹ and S⁻¹:
# a sample is (M^{−½}z − C·delta, delta) with delta of the covariance S⁻¹.

_COLLINEAR = 1e-10  # the least eigenvalue of correlations, which transforms give to this


@dataclass(frozen=True, eq=False)
class TrendSums(ToeplitzSums):
    """The sums over some rows with p covariates.

    Parameters
    ----------
    u : complex128 ndarray of shape (p, 2·m_1 + 1, …, m_d + 1)
        Σ s·u·exp(−i⟨j, x̃⟩).
    products : ndarray of shape (p, n_targets + p)
        Σ s·u·y, then Σ s·u·u.
    """

    u: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, sums: ToeplitzSums, Y: np.ndarray, s: np.ndarray, p: int) -> Self:
        """Sums of which the last p targets are covariates."""
        k = len(sums.b) - p
        products = (s[:, None] * Y[:, k:]).T @ Y
        return cls(sums.v, sums.b[:k], sums.squares[:k], sums.n_rows, sums.b[k:], products)

    def central(self, modes: Sequence[int]) -> Self:
        return replace(super().central(modes), u=np.stack([central_part(u, modes) for u in self.u]))

    @property
    def _split(self) -> tuple[np.ndarray, np.ndarray]:
        """S_uy and S_uu."""
        return self.products[:, : len(self.b)], self.products[:, len(self.b) :]

    def least_squares(self) -> np.ndarray:
        """Beta without the lattice but with an intercept, (p, n_targets); raises InputError if not unique."""
        sums = np.array([_at_zero(u).real for u in self.u])
        (S_uy, S_uu), W = self._split, self.weight
        S_uy, S_uu = S_uy - np.outer(sums, self.sums) / W, S_uu - np.outer(sums, sums) / W
        d = np.sqrt(np.maximum(np.diag(S_uu), np.finfo(float).tiny))
        if not np.linalg.eigvalsh(S_uu / np.outer(d, d))[0] > _COLLINEAR:
            raise InputError(
                "a covariate of the trend is a linear combination of others, or has one value, in the rows "
                "of the fit or of a fold; leave it out"
            )
        return np.linalg.solve(S_uu, S_uy)

    def residual(self, beta: np.ndarray) -> ToeplitzSums:
        """The sums of the targets y − ⟨beta, u⟩."""
        S_uy, S_uu = self._split
        squares = self.squares + np.einsum("pk,pk->k", beta, S_uu @ beta - 2.0 * S_uy)
        b = self.b - np.tensordot(beta, self.u, (0, 0))
        return ToeplitzSums(self.v, b, np.maximum(squares, 0.0), self.n_rows)


class _Border(NamedTuple):
    """B, C and the factor of S at an alpha, with the largest relative residual and the steps of C."""

    alpha: float
    B: np.ndarray
    C: np.ndarray
    L: np.ndarray
    error: float
    steps: int


@dataclass(frozen=True, eq=False)
class TrendProblem(ToeplitzProblem):
    """The system with covariates; `sums` are `TrendSums`, and the intercept is there."""

    sums: TrendSums

    @cached_property
    def _rest(self) -> tuple[np.ndarray, ToeplitzSums, np.ndarray]:
        """Beta of least squares, and the sums and S_uy of what it leaves, which the solver begins from."""
        beta = self.sums.least_squares()
        S_uy, S_uu = self.sums._split
        return beta, self.sums.residual(beta), S_uy - S_uu @ beta

    def _border(self, alpha: float, ending: Ending) -> _Border:
        if "border" not in self._kept or self._kept["border"].alpha != alpha:
            self._kept["border"] = self._bordered(alpha, ending)
        return self._kept["border"]

    def _bordered(self, alpha: float, ending: Ending) -> _Border:
        S = self.sums._split[1].copy()
        B = np.stack([self.lifted(u) for u in self.sums.u])
        found = [self.solve_for(b, alpha, float(S[i, i]), ending, None) for i, b in enumerate(B)]
        C = np.stack([one.c for one in found])
        rest = B - np.stack([self.product(c, alpha) for c in C])
        # With the residual's part errors of C enter as their square.
        S -= _inners(B, C) + _inners(C, rest)
        try:
            L = factor((S + S.T) / 2)
        except np.linalg.LinAlgError as error:
            raise InputError(
                "a covariate of the trend is a function of the place as smooth as the kernel, and not told "
                "apart from it; leave it out, or use a larger alpha"
            ) from error
        return _Border(alpha, B, C, L, max(one.error for one in found), sum(one.steps for one in found))

    def solve(
        self, target: int, alpha: float, ending: Ending, start: np.ndarray | None = None
    ) -> ToeplitzSolution:
        """c, beta and its standard errors for one target.

        The variance of the noise is J/(Σs − p − 1), J being the least value of the objective: the estimate of
        restricted likelihood for this kernel and alpha.
        """
        (line, rest, S_uy), border = self._rest, self._border(alpha, ending)
        b, squares = self.lifted(rest.b[target]), float(rest.squares[target])
        found = self.solve_for(b, alpha, squares, ending, start)
        r = b - self.product(found.c, alpha)
        gain = S_uy[:, target] - (_inners(border.B, [found.c]) + _inners(border.C, [r]))[:, 0]
        delta = cho_solve((border.L, True), gain)
        J = squares - inner(b, found.c) - inner(r, found.c) - gain @ delta
        variance = np.square(inverse_of_triangle(border.L)).sum(axis=0)  # the diagonal of (L·Lᵀ)⁻¹
        freedom = max(self.sums.weight - len(delta) - 1, 1.0)
        return replace(
            found,
            c=found.c - np.tensordot(delta, border.C, 1),
            error=max(found.error, border.error),
            steps=found.steps + border.steps,
            beta=line[:, target] + delta,
            beta_error=np.sqrt(variance * max(J, 0.0) / freedom),
        )

    def squared_error(self, target: int, found: ToeplitzSolution) -> float:
        rest = self.sums.residual(np.outer(found.beta, np.ones(len(self.sums.b))))
        return squared_error(rest, self.toeplitz, target, self.functions(found.c))

    def samples(self, alpha: float, rng: np.random.Generator, n: int) -> tuple[list[np.ndarray], list[float]]:
        """As without covariates; their coefficients follow those of the function in a flat array."""
        border = self._border(alpha, Ending(_OF_SAMPLE**2, 2000, _OF_SAMPLE))
        X, dimensions = self._roots(alpha, rng, n)
        deltas = solve_factor(border.L, rng.standard_normal((len(border.B), n)), transposed=True).T
        moved = X - np.tensordot(deltas, border.C, 1)
        functions = [
            np.concatenate([whole_of(self.functions(x)).ravel(), d])
            for x, d in zip(moved, deltas, strict=True)
        ]
        # The trace over p more coefficients, which have no penalty, and with the norms of the moved samples.
        dimensions = [
            len(border.B) + one + alpha * (self.norm(x) ** 2 - self.norm(y) ** 2)
            for one, x, y in zip(dimensions, X, moved, strict=True)
        ]
        return [C.astype(np.complex64) for C in functions], dimensions


def _inners(first: Iterable[np.ndarray], second: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    return np.array([[inner(x, y) for y in second] for x in first])


# The marginal likelihood of a spectrum, from sums alone, and the climb to the best of a family of spectra.
#
# With noise of variance σ² and coefficients of variance σ²·w_j (alpha is 1, and w the spectrum in its units),
# rows y are normal with the covariance σ²(I + Z·diag(w)·Z*). Maximised over σ²,
#
#     −2·log L = n·log J + log det M + const,   J = min over f of Σ s(y − f)² + Σ|f_j|²/w_j,   M = √w·T·√w + I
#
# (Rasmussen and Williams 2006, section 5.4.1, by the determinant lemma). J costs one solution. The
# determinant is that of the preconditioner times one that the Lanczos process estimates for a few random
# vectors (Ubaru, Chen and Saad 2017, SIAM J. Matrix Anal. Appl. 38), the same for spectra of as many modes.
# Its slope by log w_j is γ_j − n·|c_j|²/J, where γ_j = 1 − (M⁻¹)_jj is the share of a mode that rows decide.

_FEWEST_PROBES, _MOST_PROBES, _PROBED_MODES = 2, 4, 2**14  # few modes leave a determinant more open
_PROBE_TOL, _ENDING = 0.01, Ending(1e-4, 300)
_LEAST_MISFIT = 1e-10  # of Σs·y², which transforms give to this: rows without noise are explained to it


@dataclass(frozen=True, eq=False)
class Evidence:
    """−2·log L of a spectrum, and on the half of the lattice that is kept its slope by log w, and n·γ².

    Parameters
    ----------
    value : float
    slope : ndarray
    information : ndarray
        The curvature by log w that a mode of known coefficients would have, times the square of its share.
    functions : list of complex ndarray
        f_j of each target.
    """

    value: float
    slope: np.ndarray
    information: np.ndarray
    functions: list[np.ndarray]


_LEFT_OUT = 0.1  # Σs·Σw of the modes left out at most, about what they would change in −2·log L


def evidence(
    sums: ToeplitzSums,
    weights: np.ndarray,
    fit_intercept: bool,
    n_rows: float,
    seed: int,
    functions: Sequence[np.ndarray] = (),
) -> Evidence:
    """The likelihood of a spectrum for `n_rows` independent errors; solutions start from some functions."""
    modes = _modes_that_matter(weights, sums)
    problem = ToeplitzProblem(sums.central(modes), central_part(weights, modes).copy(), fit_intercept)
    found = _of_problem(problem, n_rows, seed, [central_part(f, modes) for f in functions])
    return replace(
        found,
        slope=_on_lattice(found.slope, weights.shape, modes),
        information=_on_lattice(found.information, weights.shape, modes),
        functions=[_on_lattice(f, weights.shape, modes) for f in found.functions],
    )


def _modes_that_matter(weights: np.ndarray, sums: ToeplitzSums) -> tuple[int, ...]:
    """The central part beyond which no row decides a mode: of smooth kernels few are left."""
    modes, least = sums.modes, weights.sum() - _LEFT_OUT / sums.weight
    while max(modes) > 1:
        fewer = tuple(-(-m // 2) for m in modes)
        if central_part(weights, fewer).sum() < least:
            break
        modes = fewer
    return modes


def _on_lattice(part: np.ndarray, shape: tuple[int, ...], modes: tuple[int, ...]) -> np.ndarray:
    whole = np.zeros(shape, part.dtype)
    central_part(whole, modes)[...] = part
    return whole


def _of_problem(
    problem: ToeplitzProblem, n_rows: float, seed: int, functions: Sequence[np.ndarray]
) -> Evidence:
    k, shape = len(problem.sums.b), problem.weights.shape
    # Solutions use it as well once it is there.
    preconditioner = problem.preconditioner(1.0)
    log_determinant = preconditioner.log_determinant
    value, explained, found = 0.0, np.zeros(shape), list[np.ndarray]()
    told = problem.sums.squares > _CONSTANT * problem.sums.weight
    for target in range(k):
        if not told[target]:  # a constant tells nothing
            found.append(np.zeros(shape, np.complex128))
            continue
        start = problem.coefficients(functions[target]) if functions else None
        one = problem.solve(target, 1.0, _ENDING, start)
        least = max(_LEAST_MISFIT * float(problem.sums.squares[target]), np.finfo(float).tiny)
        J = max(one.objective, least)
        value += n_rows * math.log(J)
        explained += np.square(np.abs(one.c)) * (n_rows / J)
        found.append(problem.functions(one.c))
    variance = preconditioner.variances()
    n_probes = int(np.clip(_PROBED_MODES // variance.size, _FEWEST_PROBES, _MOST_PROBES))
    Z = np.stack([problem.probe(stream(seed, "probe", probe)) for probe in range(n_probes)])
    roots = problem.root_inverses(Z, 1.0, preconditioner, _PROBE_TOL)
    log_determinant += float(roots.logs.mean())
    # Those of the preconditioner are known, so that random vectors tell the small difference alone.
    known = preconditioner.half(Z, transposed=True)
    variance += (np.square(np.abs(roots.X)) - np.square(np.abs(known))).mean(axis=0)
    # Of a mode whose conjugate is left out both parts are kept.
    n_parts = np.full(shape, 2.0)
    n_parts[..., 0] = 1.0
    decided = n_parts - variance
    k = int(np.count_nonzero(told))
    slope = k * decided - explained
    share = np.clip(decided / n_parts, 0.0, 1.0)
    information = k * n_parts * np.square(share)
    if problem.fit_intercept:
        slope[problem.zero] = information[problem.zero] = 0.0
    return Evidence(value + k * log_determinant, slope, information, found)


class Family(Protocol):
    """Spectra by some parameters."""

    def log_weights(self, theta: np.ndarray) -> np.ndarray:
        """log w, in units of alpha, on the half of the lattice that is kept."""

    def within(self, theta: np.ndarray) -> np.ndarray:
        """The nearest parameters that are allowed."""


@dataclass(frozen=True, eq=False)
class Climbed:
    """The parameters that were reached, −2·log L there, and how often it was computed."""

    theta: np.ndarray
    value: float
    n_evaluations: int


_DIFFERENCE = 0.02  # of a parameter, which are logarithms; kernels round theirs to four digits
_DAMPING, _LEAST_DAMPING, _FARTHEST = 0.03, 1e-3, 1.5
_MAX_TRIALS, _MAX_ROUNDS, _FIRST_ROUNDS = 3, 15, 4
_TOL, _LEAST_GAIN = 2e-4, 1.0  # of −2·log L, a row and in all


def climb(
    family: Family,
    sums: ToeplitzSums,
    theta: np.ndarray,
    n_rows: float,
    *,
    fit_intercept: bool,
    seed: int,
    free: np.ndarray | None = None,
    to_beat: float = math.inf,
) -> Climbed:
    """Move the free parameters up the likelihood by damped Gauss-Newton steps.

    It ends where they gain little, or where −2·log L is not below `to_beat` after the first few.

    Modes are nearly independent, so that D·diag(n·γ²)·Dᵀ, D = ∂log w/∂θ, is nearly the expected curvature: a
    dozen evaluations do where simplex searches take a hundred. Steps are damped as by Levenberg and
    Marquardt (Nocedal and Wright 2006, section 10.3).
    """

    def judged(theta: np.ndarray, functions: Sequence[np.ndarray]) -> Evidence:
        weights = np.exp(family.log_weights(theta))
        return evidence(sums, weights, fit_intercept, n_rows, seed, functions)

    theta = family.within(theta)
    is_free = np.ones(len(theta), bool) if free is None else free
    best, damping, n_evaluations = judged(theta, ()), _DAMPING, 1
    for n_rounds in range(1, _MAX_ROUNDS + 1):
        D = _slopes(family, theta)
        gradient = D @ best.slope.ravel()
        moves = is_free & _can_move(family, theta, gradient)
        H = (D * best.information.ravel()) @ D.T
        gain = 0.0
        for _ in range(_MAX_TRIALS):
            step = np.zeros(len(theta))
            damped = H + damping * np.diag(np.diag(H) + 1e-6 * np.trace(H) + 1e-300)
            step[moves] = -np.linalg.solve(damped[np.ix_(moves, moves)], gradient[moves])
            new = family.within(theta + step * min(1.0, _FARTHEST / max(np.abs(step).max(), 1e-300)))
            if not (new != theta).any():
                break
            found, n_evaluations = judged(new, best.functions), n_evaluations + 1
            gain = best.value - found.value
            if gain > 0:
                theta, best, damping = new, found, max(damping / 4, _LEAST_DAMPING)
                break
            damping = 8 * max(damping, 0.01)
        is_behind = n_rounds >= _FIRST_ROUNDS and best.value > to_beat
        if is_behind or not gain > max(_LEAST_GAIN, _TOL * n_rows):
            break
    return Climbed(theta, best.value, n_evaluations)


def _slopes(family: Family, theta: np.ndarray) -> np.ndarray:
    """∂log w/∂θ by central differences, (n_parameters, n_modes kept)."""
    steps = _DIFFERENCE * np.eye(len(theta))
    differences = [family.log_weights(theta + step) - family.log_weights(theta - step) for step in steps]
    return np.stack([one.ravel() for one in differences]) / (2 * _DIFFERENCE)


def _can_move(family: Family, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Whether each parameter may go down the gradient, and is not at the end of what is allowed."""
    steps = -_DIFFERENCE * np.sign(gradient) * np.eye(len(theta))
    moved = [family.within(theta + step)[i] - theta[i] for i, step in enumerate(steps)]
    return np.abs(moved) > _DIFFERENCE / 2
