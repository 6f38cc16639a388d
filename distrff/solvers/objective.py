"""The objectives of margin losses, their certificates, and how a solution ended."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from scipy.special import logsumexp

from distrff.errors import FitStopped
from distrff.utils.arrays import Sums
from distrff.utils.process import one_blas_thread

# How a solution ended, and several solvers at once.


class Status(enum.Enum):
    """How a solution ended; each value is a sentence with the remedy."""

    CONVERGED = "converged: exact to rounding if solved directly, else to the tolerance asked for"
    NOT_CONVERGED = "not converged: the gap or the residual is above tol; allow more sweeps, or a larger tol"
    NOT_DECIDED = (
        "not decided: the rows are neither separated nor shown not to be; allow more sweeps, or a finite C"
    )
    CONVERGED_UNCERTIFIED = (
        "converged: the objective no longer falls; how far it is from the optimum is not bounded"
    )
    INTERRUPTED = "interrupted: the best model so far is kept; fit again to complete it"
    STOPPED = "stopped: a callback ended the fit; the best model so far is kept"

    @property
    def is_converged(self) -> bool:
        """Whether the solver reached what it can show; more sweeps would not help."""
        return self in (Status.CONVERGED, Status.CONVERGED_UNCERTIFIED)

    @classmethod
    def of_interruption(cls, raised: KeyboardInterrupt) -> Status:
        """How a solution ended that was interrupted: by a callback, or from outside."""
        return cls.STOPPED if isinstance(raised, FitStopped) else cls.INTERRUPTED


_MAX_ENTRIES = 200


@dataclass
class History:
    """The error of an iterative solver after each light sweep, and the best primal and dual values so far.

    Entries are (light sweep, error, primal, dual). The error is what `tol` bounds; primal and dual are NaN
    if unknown.
    """

    entries: list[tuple[int, float, float, float]] = field(default_factory=list)

    def record(self, sweep: int, error: float, primal: float = math.nan, dual: float = math.nan) -> None:
        """Record one sweep; a second record of the same sweep replaces the first."""
        if self.entries and self.entries[-1][0] == sweep:
            self.entries.pop()
        self.entries.append((sweep, error, primal, dual))

    def values(self, measure: str) -> dict[str, Any]:
        """Lists for the report, of at most 200 sweeps: the first, the last, and others spread evenly.

        `measure` is the name of the error. `primal` and `dual` are left out if no bound is known.
        """
        names, n = ("sweep", "error", "primal", "dual"), len(self.entries)
        n_kept = min(n, _MAX_ENTRIES)
        kept = (self.entries[round(i * (n - 1) / max(1, n_kept - 1))] for i in range(n_kept))
        lists = dict(zip(names, map(list, zip(*kept, strict=True)), strict=False))
        bounded = any(map(math.isfinite, lists.get("dual", [])))
        return {"measure": measure} | {
            name: values for name, values in lists.items() if bounded or name in names[:2]
        }


# Several solver generators at once: each yields a request, and one sweep responds to all of them.

Key = TypeVar("Key")
Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")


def in_lockstep(
    solvers: Mapping[Key, Generator[Any, Any, Result]],
    respond: Callable[[dict[Key, Request]], Mapping[Key, Response]],
    responses: Mapping[Key, Response | None] | None = None,
) -> dict[Key, Result]:
    """Run solver generators together, and return the results of those that end, by key.

    Each yields requests and is sent responses. `respond` takes the requests of all running solvers and
    returns their responses, both by key. A solver that yields None rests until the next call. One that gets
    no response waits for a later one, or is stopped there if none comes. `responses` are those to begin with;
    by default None for each solver, which starts it or ends its rest.
    """
    results: dict[Key, Result] = {}
    responses = dict.fromkeys(solvers) if responses is None else responses
    while responses:
        requests: dict[Key, Request] = {}
        for key, response in responses.items():
            try:
                request = solvers[key].send(response)
            except StopIteration as end:
                results[key] = end.value
                continue
            if request is not None:
                requests[key] = request
        responses = respond(requests) if requests else {}
    return results


# What a row costs. Sweeps and solvers know no more of a loss than this; those that are named are in `losses`.


class Loss(Protocol):
    """ℓ(f, y), convex in f.

    Attributes
    ----------
    clear_margin : float
        The |f| beyond which a row is clearly on its side of a boundary; 1 of coded numbers.
    is_hinge : bool
        Whether ℓ is max(0, 1 − y·f), whose last digits the active set solves.
    value_at_zero : float
        ℓ(0, y) of rows with a free side.
    far_value : float
        The ℓ of a row so far off that it would hide the others in a relative error of the objective.
    negligible : float
        An ℓ that is as good as 0, of losses whose objective may be 0 but for rounding, for targets of mean 1.
    middle : float
        The y whose loss is most curved around f = 0: 0 of coded numbers, 1 of labels.
    units : str
        What f and y are in: "moments", a power of two near the standard deviation, around the mean; "spread",
        the robust spread around the median; or "own", those of y, of which f is the logarithm.
    least_target : float
        The smallest y that has a loss.
    """

    clear_margin: Any = 1.0
    far_value: Any = np.inf
    negligible: ClassVar[float] = 0.0
    units: ClassVar[str] = "moments"
    least_target: ClassVar[float] = -np.inf
    is_hinge: ClassVar[bool] = False
    value_at_zero: Any = 0.0
    middle: ClassVar[float] = 0.0

    @property
    def mean_curvature(self) -> float:
        """The mean of ℓ″ for |f| < c at the middle y, c the clear margin: (ℓ′(c) − ℓ′(−c))/2c.

        It is 2 for the squared loss and the squared hinge and ½ for the hinge, whose `curvature` is infinite.
        """
        c = self.clear_margin
        at_ends = self.derivative(np.array([[-c], [c]]), np.full((2, 1), self.middle))
        return float(np.mean(at_ends[1] - at_ends[0]) / (2 * c))  # over the outputs, where these differ

    @property
    def curvature(self) -> Any:
        """The smallest upper bound of ℓ″; infinite where ℓ′ jumps, and of the exponential."""
        return np.inf

    @property
    def is_smooth(self) -> bool:
        """Whether ℓ′ is continuous."""
        return bool(np.all(np.isfinite(self.curvature)))

    def negligible_beside(self, mean: float) -> float:
        """`negligible` of targets of another mean."""
        return self.negligible

    def of_outputs(self, outputs: Sequence[int]) -> Loss:
        """The loss of some of the outputs, side by side."""
        return self

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        """ℓ(f, y)."""

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        """∂ℓ/∂f; where it jumps, any of the slopes there."""

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        """ℓ″; 0 where ℓ′ jumps; where ℓ″ jumps, its value on one side."""

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        """ℓ*(−a, y), infinite outside its domain."""

    def rounded(self, epsilon: Any) -> Loss:
        """A loss of curvature 1/ε, below this one and near it; the loss itself where that is smooth.

        Its −ℓ′ is within the box of this loss, hence a dual candidate for it.
        """
        return self

    def dual_box(self, y: np.ndarray) -> tuple[Any, Any, float]:
        """l, u and ε of a loss that is not smooth: ℓ*(−a, y) = ε|a| − a·y for l ≤ a ≤ u, else infinite."""
        return -np.inf, np.inf, 0.0

    def free_side(self, y: np.ndarray) -> np.ndarray:
        """The sign of f towards which ℓ falls to 0 for ever; 0 where ℓ grows on both sides."""
        return np.zeros_like(y)


@dataclass(frozen=True)
class Squared(Loss):
    """(y − f)², for numbers or ±1."""

    curvature: ClassVar[float] = 2.0

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.square(y - f)

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 2 * (f - y)

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.full(np.broadcast(f, y).shape, 2.0)

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        # The supremum of −a·f − (y − f)² is at f = y − a/2.
        return a * (a / 4 - y)


# Objectives and their bounds.


class Point(NamedTuple):
    """Where to evaluate a problem: x = [w | b], or [w], and the ε of the smoothed hinge.

    A second ε may be requested in the same sweep.
    """

    x: np.ndarray
    epsilon: float = 0.0
    next_epsilon: float | None = None

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The one ε, or both."""
        return (self.epsilon,) if self.next_epsilon is None else (self.epsilon, self.next_epsilon)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The objective C·Σ s·ℓ + ½‖w‖² and its proxy's at x = [w | b], or [w] without an intercept.

    Attributes
    ----------
    primal : float
        The objective itself.
    candidate : DualCandidate or None
        The lower bound of its minimum; None if there is none.
    value, gradient : float, ndarray
        Of the objective with the proxy in place of the loss.
    curvature : float
        C times the weighted mean of the proxy's ℓ″ over the rows.
    smoothing : float
        C·(Σ s·(ℓ − ℓ_proxy) + Σ s·(ℓ_proxy*(−a) − ℓ*(−a))), an upper bound of the duality gap at the
        proxy's own optimum; 0 where the proxy is the loss. The gap itself is the difference of the two
        terms; with stages that end by it, sweeps were 22, 22, 23, 46 in place of 16, 16, 39, 56 (covtype,
        penalties 1e-3 to 1e-6 a row).
    held_out : ndarray of shape (2,)
        Σ s and Σ s·ℓ over the held-out rows.
    n_curved : int
        Rows of positive weight at which the proxy's ℓ″ is not 0; not counted for softmax.
    scale : float
        Of a problem with an intercept whose rows have all the same free side, as if they have one label, the
        objective at 0, else 0. Such an objective falls to 0 as the intercept grows, and no model of a
        likelihood reaches 0. At least C·Σs times a loss that is negligible.
    near : float
        The primal without what far rows have beyond the loss's far value: what errors are relative to.
    next : (float, Evaluation) or None
        The second ε that was requested, and the evaluation of the same point at it.
    """

    x: np.ndarray
    primal: float
    candidate: DualCandidate | None
    value: float
    gradient: np.ndarray
    curvature: float
    smoothing: float
    held_out: np.ndarray
    n_curved: int = 0
    scale: float = 0.0
    near: float = np.inf
    next: tuple[float, Evaluation] | None = None

    @property
    def dual(self) -> float:
        """A lower bound of the objective's minimum."""
        return -np.inf if self.candidate is None else self.candidate.bound

    @classmethod
    def of_softmax(
        cls, C: float, sums: SoftmaxSums, problem: int, x: np.ndarray, *, fit_intercept: bool
    ) -> Evaluation:
        """The evaluation of one softmax problem, which has no lower bound.

        x holds its (D + 1, k) or (D, k) numbers in one row.
        """
        slope = sums.slope[problem]
        W = x.reshape(-1, slope.shape[1])[: len(slope) - 1]
        gradient = C * (slope if fit_intercept else slope[:-1])
        gradient[: len(W)] += W
        value = C * float(sums.value[problem]) + 0.5 * float(np.vdot(W, W))
        return cls(
            x=x,
            primal=value,
            candidate=None,
            value=value,
            gradient=gradient.ravel(),
            curvature=C * _mean(float(sums.curvature[problem]), float(sums.weight[problem])),
            smoothing=0.0,
            held_out=sums.held_out[:, problem],
        )

    @classmethod
    def of(
        cls,
        C: float,
        sums: MarginSums,
        problem: int,
        x: np.ndarray,
        *,
        fit_intercept: bool,
        negligible: float = 0.0,
    ) -> Evaluation:
        """The evaluation of one problem; `negligible` is a loss of a row that is as good as none."""
        w = x[:-1] if fit_intercept else x
        by_w = -sums.sided_vector[problem].sum(axis=0)
        by_b = -float(sums.sided_weight[problem].sum())
        gradient = C * by_w + w
        weight, loss, proxy = (float(v[problem]) for v in (sums.weight, sums.value, sums.proxy_value))
        conjugates = float(sums.proxy_dual[problem] - sums.sided_dual[problem].sum())
        at_zero = sums.loss_at_zero[problem]
        # One side alone has rows: the intercept lowers their loss for ever, and 0 as objective has no
        # relative gap.
        is_free = fit_intercept and not at_zero.all()
        return cls(
            x=x,
            primal=C * loss + 0.5 * float(w @ w),
            candidate=DualCandidate.of(C, sums, problem, fit_intercept=fit_intercept),
            value=C * proxy + 0.5 * float(w @ w),
            gradient=np.append(gradient, C * by_b) if fit_intercept else gradient,
            curvature=C * _mean(float(sums.curvature[problem]), weight),
            smoothing=C * (loss - proxy + conjugates),
            held_out=sums.held_out[:, problem],
            n_curved=int(sums.n_curved[problem]),
            scale=C * max(float(at_zero.sum()) if is_free else 0.0, negligible * weight),
            near=C * float(sums.near_value[problem]) + 0.5 * float(w @ w),
        )


