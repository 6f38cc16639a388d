"""The command line's default: a map that chooses itself."""

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix

import distrff as drf
from distrff.io.open import open_dataset
from distrff.model.persistence import load_model

SMALL = ("--n-components", 32, "--random-state", 5)
PARTS = {"candidate", "criterion", "error", "spread", "flops", "seconds", "chosen"}


def kinds(report) -> set[str]:
    """The kinds of maps that were tried."""
    return {one["candidate"].partition(",")[0] for one in report["candidates"]}


@pytest.fixture
def apart(stored, rng):
    """Rows of two classes with a gap between them."""
    X = rng.standard_normal((400, 2))
    X = X[np.abs(X[:, 0]) > 0.3]
    return stored("apart.zarr", X=X, y=X[:, 0] > 0)


def test_it_needs_no_option(distrff, rows, tmp_path):
    out = tmp_path / "m.zarr"
    done = distrff("fit", rows.zarr, "--out", out, "--n-components", 128, "--json")
    report = done.json
    assert done.told == ["defaults used: --features auto --alpha cv --scale auto"]
    assert kinds(report) == {"fourier", "nystroem", "binning"}
    assert all(one.keys() >= PARTS for one in report["candidates"])
    (chosen,) = [one for one in report["candidates"] if one["chosen"]]
    assert chosen["error"] < 0.1  # that of a constant is 1
    # A sum of a sine and a line, without noise.
    assert distrff("score", out, rows.zarr, "--json").json["r2"] > 0.99


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


@pytest.mark.parametrize("words", [("--solver", "gram"), ("--alpha", "gcv")], ids=str)
def test_what_needs_a_gram_leaves_bins_out(distrff, rows, tmp_path, words):
    report = distrff("fit", rows.zarr, "--out", tmp_path / "m.zarr", *SMALL, *words, "--json").json
    assert kinds(report) == {"fourier", "nystroem"}
    assert report["status"] == "CONVERGED"


def test_a_hard_margin(distrff, apart, tmp_path):
    # As many features separate any rows: 32 of the median width do not for every seed.
    words = (apart, "--model", "svc", "--C", "inf", "--n-components", 256, "--random-state", 5)
    done = distrff("fit", *words, "--out", tmp_path / "m.zarr", "--json")
    report = done.json
    assert report["candidates"][0]["criterion"] == "share of wrong classes"
    scored = distrff("score", tmp_path / "m.zarr", apart, "--json").json
    assert scored["error"] == 0


def test_sparse_rows(distrff, tmp_path, rng):
    """Landmarks and bins would make them dense."""
    X = np.where(rng.random((300, 20)) < 0.1, 1.0, 0.0)
    X[:, 0] = rng.integers(0, 3, 300)
    A, rows, out = csr_matrix(X), tmp_path / "rows.zarr", tmp_path / "m.zarr"
    group = zarr.open_group(rows, mode="w")
    parts = group.create_group("X", attributes={"encoding-type": "csr_matrix", "shape": list(X.shape)})
    for name in ("data", "indices", "indptr"):
        parts.create_array(name, data=getattr(A, name))
    group.create_array("y", data=X[:, 0] - 1.0)
    report = distrff("fit", rows, "--out", out, *SMALL, "--json").json
    assert kinds(report) == {"fourier"}
    assert distrff("score", out, rows, "--json").json["r2"] > 0.5


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


def test_the_error_of_the_chosen_kernel(distrff, rows):
    found = distrff("kernel-error", rows.zarr, "--n-components", 64, "--random-state", 0, "--json").json
    assert found["n_components"] == 64
    assert found["kernel"]


def test_a_kernel_is_not_given_to_a_map_that_chooses_it(distrff_without_workers, rows, tmp_path):
    words = ("fit", rows.zarr, "--out", tmp_path / "m.zarr", "--features", "auto", "--kernel", "gaussian")
    *_, line = distrff_without_workers.refused(*words).splitlines()
    assert "--kernel goes with --features fourier, equispaced, binning or nystroem" in line
    assert not (tmp_path / "m.zarr").exists()
