"""The sampling choices of Fourier features: which arrays each draws, and the projection they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from distrff.features.count_sketch import CountSketch, sketch_arrays, sketch_cost
from distrff.features.frequencies import SAMPLINGS, draw_frequencies, require_spherical
from distrff.features.hadamard import padded_size
from distrff.features.hadamard_products import (
    fastfood,
    fastfood_arrays,
    hadamard_cost,
    sorf,
    sorf_arrays,
)
from distrff.features.map_cost import MapCost, cost_of_parts, product_cost
from distrff.features.projection import DenseProduct, Interleaved, Projection
from distrff.kernels import Kernel, component_order
from distrff.random_streams import streams_under

_DRAWS = {"sorf": sorf_arrays, "fastfood": fastfood_arrays, "countsketch": sketch_arrays}
_PROJECTIONS = {"sorf": sorf, "fastfood": fastfood, "countsketch": CountSketch}

STRUCTURED_SAMPLINGS = tuple(_DRAWS)
SPARSE_SAMPLINGS = (*SAMPLINGS, "countsketch")
"""Those whose phases are computed from rows in CSR without writing these out."""
SAMPLING_CHOICES = (*SAMPLINGS, *STRUCTURED_SAMPLINGS, "auto")

# Of one thread, float32 and 64 to 4096 frequencies, the dense product took 0.5 to 0.7 times as long as
# SORF's phases at 16 columns, 1.4 to 1.7 times at 33, 0.9 to 2.4 at 65, 1.3 to 10 at 128 and 129, and more
# beyond. Below 128 the product is no large part of featurizing, and SORF has a bias.
LEAST_STRUCTURED_COLUMNS = 128


def resolved_sampling(sampling: str, kernel: Kernel, n_frequencies: int, n_columns: int) -> str:
    """Return the choice that "auto" stands for; any other stands for itself.

    "sorf" from 128 columns on if there are at least half as many frequencies as columns after padding,
    else "orthogonal", and "iid" where the measure is not rotation invariant.
    """
    if sampling != "auto":
        return sampling
    if not kernel.is_spherical:
        return "iid"
    wide = n_columns >= LEAST_STRUCTURED_COLUMNS and 2 * n_frequencies >= padded_size(n_columns)
    return "sorf" if wide else "orthogonal"


def draw_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str, seed: int
) -> dict[str, np.ndarray]:
    """Return the arrays of a draw: the frequencies, or signs, radii and the like of a structured one.

    Those of the components of a sum are told apart by a number before their names.

    Raises
    ------
    InputError
        If the measure, or the number of columns, does not allow this sampling.
    """
    if sampling in SAMPLINGS:
        return {
            "frequencies": draw_frequencies(kernel, n_frequencies, n_columns, sampling=sampling, seed=seed)
        }
    require_spherical(kernel, sampling)
    kernel_of, counts, _ = _components(kernel, n_frequencies)
    arrays: dict[str, np.ndarray] = {}
    for index, (component, m) in enumerate(zip(kernel_of, counts, strict=True)):
        component.widths(n_columns)  # refuses columns that they do not fit
        drawn = _DRAWS[sampling](component, m, n_columns, streams_under(seed, sampling, index))
        arrays |= {_name(index, len(counts), name): array for name, array in drawn.items()}
    return arrays


def projection_of(
    arrays: Mapping[str, np.ndarray], kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str
) -> Projection:
    """Return the projection that works with the arrays of `draw_arrays`."""
    if sampling in SAMPLINGS:
        return DenseProduct(arrays["frequencies"])
    kernel_of, counts, order = _components(kernel, n_frequencies)
    parts = []
    for index, component in enumerate(kernel_of):
        prefix = _name(index, len(counts), "")
        own = {name.removeprefix(prefix): A for name, A in arrays.items() if name.startswith(prefix)}
        parts.append(_PROJECTIONS[sampling](own, component.widths(n_columns)))
    return parts[0] if len(parts) == 1 else Interleaved(parts, order)


def projection_cost(kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str) -> MapCost:
    """Return what the projection costs, for each frequency; widths need not be numbers yet."""
    if sampling in SAMPLINGS:
        dense = product_cost(n_columns)
        return replace(dense, feature_numbers=2 * dense.feature_numbers)  # as drawn and as used
    counts = [m for m in _components(kernel, n_frequencies)[1] if m]
    if sampling == "countsketch":
        return cost_of_parts((sketch_cost(n_columns), m) for m in counts)
    return cost_of_parts((hadamard_cost(sampling, m, n_columns), m) for m in counts)


def _components(kernel: Kernel, n_frequencies: int) -> tuple[list[Kernel], list[int], np.ndarray]:
    """Return the components, how many frequencies each has, and which one each frequency belongs to."""
    components = kernel.components()
    order = component_order([share for share, _ in components], n_frequencies)
    counts = np.bincount(order, minlength=len(components)).tolist()
    return [component for _, component in components], counts, order


def _name(index: int, n_components: int, name: str) -> str:
    return name if n_components == 1 else f"{index}_{name}"
