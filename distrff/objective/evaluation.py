"""One margin machine at one point, as its solver sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distrff.objective.certificate import DualCandidate, primal_value
from distrff.objective.margin_sums import MarginSums
from distrff.objective.softmax_sums import SoftmaxSums


class Point(NamedTuple):
    """Where a machine is to be evaluated: x = [w | b], or [w], and the width of its loss's rounded kink.

    A second width may be asked for in the same sweep.
    """

    x: np.ndarray
    width: float = 0.0
    next_width: float | None = None

    @property
    def widths(self) -> tuple[float, ...]:
        """Both, or the one."""
        return (self.width,) if self.next_width is None else (self.width, self.next_width)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The objective C·Σ s·ℓ + ½‖w‖² and its proxy's at x = [w | b], or [w] without an intercept.

    Attributes
    ----------
    x : ndarray
    primal : float
        The objective itself.
    candidate : DualCandidate or None
        What bounds its minimum from below; None where there is no bound.
    value : float
    gradient : ndarray
        Of the objective with the proxy in place of the loss.
    curvature : float
        C times the weighted mean of the proxy's ℓ″ over the rows.
    smoothing : float
        C·(Σ s·(ℓ − ℓ_proxy) + Σ s·(ℓ_proxy*(−a) − ℓ*(−a))), which bounds the duality gap that is left at
        the proxy's own optimum; 0 where the proxy is the loss. The gap itself is the difference of the two
        terms: as a rule for when to end a stage it takes more sweeps (covtype, penalties 1e-3 to 1e-6 a
        row: 22, 22, 23, 46 in place of 16, 16, 39, 56).
    """

    x: np.ndarray
    primal: float
    candidate: DualCandidate | None
    value: float
    gradient: np.ndarray
    curvature: float
    smoothing: float
    held_out: np.ndarray
    """Σ s and Σ s·ℓ over the rows that are held out."""
    n_bending: int = 0
    """Rows of weight at which the proxy's ℓ″ is not 0; not counted where classes share a loss."""
    next: tuple[float, Evaluation] | None = None
    """The second width that was asked for, and the same point at that."""

    @property
    def dual(self) -> float:
        """A lower bound of the objective's minimum."""
        return -np.inf if self.candidate is None else self.candidate.bound

    @classmethod
    def of_softmax(
        cls, C: float, sums: SoftmaxSums, machine: int, x: np.ndarray, *, fit_intercept: bool
    ) -> Evaluation:
        """Return one machine's part of a sweep, x being its (D + 1, k) or (D, k) numbers in a row.

        There is no lower bound.
        """
        slope = sums.slope[machine]
        W = x.reshape(-1, slope.shape[1])[: len(slope) - 1]
        gradient = C * (slope if fit_intercept else slope[:-1])
        gradient[: len(W)] += W
        value = C * float(sums.value[machine]) + 0.5 * float(np.vdot(W, W))
        return cls(
            x=x,
            primal=value,
            candidate=None,
            value=value,
            gradient=gradient.ravel(),
            curvature=C * float(sums.curvature[machine] / sums.weight[machine]),
            smoothing=0.0,
            held_out=sums.held_out[:, machine],
        )

    @classmethod
    def of(
        cls, C: float, sums: MarginSums, machine: int, x: np.ndarray, *, fit_intercept: bool
    ) -> Evaluation:
        """Return one machine's part of a sweep."""
        w = x[:-1] if fit_intercept else x
        by_w, by_b = sums.gradient(machine)
        gradient = C * by_w + w
        weight, loss, proxy = (float(v[machine]) for v in (sums.weight, sums.value, sums.proxy_value))
        conjugates = float(sums.proxy_dual[machine] - sums.sided.dual[machine].sum())
        return cls(
            x=x,
            primal=primal_value(C, sums, machine, w),
            candidate=DualCandidate.of(C, sums, machine, fit_intercept=fit_intercept),
            value=C * proxy + 0.5 * float(w @ w),
            gradient=np.append(gradient, C * by_b) if fit_intercept else gradient,
            curvature=C * float(sums.curvature[machine]) / weight,
            smoothing=C * (loss - proxy + conjugates),
            held_out=sums.held_out[:, machine],
            n_bending=int(sums.n_bending[machine]),
        )
