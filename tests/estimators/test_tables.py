"""Models on tables of mixed columns: fitted, scored, asked and stored with the steps to their columns."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy.sparse import csr_matrix
from sklearn.model_selection import cross_val_score

import distrff as drf
from distrff.errors import DataWarning, InputError, NonFiniteError

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
    filled = drf.open_dataset(frame[::2], **OPTIONS)  # another mean in the place of what is missing
    flipped = drf.open_dataset(frame, positive="no", **OPTIONS)
    for rows, told in (
        (other, "'c': categories z, u, v, at the fit w, u, v"),
        (filled, "'a': missing values become"),
        (flipped, "'label': positive='no', at the fit positive=None"),
    ):
        for call in (lambda X: drf.gram(X, like=gram), grown.partial_fit):
            with pytest.raises(InputError, match=f"{told}.*steps of the first dataset"):
                call(rows)


def test_rows_of_other_steps_are_refused_wherever_a_model_meets_them(frame, tmp_path):
    """New rows with the options of the fit have another mean, first time and categories of their own."""
    frame["when"] = pd.Timestamp("2020-02-01") + pd.to_timedelta(np.arange(300), unit="h")
    frame["c"], frame["a"] = frame["c"].fillna("u"), frame["a"] + 5
    options = OPTIONS | {"missing": "mean", "datetime": "seconds", "positive": "yes"}
    fitted = drf.KernelRidge(FEATURES, alpha=1e-2, solver="cg", warm_start=True)
    fitted.fit(drf.open_dataset(frame, **options))
    model, expected = fitted.model_, fitted.predict(frame)
    calls = [
        fitted.predict,
        fitted.score,
        model.predict,
        lambda X: drf.evaluate(fitted, X),
        lambda X: drf.calibrate(model, X),
        lambda X: drf.permutation_importance(model, X),
        lambda X: drf.write_predictions(model, X, tmp_path / "p.parquet", overwrite=True),
        fitted.fit,
    ]
    remedy = r".*open_dataset\(\.\.\., steps=model\.steps\)"
    no_gap = frame.fillna({"a": float(frame["a"].mean())})
    others = {
        "'a': missing values become .*, at the fit": frame.assign(a=frame["a"] * 2),
        "'when': seconds since 2020-02-02, at the fit 2020-02-01": frame.assign(
            when=frame["when"] + pd.Timedelta("1D")
        ),
        "'c': categories z, u, v, at the fit w, u, v": frame.replace({"c": {"w": "z"}}),
        "'k': encoded as category, at the fit number": frame.assign(k=frame["k"].astype(str)),
    }
    for told, table in others.items():
        own = drf.open_dataset(table, **options)
        for call in calls:
            with pytest.raises(
                InputError, match=f"DataFrame was encoded by other steps: column {told}{remedy}"
            ):
                call(own)
    flipped = drf.open_dataset(frame, **options | {"positive": "no"})
    np.testing.assert_array_equal(fitted.predict(flipped), expected)  # which take no target
    with pytest.raises(InputError, match="target 'label': positive='no', at the fit positive='yes'"):
        fitted.score(flipped)
    # Raw numbers of a Parquet file, opened without steps, are told the way.
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.warns(DataWarning, match="left out: (c, label|when) "):
        raw = drf.open_dataset(tmp_path / "x.parquet")
    for call in calls[:-1]:
        with pytest.raises(InputError, match=f"x.parquet is a table, give the raw rows{remedy}"):
            call(raw)
    # Equal steps of any storage, up to the digits of float32, and without a fill, go on.
    dates = frame.assign(when=frame["when"].astype("M8[us]"), a=frame["a"].astype(np.float32))
    for table, rule in (
        (frame, "mean"),
        (tmp_path / "x.parquet", "mean"),
        (dates, "mean"),
        (no_gap, "error"),
    ):
        np.testing.assert_allclose(
            fitted.predict(drf.open_dataset(table, **options | {"missing": rule})),
            expected,
            rtol=0,
            atol=1e-4,
        )


def test_rows_that_training_left_out_are_left_out_of_scores_and_have_no_prediction(frame):
    data = drf.open_dataset(frame, **OPTIONS | {"missing": "drop"})
    complete = frame.dropna()
    fitted = drf.KernelRidgeClassifier(FEATURES, alpha=1e-2, scale="none").fit(data)
    assert fitted.report_["n_samples"] == len(complete)
    assert fitted.report_["table"]["rows_dropped"] == 300 - len(complete)
    assert f"{300 - len(complete)} of 300 rows left out, which lack a value" in fitted.report_["notes"]
    right = fitted.predict(complete) == complete["label"]
    assert fitted.score(frame) == pytest.approx(right.mean())
    lacking = frame[["a", "k", "c"]].isna().any(axis=1).to_numpy()
    expected = np.full(300, None)
    expected[~lacking] = fitted.predict(frame[~lacking])
    for X in (frame, dd.from_pandas(frame, npartitions=3)):
        np.testing.assert_array_equal(fitted.predict(X), expected)
    F = fitted.decision_function(frame)
    np.testing.assert_array_equal(np.isnan(F), lacking)
    np.testing.assert_array_equal(F[~lacking], fitted.decision_function(frame[~lacking]))
    encoded = np.full((300, data.n_columns), np.nan)
    encoded[~lacking] = drf.open_dataset(frame[~lacking].drop(columns="label"), steps=data.steps).X
    np.testing.assert_array_equal(fitted.predict(encoded), expected)
    encoded[np.flatnonzero(~lacking)[0], 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        fitted.predict(encoded)
    numbered = drf.open_dataset(frame.assign(label=frame["k"] > 2), **OPTIONS | {"missing": "drop"})
    whole = drf.KernelRidgeClassifier(FEATURES, alpha=1e-2, scale="none").fit(numbered)
    with pytest.raises(InputError, match="some rows lack a value, and labels of bool have no missing value"):
        whole.predict(frame)
    # The infinity of the last row is named by its own number, though rows before it are left out.
    with pytest.raises(NonFiniteError, match="infinity in row 299, column 0"):
        fitted.predict(frame.assign(a=np.r_[frame["a"][:-1], np.inf]))
    # Given targets and weights lose the rows that the steps leave out.
    y, weight = frame["label"].to_numpy(), np.arange(300.0)
    for given in ({"y": y}, {"sample_weight": weight}, {"y": y, "sample_weight": weight}):
        rows = frame.drop(columns="label") if "y" in given else frame
        assert drf.evaluate(fitted.model_, rows, **given)["n_samples"] == len(complete)
    expected = fitted.score(complete[["a", "k", "c"]], complete["label"], weight[frame.notna().all(axis=1)])
    assert fitted.score(frame, sample_weight=weight) == pytest.approx(expected, rel=1e-12)


def test_rows_without_a_target_are_left_out_where_missing_values_are_filled(frame):
    y = frame["a"].fillna(0.0).mask(frame["k"] == 4)
    for missing in ("mean", "indicator"):
        data = drf.open_dataset(
            frame.drop(columns="label").assign(y=y), target="y", one_hot=True, missing=missing
        )
        fitted = drf.KernelRidge(FEATURES, alpha=1e-2).fit(data)
        assert fitted.report_["n_samples"] == y.notna().sum() < 300
        assert np.isfinite(fitted.predict(frame)).all()
        assert drf.evaluate(fitted.model_, frame.assign(y=y))["n_samples"] == y.notna().sum()


def test_estimators_take_raw_frames(frame):
    """Text becomes columns of 0 and 1, times those of the calendar; a target is given apart."""
    whole = frame.assign(a=frame["a"].fillna(0.0), c=frame["c"].fillna("w")).drop(columns="label")
    whole["when"] = pd.Timestamp("2020-02-01") + pd.to_timedelta(np.arange(300), unit="h")
    y, weight = whole["a"] ** 2, np.arange(300.0)
    opened = drf.open_dataset(whole, one_hot=True, datetime="parts")
    expected = drf.KernelRidge(FEATURES, alpha=1e-2).fit(opened.X.compute(), y, weight)
    polars = pytest.importorskip("polars", reason="the extra `test` has it")
    for X in (whole, dd.from_pandas(whole, npartitions=3), polars.from_pandas(whole)):
        fitted = drf.KernelRidge(FEATURES, alpha=1e-2).fit(X, y.to_numpy(), weight)
        np.testing.assert_array_equal(fitted.coef_, expected.coef_)
        np.testing.assert_array_equal(fitted.predict(X), expected.predict(opened.X.compute()))
        assert fitted.score(X, y.to_numpy()) == expected.score(opened.X.compute(), y)
        assert fitted.model_.steps == opened.steps
    # Rows of later calls go through the steps of the first, and may lack a category.
    grown = drf.KernelRidge(FEATURES, alpha=1e-2, scale="none").partial_fit(whole, y)
    later = whole[whole["c"] != "u"]
    grown.partial_fit(later, y[later.index])
    both = drf.open_dataset(pd.concat([whole, later]), steps=opened.steps).X.compute()
    at_once = drf.KernelRidge(FEATURES, alpha=1e-2, scale="none").fit(both, np.r_[y, y[later.index]])
    # Σs/alpha is 5e4; the weights are of size 10 at most.
    np.testing.assert_allclose(grown.predict(whole), at_once.predict(both)[:300], rtol=0, atol=1e-7)
    assert drf.KernelPCA(FEATURES).fit(whole).transform(whole).shape == (300, 2)
    # Folds of scikit-learn are runs of rows here: without the hours, of which each fold lacks a third.
    of_any_hour = whole.drop(columns="when")
    scores = cross_val_score(drf.KernelRidgeClassifier(FEATURES), of_any_hour, frame["label"], cv=3)
    most_frequent = frame["label"].value_counts(normalize=True).max()
    assert scores.mean() > most_frequent  # "c" decides where "a" does not
    with pytest.warns(DataWarning, match="column 'name' of the frame is left out: it has more than 256"):
        drf.KernelRidge(FEATURES).fit(whole.assign(name=[f"n{i}" for i in range(300)]), y)
    with pytest.raises(NonFiniteError, match=r"column 'a' has no value in .* to distrff\.open_data"):
        drf.KernelRidge(FEATURES).fit(frame, y)


def test_a_stored_model_takes_raw_rows_of_any_kind(frame, tmp_path):
    polars, xarray = (pytest.importorskip(m, reason="the extra `test` has it") for m in ("polars", "xarray"))
    frame["when"] = pd.Timestamp("2020-02-01") + pd.to_timedelta(np.arange(300), unit="h")
    frame["c"] = frame["c"].astype("category")
    new = frame.drop(columns="label")[::-1].reset_index(drop=True)
    kinds = {
        "pandas": new[["when", "c", "k", "a"]].assign(more="?"),
        "polars": polars.from_pandas(new),
        "pyarrow": pa.Table.from_pandas(new),
        "dask": dd.from_pandas(new, npartitions=3),
        "xarray": xarray.Dataset({name: ("row", new[name].to_numpy()) for name in new}),
    }
    features = drf.FourierFeatures(drf.Gaussian(2.0), 32, random_state=0)
    for missing in ("drop", "mean"):
        rows = frame.drop(columns="label").assign(y=frame["k"] * 1.0)
        data = drf.open_dataset(rows, target="y", one_hot=True, missing=missing, datetime="parts")
        fitted = drf.KernelRidge(features, alpha=1e-2).fit(data)
        fitted.save(tmp_path / "m.zarr", overwrite=True, include_std=True)
        model = drf.load_model(tmp_path / "m.zarr")
        X = drf.open_dataset(new, steps=model.steps).X.compute()
        prediction, std = model.predict(X, return_std=True)
        assert np.isnan(prediction).any() == (missing == "drop")
        for rows in kinds.values():
            for found, expected in zip(model.predict(rows, return_std=True), (prediction, std), strict=True):
                assert dask.is_dask_collection(found) == dask.is_dask_collection(rows)
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)  # in other blocks
            opened = drf.open_dataset(rows, steps=model.steps)
            np.testing.assert_array_equal(opened.X, X)
            np.testing.assert_array_equal(model.predict(opened), model.predict(opened.X))
            np.testing.assert_allclose(model.transform(rows), model.transform(X), rtol=0, atol=1e-12)
    assert model.predict(new[:0]).shape == model.predict(kinds["polars"][:0]).shape == (0,)
    with pytest.raises(InputError, match="DataFrame has no column 'c', which the model's steps need"):
        model.predict(kinds["polars"].drop("c"))
    with pytest.raises(InputError, match="needs sample_dim, the dimension of its samples"):
        drf.open_dataset(kinds["xarray"].isel(row=0), steps=model.steps)


def test_sparse_features_and_sparse_rows_of_a_model_that_drops_rows(frame, tmp_path):
    numbers = frame[["a", "k"]].assign(y=frame["k"] * 1.0)
    data = drf.open_dataset(numbers, target="y", missing="drop")
    binned = drf.KernelRidge(drf.RandomBinningFeatures(n_grids=4, random_state=0), alpha=1.0).fit(data).model_
    assert np.isnan(binned.predict(numbers)).sum() == numbers["a"].isna().sum()
    with pytest.raises(InputError, match="some rows lack a value, and features of random binning, which are"):
        binned.transform(numbers)
    model = drf.KernelRidge(FEATURES, alpha=1.0, scale="none").fit(data).model_
    rows = csr_matrix(data.X.compute())
    drf.write_predictions(model, rows, tmp_path / "p.zarr")
    np.testing.assert_allclose(zarr.open_array(tmp_path / "p.zarr")[:], model.predict(rows), rtol=1e-12)
    with pytest.raises(InputError, match="has the name of another kind of file, and results are Zarr, P"):
        drf.write_predictions(model, rows, tmp_path / "p.tsv")


def test_a_stored_model_finds_columns_of_numbers_by_their_names(rng, tmp_path):
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    drf.KernelRidge(FEATURES, alpha=1.0).fit(frame, frame["a"]).save(tmp_path / "m.zarr")
    model = drf.load_model(tmp_path / "m.zarr")
    expected = model.predict(frame.to_numpy())
    assert np.isfinite(expected).all()
    other = frame[["c", "a", "b"]].assign(text="?")
    np.testing.assert_array_equal(model.predict(other), expected)
    in_halves = model.predict(
        dd.from_pandas(other, npartitions=2)
    )  # products of other heights round otherwise
    np.testing.assert_allclose(in_halves, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_array_equal(model.predict(pa.Table.from_pandas(other)), expected)
    with pytest.raises(InputError, match="has no column 'b', which the model was fitted to; it has: c, a"):
        model.predict(other[["c", "a"]])


def test_predictions_that_are_written_are_null_for_rows_that_lack_a_value(frame, tmp_path):
    lacking = frame[["a", "k", "c"]].isna().any(axis=1).to_numpy()
    targets = {"number": frame["k"] * 1.0, "text": frame["label"], "integer": frame["k"] % 2}
    for name, y in targets.items():
        estimator = drf.KernelRidge if name == "number" else drf.KernelRidgeClassifier
        rows = frame.drop(columns="label").assign(label=y)
        data = drf.open_dataset(rows, **OPTIONS | {"missing": "drop"})
        model = estimator(FEATURES, alpha=1e-2).fit(data).model_
        expected = model.predict(frame[~lacking])
        report = drf.write_predictions(model, frame, tmp_path / f"{name}.parquet", ids="k")
        assert report["n_missing"] == lacking.sum()
        written = pq.read_table(tmp_path / f"{name}.parquet")
        assert written["k"].to_pylist() == frame["k"].tolist()
        np.testing.assert_array_equal(written["prediction"].is_null(), lacking)
        assert written["prediction"].drop_null().to_pylist() == expected.tolist()
        drf.write_predictions(model, frame, tmp_path / f"{name}.csv", ids="k")
        texts = pd.read_csv(tmp_path / f"{name}.csv", dtype=str)["prediction"]
        assert texts[lacking].isna().all() and texts[~lacking].tolist() == list(map(str, expected.tolist()))
        to_zarr = model, frame, tmp_path / f"{name}.zarr"
        if name == "integer":
            with pytest.raises(InputError, match="Zarr has no null for 'prediction' of int64; write to Parq"):
                drf.write_predictions(*to_zarr)
            assert not (tmp_path / f"{name}.zarr").exists()
            continue
        drf.write_predictions(*to_zarr)
        values = zarr.open_array(tmp_path / f"{name}.zarr")[:]
        assert values[~lacking].tolist() == expected.tolist()
        assert (np.isnan(values[lacking]) if name == "number" else values[lacking] == "").all()


def spelt_otherwise(values):
    """The same values in other types, as files and frames have them."""
    present = pd.Series(values).dropna()
    yield pd.Series(pd.Categorical(values))
    if present.map(lambda v: isinstance(v, str)).all():
        return
    yield pd.Series(values)
    yield pd.Series(values, dtype=object)
    if present.map(lambda v: isinstance(v, bool)).all():
        yield pd.Series(values).map({True: "TRUE", False: " false"})
    if (present == present // 1).all():
        yield pd.Series(values).astype("Int64")
        yield pd.Series(values).astype("Int64").astype("string")
    yield pd.Series([None if pd.isna(v) else str(v) for v in values], dtype=object)


@pytest.mark.parametrize(
    "drawn",
    [[1.0, 2.0, np.nan], [0.5, 0.25], [True, False], [0, 1], [7, -3, 2**60]],
    ids=["whole floats with gaps", "fractions", "booleans", "zero and one", "integers"],
)
def test_a_category_knows_its_values_in_every_type(rng, drawn, tmp_path):
    values = rng.permutation(np.resize(drawn, 60))
    frame = pd.DataFrame({"k": pd.Categorical(values), "x": rng.normal(size=60)})
    frame["y"] = np.unique(values, return_inverse=True)[1].astype(float)
    data = drf.open_dataset(frame, target="y", one_hot=True, missing="indicator")
    model = drf.KernelRidge(FEATURES, alpha=1.0, scale="none").fit(data).model_
    expected = model.predict(frame)
    for column in spelt_otherwise(values.tolist()):
        other = frame.assign(k=column)
        np.testing.assert_array_equal(model.predict(other), expected, err_msg=str(column.dtype))
    other.to_parquet(tmp_path / "x.parquet")
    drf.write_predictions(
        model, drf.open_dataset(tmp_path / "x.parquet", steps=model.steps), tmp_path / "p.zarr"
    )
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "p.zarr")[:], expected)


def test_categories_that_the_fit_never_saw_are_counted_and_named(frame, tmp_path):
    frame = frame.fillna({"a": 0.0, "c": "u"})
    table, y = frame[["a", "k", "c"]], frame["a"] + (frame["c"] == "v")
    fitted = drf.KernelRidge(FEATURES, alpha=1.0).fit(table, y)
    unseen = table.assign(c=pd.Categorical(table["c"]).codes)
    told = "column 'c': 300 of 300 rows hold .* the fit never saw, such as '0', '1', '2'; .* 'u', 'v', 'w'"
    unseen.assign(y=y).to_parquet(tmp_path / "x.parquet")
    calls = [
        lambda: fitted.predict(unseen),
        lambda: fitted.model_.predict(unseen),
        lambda: fitted.predict(dd.from_pandas(unseen, npartitions=3)),  # while it counts the rows
        lambda: fitted.score(unseen, y),
        lambda: drf.evaluate(fitted, unseen, y)["n_unseen_categories"],
        lambda: drf.write_predictions(fitted, unseen, tmp_path / "p", overwrite=True)["n_unseen_categories"],
        lambda: drf.open_dataset(tmp_path / "x.parquet", steps=fitted.model_.steps).table_report[
            "n_unseen_categories"
        ],
    ]
    for call in calls:
        with pytest.warns(DataWarning, match=told):
            found = call()
        assert not isinstance(found, dict) or found == {"c": 300}
    few = table.assign(c=["new", *table["c"][1:]])
    assert drf.evaluate(fitted, few, y)["n_unseen_categories"] == {"c": 1}  # too few for a warning
    assert "n_unseen_categories" not in drf.evaluate(fitted, table, y)


def test_columns_of_integers_at_the_fit_take_fractions_later(frame, tmp_path):
    table = frame[["k", "c"]].fillna("u").assign(b=frame["k"] > 2)
    fitted = drf.KernelRidge(FEATURES, alpha=1.0).fit(table, frame["k"] * 1.0)
    floats = table.assign(k=table["k"] * 1.0, b=table["b"] * 1.0)
    np.testing.assert_array_equal(fitted.predict(floats), fitted.predict(table))
    between = floats.assign(k=floats["k"] + 0.5, b=0.5)
    X = between[["k"]].assign(**{f"c={c}": table["c"] == c for c in "uvw"}, b=0.5)
    expected = fitted.predict(X.astype(float))
    between.to_parquet(tmp_path / "x.parquet")
    stored = drf.open_dataset(tmp_path / "x.parquet", steps=fitted.model_.steps)
    for rows in (between, between.astype({"k": str}), dd.from_pandas(between, npartitions=3), stored):
        np.testing.assert_array_equal(np.asarray(fitted.predict(rows)), expected)
    with pytest.raises(InputError, match="column 'k' holds '07', but it held numbers at the fit"):
        fitted.predict(table.assign(k="07"))


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
