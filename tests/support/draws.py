"""Seeds that a test draws, inner products of a map's rows, and how often maps were drawn."""

import numpy as np

from distrff.utils.jit import COUNTS


def seed_of(rng):
    """Return a seed from the test's own random numbers."""
    return int(rng.integers(2**62))


def pairs(Z):
    """Return ⟨z_i, z_j⟩ of all pairs of different rows."""
    i, j = np.triu_indices(len(Z), 1)
    return np.einsum("ij,ij->i", Z[i], Z[j].conj())


def derivations():
    """Return how often this process derived a map's arrays."""
    return COUNTS["derivations"]
