"""Ridge against its formulas; what columns and targets bring along; scikit-learn's interface; Dask."""

import pickle
import re

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.kernel_ridge import KernelRidge as ExactKernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler

import distrff as drf
from distrff.errors import DataWarning, InputError
from distrff.fitting.problem import takes_sparse_rows
from distrff.io.arrays import as_dataset
from tests.support.fits import blocks_of, fourier, ridge, ridge_classifier


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# The Gram and the factorisation are each off by a few units of roundoff u = 1.1e-16 relative to ‖G‖, so the
# weights are off by a few u·κ: about 1e-9 at κ = 1e6. The intercept moves by at most ‖z̄‖ ≤ √k(0) times that.
AGREEMENT = 1e-8


def alpha_at_condition(condition, weight, at_zero=1.0):
    """The alpha at which κ(G + alpha·I) is at most `condition`, as ‖G‖ ≤ Σs·k(0)."""
    return weight * at_zero / (condition - 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_equals_ridge_on_its_features(problem, several, fit_intercept, weighted):
    y, s = problem.Y if several else problem.y, problem.s if weighted else None
    alpha = alpha_at_condition(1e6, problem.s.sum() if weighted else len(y))
    ours = ridge(alpha=alpha, fit_intercept=fit_intercept).fit(problem.X, y, s)
    Z = ours.features_.transform(problem.X)
    reference = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd").fit(Z, y, s)
    assert ours.coef_.shape == reference.coef_.shape
    assert np.shape(ours.intercept_) == np.shape(reference.intercept_) or not fit_intercept
    assert relative_error(ours.coef_, reference.coef_) < AGREEMENT
    scale = np.linalg.norm(reference.coef_)
    np.testing.assert_allclose(ours.intercept_, reference.intercept_, rtol=0, atol=AGREEMENT * scale)
    np.testing.assert_allclose(ours.predict(problem.X), reference.predict(Z), rtol=0, atol=AGREEMENT * scale)


def test_an_alpha_for_each_target(problem):
    alpha = alpha_at_condition(1e6, len(problem.X)) * np.array([1.0, 1e3, 10.0])
    ours = ridge(alpha=alpha).fit(problem.X, problem.Y)
    Z = ours.features_.transform(problem.X)
    reference = Ridge(alpha=alpha, solver="svd").fit(Z, problem.Y)
    for found, expected in zip(ours.coef_, reference.coef_, strict=True):
        assert relative_error(found, expected) < AGREEMENT
    np.testing.assert_array_equal(ours.alpha_, alpha)
    np.testing.assert_allclose(ours.rkhs_norm_, np.linalg.norm(reference.coef_, axis=1), rtol=AGREEMENT)
    _, S = ours.predict(problem.X, return_std=True)
    for j, one in enumerate(alpha.tolist()):
        _, alone = ridge(alpha=one).fit(problem.X, problem.Y[:, j]).predict(problem.X, return_std=True)
        np.testing.assert_allclose(S[:, j], alone, rtol=AGREEMENT)


def test_targets_of_any_kind_and_one_column_that_stays_a_column(problem):
    y = (problem.y > 0).astype(int)
    reference = ridge().fit(problem.X, y)
    for same in (y.astype(bool), y.astype(object), y.tolist()):
        np.testing.assert_array_equal(ridge().fit(problem.X, same).coef_, reference.coef_)
    flat, column = (ridge().fit(problem.X, y) for y in (problem.y, problem.y[:, None]))
    assert flat.coef_.shape == (64,) and isinstance(flat.intercept_, float)
    assert column.coef_.shape == (1, 64) and column.intercept_.shape == (1,)
    of_column, of_flat = (model.predict(problem.X, return_std=True) for model in (column, flat))
    for found, expected in zip(of_column, of_flat, strict=True):
        assert expected.shape == (900,)
        np.testing.assert_array_equal(found[:, 0], expected)


def test_predictions_approach_exact_kernel_ridge(rng):
    """The distance to the exact model falls as 1/√D.

    With alpha as large as the kernel's eigenvalues the predictions are nearly linear in the kernel matrix, so
    their mean square distance is c/D·(1 + O(1/D)), here within a tenth. The distance of one draw, relative to
    the mean, has the same spread at every D, which the 64 draws of the smallest map measure; for targets of
    white noise it is about a fifth.
    """
    X, x, Y = (rng.standard_normal(shape) for shape in ((300, 3), (200, 3), (300, 32)))
    alpha = 30.0
    exact = ExactKernelRidge(alpha=alpha, kernel="rbf", gamma=0.5).fit(X, Y).predict(x)

    def distances(n_components, n_draws):
        for seed in rng.integers(0, 2**31, n_draws):
            features = drf.FourierFeatures(drf.Gaussian(1.0), n_components, random_state=int(seed))
            model = drf.KernelRidge(features, alpha=alpha, fit_intercept=False, scale="none").fit(X, Y)
            yield np.mean((model.predict(x) - exact) ** 2)

    n_draws = {64: 64, 256: 32, 512: 12}
    found = {D: np.fromiter(distances(D, n), float) for D, n in n_draws.items()}
    spread = found[64].std(ddof=1) / found[64].mean()
    for few, many in ((64, 256), (256, 512), (64, 512)):
        fall = np.log(found[few].mean() / found[many].mean())
        error = spread * np.sqrt(1 / n_draws[few] + 1 / n_draws[many])
        assert abs(fall - np.log(many / few)) < 5 * error + 0.1


# What columns and targets bring along: scales, constants, widths, and the spread of predictions


def test_standard_scale(problem):
    """The same model as on columns standardised beforehand, and rows are predicted as they are."""
    X = problem.X * [1.0, 1e-3, 1e3, 7.0] + [5.0, 0.0, -1e4, 1.0]
    scaler = StandardScaler().fit(X, sample_weight=problem.s)
    ours = ridge(scale="standard").fit(X, problem.y, problem.s)
    beforehand = ridge().fit(scaler.transform(X), problem.y, problem.s)
    # Means and deviations differ by rounding, up to 1e4·u over 1e3 here; κ = Σs.
    np.testing.assert_allclose(ours.coef_, beforehand.coef_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.predict(X), beforehand.predict(scaler.transform(X)), rtol=0, atol=1e-10)


def test_scaling_is_in_float64_whatever_the_features(problem):
    """A float32 column far from zero keeps its digits: the shift acts before the cast."""
    X = np.round(problem.X * 64).astype(np.float32) / 64  # exact beside an offset of 2^16
    near, far = (
        ridge(scale="standard").fit((X + np.float32(c)).astype(np.float32), problem.y) for c in (0, 2**16)
    )
    assert near.report_["dtype"] == far.report_["dtype"] == "float32"
    # The shifted columns agree but for the rounding of means, 2^16·u64, far below that of float32.
    u32 = np.finfo(np.float32).eps / 2
    bound = 64 * u32 * len(X) * np.linalg.norm(near.coef_)  # alpha = 1: κ = n
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=0, atol=bound)


