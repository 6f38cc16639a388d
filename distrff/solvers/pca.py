"""The leading principal components of features, from their Gram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from distrff.errors import InputError
from distrff.solvers.ridge import NOT_FINITE, unpack


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """Eigenvectors of the weighted, centred Gram of features.

    Parameters
    ----------
    eigenvalues : ndarray of shape (k,)
        Descending, not negative: Σ s·t² of the rows' coordinates t along each component.
    components : ndarray of shape (k, D)
        Orthonormal rows; the entry of largest magnitude of each is positive.
    mean : ndarray of shape (D,)
        Weighted mean z̄ of the features.
    total : float
        Sum of all D eigenvalues.
    """

    eigenvalues: np.ndarray
    components: np.ndarray
    mean: np.ndarray
    total: float


def principal_components(triangles: np.ndarray, n_components: int) -> PrincipalComponents:
    """Return the k ≤ D leading components from the packed Gram of the rows [z | 1]; about 4/3·D³ flops.

    Schölkopf, Smola and Müller 1998, "Nonlinear component analysis as a kernel eigenvalue problem", in primal
    form: for the kernel ⟨z, z'⟩ the centred n × n kernel matrix has the nonzero eigenvalues of the D × D
    matrix Σ s(z − z̄)(z − z̄)ᵀ.
    """
    A = unpack(triangles[0])
    if not np.isfinite(A).all():
        raise InputError(NOT_FINITE)
    D = len(A) - 1
    mean = A[D, :D] / A[D, D]
    C = A[:D, :D]
    C -= np.outer(A[D, :D], mean)
    total = float(np.trace(C))
    values, V = eigh(C, subset_by_index=(D - n_components, D - 1), overwrite_a=True, check_finite=False)
    components = np.ascontiguousarray(V.T[::-1])
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(n_components), largest])[:, None]
    return PrincipalComponents(np.maximum(values[::-1], 0.0), components, mean, max(total, 0.0))
