"""Widths of the columns by marginal likelihood: what it finds and refuses, its gradient, and shrinking."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

import distrff as drf
from distrff.errors import InputError, NonFiniteError
from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
from distrff.estimators.svm import KernelSVC
from distrff.features.base import RowsInMemory, RowSource, Sample
from distrff.features.binning import RandomBinningFeatures
from distrff.features.compose import ConcatenatedFeatures, LinearFeatures
from distrff.features.fourier import FourierFeatures
from distrff.features.nystroem import NystroemFeatures
from distrff.features.search.sample import SearchSample
from distrff.features.search.widths import (
    CONSTANT_WIDTH,
    LikelihoodBudget,
    MarginalLikelihood,
    relevant_length_scales,
)
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern
from tests.support.draws import seed_of

KERNELS = [Gaussian("ard"), Matern("ard", nu=2.5), Exponential("ard"), Laplacian("ard"), Cauchy("ard")]


def learned(kernel, X, y, sample_weight=None, *, seed=0, row_source=None, **options):
    row_source = RowsInMemory(X, sample_weight) if row_source is None else row_source
    return relevant_length_scales(kernel, Sample(X, y, sample_weight, seed, row_source), **options)


def of_three_columns(rng, n, d=20):
    """Rows, targets of noise 0.1 that depend on three of the columns, and these."""
    X, columns = rng.standard_normal((n, d)), np.sort(rng.choice(d, 3, replace=False))
    a, b, c = X[:, columns].T
    f = np.sin(2 * a) + b * c
    return X, f / np.std(f) + 0.1 * rng.standard_normal(n), columns


@pytest.mark.parametrize(
    ("seed", "n"),
    [
        *((seed, 400) for seed in range(3)),
        *(pytest.param(s, 2000, marks=pytest.mark.slow) for s in range(20)),
    ],
)
def test_the_three_columns_that_matter_are_found(seed, n):
    X, y, columns = of_three_columns(np.random.default_rng([seed, n]), n)
    model = FourierFeatures(Gaussian("ard"), 512, random_state=seed).fit(X, y)
    np.testing.assert_array_equal(np.sort(np.argsort(model.kernel_.length_scale)[:3]), columns)


def of_four_waves(rng, n, d=32):
    """Rows, targets of noise .1 that are waves along four of the columns and a fifth of their products.

    Each wave has two periods in its column. Over all columns rows are so far from each other that no single
    width resolves them, and the likelihood is flat.
    """
    X, columns = rng.uniform(-1, 1, (n, d)), np.sort(rng.choice(d, 4, replace=False))
    a, b, c, e = np.cos(2 * np.pi * X[:, columns]).T
    f = a + b + c + e + 0.2 * (a * b + c * e)
    return X, f / np.std(f) + 0.1 * rng.standard_normal(n), columns


@pytest.mark.parametrize("kernel", [Gaussian("ard"), Laplacian("ard")], ids=repr)
def test_columns_that_one_width_cannot_see_are_found(rng, kernel):
    X, y, columns = of_four_waves(rng, 2000, d=12)
    fitted, search = learned(kernel, X, y, seed=seed_of(rng), budget=LikelihoodBudget(max_rows=500))
    np.testing.assert_array_equal(np.sort(np.argsort(fitted.length_scale)[:4]), columns)
    assert "note" not in search
    assert search["stages"][-1]["n_rows"] == 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_model_solves_what_one_width_cannot(seed):
    """Half the rows that a search takes by default are enough, and an eighth of its work."""
    X, y, columns = of_four_waves(np.random.default_rng(seed), 9000)
    train, test = slice(7000), slice(7000, None)

    def score(map_, alpha="cv"):
        model = KernelRidge(map_, alpha, random_state=seed).fit(X[train], y[train])
        return model.features_.kernel_.length_scale, model.score(X[test], y[test])

    def check(widths, r2):
        np.testing.assert_array_equal(np.sort(np.argsort(widths)[:4]), columns)
        assert r2 >= 0.9

    for kernel in (Gaussian("ard"), Exponential("ard"), Matern("ard", nu=1.5), Matern("ard", nu=2.5)):
        fitted, _ = learned(kernel, X[train], y[train], seed=seed, budget=LikelihoodBudget(max_rows=1000))
        check(*score(NystroemFeatures(fitted, 1280)))
    check(*score(RandomBinningFeatures(Laplacian("ard"), 100), 0.1))
    assert score(FourierFeatures(Gaussian("auto"), 1024))[1] < 0.05


def test_columns_that_matter_only_together_are_found(rng):
    # Neither explains anything alone, and one width of 60 columns sees nothing of two.
    X = rng.standard_normal((3000, 60))
    y = 2 * np.sign(X[:, 0]) * X[:, 1] + 0.2 * rng.standard_normal(3000)
    kernel, search = learned(Matern("ard", nu=1.5), X, y, budget=LikelihoodBudget.quick(500))
    widths = np.array(kernel.length_scale)
    assert "note" not in search
    assert widths[:2].max() < widths[2:].min()


def test_what_is_no_better_than_noise_is_not_believed(rng):
    """Four widths fitted to noise gain a few nats, and the bound is 14."""
    X, y = rng.standard_normal((300, 4)), rng.standard_normal(300)
    for map_ in (
        RandomBinningFeatures(Laplacian("ard"), 4),
        ConcatenatedFeatures([LinearFeatures(), FourierFeatures(Matern("ard"), 16)]),
    ):
        model = KernelRidge(map_, 1.0, random_state=seed_of(rng)).fit(X, y)
        (note,) = (note for note in model.report_["notes"] if "no more than noise in 300 rows" in note)
        assert "chosen by the held-out error" in note


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_every_kernel_sees_which_column_matters(rng, kernel):
    """With 300 rows a column of noise never looks like a wave of amplitude 1 under noise of .1."""
    X = rng.standard_normal((300, 3)) * [1.0, 100.0, 0.01]
    y = np.sin(3 * X[:, 1] / 100) + 0.1 * rng.standard_normal(300)
    fitted, search = learned(kernel, X, y, seed=seed_of(rng))
    in_deviations = np.divide(fitted.length_scale, search["column_scale"])
    assert np.argmin(in_deviations) == 1
    assert type(fitted) is type(kernel)
    assert in_deviations.min() >= 0.009
    assert in_deviations.max() <= 1001
    assert search["stages"][-1]["objective_end"] < search["stages"][0]["objective_start"]


def test_a_search_says_what_it_did_in_strict_json(rng):
    X = rng.standard_normal((600, 2))
    fitted, search = learned(Gaussian("ard"), X, X[:, 0] ** 2, seed=seed_of(rng))
    assert json.loads(json.dumps(search, allow_nan=False)) == search
    assert search["rule"] == "marginal likelihood of 600 rows"
    assert tuple(search["length_scale"]) == fitted.length_scale
    assert [stage["n_rows"] for stage in search["stages"]] == [500, 600]
    assert len(learned(Gaussian("ard"), X[:500, :1], X[:500, 0])[1]["stages"]) == 1
    assert search["unseen_columns"] == []
    wide = rng.standard_normal((200, 150))
    assert len(learned(Laplacian("ard"), wide, wide[:, 7], seed=1)[0].length_scale) == 150


def test_rows_of_small_weight_hardly_count(rng):
    X = rng.standard_normal((400, 2))
    bad = rng.random(400) < 0.5
    y = np.where(bad, 3 * np.sin(4 * X[:, 0]), np.sin(4 * X[:, 1]))
    fitted, _ = learned(Gaussian("ard"), X, y, np.where(bad, 1e-6, 1.0), seed=seed_of(rng))
    assert np.argmin(fitted.length_scale) == 1


def test_chunks_do_not_change_the_widths(rng):
    X, y, _ = of_three_columns(rng, 300, d=4)
    model = KernelRidge(FourierFeatures(Gaussian("ard"), 32), 1e-3, random_state=1)
    assert model.plan(X, y).n_sweeps == 2  # the column statistics, and the Gram
    in_memory = model.fit(X, y).features_.kernel_
    model.fit(da.from_array(X, chunks=(70, 4)), da.from_array(y, chunks=110))
    assert model.features_.kernel_ == in_memory
    report = model.report_.to_dict()
    assert report["length_scale"] == list(in_memory.length_scale)
    assert report["length_scale_search"]["rule"] == "marginal likelihood of 300 rows"


@pytest.mark.parametrize("cls", [KernelRidgeClassifier, KernelSVC])
def test_classifiers_learn_widths(rng, cls):
    X = rng.standard_normal((300, 4))
    labels = np.array(["in", "out"])[(np.abs(X[:, 2]) > 0.7).astype(int)]
    model = cls(FourierFeatures(Gaussian("ard"), 64), class_weight="balanced", random_state=1)
    assert np.argmin(model.fit(X, labels).features_.kernel_.length_scale) == 2


def maps_of_all_kinds(kernel):
    """Every map that takes the kernel, each to learn its widths."""
    yield FourierFeatures(kernel, 16, random_state=1)
    yield NystroemFeatures(kernel, 16, random_state=1)
    yield ConcatenatedFeatures([LinearFeatures(), FourierFeatures(kernel, 16, random_state=1)])
    if isinstance(kernel, Laplacian):
        yield RandomBinningFeatures(kernel, 8, random_state=1)
    if kernel.is_spherical:
        yield FourierFeatures(kernel, 16, sampling="fastfood", random_state=1)


def with_constant(X, column, value=7.0):
    return np.insert(X, column, value, axis=1)


@pytest.mark.parametrize(
    ("kernel", "scale"), [*((kernel, "none") for kernel in KERNELS), (KERNELS[0], "standard")], ids=repr
)
def test_a_constant_column_carries_nothing(rng, kernel, scale, tmp_path):
    """It is left out of the widths and named in the report, and its later values change no prediction."""
    X, y, _ = of_three_columns(rng, 60, d=3)
    X = with_constant(X, 2)
    for map_ in maps_of_all_kinds(kernel):
        model = KernelRidge(map_, 1e-2, scale=scale, random_state=1).fit(X, y)
        assert any("column 2; left out by length_scale='ard'" in note for note in model.report_["notes"])
        assert "column 2" in model.report_._repr_html_() and "column 2" in repr(model.report_)
        model.save(str(tmp_path / "model"), overwrite=True)
        by_float32 = KernelRidge(map_, 1.0, scale=scale, random_state=1).fit(X.astype("f4"), y)
        assert by_float32.report_["dtype"] == "float32"
        if isinstance(map_, ConcatenatedFeatures):  # its linear part sees the column
            continue
        for predict in (model.predict, drf.load_model(str(tmp_path / "model")).predict):
            np.testing.assert_allclose(predict(moved(X, 2, -1e9)), predict(X), rtol=0, atol=1e-9)
        rows, later = X.astype("f4"), moved(X.astype("f4"), 2, 1e9)
        np.testing.assert_allclose(by_float32.predict(later), by_float32.predict(rows), atol=1e-4)
        if scale == "standard" and isinstance(kernel, Gaussian | Matern):
            pipeline = model.to_sklearn()
            np.testing.assert_allclose(pipeline.predict(moved(X, 2, 1e6)), model.predict(X), atol=1e-6)


def moved(X, column, value):
    X = X.copy()
    X[:, column] = value
    return X


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_other_columns_have_the_widths_that_they_have_without_it(rng, kernel):
    X, y, _ = of_three_columns(rng, 60, d=3)
    expected, alone = learned(kernel, X, y, seed=3)
    fitted, search = learned(kernel, with_constant(X, 1), y, seed=3)
    assert np.delete(fitted.length_scale, 1).tolist() == list(expected.length_scale)
    assert fitted.length_scale[1] == CONSTANT_WIDTH
    assert (search["constant_columns"], alone["constant_columns"]) == ([1], [])
    assert (search["column_scale"][1], search["unseen_columns"]) == (0.0, [])
    assert json.loads(json.dumps(search, allow_nan=False)) == search
    assert eval(repr(fitted)) == fitted


def test_shrunk_widths_leave_a_constant_column_as_it_is(rng):
    X, y, _ = of_three_columns(rng, 100, d=3)
    alone, beside = (
        RandomBinningFeatures(Laplacian("ard"), 4, random_state=5).fit(rows, y)
        for rows in (X, with_constant(X, 3, 0.0))  # the last one: the grids of the others are drawn before
    )
    assert beside.kernel_.length_scale[3] == CONSTANT_WIDTH
    assert beside.length_scale_search_["column_factors"][3] == 1.0
    likelihood = alone.length_scale_search_["likelihood_length_scale"]
    assert beside.length_scale_search_["likelihood_length_scale"] == [*likelihood, CONSTANT_WIDTH]
    before, later = (beside.transform(with_constant(X, 3, value)).toarray() for value in (0.0, 5.0))
    np.testing.assert_array_equal(before, later)


def test_a_constant_column_is_named(rng):
    X, y, _ = of_three_columns(rng, 100, d=4)
    X[:, 2] = 7.0
    rows = pd.DataFrame(X, columns=["age", "height", "planet", "weight"])
    map_ = FourierFeatures(Gaussian("ard"), 16)

    def note(model, rows, target):
        (found,) = (n for n in model.fit(rows, target).report_["notes"] if "constant in all rows" in n)
        return found

    assert "column 'planet'" in note(KernelRidge(map_), rows, y)
    assert "column 'planet'" in note(KernelSVC(map_), rows, np.where(y > 0, "up", "down"))
    many = note(KernelRidge(map_), np.hstack([X, np.ones((100, 12))]), y)
    assert "column 2, column 4," in many and many.count("column ") == 10 and "3 more" in many
    assert "left out" in many
    given = note(KernelRidge(FourierFeatures(Gaussian(2.0), 16)), rows, y)
    assert given == "constant in all rows: column 'planet'; nothing is learnt from them"


def test_a_column_that_is_constant_but_for_rounding_or_rows_without_weight_is_constant(rng):
    """0.1 + 0.2 is not 0.3: its width would be that of the rounding, and any other value far away."""
    X, y, _ = of_three_columns(rng, 100, d=3)
    s = np.ones(100)
    X[:, 0], X[5, 0], s[5] = 2.0, 3.0, 0.0
    X[:, 1] = np.where(rng.random(100) < 0.5, 0.3, 0.1 + 0.2)
    map_ = FourierFeatures(Gaussian("ard"), 16, random_state=0).fit(X, y, s)
    assert map_.length_scale_search_["constant_columns"] == [0, 1]
    np.testing.assert_allclose(map_.transform(moved(X, 1, 0.4)), map_.transform(X), atol=1e-12)


def test_a_column_that_is_constant_in_the_sample_alone_keeps_a_common_width(rng):
    X, y, _ = of_three_columns(rng, 120, d=3)
    sample = X[:100].copy()
    sample[:, 1] = 0.0
    rest = np.vstack([sample, np.eye(3)])
    fitted, search = learned(Gaussian("ard"), sample, y[:100], row_source=RowsInMemory(rest, None))
    assert search["unseen_columns"] == [1]
    assert search["column_scale"][1] == 0.1
    assert 0 < fitted.length_scale[1] < np.inf


def test_all_rows_are_read_where_the_sample_does_not_suffice(monkeypatch):
    """A single row of 3000 is elsewhere, and is not among the 64 that this seed samples."""
    monkeypatch.setattr("distrff.features.base._SAMPLE_ROWS", 64)
    rng = np.random.default_rng(1)
    X, y, _ = of_three_columns(rng, 3000, d=3)
    X[:, 1] = 0.1
    model = KernelRidge(FourierFeatures(Gaussian("ard"), 16), scale="standard", random_state=1)
    search = model.fit(X, y).report_["length_scale_search"]
    assert (search["constant_columns"], search["unseen_columns"]) == ([1], [])
    X[2000, 1] = 5.0
    report = model.fit(X, y).report_
    assert report["length_scale_search"]["unseen_columns"] == [1]
    assert report["length_scale_search"]["constant_columns"] == []
    assert "column ranges" in report["sweep_labels"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": None}, InputError, "learns the widths from targets"),
        ({"y": np.full(50, 2.0)}, InputError, "y is constant"),
        ({"y": np.full(50, np.nan)}, NonFiniteError, "y contains NaN or infinity"),
        ({"rows": 5}, InputError, "at least 8 rows of positive weight, got 5"),
        ({"scale": [1.0, 1e200]}, InputError, "deviation of column 1 overflows"),
        ({"scale": [0.0, 0.0]}, InputError, r"every column is constant.*give widths"),
    ],
)
def test_what_widths_cannot_be_learned_from(rng, change, error, message):
    n = change.get("rows", 50)
    X = 0.1 + rng.standard_normal((n, 2)) * change.get("scale", 1.0)
    map_, y = FourierFeatures(Gaussian("ard"), 16), change.get("y", np.arange(float(n)))
    with pytest.raises(error, match=message), np.errstate(over="ignore"):
        map_.fit(X, y)
    if "scale" in change:  # a model names the column, here by its name in the frame
        rows = pd.DataFrame(X, columns=["age", "height"])
        is_constant = not any(change["scale"])
        named = message if is_constant else "column 'height' of X has values so large"
        with pytest.raises(InputError, match=named) as caught:
            KernelRidge(map_, scale="standard" if is_constant else "none").fit(rows, y)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_explicit_automatic_and_learned_widths_differ(rng):
    X, y, _ = of_three_columns(rng, 100, d=3)

    def fitted(kernel, kind=FourierFeatures, seed=5, rows=X):
        map_ = kind(kernel, 16, random_state=seed).fit(rows, y)
        return map_.kernel_, map_.length_scale_search_

    assert fitted(Gaussian(2.0)) == (Gaussian(2.0), None)
    assert fitted(Gaussian("auto"))[1]["rule"].startswith("held-out error")
    for kernel in (Gaussian("ard"), Laplacian("ard")):
        expected = learned(kernel, X, y, seed=5)
        assert fitted(kernel) == fitted(kernel, NystroemFeatures) == expected != fitted(kernel, seed=6)
        narrow = X.astype(np.float32)
        assert fitted(kernel, rows=narrow)[0] == fitted(kernel, rows=narrow.astype(float))[0]


def test_grids_shrink_the_widths_of_the_likelihood(rng):
    """Up to their size they are the small ridge's best of all that were tried, among them the likely ones."""
    X, y, _ = of_three_columns(rng, 100, d=3)
    X[:, 2] *= 50  # deviations are what widths are measured in
    kernel, expected = learned(Laplacian("ard"), X, y, seed=5)
    map_ = RandomBinningFeatures(Laplacian("ard"), 4, random_state=5).fit(X, y)
    search = map_.length_scale_search_
    assert search["likelihood_length_scale"] == list(kernel.length_scale) == expected["length_scale"]
    assert map_.kernel_ == Laplacian(tuple(search["length_scale"]))
    by_all = np.array(search["length_scale"]) / kernel.length_scale / search["column_factors"]
    np.testing.assert_allclose(by_all, search["size_factor"], rtol=2e-3)
    rows = SearchSample.of(Sample(X, y, None, 5, RowsInMemory(X, None)))
    small = map_._small_ridge(rows, Laplacian("ard"))
    errors = dict(search["tried"])
    assert errors[1.0] == pytest.approx(small.error(kernel.length_scale))
    assert len(set(errors.values())) > 1
    assert search["rule"].endswith("shrunk by the held-out error of a ridge on the bins of 4 grids")