def beside_a_constant(problem, constant):
    """Rows with a column of one value, and the same rows with another value there."""
    return [np.column_stack([problem.X, np.full(len(problem.X), c)]) for c in (constant, constant + 1.0)]


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e6 / 3])
@pytest.mark.parametrize(
    "features", [drf.LinearFeatures(), fourier(16), drf.NystroemFeatures(drf.Gaussian(2.0), 16)]
)
def test_columns_of_one_value_have_no_effect(problem, features, constant):
    X, others = beside_a_constant(problem, constant)
    if constant == 0.0 and takes_sparse_rows(features):
        X, others = csr_matrix(X), csr_matrix(others)
    model = drf.KernelRidge(features, alpha=1.0, random_state=0).fit(X, problem.y)
    np.testing.assert_array_equal(model.predict(others), model.predict(X))
    assert "constant in all rows: column 4; nothing is learnt from them" in model.report_["notes"]


@pytest.mark.parametrize("way", ["unscaled", "rounded", "rows to come", "gram"])
def test_constant_columns_that_have_an_effect_are_called_so(problem, way):
    X, others = beside_a_constant(problem, 0.3)
    X[::2, -1] = 0.1 + 0.2 if way == "rounded" else 0.3
    model = drf.KernelRidge(fourier(16), alpha=1.0, scale="none" if way == "unscaled" else "standard")
    if way == "gram":
        model.fit_gram(drf.gram(X, fourier(16), problem.y))
    else:
        fit = model.partial_fit if way == "rows to come" else model.fit
        assert "changes predictions: leave them out" in " ".join(fit(X, problem.y).report_["notes"])
    assert abs(model.predict(others) - model.predict(X)).max() > 1e-3


