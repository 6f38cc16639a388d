"""Scaling and targets as the parts of a stored group: arrays beside strict JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets, NumericTargets, Targets
from distrff.errors import ModelFileError


def coding_parts(scaling: Scaling, targets: Targets) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and metadata from which `coding_from_parts` makes both again.

    Raises
    ------
    InputError
        If class labels are neither numbers, booleans nor strings.
    """
    arrays = scaling.arrays()
    if isinstance(targets, NumericTargets):
        return arrays | {"target_shift": targets.shift, "target_scale": targets.scale}, {"targets": "numeric"}
    if targets.class_weight is not None:
        arrays["class_weight"] = targets.class_weight
    return arrays, {"targets": "classes", "classes": targets.labels_to_json()}


def coding_from_parts(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
) -> tuple[Scaling, Targets]:
    """Return the scaling and targets of a stored group."""
    scaling = Scaling(arrays.get("column_shift"), arrays.get("column_scale"))
    if metadata["targets"] == "numeric":
        return scaling, NumericTargets(arrays["target_shift"], arrays["target_scale"])
    if metadata["targets"] == "classes":
        return scaling, ClassTargets.from_json(metadata["classes"], arrays.get("class_weight"))
    raise ModelFileError(f"targets of kind {metadata['targets']!r} are not known; update distrff")
