"""Tables that the tests of this folder open."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def frame(rng):
    """Columns of every kind, with missing values in some."""
    n = 90
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "k": rng.integers(-9, 9, n).astype("i2"),
            "flag": rng.random(n) < 0.5,
            "c": rng.choice(["u", "v", "w"], n),
            "g": pd.Categorical(rng.choice(["x", "y"], n)),
            "t": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**9, n), unit="s"),
            "ni": pd.array(rng.integers(0, 5, n), dtype="Int32"),
            "empty": np.full(n, np.nan),
            "y": rng.choice(["no", "yes"], n),
            "w": rng.integers(1, 4, n).astype("f8"),
        }
    )
    for name, share in [("a", 0.1), ("c", 0.1), ("t", 0.05), ("ni", 0.1), ("y", 0.05)]:
        frame.loc[rng.random(n) < share, name] = None
    # At least one row is complete, one of each lacks a value.
    for row, name in enumerate(["a", "c", "t", "ni", "y"]):
        frame.loc[row, name] = None
    frame.loc[10, ["a", "c", "t", "ni", "y"]] = [0.5, "u", pd.Timestamp("2021-02-03"), 3, "yes"]
    frame.loc[11, ["a", "c", "t", "ni", "y"]] = [0.5, "v", pd.Timestamp("2021-02-03"), 3, "no"]
    return frame
