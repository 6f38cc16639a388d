"""The identity as a map: linear machines, as baselines and for data that is already featurized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from distrff.features.base import FeatureMap
from distrff.features.map_cost import MapCost
from distrff.features.row_question import Ask
from distrff.features.specification import BlockMap, MapSpecification


@dataclass(frozen=True)
class LinearSpecification(MapSpecification):
    """The identity on `n_columns` columns."""

    kind: ClassVar[str] = "linear"

    @property
    def n_features(self) -> int:
        return self.n_columns

    @property
    def at_zero(self) -> float:
        return float("nan")

    @property
    def cost(self) -> MapCost:
        return MapCost()

    def derive_arrays(self) -> dict[str, np.ndarray]:
        return {}

    def block_map(self, arrays: Mapping[str, np.ndarray]) -> LinearBlockMap:
        return LinearBlockMap(self.n_columns)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_columns": self.n_columns, "digest": self.digest}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LinearSpecification:
        """Return the specification that `to_dict` wrote."""
        return cls(n_columns=data["n_columns"], digest=data["digest"])


class LinearBlockMap(BlockMap):
    """z(x) = x."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    def apply(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            return X.copy()
        out[...] = X
        return out


class LinearFeatures(FeatureMap):
    """z(x) = x: the machine on it is the ordinary linear one.

    Attributes
    ----------
    n_features_in_ : int
    specification_ : LinearSpecification
    """

    def n_features_for(self, n_columns: int) -> int:
        return n_columns

    def cost_for(self, n_columns: int) -> MapCost:
        return MapCost()

    def _specify(self, X: np.ndarray, y: Any, sample_weight: Any, seed: int, ask: Ask) -> LinearSpecification:
        return LinearSpecification(n_columns=X.shape[1])
