"""Scores of predictions in one or two passes, on NumPy and dask arrays of any chunking.

They are scikit-learn's by name, arguments and value, and are summed where the blocks are: nothing as long as
the rows is brought together, but for what `roc_auc_score` says of itself.
"""

from distrff.metrics.classification import accuracy_score, confusion_matrix
from distrff.metrics.probability import log_loss, roc_auc_score
from distrff.metrics.regression import mean_squared_error, r2_score

__all__ = [
    "accuracy_score",
    "confusion_matrix",
    "log_loss",
    "mean_squared_error",
    "r2_score",
    "roc_auc_score",
]
