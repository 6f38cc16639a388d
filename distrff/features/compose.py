"""Several maps side by side: the weighted sum of their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from distrff.errors import InputError, ModelFileError
from distrff.features.base import FeatureMap, Sample
from distrff.features.fitted import (
    Arrays,
    FittedMap,
    MapCost,
    MapOutline,
    Trait,
    cost_of_parts,
    joined_digest,
)
from distrff.utils.random import child_seed, resolve_seed
from distrff.utils.validation import float_array


@dataclass(frozen=True)
class ConcatenatedMap(FittedMap):
    """z(x) = (√w₁·z₁(x), √w₂·z₂(x), …); the parts have the widths of their own arrays."""

    kind: ClassVar[str] = "concatenated"

    parts: tuple[FittedMap, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any(part.n_columns != self.n_columns for part in self.parts):
            raise ModelFileError("a stored map and its parts differ in columns")

    @property
    def traits(self) -> frozenset[Trait]:
        # Not nested or rescaled, whatever the parts are: leading columns are not a smaller map of all of
        # them. Sparse parts, and those in their own units, were refused.
        of_parts = [part.traits for part in self.parts]
        of_any, of_all = frozenset[Trait]().union(*of_parts), frozenset(Trait).intersection(*of_parts)
        return (of_any & {Trait.FROM_ROWS, Trait.BASIS}) | (of_all & {Trait.NO_ARRAYS})

    @property
    def n_features(self) -> int:
        return sum(part.n_features for part in self.parts)

    @property
    def at_zero(self) -> float:
        return sum(w * part.at_zero for w, part in zip(self.weights, self.parts, strict=True))

    @property
    def cost(self) -> MapCost:
        return cost_of_parts((part.cost, part.n_features) for part in self.parts)

    @property
    def inside(self) -> dict[str, FittedMap]:
        # These prefixes are names of arrays in stored models.
        return {f"part{i}_": part for i, part in enumerate(self.parts)}

    def with_inside(self, maps: list[FittedMap]) -> Self:
        return replace(self, parts=tuple(maps))

    def digest_of(self, arrays: Arrays) -> str:
        return joined_digest(part.digest_of(own) for part, own in self.inside_with(arrays))

    def to_dict(self) -> dict[str, Any]:
        parts = [part.to_dict() for part in self.parts]
        return super().to_dict() | {"parts": parts, "weights": list(self.weights)}

    def prepare(self, arrays: Arrays) -> list[tuple[FittedMap, float]]:
        """Ready parts, and the factors of their features."""
        factors = np.sqrt(self.weights).tolist()
        ready = [part.ready(own) for part, own in self.inside_with(arrays)]
        return list(zip(ready, factors, strict=True))

    @property
    def prepared_bytes(self) -> int:
        return sum(part.prepared_bytes for part, _ in self.prepared)

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        Z = np.empty((len(X), self.n_features), X.dtype) if out is None else out
        first = 0
        for part, factor in self.prepared:
            own = Z[:, first : first + part.n_features]
            part.apply(X, out=own)
            if factor != 1.0:
                own *= factor
            first += part.n_features
        return Z

    # The basis is that of all parts, side by side in float64; the roots of the weights multiply the vectors.

    @property
    def n_basis(self) -> int:
        return sum(part.n_basis for part in self.parts)

    def basis(self, X: np.ndarray) -> np.ndarray:
        if not self.has_basis:
            return self.apply(X)
        # The basis of a Nyström part are kernel values, whose rounding its solve would magnify.
        exact = X.astype(np.float64, copy=False)
        return np.concatenate([part.basis(exact) for part, _ in self.prepared], axis=1)

    def basis_coef(self, coef: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if not self.has_basis:
            return super().basis_coef(coef, dtype)
        own = np.split(coef, np.cumsum([part.n_features for part in self.parts])[:-1])
        exact = np.dtype(np.float64)
        parts = zip(self.prepared, own, strict=True)
        return np.concatenate([factor * part.basis_coef(w, exact) for (part, factor), w in parts])

    def feature_sums(self, sums: np.ndarray) -> np.ndarray:
        own = np.split(sums, np.cumsum([part.n_basis for part in self.parts])[:-1], axis=1)
        parts = zip(self.prepared, own, strict=True)
        return np.concatenate([factor * part.feature_sums(s) for (part, factor), s in parts], axis=1)


class ConcatenatedFeatures(FeatureMap):
    """Several maps side by side, whose kernel is the weighted sum of theirs.

    z(x) = (√w₁·z₁(x), √w₂·z₂(x), …), hence ⟨z(x), z(x')⟩ = Σ w_i·⟨z_i(x), z_i(x')⟩. There is no
    learning curve: the leading columns are not a smaller map of this kind.

    Parameters
    ----------
    maps : list of FeatureMap
        A map without a `random_state` of its own draws from a stream named by its position: equal maps then
        differ. `set_params` takes the parameters of map i as `maps__i__…`.
    weights : list of float or "cv", optional
        One positive number w_i for each map; None is 1/len(maps) each. With "cv" `KernelRidge` and
        `KernelRidgeClassifier` of alpha="cv" choose them by held-out error, and no pass is added: with S the
        diagonal matrix of √(w_i·len(maps)), a number for each feature of map i, the Gram for any weights is
        S·G·S, where G is that for equal ones. This is a penalty alpha/w_i for each map ("banded ridge"): one
        that tells nothing of the target gets a small weight, 10⁻⁴ of the largest at least. At most 40
        settings are tried, each with all folds and alphas: equal weights, 11 random ones, and steps in the
        logarithm of one weight from the best of these. Of errors that differ by rounding alone, 10⁻⁶, more
        equal weights win. The kernel's metric says which columns a map sees, as `metric=np.eye(4)[:2]`
        the first two of four.

    Attributes
    ----------
    maps_ : list of FeatureMap
        Fitted clones.
    weights_ : tuple of float
        As given, or as chosen.
    specification_ : ConcatenatedMap
    seed_, n_features_in_ : int

    Notes
    -----
    The cost is the sum of the costs of the maps, plus n·D products for weights other than 1. The choice of
    weights takes 40 times the flops of that of alpha, about 4/3·D³ for each of the folds.

    References
    ----------
    Dupré la Tour, Eickenberg, Nunez-Elizalde and Gallant (2022), "Feature-space selection with banded ridge
    regression", NeuroImage 264, who draw weights from Dirichlet distributions as the first ones are here.
    """

    specification_: ConcatenatedMap
    _is_decided = False
    """Whether weights are chosen; a clone chooses anew."""

    def __init__(self, maps: Sequence[FeatureMap], *, weights: Sequence[float] | str | None = None) -> None:
        self.maps = maps
        self.weights = weights

    @property
    def chooses_weights(self) -> bool:
        return isinstance(self.weights, str) and self.weights == "cv" and not self._is_decided

    @property
    def weights_(self) -> tuple[float, ...]:
        return self.specification_.weights

    def with_weights(self, weights: Sequence[float]) -> Self:
        """This fitted map with other weights of its parts."""
        changed = copy(self)
        changed._is_decided = True
        changed.specification_ = replace(self.specification_, weights=tuple(weights))
        return changed

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fix the map for rows like those of X; see `FeatureMap.fit`.

        Raises InputError for weights="cv", which a ridge model chooses.
        """
        if self.chooses_weights:
            raise InputError(WEIGHTS_NEED)
        return super().fit(X, y, sample_weight)

    def check_parameters(self) -> None:
        if not isinstance(self.maps, list | tuple) or not len(self.maps):
            raise InputError(f"maps must be a list of at least one feature map, got {self.maps!r}")
        for i, map_ in enumerate(self.maps):
            if not isinstance(map_, FeatureMap):
                raise InputError(f"maps[{i}] must be a distrff feature map, got {map_!r}")
            if Trait.CHOOSES in map_.traits:
                raise InputError(
                    f"maps[{i}] is AutoFeatures, which chooses one map for a whole model; fit it alone and "
                    f"concatenate its map_, or give FourierFeatures or NystroemFeatures"
                )
            if Trait.OWN_UNITS in map_.traits:
                raise InputError(
                    f"maps[{i}] is an {type(map_).__name__}, which has a solver of its own; fit it alone"
                )
            if map_.chooses_weights:
                raise InputError(
                    f"maps[{i}] has weights='cv', which is for a map that is no part of another; give its "
                    f"maps to this one, or numbers"
                )
            if getattr(map_, "form", None) == "complex":
                raise InputError(f"maps[{i}] is of form='complex'; use form='cos_sin' in a concatenation")
            if Trait.SPARSE in map_.traits:
                raise InputError(
                    f"maps[{i}] has sparse features, which cannot be concatenated; use dense maps such as "
                    f"FourierFeatures and NystroemFeatures"
                )
            map_.check_parameters()
        self._weights()

    def _weights(self) -> tuple[float, ...]:
        if self.weights is None or (isinstance(self.weights, str) and self.weights == "cv"):
            return (1.0 / len(self.maps),) * len(self.maps)
        try:
            weights = float_array(self.weights)
        except (TypeError, ValueError) as error:
            raise InputError(f"weights must be numbers, 'cv' or None, got {self.weights!r}") from error
        if weights.shape != (len(self.maps),) or not (np.isfinite(weights) & (weights > 0)).all():
            raise InputError(
                f"weights must be {len(self.maps)} positive numbers, one for each map, got {self.weights!r}"
            )
        return tuple(weights.tolist())

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        parts = [map_.outline(n_columns, n_rows) for map_ in self.maps]
        return MapOutline(
            sum(part.n_features for part in parts),
            cost_of_parts((part.cost, part.n_features) for part in parts),
            n_passes=sum(part.n_passes for part in parts),
            search_flops=sum(part.search_flops for part in parts),
        )

    def _prepare_trial(self, n_columns: int, most_components: int | None) -> int:
        return max(map_._prepare_trial(n_columns, most_components) for map_ in self.maps)

    def freeze(self, sample: Sample) -> ConcatenatedMap:
        self.maps_ = []
        for i, map_ in enumerate(self.maps):
            own = map_.random_state
            # By position: with one seed two equal maps would draw the same frequencies, and add nothing.
            own_seed = child_seed(sample.seed, "map", i) if own is None else resolve_seed(own)
            self.maps_.append(clone(map_).fit_sample(replace(sample, seed=own_seed), is_part=True))
        return ConcatenatedMap(
            n_columns=sample.X.shape[1],
            parts=tuple(map_.specification_ for map_ in self.maps_),
            weights=self._weights(),
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, those of map i as `maps__i__…`."""
        # Its own walk finds parameters that are objects, and not those in a list.
        params: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.maps, list | tuple):
            for i, map_ in enumerate(self.maps):
                params[f"maps__{i}"] = map_
                if not isinstance(map_, FeatureMap):
                    continue
                params |= {f"maps__{i}__{name}": value for name, value in map_.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `maps__i` replaces map i, and `maps__i__…` sets one of its parameters."""
        inner = {name: value for name, value in params.items() if name.startswith("maps__")}
        super().set_params(**{name: value for name, value in params.items() if name not in inner})
        if not inner:
            return self
        maps = list(self.maps)
        # A map that replaces another comes before the parameters that are set in it.
        for name in sorted(inner, key=lambda name: name.count("__")):
            _, index, *rest = name.split("__", 2)
            if not index.isdigit() or int(index) >= len(maps):
                raise InputError(f"there is no {name!r}: the maps are numbered from 0 to {len(maps) - 1}")
            if rest:
                maps[int(index)].set_params(**{rest[0]: inner[name]})
            else:
                maps[int(index)] = inner[name]
        self.maps = maps
        return self


# The choice of weights.

WEIGHTS_NEED = (
    "weights='cv' needs alpha='cv' and the Gram of KernelRidge or KernelRidgeClassifier, fitted to all rows "
    "at once with solver='auto' or 'gram'; for anything else give numbers, or None for equal weights"
)
MAX_WEIGHTINGS = 40
_DRAWN = 11
_LEAST = 1e-4  # of the largest weight
_FIRST_STEP, _LAST_STEP = math.log(64), math.log(1.1)
_ROUNDING = 1e-6  # of held-out errors, with products of float32


def search_weights(
    n: int, score_of: Callable[[np.ndarray], float], rng: np.random.Generator
) -> dict[str, Any]:
    """The weights of n maps of the least score, which sum to 1, and how they were found, for a report."""
    tried: dict[tuple[float, ...], tuple[np.ndarray, float]] = {}

    def attempts(logs: list[np.ndarray]) -> list[tuple[np.ndarray, float]]:
        found = []
        for log in logs:
            w = np.maximum(np.exp(log - log.max()), _LEAST)
            w /= w.sum()
            key = tuple(w.round(9).tolist())
            if key not in tried and len(tried) < MAX_WEIGHTINGS:
                tried[key] = w, score_of(w)
            found += [tried[key]] if key in tried else []
        return found

    # Half of them near the corners, where few maps count.
    drawn = [rng.dirichlet(np.full(n, 0.1 if i % 2 else 1.0)) for i in range(_DRAWN)]
    starts = attempts([np.zeros(n), *(np.log(np.maximum(w, np.finfo(float).tiny)) for w in drawn)])
    equal_score = starts[0][1]
    # As the alphas of a grid are far apart, errors have several valleys, of many maps more than of two.
    for start in sorted(starts, key=lambda one: one[1])[: max(1, n - 1)]:
        here, steps = start, np.full(n, _FIRST_STEP)
        for _ in range(MAX_WEIGHTINGS):  # flat scores may lead in circles
            if len(tried) >= MAX_WEIGHTINGS or not (steps > _LAST_STEP).any():
                break
            for i in rng.permutation(np.flatnonzero(steps > _LAST_STEP)):
                step = steps[i] * (np.arange(n) == i)
                before, log = here, np.log(here[0])
                here = _best([before, *attempts([log + step, log - step])])
                if here is before:
                    steps[i] /= 2
    weights, score = _best(list(tried.values()))
    return {"weights": weights.tolist(), "score": score, "equal_score": equal_score, "n_trials": len(tried)}


def _best(settings: list[tuple[np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """The one of least score; of those that are as good the one of most entropy."""
    least = min(score for _, score in settings)
    alike = [one for one in settings if one[1] <= (1 + _ROUNDING) * least]
    return min(alike, key=lambda one: float(one[0] @ np.log(one[0])))


# The identity as a map: for linear models, as baselines or on rows that are features already.


@dataclass(frozen=True)
class LinearMap(FittedMap):
    """z(x) = x."""

    kind: ClassVar[str] = "linear"

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({Trait.NO_ARRAYS})

    @property
    def n_features(self) -> int:
        return self.n_columns

    @property
    def cost(self) -> MapCost:
        return MapCost()

    def prepare(self, arrays: Arrays) -> None:
        return None

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            # Not X itself: whoever gets features may write to them, and X can be the user's own array.
            return X.copy()
        out[...] = X
        return out


class LinearFeatures(FeatureMap):
    """z(x) = x: models on it are ordinary linear models.

    Attributes
    ----------
    n_features_in_ : int
    specification_ : LinearMap
    """

    def outline(self, n_columns: int, n_rows: int) -> MapOutline:
        return MapOutline(n_columns, MapCost())

    def freeze(self, sample: Sample) -> LinearMap:
        return LinearMap(n_columns=sample.X.shape[1])