def _mean(total: float, weight: float) -> float:
    """The mean, 0 without weight: the rows of all folds but one may have none."""
    return total / weight if weight else 0.0


# Sums of one pass over the rows of binary problems: value, gradient, curvature and a dual candidate.
#
# Conventions
# -----------
# k problems f_j(x) = w_jᵀz(x) + b_j are evaluated at once. Summed are s_ij ℓ(f_ij, y_ij) for the loss ℓ, and
# for its smooth *proxy* (ℓ itself where it is smooth) the row weights a_ij = −ℓ′_proxy(f_ij, y_ij), which
# give the proxy's gradient and a candidate for the dual of ℓ. Sums over a > 0 and over a < 0 are kept apart,
# because the dual's constraint Σ s_i a_i = 0 is met by shrinking one of the two.


@dataclass(frozen=True, eq=False)
class MarginSums(Sums):
    """Sums over rows at one point (w_j, b_j) of each of k problems.

    Attributes
    ----------
    weight, value : ndarrays of shape (k,)
        Σ s and Σ s·ℓ(f, y) over the rows that a problem is fitted to.
    near_value : ndarray of shape (k,)
        Σ s·min(ℓ, the loss's far value).
    held_out : ndarray of shape (2, k)
        The same two sums over the held-out rows of each problem.
    proxy_value, proxy_dual : ndarrays of shape (k,)
        Σ s·ℓ_proxy(f, y) and Σ s·ℓ_proxy*(−a).
    curvature : ndarray of shape (k,)
        Σ s·ℓ″_proxy.
    n_curved : ndarray of shape (k,)
        Rows with s·ℓ″_proxy > 0.
    loss_at_zero : ndarray of shape (k, 2)
        Σ s·ℓ(0, y) over the rows whose loss does not fall for ever as f falls, and as f rises: of margin
        losses over those of label 1 and over those of label −1. One is 0 where all have the same free side.
    sided_weight, sided_dual : ndarrays of shape (k, 2)
        Σ s·a and Σ s·ℓ*(−a), over the rows with a > 0 and over those with a < 0.
    sided_vector : ndarray of shape (k, 2, D)
        Σ s·a·z, likewise.
    """

    weight: np.ndarray
    value: np.ndarray
    near_value: np.ndarray
    held_out: np.ndarray
    proxy_value: np.ndarray
    proxy_dual: np.ndarray
    curvature: np.ndarray
    n_curved: np.ndarray
    loss_at_zero: np.ndarray
    sided_weight: np.ndarray
    sided_dual: np.ndarray
    sided_vector: np.ndarray

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> MarginSums:
        """The sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        vector = self.sided_vector
        of_z = feature_sums(vector.reshape(-1, vector.shape[2])).reshape(*vector.shape[:2], -1)
        return replace(self, sided_vector=of_z)


def sided_weights(proxy: Loss, F: np.ndarray, Y: np.ndarray, weights: RowWeights) -> np.ndarray:
    """max(0, s·a) and min(0, s·a) of each row, shape (k, 2, r)."""
    weighted = (-weights.fitted * proxy.derivative(F, Y)).T
    return np.stack([np.maximum(weighted, 0), np.minimum(weighted, 0)], axis=1)


def margin_sums(
    loss: Loss, proxy: Loss, F: np.ndarray, Y: np.ndarray, weights: RowWeights, vector: np.ndarray
) -> MarginSums:
    """The sums over r rows of values F and targets Y, both of shape (r, k).

    The proxy is the loss itself where that is smooth; `vector` of shape (k, 2, D) is `sided_weights` times
    the rows' features.
    """
    fitted = weights.fitted
    values = loss.value(F, Y)
    a = -proxy.derivative(F, Y)
    smooth = proxy is loss
    proxy_values = values if smooth else proxy.value(F, Y)
    own = -a * F - proxy_values  # ℓ_proxy*(−a), by the Fenchel–Young equality where the slope is −a
    conjugates = fitted * (own if smooth else loss.conjugate(a, Y))
    weighted = fitted * a
    above = np.maximum(weighted, 0).sum(axis=0)
    curved = fitted * proxy.second_derivative(F, Y)
    dual_above = np.where(a > 0, conjugates, 0).sum(axis=0)
    side = loss.free_side(Y)
    by_side = [np.where(on_it, fitted, 0).sum(axis=0) for on_it in (side >= 0, side <= 0)]
    value, far = weighted_sum(fitted, values), loss.far_value
    return MarginSums(
        weight=fitted.sum(axis=0),
        value=value,
        near_value=weighted_sum(fitted, np.minimum(values, far)) if np.isfinite(far).all() else value,
        held_out=weights.held_out_sums(values),
        proxy_value=weighted_sum(fitted, proxy_values),
        proxy_dual=weighted_sum(fitted, own),
        curvature=curved.sum(axis=0),
        n_curved=np.count_nonzero(curved, axis=0),
        loss_at_zero=np.stack(by_side, axis=-1) * loss.value_at_zero,
        sided_weight=np.stack([above, np.minimum(weighted, 0).sum(axis=0)], axis=-1),
        sided_dual=np.stack([dual_above, conjugates.sum(axis=0) - dual_above], axis=-1),
        sided_vector=vector,
    )


# Sums of one pass over the rows of softmax problems, whose outputs share one loss.
#
# A problem f(x) = Wᵀz(x) + b has k outputs; a row of class c costs ℓ(f, c) = log Σ_j exp(f_j/σ) − f_c/σ.


@dataclass(frozen=True, eq=False)
class SoftmaxSums(Sums):
    """Sums over rows at one point of each of m problems.

    Attributes
    ----------
    weight, value : ndarrays of shape (m,)
        Σ s and Σ s·ℓ over the rows that a problem is fitted to.
    held_out : ndarray of shape (2, m)
        The same two sums over the held-out rows of each problem.
    curvature : ndarray of shape (m,)
        Σ s·Σ_j p_j(1 − p_j)/(kσ²), the mean of the diagonal of ℓ″.
    slope : ndarray of shape (m, D + 1, k)
        Σ s·z̃(p − e_c)ᵀ/σ for z̃ = [z | 1].
    """

    weight: np.ndarray
    value: np.ndarray
    held_out: np.ndarray
    curvature: np.ndarray
    slope: np.ndarray

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> SoftmaxSums:
        """The sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        of_z = [feature_sums(slope[:-1].T).T for slope in self.slope]
        return replace(self, slope=np.concatenate([np.stack(of_z), self.slope[:, -1:]], axis=1))


