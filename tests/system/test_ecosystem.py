"""Models and maps among the parts of scikit-learn and dask-ml; the latter's search is that of an example."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import distrff as drf

pytestmark = pytest.mark.usefixtures("in_this_thread")

N = 200
MAP = drf.FourierFeatures(drf.Gaussian(1.0), 32, random_state=0)
RIDGE = drf.KernelRidge(MAP, alpha=1e-2, scale="none")
WIDTHS = "features__kernel__length_scale"


@pytest.fixture
def X(rng):
    return rng.standard_normal((N, 3))


@pytest.fixture
def y(X):
    return np.sin(X[:, 0])


@pytest.fixture
def frame(X):
    return pd.DataFrame(X, columns=list("abc")).assign(word=pd.Series(["u", "v"] * (N // 2)).astype(object))


MAPS = [
    MAP,
    drf.FourierFeatures(drf.Laplacian(1.0), 15, form="phase", random_state=0),
    drf.NystroemFeatures(drf.Gaussian(1.0), 8, random_state=0),
    drf.LinearFeatures(),
    drf.TransformerFeatures(StandardScaler()),
    drf.ConcatenatedFeatures([MAP, drf.LinearFeatures()]),
    drf.KernelPCA(MAP, random_state=0, scale="none"),
]


@pytest.mark.parametrize("map_", MAPS, ids=lambda m: type(m).__name__)
def test_frames_come_out_of_maps_where_they_are_asked_for(frame, map_):
    columns = frame[["a", "b", "c"]]
    plain = clone(map_).fit(columns)
    fitted = clone(map_).set_output(transform="pandas").fit(columns)
    Z = fitted.transform(columns)
    assert isinstance(Z, pd.DataFrame)
    assert Z.columns.tolist() == fitted.get_feature_names_out().tolist()
    assert len(set(Z.columns)) == Z.shape[1]
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(Z, plain.transform(columns))
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(columns[["b", "a", "c"]])
    binning = drf.RandomBinningFeatures(drf.Laplacian(1.0), 4).set_output(transform="pandas").fit(columns)
    with pytest.raises(ValueError, match="sparse"):  # features have no frame
        binning.transform(columns)


def test_pipelines_of_both_libraries(frame, y):
    columns = ColumnTransformer([("map", MAP, ["a", "b"]), ("words", OneHotEncoder(), ["word"])])
    linear = make_pipeline(columns, Ridge(1e-2)).set_output(transform="default").fit(frame, y)
    ours = make_pipeline(clone(columns), drf.KernelRidge(drf.LinearFeatures(), 1e-2, scale="none")).fit(
        frame, y
    )
    np.testing.assert_allclose(ours.predict(frame), linear.predict(frame), atol=1e-9)
    names = columns.fit(frame).get_feature_names_out()
    assert names[[0, -1]].tolist() == ["map__fourierfeatures0", "words__word_v"]


NYSTROEM = drf.NystroemFeatures(drf.Gaussian(1.0), 48)
JOINED = drf.ConcatenatedFeatures([MAP, drf.LinearFeatures()])


@pytest.mark.parametrize(
    ("features", "parameter", "others"),
    [
        (MAP, "kernel__length_scale", {WIDTHS: [0.01, 2.0, 1e4], "alpha": [1e-3]}),
        (NYSTROEM, "kernel__length_scale", {"features__landmarks": ["uniform", "leverage"]}),
        (JOINED, "maps__0__kernel__length_scale", {}),
    ],
)
def test_parameters_of_maps_are_searched(X, y, features, parameter, others):
    grid = {f"features__{parameter}": [0.01, 2.0]} | others
    search = GridSearchCV(drf.KernelRidge(features, 1e-2, scale="none", random_state=0), grid, cv=2).fit(X, y)
    assert search.best_params_[f"features__{parameter}"] == 2.0
    assert search.best_estimator_.features.get_params()[parameter] == 2.0
    assert features.get_params()[parameter] == 1.0
    expected = clone(search.estimator).set_params(**search.best_params_).fit(X, y)
    # Several threads of BLAS may add up in another order: at κ ≤ n/alpha, 1e5 roundings at most.
    np.testing.assert_allclose(search.predict(X), expected.predict(X), rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def dask_ml():
    """dask-ml, which costs seconds to import."""
    return pytest.importorskip("dask_ml", reason="dask-ml is not installed")


@pytest.fixture
def lazy(X, y):
    return da.from_array(X, chunks=(60, 3)), da.from_array(y, chunks=60)


def test_dask_ml_splits(dask_ml, lazy):
    from dask_ml.model_selection import KFold, train_test_split

    X, y = lazy
    first, second, y_first, y_second = train_test_split(X, y, test_size=0.25, random_state=0, shuffle=True)
    model = clone(RIDGE).fit(first, y_first)
    score = drf.metrics.r2_score(y_second, model.predict(second))
    assert model.score(second, y_second) == pytest.approx(score)
    for train, test in KFold(3, shuffle=True, random_state=0).split(X, y):
        assert clone(RIDGE).fit(X[train], y[train]).score(X[test], y[test]) > 0.5


def test_dask_ml_encoders(dask_ml, frame, y):
    from dask_ml.preprocessing import Categorizer, DummyEncoder, LabelEncoder, OrdinalEncoder

    table = dd.from_pandas(frame, npartitions=3)
    sizes = tuple(table.map_partitions(len).compute())
    targets = da.from_array(y, chunks=(sizes,))
    dummies = make_pipeline(Categorizer(), DummyEncoder(), clone(RIDGE)).fit(table, targets)
    assert dummies[-1].feature_names_in_.tolist() == ["a", "b", "c", "word_u", "word_v"]
    ordinal = make_pipeline(Categorizer(), OrdinalEncoder(), clone(RIDGE)).fit(table, targets)
    for pipeline in (dummies, ordinal):
        assert pipeline.predict(table).compute().shape == (N,)
        assert pipeline.score(table, targets) > 0.2
    labels = LabelEncoder().fit_transform(da.from_array(np.where(y > 0, "p", "n"), chunks=(sizes,)))
    assert drf.KernelSVC(MAP, scale="none").fit(table[["a", "b", "c"]], labels).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    "model", [RIDGE, drf.KernelLikelihoodClassifier(MAP, scale="none")], ids=["ridge", "classifier"]
)
def test_dask_ml_parallel_post_fit(dask_ml, X, y, model):
    from dask_ml.wrappers import ParallelPostFit

    targets = y if model is RIDGE else np.where(y > 0, "p", "n")
    fitted = ParallelPostFit(clone(model)).fit(X, targets)
    rows = da.from_array(X, chunks=(60, 3))
    found, expected = fitted.predict(rows).compute(), fitted.estimator.predict(X)
    if model is RIDGE:
        np.testing.assert_allclose(found, expected, atol=1e-9)
    else:
        P = fitted.estimator.predict_proba(X)
        np.testing.assert_allclose(fitted.predict_proba(rows), P, atol=1e-9)
        clear = np.abs(P[:, 0] - 0.5) > 1e-6
        np.testing.assert_array_equal(found[clear], expected[clear])
