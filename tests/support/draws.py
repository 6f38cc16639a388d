"""Seeds and folds that a test draws, inner products of a map's rows, and how often maps were drawn."""

from types import SimpleNamespace

import numpy as np

from distrff.utils.jit import COUNTS


def seed_of(rng):
    """Return a seed from the test's own random numbers."""
    return int(rng.integers(2**62))


def of_rows(folds, n_rows):
    """Return the folds of so many rows without groups."""
    return folds.of_dataset(SimpleNamespace(n_rows=n_rows, groups=None))


def pairs(Z):
    """Return ⟨z_i, z_j⟩ of all pairs of different rows."""
    i, j = np.triu_indices(len(Z), 1)
    return np.einsum("ij,ij->i", Z[i], Z[j].conj())


def derivations():
    """Return how often this process derived a map's arrays."""
    return COUNTS["derivations"]
