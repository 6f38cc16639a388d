"""Whether columns drift with the row number, as they do where rows are sorted, or stored day by day."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from distrff.columns.moments import Moments

N_RUNS = 16
_HARMLESS = 0.01
_DEVIATIONS = 6.0


def drift_shares(X: np.ndarray, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Return how much of each column's variance lies between sixteenths of the rows, beyond chance.

    The share is ε² = (B − (r − 1)/(m − r)·W)/(B + W) for the squared deviations B between r = 16 runs of
    the m rows and W within them (Kelley 1935): 0 on average for shuffled rows, near 1 for sorted ones.

    Parameters
    ----------
    X : ndarray of shape (m, n_columns)
        Rows, or a sample of them, in the order in which they are stored.
    sample_weight : ndarray of shape (m,) or None

    Returns
    -------
    ndarray of shape (n_columns,)
        Zeros for constant columns, and for too few rows to tell.

    Notes
    -----
    A change within a sixteenth is not seen: one that repeats itself as often harms no average either.
    """
    m, n_columns = X.shape
    if m < 4 * N_RUNS:
        return np.zeros(n_columns)
    total, within = Moments.empty(n_columns), np.zeros(n_columns)
    for start, stop in pairwise(m * run // N_RUNS for run in range(N_RUNS + 1)):
        s = None if sample_weight is None else sample_weight[start:stop]
        moments = Moments.of(X[start:stop], s)
        total, within = total.merge(moments), within + moments.deviations
    between = total.deviations - within - (N_RUNS - 1) / (m - N_RUNS) * within
    moves = (total.deviations > 0) & ~total.is_constant()
    return np.divide(between, total.deviations, out=np.zeros(n_columns), where=moves)


def drifting(shares: np.ndarray, n_rows: int) -> np.ndarray:
    """Return True for the columns whose `drift_shares` of so many rows are beyond chance, and above 1 %."""
    chance = np.sqrt(2.0 * (N_RUNS - 1)) / n_rows
    return shares > _HARMLESS + _DEVIATIONS * chance


def drift_message(column_shares: np.ndarray, target_shares: np.ndarray, n_rows: int) -> str | None:
    """Return what to warn of before a fit by SGD, or None.

    Parameters
    ----------
    column_shares, target_shares : ndarrays
        `drift_shares` of the columns of X, and of the coded targets.
    n_rows : int
        Rows that they are of.
    """
    columns = np.flatnonzero(drifting(column_shares, n_rows))
    names = [f"column {j} of X" for j in columns[:3]]
    if len(columns) > 3:
        names.append(f"{len(columns) - 3} more columns")
    if drifting(target_shares, n_rows).any():
        names.insert(0, "y")
    if not names:
        return None
    most = float(max(column_shares.max(initial=0.0), target_shares.max(initial=0.0)))
    return (
        "solver='sgd' takes rows as they are stored and needs shuffled ones, but the row number tells of "
        f"{', '.join(names)}: up to {most:.0%} of the variance lies between sixteenths of the rows; "
        "shuffle the rows first, or use another solver"
    )
