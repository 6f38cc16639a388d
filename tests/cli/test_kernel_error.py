"""The error of a kernel on stored rows: measured numbers beside the bounds, or one line that says why not."""

import pytest

from distrff import FourierFeatures, Gaussian, kernel_error

SMALL = ("--n-components", 64, "--random-state", 3)
FEW_PAIRS = ("--n-blocks", 2, "--block-rows", 60)  # of 600 rows all pairs take seconds
WIDE = ("--length-scale", 2, *FEW_PAIRS)
BINNING = ("--features", "binning", "--kernel", "laplacian", "--n-grids", 20)


def test_it_is_the_error_of_the_map_on_the_scaled_rows(distrff, rows):
    found = distrff("kernel-error", rows.zarr, *SMALL, *WIDE, "--json").json
    assert (found["n_samples"], found["n_components"], found["seed"]) == (600, 64, 3)
    assert (found["n_blocks"], found["block_rows"], found["kernel"]) == (2, 60, "Gaussian(length_scale=2.0)")
    assert found["max_error"] < found["max_bound"]
    X = (rows.X - rows.X.mean(axis=0)) / rows.X.std(axis=0)
    # The map's seed follows from the command's; the expectation over maps does not depend on it.
    map_ = FourierFeatures(Gaussian(2.0), 64, random_state=0).fit(X)
    expected = kernel_error(map_, X, n_blocks=1, block_rows=2, random_state=3).rms_expected
    assert found["rms_expected"] == pytest.approx(expected, rel=1e-6)


def test_for_people_and_a_target_that_chooses_an_automatic_length_scale(distrff, rows):
    words = ("kernel-error", rows.parquet, "--kernel", "matern", "--columns", "a,b", "--scale", "none")
    words = (*words, *SMALL, *FEW_PAIRS)
    done = distrff(*words, "--nu", 2.5)
    assert done.code == 0, done
    assert done.told == ["defaults used: --length-scale auto"]
    for text in ("64 features on 600 rows, at 95 %", "Matern(", "nu=2.5", "bound", "expected", "effective"):
        assert text in done.stdout
    assert distrff(*words, "--nu", 2.5).stdout == done.stdout
    alone, beside = (distrff(*words, "--json", *more).json["kernel"] for more in ((), ("--target", "y")))
    assert alone != beside
    assert "nu=1.5" in alone


@pytest.mark.parametrize(
    "words",
    [
        BINNING,
        (*BINNING, "--n-bins", 400),
        ("--features", "nystroem", "--n-components", 32),
        ("--sampling", "countsketch", "--n-components", 32),
        ("--sampling", "auto", "--n-components", 32),
    ],
)
def test_any_map(distrff, rows, words):
    """With both bounds; that of an expectation is called one."""
    found = distrff("kernel-error", rows.zarr, *WIDE, "--json", *words).json
    # Of few landmarks most pairs have no error and some a large one: the interval may begin at 0.
    low, high = found["rms_interval"]
    assert 0 <= low <= found["rms_error"] <= high
    assert found["rms_error"] > 0
    if "auto" not in words and words != BINNING:
        text = distrff("kernel-error", rows.zarr, *WIDE, *words).stdout
        assert text.count("  bound ") == 2
        assert ("  expected at most " in text) == ("countsketch" in words)
    if "auto" in words:
        words = (*SMALL, *WIDE, "--sampling", "orthogonal", "--json")  # for which no bound holds
        found = distrff("kernel-error", rows.zarr, *words).json
        assert found["max_bound"] is found["spectral_bound"] is found["rms_expected"] is None
