"""How the frequencies of a kernel's measure are drawn: independently, or orthogonal in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distrff.errors import InputError
from distrff.kernels import Kernel, component_order
from distrff.random_streams import stream

SAMPLINGS = ("iid", "orthogonal")


def draw_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str, seed: int
) -> np.ndarray:
    """Return frequencies of the kernel's spectral measure.

    Parameters
    ----------
    kernel : Kernel
        Every width a number.
    n_frequencies, n_columns : int
    sampling : {"iid", "orthogonal"}
        Orthogonal: within each block of `n_columns` frequencies the directions are the
        rows of a Haar-distributed orthogonal matrix and the radii are independent draws
        of the measure's own radius, so that every single frequency keeps its exact
        distribution (Yu et al. 2016, "Orthogonal random features", section 3).
    seed : int

    Returns
    -------
    ndarray of shape (n_columns, n_frequencies), float64
        The leading m columns are the draw for `n_frequencies=m`.

    Raises
    ------
    InputError
        If an orthogonal draw is asked for a measure that is not rotation invariant.
    """
    if sampling == "iid":
        return kernel.frequencies(n_frequencies, n_columns, _named_streams(seed, "frequencies"))
    if sampling != "orthogonal":
        raise InputError(f"sampling must be one of {', '.join(map(repr, SAMPLINGS))}, got {sampling!r}")
    if not kernel.is_spherical:
        raise InputError(
            f"sampling='orthogonal' needs a measure that is rotation invariant after dividing by the "
            f"length scales, which {kernel!r} does not have; use sampling='iid', or a Gaussian, "
            f"Exponential or Matern kernel"
        )
    components = kernel.components()
    order = component_order([share for share, _ in components], n_frequencies)
    W = np.empty((n_columns, n_frequencies))
    for index, (_, component) in enumerate(components):
        members = np.flatnonzero(order == index)
        rng_of = _named_streams(seed, "orthogonal", index)
        W[:, members] = _orthogonal_frequencies(component, len(members), n_columns, rng_of)
    return W


def _named_streams(seed: int, *path: str | int) -> Callable[..., np.random.Generator]:
    def rng_of(*names: str | int) -> np.random.Generator:
        return stream(seed, *path, *names)

    return rng_of


def _orthogonal_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: Callable[..., np.random.Generator]
) -> np.ndarray:
    n_blocks = -(-n_frequencies // n_columns)
    directions = [_haar_orthogonal(n_columns, rng_of("directions", b)) for b in range(n_blocks)]
    if not directions:
        return np.empty((n_columns, 0))
    radii = kernel.radii(n_frequencies, n_columns, rng_of)
    W = np.concatenate(directions, axis=1)[:, :n_frequencies] * radii
    return W / kernel.widths(n_columns)[:, None]


def _haar_orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a Haar-distributed orthogonal matrix (Mezzadri 2007: QR with R's diagonal made positive)."""
    Q, R = np.linalg.qr(rng.standard_normal((size, size)))
    return Q * np.sign(np.diag(R))
