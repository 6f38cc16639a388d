"""How the frequencies of a kernel's measure are drawn: independently, orthogonal in blocks, or evenly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.stats import qmc

from distrff.errors import InputError
from distrff.kernels.base import Kernel
from distrff.utils.jit import scratch
from distrff.utils.random import PathStreams, streams_under
from distrff.utils.validation import one_of

SAMPLINGS = ("iid", "orthogonal", "qmc")

_SOBOL_BITS = 52  # numbers k/2⁵² + 2⁻⁵³ are exact in float64, and none is 0 or 1


def draw_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, *, sampling: str, seed: int
) -> np.ndarray:
    """Return frequencies of the kernel's spectral measure, (n_columns, n_frequencies), float64.

    The leading m columns are the draw for `n_frequencies=m`. With "orthogonal", within each block of
    `n_columns` frequencies the directions are the rows of a Haar-distributed orthogonal matrix and the radii
    are independent draws of the measure's own radius: every single frequency has the exact distribution (Yu
    et al. 2016, "Orthogonal random features", section 3). With "qmc", scrambled Sobol points go through the
    quantiles of the measure. They fill the cube more evenly than independent points, and every single
    frequency again has the exact distribution (Avron et al. 2016, "Quasi-Monte Carlo feature maps for
    shift-invariant kernels", section 3). In both, each component of a sum has a fixed share. Raises
    InputError for "orthogonal" if the measure is not rotation invariant, and for "qmc" if it takes more
    coordinates than Sobol sequences have.
    """
    if sampling == "iid":
        return kernel.frequencies(n_frequencies, n_columns, streams_under(seed, "frequencies"))
    one_of("sampling", sampling, SAMPLINGS)
    draw = _quasi_random_frequencies
    if sampling == "orthogonal":
        require_spherical(kernel, sampling)
        draw = _orthogonal_frequencies
    components = kernel.components()
    order = component_order([share for share, _ in components], n_frequencies)
    W = np.empty((n_columns, n_frequencies))
    for index, (_, component) in enumerate(components):
        members = np.flatnonzero(order == index)
        W[:, members] = draw(component, len(members), n_columns, streams_under(seed, sampling, index))
    return W


def component_order(shares: Sequence[float], n: int) -> np.ndarray:
    """Return the component of each of n frequencies, in proportion to the shares on every prefix.

    The t-th frequency goes to the component that is furthest behind, by the largest share·t − count, so the
    first frequencies do not depend on n. None of c components is ever ahead of its share by more than
    1 − 1/c: before each choice the amounts by which they are behind add to 1, so the largest is at least 1/c.
    The others together are then ahead by at most (c − 1)(1 − 1/c), which bounds how far one can be behind.
    """
    behind = np.zeros(len(shares))
    order = np.empty(n, dtype=np.intp)
    for t in range(n):
        behind += shares
        order[t] = behind.argmax()
        behind[order[t]] -= 1.0
    return order


def require_spherical(kernel: Kernel, sampling: str) -> None:
    """Raise InputError unless the kernel's measure is rotation invariant."""
    if not kernel.is_spherical:
        raise InputError(
            f"sampling={sampling!r} needs a measure that is rotation invariant after dividing by the "
            f"length scales, which {kernel!r} does not have; use sampling='iid', or a Gaussian, "
            f"Exponential or Matern kernel"
        )


def _orthogonal_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> np.ndarray:
    n_blocks = -(-n_frequencies // n_columns)
    directions = [_haar_orthogonal(n_columns, rng_of("directions", b)) for b in range(n_blocks)]
    if not directions:
        return np.empty((n_columns, 0))
    radii = kernel.radii(n_frequencies, n_columns, rng_of)
    W = np.concatenate(directions, axis=1)[:, :n_frequencies] * radii
    return W / kernel.widths(n_columns)[:, None]


def _quasi_random_frequencies(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> np.ndarray:
    n_coordinates = kernel.n_uniforms(n_columns)
    if n_coordinates > qmc.Sobol.MAXDIM:
        raise InputError(
            f"sampling='qmc' takes {n_coordinates} coordinates for {n_columns} columns, but Sobol sequences "
            f"have at most {qmc.Sobol.MAXDIM}; use sampling='orthogonal', 'sorf' or 'iid'"
        )
    sobol = qmc.Sobol(n_coordinates, scramble=True, bits=_SOBOL_BITS, seed=rng_of("scramble"))
    # Sobol points are balanced at powers of two only; leading points do not depend on how many are drawn.
    U = sobol.random_base2((max(n_frequencies, 1) - 1).bit_length())[:n_frequencies]
    return kernel.quantile_frequencies(U + 0.5 ** (_SOBOL_BITS + 1), n_columns)


def _haar_orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a Haar-distributed orthogonal matrix (Mezzadri 2007: QR with R's diagonal made positive)."""
    Q, R = np.linalg.qr(rng.standard_normal((size, size)))
    return Q * np.sign(np.diag(R))


# How the phases X W are computed: by a matrix product, or by a structured one.


class Projection(ABC):
    """The map from rows to phases; W of shape (n_columns, n_frequencies) need not exist as a matrix."""

    n_frequencies: int

    @abstractmethod
    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        """Return W of shape (n_columns, n_frequencies) in this dtype."""

    @abstractmethod
    def project(self, X: Any, theta: np.ndarray) -> None:
        """Write X W into `theta`, which has contiguous rows; X is a matrix of its dtype, perhaps CSR."""

    @abstractmethod
    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        """Return a bound of each frequency's |ωᵀx| over all x with |x_j| ≤ magnitude_j."""


class DenseProduct(Projection):
    """The matrix product with W itself."""

    def __init__(self, W: np.ndarray) -> None:
        self.n_frequencies = W.shape[1]
        self._W = ByDtype(W)

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        return self._W[dtype]

    def project(self, X: Any, theta: np.ndarray, first: int = 0) -> None:
        """Write the phases of the frequencies from `first` on that `theta` has columns for."""
        W = self._W[X.dtype][:, first : first + theta.shape[1]]
        if issparse(X):
            theta[...] = X @ W
        else:
            np.matmul(X, W, out=theta)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        return magnitude @ np.abs(self.frequencies())


class Interleaved(Projection):
    """The frequencies of several projections; `order` holds the index of each frequency's projection."""

    def __init__(self, parts: Sequence[Projection], order: np.ndarray) -> None:
        self.n_frequencies = len(order)
        self._parts = [(part, np.flatnonzero(order == i)) for i, part in enumerate(parts)]

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        drawn = [(part.frequencies(dtype), members) for part, members in self._parts]
        W = np.empty((len(drawn[0][0]), self.n_frequencies), dtype)
        for W_part, members in drawn:
            W[:, members] = W_part
        return W

    def project(self, X: Any, theta: np.ndarray) -> None:
        for part, members in self._parts:
            phases = scratch("phases of a part", len(theta), len(members), theta.dtype)
            part.project(X, phases)
            theta[:, members] = phases

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        bound = np.empty(self.n_frequencies)
        for part, members in self._parts:
            bound[members] = part.largest_phases(magnitude)
        return bound


class ByDtype:
    """A float64 array that is cast once to each dtype in use."""

    def __init__(self, A: np.ndarray) -> None:
        self._cast = {np.dtype(np.float64): A}

    def __getitem__(self, dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        if dtype not in self._cast:
            self._cast[dtype] = self._cast[np.dtype(np.float64)].astype(dtype)
        return self._cast[dtype]
