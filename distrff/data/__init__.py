"""Readers: whatever the user has becomes one `Dataset` of numbered rows, read in the tasks."""

from __future__ import annotations

from distrff.data.arrays import as_dataset
from distrff.data.dataset import Dataset
from distrff.data.matrices import block_of, targets_of, weights_of
from distrff.data.open import open_dataset
from distrff.data.rows import RowBlock, Rows

__all__ = [
    "Dataset",
    "RowBlock",
    "Rows",
    "as_dataset",
    "block_of",
    "open_dataset",
    "targets_of",
    "weights_of",
]
