"""Models on tables of mixed columns: fitted, scored, asked and stored with the steps to their columns."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import distrff as drf
from distrff.errors import InputError, NonFiniteError

pytestmark = pytest.mark.usefixtures("in_this_thread")

FEATURES = drf.FourierFeatures(drf.Gaussian(2.0), 32, random_state=0)
OPTIONS = {"target": "label", "one_hot": True, "missing": "indicator"}


@pytest.fixture
def frame(rng):
    n = 300
    frame = pd.DataFrame(
        {"a": rng.normal(size=n), "k": rng.integers(0, 5, n), "c": rng.choice(list("uvw"), n)}
    )
    frame["label"] = np.where(frame["a"] + (frame["c"] == "u") > 0.3, "yes", "no")
    frame.loc[rng.random(n) < 0.1, "a"] = None
    frame.loc[0, ["a", "c"]] = None, None
    return frame


@pytest.fixture
def fitted(frame):
    return drf.KernelRidgeClassifier(FEATURES, alpha=1e-2, scale="none").fit(
        drf.open_dataset(frame, **OPTIONS)
    )


def test_raw_frames_go_through_the_steps(fitted, frame):
    data = drf.open_dataset(frame, **OPTIONS)
    names = ["a", "a is missing", "k", "c=u", "c=v", "c=w", "c is missing"]
    assert fitted.feature_names_in_.tolist() == names
    expected = fitted.model_.predict(data.X.compute())
    in_other_order = frame[["k", "label", "c", "a"]]
    for X in (frame, in_other_order, in_other_order.drop(columns="label")):
        np.testing.assert_array_equal(fitted.predict(X), expected)
        np.testing.assert_array_equal(fitted.predict(dd.from_pandas(X, npartitions=3)), expected)
    np.testing.assert_array_equal(fitted.predict(data), expected)
    encoded = pd.DataFrame(data.X.compute(), columns=names)
    np.testing.assert_array_equal(fitted.predict(encoded), expected)
    right = (expected == frame["label"]).mean()
    frames = (frame, dd.from_pandas(frame, npartitions=2))
    assert [fitted.score(X) for X in frames] == [fitted.score(data)] * 2 == [pytest.approx(right)] * 2
    assert fitted.score(frame.drop(columns="label"), frame["label"]) == pytest.approx(right)
    lacking = frame.drop(columns="c")
    for X in (lacking, dd.from_pandas(lacking, npartitions=2)):
        with pytest.raises(InputError, match="DataFrame has no column 'c', which the model's steps need"):
            fitted.predict(X)


def test_sums_of_tables_keep_their_steps(fitted, frame, tmp_path):
    """Models of stored Grams, and of rows in several calls, take raw frames, as those of `fit` do."""
    steps = fitted.model_.steps
    first, later = (drf.open_dataset(part, steps=steps) for part in (frame[:100], frame[100:]))
    gram = drf.gram(first, FEATURES, scale="none")
    (gram + drf.gram(later, like=gram)).save(str(tmp_path / "gram.zarr"))
    stored = drf.GramStatistics.load(str(tmp_path / "gram.zarr"))
    of_gram = drf.KernelRidgeClassifier(alpha=1e-2, scale="none").fit_gram(stored)
    grown = drf.KernelRidgeClassifier(FEATURES, alpha=1e-2, scale="none").partial_fit(first)
    grown.partial_fit(later)
    # Σs/alpha is 3e4; the weights are of size 10 at most.
    expected = fitted.decision_function(frame)
    for model in (of_gram, grown):
        np.testing.assert_allclose(model.decision_function(frame), expected, rtol=0, atol=1e-7)
        assert model.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()
    other = drf.open_dataset(frame.replace({"c": {"w": "z"}}), **OPTIONS)
    with pytest.raises(InputError, match="feature names should match"):
        drf.gram(other, like=gram)
    with pytest.raises(InputError, match="feature names should match"):
        grown.partial_fit(other)
    filled = drf.open_dataset(frame[::2], **OPTIONS)  # another median in the place of what is missing
    with pytest.raises(InputError, match="steps of the first dataset"):
        grown.partial_fit(filled)


def test_rows_that_training_left_out_are_left_out_of_scores_and_refused_in_predictions(frame):
    data = drf.open_dataset(frame, **OPTIONS | {"missing": "drop"})
    complete = frame.dropna()
    fitted = drf.KernelRidgeClassifier(FEATURES, alpha=1e-2, scale="none").fit(data)
    assert fitted.report_["n_samples"] == len(complete)
    assert fitted.report_["table"]["rows_dropped"] == 300 - len(complete)
    assert f"{300 - len(complete)} of 300 rows left out, which lack a value" in fitted.report_["notes"]
    right = fitted.predict(complete) == complete["label"]
    assert fitted.score(frame) == pytest.approx(right.mean())
    with pytest.raises(NonFiniteError, match="column 'a' has no value in row 0; drop or fill such rows"):
        fitted.predict(frame)


def test_every_model_keeps_the_steps(frame, tmp_path):
    data = drf.open_dataset(frame, **OPTIONS)
    numbers = drf.open_dataset(frame, target="k", columns=["a", "c"], one_hot=True, missing="mean")
    for estimator, rows in [
        (drf.KernelRidge(FEATURES, alpha=1.0, scale="none"), numbers),
        (drf.KernelSVC(FEATURES, loss="squared_hinge", scale="none"), data),
        (drf.KernelPCA(FEATURES, scale="none"), data),
    ]:
        model = estimator.fit(rows).model_
        estimator.save(tmp_path / "m.zarr", overwrite=True)
        stored = drf.load_model(tmp_path / "m.zarr")
        assert stored.steps == model.steps == rows.steps is not None
        again = drf.open_dataset(frame, steps=stored.steps)
        np.testing.assert_array_equal(again.X, rows.X)
        np.testing.assert_array_equal(stored.decision(again.X.compute()), model.decision(rows.X.compute()))


def test_the_same_bits_however_the_table_is_cut(frame, tmp_path, client):
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=70)
    coefficients = []
    for path, scheduler in [(frame, "sync"), (tmp_path / "x.parquet", "threads"), (frame, None)]:
        source = dd.from_pandas(frame, npartitions=4) if scheduler is None else path
        with dask.config.set(scheduler=scheduler):
            data = drf.open_dataset(source, **OPTIONS)
            coefficients.append(drf.KernelRidgeClassifier(FEATURES, alpha=1.0, scale="none").fit(data).coef_)
    for other in coefficients[1:]:
        np.testing.assert_array_equal(other, coefficients[0])
