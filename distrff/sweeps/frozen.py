"""A frozen machine on its way to the tasks of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from distrff.model import Model
from distrff.sweeps.reduction import Shipped


def travelling(model: Model) -> tuple[Model, Mapping[str, np.ndarray] | None]:
    """Return the machine without what tasks do not need, and the arrays to be sent to them apart.

    The map's arrays of a machine from a file go to each worker once. Those of a machine
    that was just fitted are derived there, as they were in the fit.
    """
    light = replace(model, arrays=None, posterior=None, report={}, steps=None)
    return light, model.arrays


def arrived(model: Model, shipped: Shipped) -> Model:
    """Return the machine in a task, with the arrays that were shipped."""
    return model if shipped is None else replace(model, arrays=shipped)
