"""How much of the targets each column explains alone: a cheap look at all columns, blind to interactions."""

from __future__ import annotations

import numpy as np

_MOST_BINS = 64
_MIN_ROWS_PER_BIN = 8
# A share is believed from so many of its deviations under no effect: with a few hundred columns of noise
# and a handful of numbers of bins, few of them pass.
_DEVIATIONS = 3.0


def explained_alone(X: np.ndarray, Y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the share of the variance of Y that a function of each column alone explains, shape (d,).

    The function is the mean of Y in each of b bins of about equally many rows, b = 2, 4, …, 64. Its share is
    the adjusted 1 − (1 − R²)·(n − 1)/(n − b) (Kelley 1935), which is 0 on average if the column has no effect
    and then has a deviation of about √(2(b − 1))/n. The result is the largest share less three of these
    deviations, at least 0. n is the effective number of rows (Σs)²/Σs²; the columns of Y have the mean 0
    under the weights s, and R² is that of all outputs together.

    O(n·(log n + k)) for each column and k outputs.
    """
    n = s.sum() ** 2 / np.square(s).sum()
    shares = np.zeros(X.shape[1])
    if n < 2 * _MIN_ROWS_PER_BIN:
        return shares
    n_bins = 2 ** min(int(np.log2(n / _MIN_ROWS_PER_BIN)), int(np.log2(_MOST_BINS)))
    levels = np.arange(1, n_bins) / n_bins
    total = float(s @ np.square(Y).sum(axis=1))
    columns = [s, *(s * y for y in Y.T)]
    for j, x in enumerate(X.T):
        # A value on an edge goes up, so that equal values share a bin and some bins may stay empty.
        bins = np.searchsorted(np.quantile(x, levels), x, side="right")
        sums = np.stack([np.bincount(bins, column, n_bins) for column in columns])
        while sums.shape[1] > 1:
            shares[j] = max(shares[j], _share(sums[0], sums[1:], total, n))
            sums = sums[:, ::2] + sums[:, 1::2]
    return shares


def _share(weights: np.ndarray, sums: np.ndarray, total: float, n: float) -> float:
    """Return the adjusted share less its margin, for the weights (b,) and the sums (k, b) of the bins."""
    occupied = weights > 0
    b = np.count_nonzero(occupied)
    unexplained = 1.0 - float((np.square(sums[:, occupied]) / weights[occupied]).sum()) / total
    return 1.0 - unexplained * (n - 1.0) / (n - b) - _DEVIATIONS * np.sqrt(2.0 * (b - 1.0)) / n
