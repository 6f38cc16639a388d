"""The command line's default: a map that chooses itself."""

import numpy as np
import pytest
import zarr

import distrff as drf
from distrff import load_model, open_dataset

SMALL = ("--n-components", 32, "--random-state", 5)
PARTS = {"candidate", "criterion", "error", "spread", "flops", "seconds", "chosen"}


def kinds(report) -> set[str]:
    """The kinds of maps that were tried."""
    return {one["candidate"].partition(",")[0] for one in report["candidates"]}


def test_it_needs_no_option(distrff, rows, tmp_path):
    out = tmp_path / "m.zarr"
    done = distrff("fit", rows.zarr, "--out", out, "--n-components", 64, "--json")
    report = done.json
    assert done.told == ["defaults used: --features auto --alpha cv --scale auto"]
    assert kinds(report) >= {"nystroem", "binning"}  # and Fourier features unless kernels are added
    assert all(one.keys() >= PARTS for one in report["candidates"])
    (chosen,) = [one for one in report["candidates"] if one["chosen"]]
    assert chosen["error"] < 0.1  # that of a constant is 1
    # A sum of a sine and a line, without noise.
    assert distrff("score", out, rows.zarr, "--json").json["r2"] > 0.95


@pytest.mark.slow
def test_the_choice_is_that_of_the_seed(distrff, rows, tmp_path, in_this_thread):
    """Two workers find what this process finds, and a repeated fit what the first one found."""
    model = drf.KernelRidge(drf.AutoFeatures(32), random_state=5).fit(open_dataset(str(rows.zarr)))
    alone = [(one["candidate"], one["error"]) for one in model.features_.candidates_]
    for name in ("first.zarr", "second.zarr"):
        found = distrff("fit", rows.zarr, "--out", tmp_path / name, *SMALL, "--json").json
        assert found["workers"] == 2
        assert [(one["candidate"], one["error"]) for one in found["candidates"]] == alone
        np.testing.assert_array_equal(load_model(str(tmp_path / name)).coef[:, 0], model.coef_)


def test_for_people_with_standard_deviations(distrff, rows, tmp_path):
    """They need a Gram, which bins have none of."""
    out, page, spread = tmp_path / "m.zarr", tmp_path / "fit.html", tmp_path / "p.zarr"
    done = distrff("fit", rows.zarr, "--out", out, *SMALL, "--include-std", "--report", page)
    assert done.code == 0, done
    report = load_model(str(out)).report
    assert kinds(report) == {"fourier", "nystroem"}
    (chosen,) = [one["candidate"] for one in report["candidates"] if one["chosen"]]
    assert f"  map {chosen}; chosen of {len(report['candidates'])} candidates, held-out" in done.stdout
    assert f"{chosen} (chosen)" in page.read_text(encoding="utf-8")
    assert distrff("predict", out, rows.zarr, "--return-std", "--out", spread).code == 0
    deviations = zarr.open_group(spread, mode="r")
    assert all(np.isfinite(array[:]).all() for _, array in deviations.arrays())


def test_a_plan_counts_the_search_and_the_dearest_candidate(distrff, rows):
    words = ("plan", rows.zarr, "--n-components", 64, "--json")
    counted = distrff(*words).json
    assert counted["search_flops"] > 0
    assert counted["search_bytes"] > 0
    given = ("--length-scale", 2)
    for kind in ("fourier", "nystroem"):
        other = distrff(*words, "--features", kind, *given).json
        assert other["search_flops"] == other["search_bytes"] == 0
        # Those of the map are few against those of the search, whose sum is rounded.
        assert counted["flops"] * (1 + 1e-15) >= counted["search_flops"] + other["flops"]
        assert counted["n_sweeps"] >= other["n_sweeps"]