def test_columns_of_different_spread_are_pointed_out(problem, recwarn):
    X = problem.X / problem.X.std(axis=0)
    ridge().fit(X * [1.0, 99.0, 2.0, 1.0], problem.y)
    ridge(scale="standard").fit(X * [1.0, 9900.0, 2.0, 1.0], problem.y)
    assert not recwarn.list
    X = np.column_stack([X * [1.0, 150.0, 2.0, 1.5], np.full(len(X), 0.1)])  # constant: nothing to compare
    with pytest.warns(DataWarning, match=r"column 0 and column 1 .* use scale='standard'") as caught:
        ridge().fit(X, problem.y)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(DataWarning, match="column 'a' and column 'b' have standard deviations"):
        ridge().fit(pd.DataFrame(X, columns=list("abcde")), problem.y)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6 / 3, 1e15])
@pytest.mark.parametrize("alpha", [1.0, "cv", "gcv"])
def test_a_constant_target_is_fitted_with_a_warning(problem, alpha, constant):
    with pytest.warns(DataWarning, match="y is constant .*; the model will predict that constant") as caught:
        model = ridge(alpha).fit(problem.X, np.full(len(problem.X), constant), problem.s)
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_array_equal(model.coef_, 0)
    np.testing.assert_array_equal(model.predict(problem.X), constant)
    with pytest.warns(DataWarning, match="R² is not defined, since the targets of all rows are equal"):
        assert np.isnan(model.score(problem.X, np.full(len(problem.X), constant)))
    if alpha != 1.0:
        assert model.cv_score_ == 0
    Y = np.where([False, True, False], constant, problem.Y)
    with pytest.warns(DataWarning, match=rf"y is constant \({re.escape(f'{constant:g}')}, column 1\)"):
        model = ridge().fit(problem.X, Y)
    np.testing.assert_array_equal(model.predict(problem.X)[:, 1], constant)
    alone = ridge().fit(problem.X, Y[:, 0]).coef_
    # What a solver rounds is relative to the largest coefficient: others may be a millionth of it.
    np.testing.assert_allclose(model.coef_[0], alone, rtol=1e-9, atol=1e-12 * np.abs(alone).max())


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "features"),
    [(900, 4, fourier()), (40, 4, fourier()), (60, 1, drf.LinearFeatures()), (60, 2, drf.LinearFeatures())],
    ids=["many rows", "few rows", "one feature", "two features"],
)
def test_spread_of_predictions_is_the_dense_formula(problem, n_rows, n_columns, features, fit_intercept):
    X, Y, s = problem.X[:n_rows, :n_columns], problem.Y[:n_rows], problem.s[:n_rows]
    alpha = 1e-4 * s.sum()
    model = drf.KernelRidge(features, alpha, fit_intercept=fit_intercept, scale="none").fit(X, Y, s)
    prediction, std = model.predict(X[:50], return_std=True)
    Z, z_mean, y_mean = model.features_.transform(X), 0.0, 0.0
    if fit_intercept:
        z_mean, y_mean = np.average(Z, axis=0, weights=s), np.average(Y, axis=0, weights=s)
    G = ((Z - z_mean).T * s) @ (Z - z_mean)
    inverse = np.linalg.inv(G + alpha * np.eye(len(G)))
    residual = Y - y_mean - (Z - z_mean) @ inverse @ (Z - z_mean).T @ (s[:, None] * (Y - y_mean))
    noise = s @ residual**2 / (s.sum() - np.trace(G @ inverse) - fit_intercept)
    spread = np.einsum("ij,jk,ik->i", Z[:50] - z_mean, inverse, Z[:50] - z_mean)
    expected = np.sqrt(np.outer(spread + fit_intercept / s.sum(), noise))
    assert prediction.shape == std.shape == expected.shape
    np.testing.assert_array_equal(prediction, model.predict(X[:50]))
    np.testing.assert_allclose(std, expected, rtol=1e-9)  # κ = 1e4, a thousandfold of κ·u


