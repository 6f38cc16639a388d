"""A frozen machine on its way to the tasks of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from distrff.model import Model
from distrff.model_store.models import posterior_arrays, posterior_of
from distrff.sweeps.reduction import Shipped

_POSTERIOR = "posterior_"


def travelling(model: Model, *, with_std: bool = False) -> tuple[Model, Mapping[str, np.ndarray] | None]:
    """Return the machine without what tasks do not need, and the arrays to be sent to them apart.

    The map's arrays of a machine from a file go to each worker once. Those of a machine
    that was just fitted are derived there, as they were in the fit. `with_std` sends along what
    standard deviations need, D² numbers.
    """
    light = replace(model, arrays=None, posterior=None, report={}, steps=None)
    posterior = posterior_arrays(model.posterior) if with_std and model.posterior is not None else {}
    return light, ({**(model.arrays or {}), **posterior} or None)


def arrived(model: Model, shipped: Shipped) -> Model:
    """Return the machine in a task, with the arrays that were shipped."""
    if shipped is None:
        return model
    arrays = {name: A for name, A in shipped.items() if not name.startswith(_POSTERIOR)}
    return replace(model, arrays=arrays or None, posterior=posterior_of(shipped))
