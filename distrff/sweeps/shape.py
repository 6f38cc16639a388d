"""The numbers that every choice and count of a plan follows from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distrff.data.storage import SPAN_BYTES
from distrff.features.map_cost import MapCost
from distrff.sweeps.segments import Segmentation, gram_segmentation, light_segmentation, sampled_tile_rows

_BIN_BYTES = 16 + 48  # its key and count, and its slots in the table of columns


@dataclass(frozen=True)
class Shape:
    """The numbers that every choice and count follows from.

    Parameters
    ----------
    n_rows, n_columns, n_features, n_outputs, n_folds : int
    n_alphas : int
        1 for a given alpha.
    n_paths : int
        Paths of alphas; 0 is one a fold.
    dtype : {"float32", "float64"}
    row_bytes, chunk_rows : int
        Decoded bytes of a row in storage, and rows of a storage chunk.
    map_cost : MapCost
        What the map takes for a row, and keeps.
    outputs_are_presumed : bool
        Whether classes are still to be counted.
    model_rows : int
        Rows whose features are held at once, in float64 and as they are made.
    gram_one_in : int
        The Gram is of one row in that many.
    n_light_sweeps, n_light_columns : int
        Passes presumed after the Gram, and coefficient vectors that each of them answers.
    sparse_entries : int
        Entries of a row of Z; 0 where it is dense.
    n_map_passes : int
        Passes over all rows that the fit of the map asks for.
    n_eigensystems : int
        Of the Gram, beside those of an alpha path.
    column_share : float
        Of the columns, that a row has entries in: below 1 where rows are sparse.
    held_bytes : int
        What a task that reads holds beside decoded rows.
    whole_rows : int
        Rows of the largest unit of storage of which a task decodes all that it needs at once; 0 for none.
    """

    n_rows: int
    n_columns: int
    n_features: int
    n_outputs: int
    n_folds: int
    n_alphas: int
    dtype: str
    row_bytes: int
    chunk_rows: int
    map_cost: MapCost
    outputs_are_presumed: bool = False
    model_rows: int = 0
    gram_one_in: int = 1
    n_light_sweeps: int = 0
    n_light_columns: int = 0
    sparse_entries: int = 0
    n_map_passes: int = 0
    n_eigensystems: int = 0
    column_share: float = 1.0
    n_paths: int = 0
    held_bytes: int = 0
    whole_rows: int = 0

    @property
    def column_entries(self) -> float:
        """Numbers in a row of X, those of sparse rows with an index each."""
        return self.n_columns * self.column_share

    @property
    def size(self) -> int:
        return self.n_features + 1 + self.n_outputs

    @property
    def row_entries(self) -> int:
        """Numbers in a row of Z."""
        return self.sparse_entries or self.n_features

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def segmentation(self) -> Segmentation:
        """Return the cuts of the Gram sweep."""
        cuts = gram_segmentation(self.n_rows, self.n_features, self.n_outputs, np.dtype(self.dtype))
        return replace(cuts, tile_rows=sampled_tile_rows(cuts.tile_rows, self.gram_one_in))

    def reading_bytes(self, segment_rows: int) -> int:
        """Return what a task holds of stored rows at most: two spans of them, and what decoding takes.

        The longest segments are often those of the first pass.
        """
        longest = max(segment_rows, light_segmentation(self.n_rows, self.n_columns).segment_rows)
        return self.row_bytes * (2 * self.chunk_rows + min(self.whole_rows, longest)) + self.held_bytes

    def in_small_chunks(self) -> Shape:
        """Return the same rows as if they were stored in small chunks."""
        chunk_rows = min(self.chunk_rows, max(1, SPAN_BYTES // self.row_bytes))
        return replace(self, chunk_rows=chunk_rows, held_bytes=0, whole_rows=0)

    @property
    def gram_flops(self) -> float:
        """Flops of the Gram sweep: its map and its products."""
        rows = self.n_rows / self.gram_one_in
        return rows * (self.map_flops + self.size**2)

    @property
    def map_flops(self) -> float:
        """Flops of a row's features, cosines not counted."""
        return self.map_cost.flops(self.row_entries, self.column_share)

    @property
    def basis_flops(self) -> float:
        """Flops of the values of a row that light sweeps need: without the solve, which vectors have."""
        return self.map_flops - self.triangle_numbers

    @property
    def triangle_numbers(self) -> float:
        """Numbers in the map's triangular factors: flops of a row's solve."""
        return self.map_cost.triangle_numbers(self.n_features)

    @property
    def map_factor_flops(self) -> float:
        """Flops of the map's triangular factors: once with pivots, and again in each process."""
        return 2 / 3 * self.triangle_numbers**1.5

    @property
    def map_bytes(self) -> float:
        """Bytes of the map's arrays in a process: in float64 and in the dtype of the products."""
        if self.sparse_entries:
            return float(_BIN_BYTES * self.n_features)
        return (8 + self.itemsize) * self.map_cost.numbers(self.n_features) + 8 * self.triangle_numbers

    @property
    def light_flops(self) -> float:
        """Flops of one light sweep: its map and its thin products."""
        return self.n_rows * (self.basis_flops + 6.0 * self.n_features * self.n_light_columns)
