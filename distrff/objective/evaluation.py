"""One margin machine at one point, as its solver sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.objective.certificate import dual_value, primal_value
from distrff.objective.margin_sums import MarginSums


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The objective C·Σ s·ℓ + ½‖w‖² and its first proxy's at x = [w | b], or [w] without an intercept.

    Attributes
    ----------
    x : ndarray
    primal, dual : float
        The objective itself, and a lower bound of its minimum.
    value : float
    gradient : ndarray
        Of the objective with the first proxy in place of the loss.
    curvature : float
        C times the weighted mean of the first proxy's ℓ″ over the rows.
    smoothing : float
        C·(Σ s·(ℓ − ℓ_proxy) + Σ s·(ℓ_proxy*(−a) − ℓ*(−a))): the duality gap that is left at the first proxy's
        own optimum; 0 where the proxy is the loss.
    """

    x: np.ndarray
    primal: float
    dual: float
    value: float
    gradient: np.ndarray
    curvature: float
    smoothing: float

    @classmethod
    def of(
        cls, C: float, sums: MarginSums, output: int, x: np.ndarray, *, weight: float, fit_intercept: bool
    ) -> Evaluation:
        """Return one machine's part of a sweep over rows of total weight `weight`."""
        w = x[:-1] if fit_intercept else x
        by_w, by_b = sums.gradient(0, output)
        gradient = C * by_w + w
        loss, proxy = float(sums.value[output]), float(sums.proxy_value[0, output])
        conjugates = float(sums.proxy_dual[0, output] - sums.sided.dual[0, output].sum())
        return cls(
            x=x,
            primal=primal_value(C, sums, output, w),
            dual=dual_value(C, sums, output, fit_intercept=fit_intercept),
            value=C * proxy + 0.5 * float(w @ w),
            gradient=np.append(gradient, C * by_b) if fit_intercept else gradient,
            curvature=C * float(sums.curvature[0, output]) / weight,
            smoothing=C * (loss - proxy + conjugates),
        )