@pytest.mark.parametrize("kernel", [drf.Gaussian("auto"), 2.0 * drf.Laplacian("auto") + drf.Gaussian(1.0)])
def test_automatic_width_becomes_a_number(problem, kernel):
    features = drf.FourierFeatures(kernel, 64, random_state=0)
    model = drf.KernelRidge(features, random_state=0, alpha=1.0, scale="none").fit(problem.X, problem.y)
    assert not model.features_.kernel_.is_auto and model.features_.kernel.is_auto
    assert model.features is features and not hasattr(features, "kernel_")
    search = model.report_["length_scale_search"]
    best = min(search["tried"], key=lambda one: one[1])[0]
    assert abs(np.log2(search["length_scale"] / best)) <= 0.25 + 1e-9  # half a place, by the parabola
    assert model.features_.kernel_ == kernel.with_widths(search["length_scale"])
    explicit = drf.KernelRidge(
        drf.FourierFeatures(model.features_.kernel_, 64, random_state=0), alpha=1.0, scale="none"
    )
    np.testing.assert_array_equal(explicit.fit(problem.X, problem.y).coef_, model.coef_)


def test_a_fitted_map_is_fitted_anew(problem):
    """Estimators fit a clone, so parameters set later count."""
    features = fourier().fit(problem.X)
    model = drf.KernelRidge(features, alpha=1.0, scale="none").fit(problem.X, problem.y)
    assert model.features_ is not features
    model.set_params(features__kernel=drf.Gaussian(0.5)).fit(problem.X[:, :2], problem.y)
    assert model.features_.kernel_ == drf.Gaussian(0.5)
    assert model.features_.n_features_in_ == 2


# A scikit-learn estimator like any other: clones, pickles, names of columns, seeds


COLUMNS = ["a", "b", "c", "d"]


def test_seeds(problem):
    """The map's own seed wins, then the estimator's; without either one is drawn and kept."""

    def fit(of_map, of_estimator, alpha=1.0, **options):
        features = fourier(random_state=of_map, **options)
        return drf.KernelRidge(features, alpha, random_state=of_estimator, scale="none").fit(
            problem.X, problem.y
        )

    first, second = fit(None, None), fit(None, None)
    assert first.seed_ != second.seed_ and first.random_state is None
    assert first.report_["seed"] == first.seed_
    np.testing.assert_array_equal(fit(None, first.seed_).coef_, first.coef_)
    one, other = fit(5, 0), fit(5, 1)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.seed_ == 5
    one, other = (fit(None, 7, "cv", length_scale="auto") for _ in range(2))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.kernel_ == other.features_.kernel_


