"""What cannot be used is named in one line: what was wrong, what was got, and what to do."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

import distrff as drf
from distrff.errors import InputTypeError, NonFiniteError, PlanRefused
from tests.support.fits import blocks_of, fourier, never, refusal, small_ridge


def small_classifier(**options):
    return drf.KernelRidgeClassifier(fourier(32, random_state=None), **options)


def spoilt(values, value, *where):
    values = values.copy()
    values[where] = value
    return values


# Numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_numbers_that_are_not_finite(problem, value, name, dtype):
    X, Y, s = problem.X.astype(dtype), problem.Y, problem.s
    remedy = "drop or fill such rows"
    for data, where in (
        ((spoilt(X, value, 123, 2), problem.y), f"X contains {name} in row 123, column 2; {remedy}"),
        ((X, spoilt(problem.y, value, 7)), f"y contains {name} in row 7; {remedy}"),
        ((X, spoilt(Y, value, 899, 1)), f"y contains {name} in row 899, column 1; {remedy}"),
        ((X, Y, spoilt(s, value, 0)), f"sample_weight contains {name} in row 0; {remedy}"),
    ):
        assert refusal(small_ridge().fit, *data, error=NonFiniteError) == where
    both_signs = spoilt(spoilt(X, value, 123, 2), -value, 124, 2)
    assert f"X contains {name} in row 123, column 2" in refusal(small_ridge().fit, both_signs, problem.y)
    frame = pd.DataFrame(spoilt(X, value, 123, 2)).rename(columns=lambda j: f"c{j}")
    message = refusal(small_ridge().fit, frame, problem.y, error=NonFiniteError)
    assert message == f"X contains {name} in row 123, column 'c2'; {remedy}"
    with dask.config.set(scheduler="synchronous"):
        lazy = da.from_array(spoilt(X, value, 123, 2), chunks=(50, 2))
        assert f"X contains {name} in row 123, column 2" in refusal(small_ridge().fit, lazy, problem.y)


def test_squares_that_overflow(problem):
    X, y = problem.X.copy(), problem.y
    X[::2, 2] = 1e160
    message = "so large that the sum of their squares is not finite; divide them by a power of ten"
    assert refusal(small_ridge().fit, X, y) == f"column 2 of X has values {message}"
    assert refusal(small_ridge().fit, problem.X, X[:, 2]) == f"y has values {message}"
    assert refusal(small_ridge().fit, problem.X, X) == f"column 2 of y has values {message}"
    X = (problem.X * 1e37).astype(np.float32)  # a thousand of them are beyond float32
    X[:500] = np.finfo(np.float32).max / 2
    small_ridge(scale="standard").fit(X, y)  # a sum that overflows is no infinity


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([1.0, None] * 450, dtype=object), "y contains NaN in row 1"),
        (np.array([1.0, np.inf] * 450, dtype=object), "y contains infinity in row 1"),
        (pd.Series([1, None] * 450, dtype="Int64"), "y contains NaN in row 1"),
        (np.array([1, "one"] * 450, dtype=object), "y must hold numbers for a regressor, got 'one' in row 1"),
        (np.array(["1.5"] * 900), "y must hold numbers for a regressor, got dtype <U3"),
        (pd.Series(["1.5"] * 900), "y must hold numbers for a regressor, got"),
        (pd.Series(["a", "b"] * 450, dtype="category"), "y must hold numbers for a regressor, got"),
        (np.full(900, 1j), "Complex data not supported: y is complex"),
        (np.full(900, np.datetime64("2020-01-01")), "y must hold numbers for a regressor, got dtype date"),
    ],
)
def test_targets_that_are_no_numbers(problem, y, message):
    said = refusal(small_ridge().fit, problem.X, y)
    assert message in said
    if "must hold numbers" in message:
        assert "use KernelRidgeClassifier for class labels" in said
        if y.dtype != object and not isinstance(y, pd.Series):
            said = refusal(small_ridge().fit, problem.X, da.from_array(y, chunks=300))
            assert "must hold numbers" in said


@pytest.mark.parametrize(
    "y",
    [
        *(np.array(["a", value] * 450, dtype=object) for value in (None, np.nan, np.inf)),
        *(pd.Series(["a", None] * 450, dtype=dtype) for dtype in ("string", "category")),
        np.array([1.0, np.nan] * 450),
    ],
)
def test_labels_that_are_missing(problem, y):
    name = "infinity" if y[1] is np.inf else "NaN"
    message = refusal(small_classifier().fit, problem.X, y)
    assert f"y contains {name} in row 1; drop or fill such rows" in message


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (lambda X: X[0], "Expected 2D array, got 1D array instead: X has shape (4,)"),
        (lambda X: X[None], "Expected 2D array, got 3D array instead"),
        (lambda X: X.astype(str), "X must hold numbers, got dtype <U"),
        (lambda X: X.astype(complex), "Complex data not supported: X has dtype complex128"),
        (lambda X: pd.DataFrame(X).assign(number=1j), "Complex data not supported: column 'number' of X has"),
        (lambda X: X[:0], "Found array with 0 sample(s) (shape=(0, 4))"),
        (lambda X: X[:, :0], "Found array with 0 feature(s) (shape=(900, 0))"),
        (lambda X: None, "X is None"),
    ],
)
def test_rows_that_are_no_numbers(problem, X, message):
    fitted = small_ridge().fit(problem.X, problem.y)
    for function in (fitted.score, fitted.plan, fitted.fit, small_classifier().fit):
        assert message in refusal(function, X(problem.X), problem.y)


def test_text_for_a_model_of_numbers(problem):
    fitted, X = small_ridge().fit(problem.X, problem.y), pd.DataFrame(problem.X).assign(text="a")
    for function in (fitted.score, fitted.calibrate):
        assert "column 'text' of X has dtype" in refusal(function, X, problem.y)


def test_rows_and_targets_that_do_not_go_together(problem):
    message = "X has 900 rows but y has 899; they must have the same length"
    lazy = [da.from_array(values, chunks=300) for values in (problem.X, problem.y[:-1])]
    for data in ((problem.X, problem.y[:-1]), lazy):
        assert refusal(small_ridge().fit, *data) == message
    assert "sample_weight has 10" in refusal(small_ridge().fit, problem.X, problem.y, np.ones(10))
    for estimator in (small_ridge(), small_classifier()):
        message = refusal(estimator.fit, problem.X)
        assert "requires y to be passed, but the target y is None; give y, or open the dataset" in message
    fitted = small_ridge().fit(problem.X, problem.y)
    assert "requires y to be passed" in refusal(fitted.score, problem.X)
    some = lazy[0][lazy[0][:, 0] > 0]
    known = da.from_array(problem.X[problem.X[:, 0] > 0], chunks=300)
    for name, X in (("X", some), ("y", known)):
        message = refusal(small_ridge().fit, X, some[:, 0])
        assert (
            f"{name} is a dask array with unknown chunk sizes; call {name}.compute_chunk_sizes() first"
            in message
        )


@pytest.mark.parametrize(
    ("s", "message"),
    [
        (lambda s: spoilt(s, -1.0, 3), "sample_weight must not be negative, got -1 in row 3"),
        (lambda s: 0 * s, "all sample weights are zero; give at least one row a positive weight"),
        (lambda s: s[:, None], "sample_weight must be 1-D, one number per row, got shape (900, 1)"),
        (lambda s: s.astype(str), "sample_weight must hold numbers"),
    ],
)
def test_weights(problem, s, message):
    for estimator, y in ((small_ridge(), problem.y), (small_classifier(), problem.y > 0)):
        assert message in refusal(estimator.fit, problem.X, y, s(problem.s))


def test_scores(problem):
    fitted = small_ridge().fit(problem.X, problem.y)
    labelled = small_classifier().fit(problem.X, problem.y > 0)
    for model, y in ((fitted, problem.y), (labelled, problem.y > 0)):
        assert "weight" in refusal(model.score, problem.X, y, 0 * problem.s)
    fitted.fit(problem.X, problem.Y)
    assert refusal(fitted.score, problem.X, problem.y) == "y has 1 column(s), but the model predicts 3"
    text = np.array(["a", "b"])[(problem.y > 0).astype(int)]
    assert "y must hold numbers" in refusal(fitted.score, problem.X, text)
    assert "y contains NaN in row 17, column 1" in refusal(
        fitted.score, problem.X, spoilt(problem.Y, np.nan, 17, 1), error=NonFiniteError
    )
    two_columns = np.zeros((900, 2), int)
    assert "but the model predicts 1" in refusal(labelled.score, problem.X, two_columns)


# Parameters ---------------------------------------------------------------------------------


FEW_ROWS = "alpha='cv' needs at least 901 rows here, but there is only n_samples = 9"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha must be positive and finite, got 0; for no penalty use a very small value"),
        ({"alpha": np.nan}, "alpha must be positive and finite, got nan"),
        ({"alpha": [1.0, 0.0]}, "alpha must be positive and finite, got [1.0, 0.0]"),
        ({"alpha": [1.0, 2.0]}, "alpha has 2 values, but there are 1 targets; give one, or one each"),
        ({"alpha": "loo"}, "alpha must be one of 'cv', 'gcv', got 'loo'"),
        ({"alpha": None}, "alpha must be a positive number, a list of them, 'cv' or 'gcv', got None"),
        ({"alpha": ["a"]}, "alpha must hold numbers, got ['a']"),
        ({"alpha": "cv", "alphas": []}, "alphas must hold at least one number, got []"),
        ({"alpha": "cv", "cv": 1}, "cv must be an integer of at least 2, the number of folds, got 1"),
        ({"alpha": "cv", "cv": 901}, FEW_ROWS),
        ({"fold_by": "random"}, "fold_by must be one of 'hash', 'contiguous', got 'random'"),
        ({"scale": True}, "scale must be one of 'auto', 'standard', 'log', 'quantile', 'none', got True"),
        ({"dtype": "float16"}, "dtype must be one of 'auto', 'float32', 'float64', got 'float16'"),
        ({"solver": "lbfgs"}, "solver must be one of 'auto', 'gram', 'cg', 'sgd', got 'lbfgs'"),
        ({"solver": "cg", "alpha": "cv"}, "solver='cg' solves for a given alpha and needs a number"),
        ({"max_sweeps": 0}, "max_sweeps must be a positive integer or None, got 0"),
        ({"tol": -1.0}, "tol must be a positive number, got -1.0"),
        ({"tol": 10**400}, f"tol must be a positive number, got {10**400}"),
        ({"fit_intercept": "no"}, "fit_intercept must be True or False, got 'no'"),
        ({"random_state": -1}, "random_state must be a non-negative integer or None, got -1"),
        ({"features": "fourier"}, "features must be a distrff feature map such as FourierFeatures"),
        ({"features": drf.FourierFeatures(None, 0)}, "n_components must be a positive integer, got 0"),
        ({"features": drf.FourierFeatures(form="complex")}, "is for transform only; use form='cos_sin'"),
        ({"features": drf.FourierFeatures("rbf")}, "got 'rbf'; give an object such as drf.Gaussian()"),
        ({"features": drf.FourierFeatures(drf.Gaussian((1.0, 2.0)))}, "length_scale"),
        ({"features": drf.FourierFeatures(drf.Cauchy(), sampling="orthogonal")}, "use sampling='iid'"),
        ({"features": drf.FourierFeatures(random_state="a")}, "must be a non-negative integer or None"),
    ],
)
def test_parameters(problem, options, message):
    for estimator, y in ((small_ridge(), problem.y), (small_classifier(), problem.y > 0)):
        assert message in refusal(estimator.set_params(**options).fit, problem.X, y)


def test_a_plan_refuses_too_few_rows_as_the_fit_does(problem):
    X, y = problem.X[:3], np.arange(3) > 1
    for estimator in (small_ridge(alpha="cv"), drf.KernelSVC(drf.LinearFeatures(), "cv", scale="none")):
        message = refusal(estimator.fit, X, y)
        assert "='cv' needs at least 5 rows here, but there is only n_samples = 3" in message
        assert refusal(estimator.plan, X, y) == message


def test_parameters_are_refused_before_the_rows_are_read():
    X, none = blocks_of(np.zeros((100, 3)), never), drf.FourierFeatures(None, 0)
    for options in ({"alpha": 0}, {"scale": "no"}, {"features": none}, {"cv": 0, "alpha": "cv"}):
        refusal(small_ridge().set_params(**options).fit, X, da.zeros(100))


def test_automatic_widths_and_spreads_need_rows(problem, rng):
    automatic = drf.KernelRidge(drf.FourierFeatures(drf.Gaussian("auto"), 32), alpha=1.0, scale="none")
    message = refusal(automatic.fit, np.ones((900, 4)), problem.y)
    assert "length_scale='auto' found no two different rows" in message and "give a number" in message
    few = drf.KernelRidge(drf.FourierFeatures(None, 64), 1e-3, scale="none")
    few.fit(rng.standard_normal((10, 2)), np.arange(10.0), np.full(10, 0.1))
    message = refusal(lambda: few.predict(np.zeros((1, 2)), return_std=True))
    assert "the noise cannot be estimated" in message and "give more rows" in message


# Plans --------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_the_first_task(problem, monkeypatch):
    read = []

    def note(block):
        read.append(len(block))
        return block

    X = blocks_of(problem.X, note, rows=300)
    huge = drf.KernelRidge(drf.FourierFeatures(None, 2**20), solver="gram", alpha=1.0, scale="none")
    with dask.config.set(scheduler="synchronous"):
        for ask in (huge.fit, huge.plan):
            message = refusal(ask, X, problem.y, error=PlanRefused)
            assert "the plan needs" in message and "smallest changes that fit: a memory limit of" in message
            assert "n_components=" in message
    assert not read and not hasattr(huge, "model_")
    features = int(message.partition("n_components=")[2].split(";")[0])
    assert 2 <= features < 2**20


# Storage ------------------------------------------------------------------------------------


@pytest.fixture
def group(problem, tmp_path):
    path = tmp_path / "rows.zarr"
    store = zarr.create_group(path)
    store.create_array("X", data=problem.X, chunks=(100, 4))
    store.create_array("y", data=problem.y, chunks=(100,))
    return path


@pytest.mark.parametrize("where", ["process", "cluster"])
def test_a_truncated_chunk(group, request, where):
    chunk = group / "X" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    if where == "cluster":
        request.getfixturevalue("client")
    message = refusal(small_ridge().fit, drf.open_dataset(group))
    assert "rows 300 to 399 of array 'X' cannot be decoded" in message
    assert "the chunk is truncated or damaged: write it again" in message


def test_errors_keep_their_kind_on_a_cluster(problem, client):
    X = spoilt(problem.X, np.nan, 123, 2)
    message = refusal(small_ridge().fit, X, problem.y, error=NonFiniteError)
    assert message.startswith("X contains NaN in row 123, column 2")
    message = refusal(small_classifier().fit, problem.X, np.array([1, "a"] * 450, dtype=object))
    assert "cannot be sorted together" in message
    refusal(small_ridge().fit, None, problem.y, error=InputTypeError)
