"""When writing rows anew would make passes over them cheaper, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distrff.data.storage import SPAN_BYTES
from distrff.diagnostics.stored_layout import StoredPart
from distrff.display.units import human_bytes
from distrff.sweeps.segments import gram_segmentation, light_segmentation

REQUEST_BYTES = 2**20
"""Below this size a store takes longer to answer than to send: 10 ms at 100 MB/s."""
LEAST_BYTES = 2**24
"""Rows of fewer bytes are read at once, however they are cut."""
LARGE_UNIT_BYTES = 2**28
"""A unit is decoded as a whole, beside what a task works on."""
LEAST_GAIN = 0.1
_GRAM_FEATURES = 1024


def reading_advice(
    parts: Sequence[StoredPart], *, n_columns: int, n_outputs: int, dtype: Any
) -> dict[str, Any]:
    """Return what passes over the rows decode and ask for, and what other chunks would save.

    Writing anew pays, by the rule here, where it saves at least a tenth of what passes decode (units that
    lie across the bounds of segments are decoded twice); where units of less than 1 MiB in the store
    become fewer by half or more; or where a unit is larger than 256 MiB decoded. Rows of less than 16 MiB
    in all are left alone. Units are proposed of at most 8 MiB decoded
    that divide the segments of the Gram sweep.

    Parameters
    ----------
    parts : sequence of StoredPart
    n_columns, n_outputs : int
    dtype : dtype
        Of the features; the Gram sweep's segments are those of 1024 of them.

    Returns
    -------
    dict
        `parts`, a list with the numbers of each, and `advice`, a list of sentences: empty where nothing
        pays.
    """
    n_rows = parts[0].n_rows
    gram = gram_segmentation(n_rows, _GRAM_FEATURES, n_outputs, np.dtype(dtype))
    passes = (gram.bounds(), light_segmentation(n_rows, n_columns).bounds())
    described = [_described(part, passes, proposed_rows(gram.segment_rows, part.row_bytes)) for part in parts]
    advice = [sentence for values in described for sentence in _advised(values)]
    return {"parts": described, "advice": advice}


def _described(part: StoredPart, passes: Sequence[Any], unit_rows_then: int) -> dict[str, Any]:
    unit_rows = int(np.diff(part.starts).max())
    better = part.recut(unit_rows_then)
    return {
        "name": part.name,
        "unit_rows": unit_rows,
        "unit_bytes": unit_rows * part.row_bytes,
        "n_requests": part.n_requests,
        "request_bytes": part.stored_bytes // part.n_requests,
        "stored_bytes": part.stored_bytes,
        "decoded_bytes": part.decoded_bytes,
        "decoded_share": max(part.read_bytes(bounds) for bounds in passes) / part.decoded_bytes,
        "proposed_rows": int(np.diff(better.starts).max()),
        "proposed_requests": better.n_requests,
        "proposed_share": max(better.read_bytes(bounds) for bounds in passes) / part.decoded_bytes,
    }


def proposed_rows(segment_rows: int, row_bytes: int) -> int:
    """Return the rows of units of at most 8 MiB decoded that divide a segment, which is halved for them."""
    rows = segment_rows
    while rows * row_bytes > SPAN_BYTES and rows % 2 == 0:
        rows //= 2
    return rows


def _advised(found: dict[str, Any]) -> list[str]:
    if found["decoded_bytes"] < LEAST_BYTES:
        return []
    now, then = found["decoded_share"], found["proposed_share"]
    reasons = []
    if 1 - then / now >= LEAST_GAIN:
        reasons.append(f"a pass decodes {now:.2f} times the rows it needs, then {then:.2f} times")
    is_small = found["request_bytes"] < REQUEST_BYTES
    if is_small and found["n_requests"] >= 2 * found["proposed_requests"]:
        reasons.append(
            f"a pass makes {found['n_requests']:,} requests of {human_bytes(found['request_bytes'])}, "
            f"then {found['proposed_requests']:,}"
        )
    if found["unit_bytes"] > LARGE_UNIT_BYTES:
        reasons.append(f"{human_bytes(found['unit_bytes'])} are decoded at once, then at most 8 MiB")
    if not reasons:
        return []
    return [
        f"rechunk {found['name']} from {found['unit_rows']:,} to {found['proposed_rows']:,} rows: "
        + "; ".join(reasons)
    ]