def softmax_slopes(F: np.ndarray, classes: np.ndarray, weights: RowWeights, *, sigma: float) -> np.ndarray:
    """s·(p − e_c)/σ of each row, of the shape (r, m, k) of F."""
    return _slopes(_probabilities(F, sigma)[0], classes, weights, sigma)


def softmax_sums(
    F: np.ndarray, classes: np.ndarray, weights: RowWeights, vector: np.ndarray, *, sigma: float
) -> SoftmaxSums:
    """The sums over r rows of classes 0 to k − 1 and values F of m problems, of shape (r, m, k).

    `vector` of shape (m, k, D) is `softmax_slopes` times the rows' features.
    """
    P, total = _probabilities(F, sigma)
    values = total - np.take_along_axis(F, classes[:, None, None], axis=2)[:, :, 0] / sigma
    fitted = weights.fitted
    curvature = (fitted * (P * (1 - P)).mean(axis=2)).sum(axis=0) / sigma**2
    by_intercept = _slopes(P, classes, weights, sigma).sum(axis=0)[:, None]
    return SoftmaxSums(
        weight=fitted.sum(axis=0),
        value=weighted_sum(fitted, values),
        held_out=weights.held_out_sums(values),
        curvature=curvature,
        slope=np.concatenate([vector.transpose(0, 2, 1), by_intercept], axis=1),
    )


