"""Rows of a known truth as a Zarr dataset, written chunk by chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from distrff.ingest.known_truth import KnownTruth


def write_known_rows(folder: Path, truth: KnownTruth, name: str, n_rows: int) -> float:
    """Write a Zarr group with X (float32), y and the true f (both float64); return the error of f.

    A chunk is one block of `truth.blocks`, so memory is that of one block, whatever `n_rows` is.

    Parameters
    ----------
    folder : Path
        Must not exist.
    truth : KnownTruth
    name : str
        Of the sequence of rows; other names give independent rows.
    n_rows : int

    Returns
    -------
    float
        Root mean square of y − f: what the true function itself scores on these rows.
    """
    description = {"rows": name, "noise": truth.noise, "seed": truth.seed, "length_scale": truth.length_scale}
    group = zarr.create_group(folder, zarr_format=3, attributes={"known_truth": description})
    chunk = min(n_rows, truth.block_rows)
    shapes = {"X": ((n_rows, truth.n_columns), (chunk, truth.n_columns)), "f": ((n_rows,), (chunk,))}
    shapes["y"] = shapes["f"]
    arrays = {
        # Random digits do not compress.
        key: group.create_array(
            key,
            shape=shape,
            chunks=chunks,
            dtype=np.float32 if key == "X" else np.float64,
            compressors=None,
        )
        for key, (shape, chunks) in shapes.items()
    }
    squares = 0.0
    for block in truth.blocks(name, n_rows):
        rows = slice(block.start, block.start + len(block.X))
        for key, array in arrays.items():
            array[rows] = getattr(block, key)
        squares += float(np.square(block.y - block.f).sum())
    return float(np.sqrt(squares / n_rows))
