"""Class labels of any type that sorts, as positions in a sorted list."""

from __future__ import annotations

import numpy as np

from distrff.errors import InputError

MOST_LABELS = 10_000


def one_column(name: str, y: np.ndarray) -> np.ndarray:
    """Return labels of shape (r,) or (r, 1) as (r,), or refuse several a row, and fractions."""
    if y.size != len(y):
        raise InputError(f"{name} must be one column of class labels, got shape {y.shape}")
    y = y.reshape(len(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise InputError(
            f"{name} must hold class labels, got the fraction {y[y != np.floor(y)][0]:g}; "
            f"numbers are scored by r2_score and mean_squared_error"
        )
    return y


def sorted_labels(*parts: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the sorted distinct labels of all parts, and the position of each label of each part.

    Raises
    ------
    InputError
        If text is mixed with numbers, or there are more than 10,000 labels.
    """
    is_text = {part.dtype.kind in "OUST" for part in parts if len(part)}
    values = np.concatenate([part.astype(object) for part in parts] if len(is_text) > 1 else parts)
    try:
        labels, index = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise InputError(f"labels of different types cannot be compared ({error}); use one type") from error
    if len(labels) > MOST_LABELS:
        raise InputError(f"there are more than {MOST_LABELS} different labels; are they numbers?")
    return labels, np.split(index.reshape(-1), np.cumsum([len(part) for part in parts])[:-1])


def positions(y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the position of each y among sorted labels, −1 for one that is not there."""
    if (y.dtype.kind in "OUST") != (labels.dtype.kind in "OUST"):
        y, labels = y.astype(object), labels.astype(object)
    try:
        found = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        return np.where(labels[found] == y, found, -1)
    except TypeError as error:
        raise InputError(f"labels of different types cannot be compared ({error}); use one type") from error