def _probabilities(F: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """P of shape (r, m, k), and the logarithm of their normaliser."""
    F = F / sigma
    total = logsumexp(F, axis=2)
    return np.exp(F - total[:, :, None]), total


def _slopes(P: np.ndarray, classes: np.ndarray, weights: RowWeights, sigma: float) -> np.ndarray:
    own = classes[:, None, None] == np.arange(P.shape[2])
    return (P - own) * (weights.fitted[:, :, None] / sigma)


class RowWeights(NamedTuple):
    """Weights of r rows for k problems, of shape (r, k).

    `fitted` is s for the rows that a problem is fitted to, else 0; `held_out` is s for its held-out rows,
    else 0, and None stands for all zeros.
    """

    fitted: np.ndarray
    held_out: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        s: np.ndarray | None,
        shape: tuple[int, int],
        masks: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> RowWeights:
        """Weights of shape (r, k) from sample weights (None for ones).

        `masks` are of the rows that a problem is fitted to, and judged on; the default is all and none.
        """
        # A view, for weights are only read.
        weights = np.ones(shape) if s is None else np.broadcast_to(s[:, None], shape)
        if masks is None:
            return cls(weights)
        is_fitted, is_judged = masks
        return cls(np.where(is_fitted, weights, 0.0), np.where(is_judged, weights, 0.0))

    def at(self, rows: slice) -> RowWeights:
        """The weights of some of the rows."""
        return RowWeights(self.fitted[rows], None if self.held_out is None else self.held_out[rows])

    def held_out_sums(self, values: np.ndarray) -> np.ndarray:
        """Σ s and Σ s·v over the held-out rows of each problem, shape (2, k)."""
        if self.held_out is None:
            return np.zeros((2, values.shape[1]))
        return np.stack([self.held_out.sum(axis=0), weighted_sum(self.held_out, values)])


def weighted_sum(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ over rows of the product, for each problem."""
    return np.einsum("ij,ij->j", weights, values)


# The duality gap: a lower bound of the objective from weights on the rows.
#
# For P(w, b) = C·Σ s_i ℓ(f_i, y_i) + ½‖w‖² every a with Σ s_i a_i = 0 (any a, without an intercept) gives
#
#     D(a) = −C·Σ s_i ℓ*(−a_i, y_i) − ½‖C·Σ s_i a_i z_i‖² ≤ min P.
#
# Candidates rarely meet the constraint. The side of larger sum is multiplied by r = (smaller sum)/(larger
# sum). Since ℓ*(−r·a) ≤ r·ℓ*(−a) for r in [0, 1] (convexity, and ℓ*(0) ≤ 0), the bound needs only each
# side's sums. For the same reason a itself may be multiplied by any t in [0, 1]; the best t has a closed
# form.


@dataclass(frozen=True)
class Certificate:
    """The smallest objective of one problem so far, and the largest lower bound so far.

    `scale` is that of the last `Evaluation`, `near` the least of all.
    """

    primal: float = np.inf
    dual: float = -np.inf
    scale: float = 0.0
    near: float = np.inf

    @property
    def gap(self) -> float:
        """(P − D)/max(|P|, |D|, scale), infinite until both are known; 0 where rounding makes it negative.

        With far rows it is relative to the objective that is near: one target a million spreads away would
        hide the losses of all others.
        """
        if not (np.isfinite(self.primal) and np.isfinite(self.dual)):
            return np.inf
        scale = max(min(max(abs(self.primal), abs(self.dual)), self.near), self.scale)
        return max(0.0, (self.primal - self.dual) / scale) if scale else 0.0

    def improved(self, primal: float, dual: float) -> Certificate:
        """The better of each."""
        return replace(self, primal=min(self.primal, primal), dual=max(self.dual, dual))


@dataclass(frozen=True, eq=False)
class DualCandidate:
    """A candidate a that meets the constraint, as what its bound takes.

    Attributes
    ----------
    slope : float
        −C·Σ s·ℓ*(−a), or a lower bound of it.
    vector : ndarray of shape (D,)
        C·Σ s·a·z.
    """

    slope: float
    vector: np.ndarray

    @classmethod
    def of(cls, C: float, sums: MarginSums, problem: int, *, fit_intercept: bool) -> DualCandidate:
        """The candidate of a sweep, with its sides balanced if there is an intercept."""
        r = _balance(sums.sided_weight[problem]) if fit_intercept else np.ones(2)
        return cls(-C * float(r @ sums.sided_dual[problem]), C * (r @ sums.sided_vector[problem]))

    @property
    def bound(self) -> float:
        """The best t·slope − ½t²·‖vector‖² over t in [0, 1]; t = 0 bounds every objective by 0."""
        if not self.slope > 0:
            return 0.0
        square = float(self.vector @ self.vector)
        # The parabola's maximum, or the end of the interval before it.
        t = min(1.0, self.slope / square) if square else 1.0
        return t * self.slope - 0.5 * t**2 * square


def _balance(weight: np.ndarray) -> np.ndarray:
    """The factors of the two sides after which their sums cancel."""
    above, below = float(weight[0]), -float(weight[1])
    smaller = min(above, below)
    return np.array([smaller / above if above > 0 else 0.0, smaller / below if below > 0 else 0.0])


# The best lower bound from the last candidates of one problem together.
#
# The conjugate ℓ* is convex, so the slope of a convex combination of candidates is at least the combination
# of their slopes, and its vector is the combination of their vectors:
#
#     min P ≥ Σ_t θ_t·slope_t − ½‖Σ_t θ_t·vector_t‖²   for θ ≥ 0, Σ θ ≤ 1.
#
# Candidates near the optimum lie around the best one, so the errors of their vectors cancel, and the gap
# closes several times faster than by the last candidate alone.

_MAX_CANDIDATES, _MAX_BYTES = 12, 2**23


class DualBundle:
    """The last candidates of a problem: at most twelve, fewer beyond 8 MiB, but at least two."""

    def __init__(self) -> None:
        self._kept: deque[DualCandidate] = deque()

    def add(self, candidate: DualCandidate) -> float:
        """Add a candidate, and return the best bound from all kept ones."""
        self._kept.append(candidate)
        while len(self._kept) > max(2, min(_MAX_CANDIDATES, _MAX_BYTES // candidate.vector.nbytes)):
            self._kept.popleft()
        with one_blas_thread():  # the same bound whatever the client's threads
            return self._bound()

    def _bound(self) -> float:
        bounds = [kept.bound for kept in self._kept]
        alone = max(bounds)
        if len(bounds) == 1 or not alone > 0:
            return alone
        candidates = [_moderate(kept, alone / np.finfo(float).eps ** 2) for kept in self._kept]
        slopes = np.array([candidate.slope for candidate in candidates])
        vectors = np.stack([candidate.vector for candidate in candidates])
        theta = _best_shares(slopes / alone, vectors @ vectors.T / alone, int(np.argmax(bounds)))
        together = DualCandidate(float(theta @ slopes), theta @ vectors)
        # Any θ gives a bound, however far it is from the best.
        return max(alone, together.bound)


def _moderate(candidate: DualCandidate, largest: float) -> DualCandidate:
    """The candidate, or its best multiple where its terms exceed `largest`.

    With a large C only a tiny multiple of most candidates gives a useful bound; their own terms, divided by
    that bound, may overflow.
    """
    square = float(candidate.vector @ candidate.vector)
    if max(abs(candidate.slope), square) <= largest:
        return candidate
    t = candidate.slope / square if candidate.slope > 0 else 0.0
    return DualCandidate(t * candidate.slope, t * candidate.vector)


def _best_shares(slopes: np.ndarray, G: np.ndarray, first: int) -> np.ndarray:
    """About the θ of largest slopesᵀθ − ½θᵀGθ over θ ≥ 0, Σ θ ≤ 1; else the unit vector of `first`.

    With G = RᵀR that is least squares ‖Rθ − R⁻ᵀ·slopes‖² of numbers that are not negative, beside a row of
    large weight which says that they and what is left add up to 1. Its active set takes a fraction of the
    time of SLSQP, which was two thirds of a fit of few rows.
    """
    n, size = len(slopes), float(np.trace(G)) / len(slopes)
    if not size > 0:  # no candidate has a vector: the one of largest slope is the best
        return np.eye(n)[int(np.argmax(slopes))]
    R = cholesky(G + _RIDGE * size * np.eye(n), check_finite=False)
    A = np.zeros((n + 1, n + 1))
    A[0], A[1:, 1:] = _WEIGHT_OF_SUM * math.sqrt(size), R
    target = np.append(A[0, :1], solve_triangular(R, slopes, trans="T", check_finite=False))
    try:
        theta = nnls(A, target)[0][1:]
    except RuntimeError:  # too many steps
        theta = np.eye(n)[first]
    theta = np.clip(np.nan_to_num(theta), 0, None)
    return theta / max(1.0, theta.sum())


_RIDGE, _WEIGHT_OF_SUM = 1e-10, 1e3
