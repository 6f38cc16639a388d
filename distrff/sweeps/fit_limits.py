"""Which of a cluster's rates a counted fit waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrff.sweeps.cluster_rates import ClusterRates
from distrff.sweeps.conjugate_plan import ConjugatePlan
from distrff.sweeps.plan import THIN_SLOWNESS, Plan, factorisation_flops
from distrff.sweeps.sgd_plan import SGDPlan

_LEAST_BUSY = 0.75
_MORE = "more workers or threads"  # helps where there are segments for them
_BY_MORE = {"products", "cosines", "features", "reading"}
_REMEDIES = {
    "products": "float32, or fewer features (--n-components)",
    "cosines": "float32, or fewer features (--n-components)",
    "features": "fewer grids (--n-grids)",
    "factorisation": "a given --alpha, fewer folds (--cv), fewer features, or workers with more cores each",
    "reading": "larger chunks, less compression or rows nearer to the workers (`distrff inspect DATA` "
    "says what would pay)",
    "transfers": "fewer and larger workers, fewer features, or a faster network between workers",
    "starting tasks": "nothing: the fit is small; fewer workers or --scheduler local would do",
}


@dataclass(frozen=True)
class FitLimits:
    """Where the seconds of a fit go, by the rates of the cluster.

    Parameters
    ----------
    seconds : dict of str to float
        Of each part; they follow one another in a thread but for transfers, which other tasks may hide.
    busy_share : float
        Of the threads, that the fit's segments keep at work.
    """

    seconds: Mapping[str, float]
    busy_share: float

    @property
    def part(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=lambda part: self.seconds[part])

    @property
    def remedy(self) -> str:
        """What would make that part faster."""
        more = f"{_MORE}, " if self.part in _BY_MORE and self.is_busy else ""
        return more + _REMEDIES[self.part]

    @property
    def is_busy(self) -> bool:
        """Whether there are segments for most of the threads."""
        return self.busy_share >= _LEAST_BUSY


def fit_limits(plan: Plan, rates: ClusterRates) -> FitLimits:
    """Return the seconds of a fit's parts: what the plan counts, divided by what was measured.

    Products of a few vectors are taken to be 2.5 times slower by the flop than those of the Gram. Of
    sparse features neither products nor cosines are measured: there the plan's own seconds count, less
    those of reading. Of the partials that are merged, each is taken to come from another worker.

    Parameters
    ----------
    plan : Plan
        With its seconds.
    rates : ClusterRates
        Measured with the dataset of the plan.
    """
    shape, n_threads = plan.shape, rates.n_threads
    rounds = -(-plan.n_segments // n_threads)
    busy = plan.n_segments / (rounds * n_threads)
    rows = plan.bytes_read / shape.row_bytes
    seconds = {
        "reading": rows / rates.read_rows / busy,
        "transfers": _moved_bytes(plan, len(rates.workers)) / rates.received_bytes,
        "starting tasks": plan.n_sweeps * rounds * rates.task_seconds,
    }
    if shape.sparse_entries:
        seconds["features"] = max(0.0, (plan.seconds or 0.0) - seconds["reading"])
        return FitLimits(seconds, busy)
    gram, thin, factor = _flops(plan)
    seconds["products"] = (gram + THIN_SLOWNESS * thin) / rates.flops(shape.dtype) / busy
    seconds["cosines"] = plan.cosines / rates.cosines(shape.dtype) / busy
    tasks = min(n_threads, max(1, (shape.n_paths or shape.n_folds) if shape.n_alphas > 1 else 1))
    seconds["factorisation"] = factor / (rates.flops("float64") * tasks / n_threads)
    return FitLimits(seconds, busy)


def _flops(plan: Plan) -> tuple[float, float, float]:
    """Return a plan's flops of products as tall as wide, of thin products, and of factorisations."""
    if isinstance(plan, ConjugatePlan | SGDPlan):
        return 0.0, plan.flops, 0.0
    shape = plan.shape
    factor = factorisation_flops(shape) + shape.map_factor_flops
    return shape.gram_flops, shape.n_light_sweeps * shape.light_flops, factor


def _moved_bytes(plan: Plan, n_workers: int) -> float:
    """Return the bytes of partials that go to another worker to be merged."""
    if n_workers == 1:
        return 0.0
    shape = plan.shape
    vectors = 8.0 * shape.n_features * max(1, shape.n_outputs)
    if isinstance(plan, ConjugatePlan | SGDPlan):
        return plan.n_sweeps * plan.n_segments * vectors
    gram = 8.0 * plan.folds_per_task * shape.size**2 / 2
    return plan.n_segments * (gram + shape.n_light_sweeps * vectors)