def test_pickle(problem):
    model = ridge().fit(problem.X, problem.y)
    late = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(late.predict(problem.X), model.predict(problem.X))
    assert dict(late.report_) == dict(model.report_)
    with pytest.raises(InputError, match="ask for return_std once before pickling"):
        late.predict(problem.X, return_std=True)
    _, std = model.predict(problem.X, return_std=True)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(problem.X, return_std=True)[1], std)


def test_frames_and_their_names(problem):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    model = ridge().fit(frame, pd.Series(problem.y))
    plain = ridge().fit(problem.X, problem.y)
    np.testing.assert_array_equal(model.feature_names_in_, COLUMNS)
    np.testing.assert_array_equal(model.predict(frame), plain.predict(problem.X))
    assert model.score(frame, problem.y) == plain.score(problem.X, problem.y)
    for wrong in (frame[COLUMNS[::-1]], frame.rename(columns={"a": "z"})):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(wrong)
        with pytest.raises(InputError, match=r"feature names should match.*expected a, b, c, d in this"):
            model.score(wrong, problem.y)
    model.fit(problem.X, problem.y)
    assert not hasattr(model, "feature_names_in_")
    with config_context(transform_output="pandas"):  # which changes nothing
        model = drf.KernelRidge(fourier().set_output(transform="pandas"), alpha=1.0, scale="none").fit(
            problem.X, problem.y
        )
        prediction = model.predict(problem.X)
    assert type(prediction) is np.ndarray
    np.testing.assert_array_equal(prediction, plain.predict(problem.X))


@pytest.mark.parametrize("kind", [drf.KernelRidge, drf.KernelRidgeClassifier, drf.KernelSVC, drf.KernelPCA])
def test_a_wrong_parameter_names_the_class(kind):
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) got an unexpected .* 'gama'"):
        kind(gama=1.0)


@pytest.mark.parametrize("columns", [3, 5])
def test_wrong_number_of_columns(problem, columns):
    model = ridge().fit(problem.X, problem.y)
    X = np.zeros((10, columns))
    message = f"X has {columns} features, but KernelRidge is expecting 4 features as input"
    with pytest.raises(ValueError, match=message):
        model.predict(X)
    for rows in (X, da.from_array(X)):
        with pytest.raises(InputError, match=message):
            model.score(rows, np.zeros(10))
    with pytest.raises(InputError, match=rf"X must have shape \(n_samples, 4\), got .*\(10, {columns}\)"):
        model.predict(da.from_array(X))


def test_a_failed_fit_leaves_the_model_as_it_was(problem):
    model = drf.KernelRidge(fourier(random_state=None), alpha=1.0, scale="none").fit(problem.X, problem.y)
    expected, seed = model.predict(problem.X), model.seed_
    with pytest.raises(InputError):
        model.fit(np.full_like(problem.X, np.nan), problem.y)
    np.testing.assert_array_equal(model.predict(problem.X), expected)
    assert model.seed_ == seed


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_plan_is_that_of_the_fit(problem, alpha):
    model = drf.KernelRidge(fourier(length_scale="auto"), alpha, scale="none")
    plan = model.plan(problem.X, problem.y)
    assert plan.seconds > 0 and not hasattr(model, "model_")
    fitted = model.fit(problem.X, problem.y)
    assert plan == fitted.plan_
    assert plan.n_sweeps == fitted.report_["n_sweeps"] == 2
    # Without a cluster one process is the worker and the client.
    assert fitted.report_["planned_peak_bytes"] == plan.worker_peak_bytes + plan.client_peak_bytes


# Dask in, lazy Dask out; fits and scores read each block once a sweep


@pytest.fixture
def computes():
    """What Dask's synchronous scheduler was asked for."""
    asked = []

    def get(graph, keys, **options):
        asked.append(keys)
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=get):
        yield asked


@pytest.fixture
def blocks_read():
    """A function that makes arrays dask arrays of three blocks, and the list of the blocks that were read."""
    read = []

    def note(block):
        read.append(len(block))
        return block

    def lazy(values):
        return blocks_of(values, note, rows=300)

    return lazy, read