def test_more_rows_in_all_shrink_all_widths_by_one_power_of_their_number(rng):
    X, y, _ = of_three_columns(rng, 200, d=3)
    source = RowsInMemory(X, None)
    kernels, shrinking = [], 0.0
    for n_rows in (200, 3200):
        row_source = AsManyRows(n_rows, source)
        map_ = RandomBinningFeatures(Laplacian("ard"), 8).fit_sample(Sample(X, y, None, 5, row_source))
        kernels.append(map_.kernel_)
        shrinking = map_.length_scale_search_["shrinking"]
    few, many = (np.array(kernel.length_scale) for kernel in kernels)
    np.testing.assert_allclose(many / few, 16.0**-shrinking, rtol=2e-3)  # widths have four digits


@pytest.mark.parametrize(
    "kernel",
    [
        Laplacian("auto"),
        Cauchy("auto"),
        Exponential("auto"),
        Matern("auto", nu=0.7),
        Gaussian("auto") + 0.5 * Laplacian("auto"),
        Gaussian("auto") * Cauchy(2.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("classes", [False, True])
def test_one_factor_for_every_kernel(rng, kernel, classes):
    X = rng.standard_normal((200, 2))
    y = np.array(["no", "yes"])[(X[:, 0] * X[:, 1] > 0).astype(int)] if classes else np.sin(X[:, 0])
    map_ = FourierFeatures(kernel, 64, random_state=seed_of(rng)).fit(X, y)
    search = map_.length_scale_search_
    assert not map_.kernel_.is_auto
    assert map_.kernel_ == kernel.with_widths(search["length_scale"])
    # A model that knows nothing has an error of 1; no width of the grid may do worse than that by
    # more than the deviation of the error's mean over the 50 rows held out, √2/√50 = .2, five times.
    assert min(error for _, error in search["tried"]) < 2.0


def test_the_work_is_counted():
    for kind in (FourierFeatures, NystroemFeatures, RandomBinningFeatures):
        assert kind().outline(10, 10**6).search_flops > kind(Laplacian()).outline(10, 10**6).search_flops == 0
        learned = kind(Laplacian("ard")).outline(10, 10**6).search_flops
        if kind is RandomBinningFeatures:  # its pilot shrinks what is learned
            assert learned > LikelihoodBudget().flops(10**6, 10)
        else:
            assert learned == LikelihoodBudget().flops(10**6, 10)
        by_pilot = kind(Laplacian("auto")).outline(10, 10**6).search_flops
        assert by_pilot == kind(Laplacian("auto")).outline(10, 10**9).search_flops > 0
        both = ConcatenatedFeatures([kind(Laplacian("auto")), kind(Laplacian("ard"))])
        assert both.outline(10, 10**6).search_flops == by_pilot + learned
    assert (
        LikelihoodBudget().flops(2000, 10)
        == LikelihoodBudget().flops(10**9, 10)
        > LikelihoodBudget().flops(500, 10)
    )


# The likelihood itself, and the walk that shrinks what it found

OF_WIDTH_ONE = [
    Gaussian(), Laplacian(), Cauchy(), Exponential(), Matern(nu=0.3), Matern(nu=1.0), Matern(nu=1.3),
    Matern(nu=1.5), Matern(nu=2.5), Matern(nu=40.0),
]  # fmt: skip


def problem(rng, n=30, d=3, k=2):
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin((j + 1) * X[:, 0]) for j in range(k)]) + 0.3 * rng.standard_normal((n, k))
    return X, Y, rng.uniform(0.5, 2.0, n), rng.uniform(-0.7, 0.7, d + 1)


@pytest.mark.parametrize("kernel", [Gaussian(), Laplacian()], ids=repr)
def test_it_is_the_density_of_the_rows_at_the_best_amplitude(rng, kernel):
    X, Y, s, point = problem(rng)
    n, k = Y.shape
    C = kernel.set_params(length_scale=tuple(np.exp(point[:-1])))(X) + np.exp(point[-1]) * np.diag(1 / s)
    a = np.trace(Y.T @ np.linalg.solve(C, Y)) / (n * k)
    log_p = [
        sum(multivariate_normal(np.zeros(n), c * C).logpdf(column) for column in Y.T)
        for c in (a, 0.97 * a, 1.03 * a)
    ]
    assert log_p[0] == max(log_p)
    constant = 0.5 * (1 + np.log(2 * np.pi))
    value = MarginalLikelihood(kernel, X, Y, s).value(point)
    # The jitter of 1e-9 changes f by at most 1e-9·tr(C⁻¹)-like terms over C's least eigenvalue, about .25.
    np.testing.assert_allclose(value + constant, -log_p[0] / (n * k), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", OF_WIDTH_ONE, ids=repr)
@pytest.mark.parametrize("duplicates", [False, True])
def test_the_gradient_is_that_of_the_value(rng, kernel, duplicates):
    X, Y, s, point = problem(rng)
    if duplicates:  # and an offset, whose square would cost the digits of distances
        X[10:15] = X[:5]
        X += 1e3
    f = MarginalLikelihood(kernel, X, Y, s)
    value, gradient = f.value_and_gradient(point)
    assert value == f.value(point)
    h = 1e-4
    steps = h * np.eye(len(point))
    differences = [(f.value(point + step) - f.value(point - step)) / (2 * h) for step in steps]
    # Central differences are off by h²/6 = 2e-9 times the third derivative by a logarithm, which for
    # terms of the order of 1 is at most in the hundreds, and by 1e-15·cond(C)/h = 1e-9 of rounding.
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=2e-6)


@dataclass
class AsManyRows:
    """The source of so many rows, which are never read, or source by fewer."""

    n_rows: int
    source: RowSource | None = None

    def __call__(self, reduction, *, min_features=0):
        return self.source(reduction)


def test_widths_by_folds_do_not_know_groups_again(rng):
    """A column with one value a group tells old groups apart, and nothing of new ones."""
    features, ratios = drf.FourierFeatures(drf.Gaussian("ard"), 64, random_state=0), []
    for _ in range(10):
        group = np.repeat(np.arange(30), 5)
        X = np.column_stack([rng.standard_normal(150), rng.standard_normal(30)[group]])
        y = np.sin(2 * X[:, 0]) + 2 * rng.standard_normal(30)[group]
        at_random, by_groups = (
            drf.KernelRidge(features, 1.0, random_state=0)
            .fit(X, y, groups=groups)
            .features_.kernel_.length_scale
            for groups in (None, group)
        )
        ratios.append(by_groups[1] / at_random[1])
    # The logarithms of 40 tables' ratios had the mean 3.2 and the standard deviation 2.4, and one in 40 was
    # below zero: that of ten is four standard errors above it.
    assert np.mean(np.log(ratios)) > 0
