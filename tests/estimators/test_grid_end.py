"""A penalty at the end of its grid is said, with what to do about it."""

from __future__ import annotations

import numpy as np
import pytest

import distrff as drf
from distrff.estimators.fitting.result import end_of_grid
from tests.support.fits import fourier


def end_notes(model):
    """The note on the end of a grid, which every form of the report shows."""
    notes = [note for note in model.report_["notes"] if "may be better" in note]
    for note in notes:
        assert note in repr(model.report_) and note in model.report_.to_dict()["notes"]
        assert note.replace("'", "&#39;") in model.report_.to_html()
    return notes


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (
            1.0,
            ["p=1 is the smallest of its grid: a smaller one may be better; give ps that begin lower (--ps)"],
        ),
        (2.0, []),
        (3.0, ["p=3 is the largest of its grid: a larger one may be better; give ps that end higher (--ps)"]),
    ],
)
def test_both_ends_and_what_is_between(chosen, told):
    grid = np.array([1.0, 2.0, 3.0])
    scores = np.abs(grid - chosen)
    assert end_of_grid("p", chosen, grid, scores) == told
    assert end_of_grid("p", chosen, grid, scores, below="noise") == (["noise"] if chosen == 1.0 else told)
    assert end_of_grid("p", chosen, np.array([chosen]), scores[:1]) == []
    assert end_of_grid("p", chosen, grid, np.zeros(3)) == [], "as of a constant target: all are as good"
    for scores in (np.full(3, np.inf), np.where(grid == chosen, 0.0, np.inf)):
        assert end_of_grid("p", chosen, grid, scores) == told, "one score, or none, is not a tie"


@pytest.mark.parametrize("n_components", [32, 64])  # of which "gcv" holds a fold out for the second
@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_alpha_at_either_end(problem, alpha, n_components):
    n = len(problem.X)

    def told(alphas):
        model = drf.KernelRidge(fourier(n_components), alpha, alphas=alphas, random_state=0)
        return end_notes(model.fit(problem.X, problem.y))

    (note,) = told([1e2 * n, 1e3 * n])  # far too much of a penalty
    assert note.startswith("alpha=90000 is the smallest of its grid") and "(--alphas)" in note
    assert told([1.0]) == []


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_an_alpha_that_should_be_larger(rng, alpha):
    """Of targets that are noise alone the largest alpha is the best."""
    X, y = rng.standard_normal((900, 4)), rng.standard_normal(900)
    model = drf.KernelRidge(fourier(32), alpha, alphas=[1e-2, 1e-1, 1e1], random_state=0).fit(X, y)
    (note,) = end_notes(model)
    assert note.startswith("alpha=10 is the largest of its grid") and "end higher (--alphas)" in note


@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_an_alpha_at_the_noise_floor(rng, alpha):
    """A function of the features' own space wants no penalty; float32 products leave the smallest one."""
    X = rng.standard_normal((900, 4)).astype(np.float32)
    features = fourier(64).fit(X)  # of which "gcv" holds a fold out
    y = features.transform(X).astype(float) @ rng.standard_normal(64)
    model = drf.KernelRidge(features, alpha, random_state=0).fit(X, y)
    (note,) = end_notes(model)
    assert "is the smallest above the rounding noise of float32 products" in note
    assert note.endswith("dtype='float64' (--dtype float64)")
    (left_out,) = (note for note in model.report_["notes"] if "left out" in note)
    assert left_out.startswith("alphas below the rounding noise of float32 products were left out: ")
    in_float64 = drf.KernelRidge(features, alpha, dtype="float64", random_state=0).fit(X, y)
    (note,) = end_notes(in_float64)
    assert "is the smallest of its grid" in note
    below = drf.KernelRidge(features, alpha, alphas=[1e-30, 1e-9, 1.0], dtype="float64", random_state=0)
    (note,) = end_notes(below.fit(X, y))
    assert "above the rounding noise of float64 products" in note and "dtype=" not in note


def test_an_alpha_from_a_gram(problem):
    statistics = drf.gram(problem.X, fourier(32), problem.y, cv=5)
    for alpha in ("cv", "gcv"):
        model = drf.KernelRidge(alpha=alpha, alphas=[1e5, 1e6]).fit_gram(statistics)
        (note,) = end_notes(model)
        assert note.startswith("alpha=100000 is the smallest")


@pytest.mark.parametrize(("alphas", "which"), [([1e4, 1e5], "smallest"), ([1e-1, 1e1], "largest")])
def test_an_alpha_of_random_binning(problem, rng, alphas, which):
    features = drf.RandomBinningFeatures(drf.Laplacian(2.0), 16, random_state=0)
    y = problem.y if which == "smallest" else rng.standard_normal(len(problem.X))
    model = drf.KernelRidge(features, "cv", alphas=alphas, cv=2, random_state=0).fit(problem.X, y)
    (note,) = end_notes(model)
    assert f"is the {which} of its grid" in note


@pytest.mark.parametrize(("Cs", "which"), [([1e-4, 1.0], "largest"), ([1e3, 1e5], "smallest")])
def test_a_C_at_either_end(rng, Cs, which):
    X = rng.standard_normal((300, 3))
    y = X[:, 0] > 0 if which == "largest" else rng.random(300) > 0.5
    model = drf.KernelSVC(fourier(32), "cv", Cs=Cs, loss="squared_hinge", cv=2, random_state=0).fit(X, y)
    (note,) = end_notes(model)
    assert note.startswith(f"C={model.C_:g} is the {which} of its grid") and "(--Cs)" in note
