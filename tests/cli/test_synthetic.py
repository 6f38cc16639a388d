"""Rows of a known truth: the same however many are drawn, noise as stated, on disk as they were drawn."""

import numpy as np
import pytest
import zarr

from distrff.cli.synthetic import KnownTruth, write_known_rows
from distrff.io.open import open_dataset


def rows_of(truth, name, n_rows):
    blocks = list(truth.blocks(name, n_rows))
    return [np.concatenate([getattr(block, key) for block in blocks]) for key in ("X", "f", "y")]


@pytest.mark.parametrize("n_columns", [1, 4, 30])
def test_columns_noise_and_function_are_as_large_as_stated(rng, n_columns):
    truth = KnownTruth(n_columns, noise=0.3, seed=int(rng.integers(2**32)))
    rows, f, y = rows_of(truth, "rows", truth.block_rows)
    X, n = rows.astype(np.float64), len(rows)
    # Six standard errors: of a root mean square of n normal numbers σ/√(2n), of a mean σ/√n. The
    # function's own numbers are those of two samples, whose values are bounded and of kurtosis below 6.
    assert abs(np.sqrt(np.mean((y - f) ** 2)) - 0.3) < 6 * 0.3 / np.sqrt(2 * n)
    assert abs(np.mean(y - f)) < 6 * 0.3 / np.sqrt(n)
    assert abs(f.mean()) < 6 * np.sqrt(2 / n)
    assert abs(f.std() - 1.0) < 6 * np.sqrt(2 * 5 / (4 * n))
    # Of the variance of n normal numbers, six standard errors √(2/n), for 30 columns.
    assert np.abs(X.var(axis=0) - 1.0).max() < 6 * np.sqrt(2 / n)
    # Four factors; rounding to float32 adds singular values of about 2⁻²⁵·√n.
    assert (np.linalg.svd(X, compute_uv=False)[4:] / np.sqrt(n) < 1e-6).all()


def test_what_is_written_is_what_was_drawn_whatever_the_number_of_rows(tmp_path):
    truth = KnownTruth(1500, seed=3)
    n_rows = 2 * truth.block_rows + 17
    error = write_known_rows(tmp_path / "rows.zarr", truth, "train", n_rows)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="r")
    for key, drawn in zip(("X", "f", "y"), rows_of(truth, "train", 3 * truth.block_rows), strict=True):
        assert np.array_equal(group[key][:], drawn[:n_rows])
    assert not np.isin(group["y"][:], rows_of(truth, "test", 9)[2]).any()
    assert np.isclose(error, np.sqrt(np.mean((group["y"][:] - group["f"][:]) ** 2)), rtol=1e-12)
    data = open_dataset(tmp_path / "rows.zarr")
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (n_rows, 1500, np.float32, np.float64)
