"""Rows of a known truth: the same however many are drawn, noise as stated, on disk as they were drawn."""

import numpy as np
import pytest
import zarr

from distrff.cli.synthetic import KnownTruth, write_known_rows
from distrff.features.fourier import FourierFeatures
from distrff.io.open import open_dataset
from distrff.kernels.stationary import Gaussian
from distrff.utils.random import child_seed


def rows_of(truth, name, n_rows):
    blocks = list(truth.blocks(name, n_rows))
    assert [block.start for block in blocks] == list(range(0, n_rows, truth.block_rows))
    return [np.concatenate([getattr(block, key) for block in blocks]) for key in ("X", "f", "y")]


@pytest.fixture
def seed(rng):
    return int(rng.integers(2**32))


def test_a_row_is_the_same_whatever_the_number_of_rows(seed):
    truth = KnownTruth(2048, seed=seed)
    assert truth.block_rows == 1024
    long = rows_of(truth, "rows", 2100)
    for n_rows in (1, 1024, 1025, 2099):
        for whole, part in zip(long, rows_of(KnownTruth(2048, seed=seed), "rows", n_rows), strict=True):
            assert np.array_equal(whole[:n_rows], part)
    few = rows_of(KnownTruth(3, seed=seed), "rows", 100)[0]  # of many, some would be equal by chance
    for name, other in (("test", seed), ("rows", seed + 1)):
        assert not np.isin(few, rows_of(KnownTruth(3, seed=other), name, 100)[0]).any()
    truth = KnownTruth(4, seed=seed)
    for own in (seed, child_seed(seed, "features")):  # of a model, which does not get the true frequencies
        features = FourierFeatures(Gaussian(truth.length_scale), 256, random_state=own).fit(np.zeros((2, 4)))
        assert not np.isin(features.frequencies_, truth._waves[0]).any()


@pytest.mark.parametrize("n_columns", [1, 2, 4, 30])
def test_columns_noise_and_function_are_as_large_as_stated(seed, n_columns):
    truth = KnownTruth(n_columns, noise=0.3, seed=seed)
    rows, f, y = rows_of(truth, "rows", truth.block_rows)
    X, n = rows.astype(np.float64), len(rows)
    assert rows.dtype == np.float32
    # 128 cosines of errors 1e-15 in their phases; the deviation they are divided by is about 8.
    assert np.abs(truth.function(rows) - f).max() < 1e-12
    # Six standard errors: of a root mean square of n normal numbers σ/√(2n), of a mean σ/√n. The
    # function's own numbers are those of two samples, whose values are bounded and of kurtosis below 6.
    assert abs(np.sqrt(np.mean((y - f) ** 2)) - 0.3) < 6 * 0.3 / np.sqrt(2 * n)
    assert abs(np.mean(y - f)) < 6 * 0.3 / np.sqrt(n)
    assert abs(f.mean()) < 6 * np.sqrt(2 / n)
    assert abs(f.std() - 1.0) < 6 * np.sqrt(2 * 5 / (4 * n))
    # Of the variance of n normal numbers, six standard errors √(2/n), for 30 columns.
    assert np.abs(X.var(axis=0) - 1.0).max() < 6 * np.sqrt(2 / n)
    # Rounding to float32 adds singular values of about 2⁻²⁵·√n.
    values = np.linalg.svd(X, compute_uv=False) / np.sqrt(n)
    assert (values[4:] < 1e-6).all()


def test_what_is_written_is_what_was_drawn(tmp_path):
    for n_columns in (1, 20, 1000, 10**7):  # blocks are bounded in bytes
        rows = KnownTruth(n_columns).block_rows
        assert rows & (rows - 1) == 0
        assert rows == 1 or 8 * rows * n_columns <= 2**24
        assert rows <= 2**15
    truth = KnownTruth(1500, seed=3)
    n_rows = 2 * truth.block_rows + 17
    error = write_known_rows(tmp_path / "rows.zarr", truth, "train", n_rows)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="r")
    for key, drawn in zip(("X", "f", "y"), rows_of(truth, "train", n_rows), strict=True):
        assert np.array_equal(group[key][:], drawn)
    assert np.isclose(error, np.sqrt(np.mean((group["y"][:] - group["f"][:]) ** 2)), rtol=1e-12)
    assert group.attrs["known_truth"]["noise"] == truth.noise
    assert {array.chunks[0] for _, array in group.arrays()} == {truth.block_rows}
    data = open_dataset(tmp_path / "rows.zarr")
    assert (data.n_rows, data.n_columns, data.n_targets) == (n_rows, 1500, 1)
    assert (data.dtype, data.y_dtype) == (np.float32, np.float64)
    write_known_rows(tmp_path / "few.zarr", KnownTruth(2), "test", 10)
    assert zarr.open_group(tmp_path / "few.zarr", mode="r")["X"].chunks == (10, 2)