# A product of the same row has different bits in blocks of different heights: 64 terms of size up to ‖w‖/√32.
def tolerance(model):
    return 64 * np.finfo(float).eps * max(1.0, np.abs(model.coef_).sum())


def test_large_models_travel_as_one_task(problem):
    """Coefficients above a megabyte are not copied into the task of every block."""
    Y = np.repeat(problem.y[:, None], 600, axis=1)
    model = drf.KernelRidge(fourier(256), alpha=1.0, scale="none").fit(problem.X, Y)
    lazy = model.predict(da.from_array(problem.X, chunks=100))
    assert sum(len(cloudpickle.dumps(task)) > model.coef_.nbytes for task in dict(lazy.dask).values()) == 1
    np.testing.assert_allclose(lazy.compute(), model.predict(problem.X), rtol=0, atol=1e-11)


def test_unknown_chunks_are_predicted(problem):
    model = ridge().fit(problem.X, problem.y)
    X = da.from_array(problem.X, chunks=300)
    some = X[X[:, 0] > 0]
    expected = model.predict(problem.X[problem.X[:, 0] > 0])
    np.testing.assert_allclose(model.predict(some).compute(), expected, rtol=0, atol=tolerance(model))


def test_frames_and_datasets_are_predicted_lazily(problem, computes):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    model = ridge().fit(dd.from_pandas(frame, npartitions=3), problem.y)
    expected = model.predict(frame)
    for X in (dd.from_pandas(frame, npartitions=3), as_dataset(frame)):
        lazy = model.predict(X)
        assert isinstance(lazy, da.Array) and lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=tolerance(model))
    with pytest.raises(InputError, match="feature names should match"):
        model.predict(dd.from_pandas(frame[COLUMNS[::-1]], npartitions=2))


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_each_block_is_read_once_a_sweep(problem, blocks_read, computes, alpha):
    lazy, read = blocks_read
    X = lazy(problem.X)
    model = ridge(alpha, random_state=0).fit(X, problem.y)
    assert model.report_["n_sweeps"] == 2
    assert model.report_["sweep_labels"] == ["column statistics", "Gram"]
    assert read == 2 * [300, 300, 300]
    read.clear()
    model.score(X, problem.y)
    assert read == [300, 300, 300]
    read.clear()
    lazy = [model.predict(X), *model.predict(X, return_std=True)]
    assert not read
    lazy[0].compute()
    assert read == [300, 300, 300]


def test_scores_are_those_of_arrays_in_memory(problem, blocks_read):
    lazy, _ = blocks_read
    model = ridge().fit(problem.X, problem.Y)
    inside = model.score(problem.X, problem.Y, problem.s)
    outside = model.score(lazy(problem.X), lazy(problem.Y), lazy(problem.s))
    assert outside == pytest.approx(inside, rel=1e-13)
    expected = r2_score(problem.Y, model.predict(problem.X), sample_weight=problem.s)
    assert inside == pytest.approx(expected, rel=1e-12)
    labels = np.digitize(problem.y, [-0.5, 0.5])
    classifier = ridge_classifier().fit(problem.X, labels)
    inside = classifier.score(problem.X, labels, problem.s)
    outside = classifier.score(lazy(problem.X), lazy(labels), lazy(problem.s))
    assert outside == pytest.approx(inside, rel=1e-13)
    right = classifier.predict(problem.X) == labels
    assert inside == pytest.approx(np.average(right, weights=problem.s), rel=1e-13)


@pytest.mark.parametrize("local", ["synchronous", "threads"])
def test_dask_s_configured_scheduler_is_used(problem, local):
    reference = ridge().fit(problem.X, problem.y)
    with dask.config.set(scheduler=local):
        model = ridge().fit(da.from_array(problem.X, chunks=100), problem.y)
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    assert model.report_["threads"] == (1 if local == "synchronous" else reference.report_["threads"])
