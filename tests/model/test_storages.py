"""Rows in every storage: models judge them alike to the last bit, and write the same of them."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client

import distrff as drf
from distrff.engine import reduction
from distrff.errors import InputError

N = 600
IDS = ["who", "number"]


@pytest.fixture
def frame(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Rows of several segments, with weights and ids."""
    monkeypatch.setattr(reduction, "_LIGHT_SEGMENT_ROWS", 130)
    frame = pd.DataFrame(rng.standard_normal((N, 2)), columns=["a", "b"])
    frame = frame.assign(y=np.sin(2 * frame["a"]) * frame["b"] + 3.0, weight=rng.exponential(size=N))
    return frame.assign(who=[f"row {i}" for i in range(N)], number=np.arange(N) + 2**53 + 1)


def model() -> drf.KernelRidge:
    features = drf.FourierFeatures(drf.Gaussian(1.5), 32, random_state=1)
    return drf.KernelRidge(features, random_state=0)


def in_storages(frame: pd.DataFrame, folder: Path) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Name, the arguments X, y and weights, and the ids, of each storage."""
    X, y, s = frame[["a", "b"]], frame["y"], frame["weight"]
    arrays = X.to_numpy(), y.to_numpy(), s.to_numpy()
    columns = {name: frame[name].to_numpy() for name in IDS}
    yield "arrays", arrays, columns
    yield "frame", (X, y, s), columns
    yield "dask arrays", tuple(da.from_array(A, chunks=(170, 1)[: A.ndim]) for A in arrays), columns
    lazy = dd.from_pandas(frame, npartitions=3)
    yield "dask frame", (lazy[["a", "b"]], lazy["y"], lazy["weight"]), {n: lazy[n] for n in IDS}
    frame.to_parquet(folder / "rows.parquet", row_group_size=110)
    how = {"target": "y", "sample_weight": "weight", "ids": IDS}
    parquet = drf.open_dataset(str(folder / "rows.parquet"), columns=["a", "b"], **how)
    yield "Parquet", (parquet,), None
    group = zarr.open_group(folder / "rows.zarr", mode="w")
    stored = dict(zip(("X", "y", "weight"), arrays, strict=True)) | {"number": columns["number"]}
    stored["who"] = columns["who"].astype(np.dtypes.StringDType())
    for name, A in stored.items():
        group.create_array(name, data=A, chunks=(211, *A.shape[1:]))
    yield "Zarr", (drf.open_dataset(str(folder / "rows.zarr"), sample_weight="weight", ids=IDS),), None


def dependence(m: Any, X: Any, y: Any = None, s: Any = None, *, max_rows: int) -> dict[str, Any]:
    found = drf.partial_dependence(m, X, [0, "b"], sample_weight=s, max_rows=max_rows, grid_size=4)
    return found.to_dict() | {"outputs": None}


ASKED: dict[str, Callable[..., Any]] = {
    "evaluation": lambda m, *rows: drf.evaluate(m, *rows).to_dict(),
    "importance": lambda m, *rows: drf.permutation_importance(m, *rows).to_dict(),
    "importance by few rows": lambda m, *rows: drf.permutation_importance(m, *rows, max_rows=280).to_dict(),
    "dependence": lambda m, *rows: dependence(m, *rows, max_rows=N),
    "dependence by few rows": lambda m, *rows: dependence(m, *rows, max_rows=280),
    "calibration": lambda m, *rows: drf.calibrate(m, *rows).intervals.radius(0.8).tolist(),
}


@pytest.mark.parametrize(
    ("asked", "weighted"), [("evaluation", False), *((asked, i % 2 == 0) for i, asked in enumerate(ASKED))]
)
def test_models_judge_rows_alike(
    frame: pd.DataFrame, tmp_path: Path, cluster: Any, asked: str, weighted: bool
) -> None:
    """In any storage, whatever its chunks, and on any workers."""
    frozen = model().set_params(alpha=1e-2).fit(frame[["a", "b"]], frame["y"]).model_
    frame["weight"] = frame["weight"] if weighted else 1.0
    sources = {name: rows for name, rows, _ in in_storages(frame, tmp_path)}
    with dask.config.set(scheduler="synchronous"):
        expected = ASKED[asked](frozen, *sources["arrays"])
        for name, rows in sources.items():
            assert ASKED[asked](frozen, *rows) == expected, name
    with Client(cluster):
        for name in ("arrays", "dask arrays", "Zarr"):
            assert ASKED[asked](frozen, *sources[name]) == expected, name


@pytest.mark.usefixtures("in_this_thread")
def test_fits_judge_their_own_rows_and_predict_them_out_of_fold(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame["weight"] = 1.0
    expected: Any = None
    importance: Any = None
    for name, rows, _ in in_storages(frame, tmp_path):
        fitted = model().fit(*rows)
        is_lazy = name.startswith("dask")
        with pytest.raises(InputError, match="give data") if is_lazy else nullcontext():
            evaluation = drf.evaluate(fitted)
        if is_lazy:
            assert drf.evaluate(fitted, *rows)["rows"] == "other rows"
        else:
            expected = expected or evaluation.to_dict()
            assert (evaluation["rows"], evaluation.to_dict()) == ("out of fold", expected), name
            found = drf.permutation_importance(fitted)
            numbers = [found.rows, found.score, *(c.mse_rise for c in found.columns)]
            importance = importance or numbers
            assert numbers == importance and found.rows == "out of fold", name
        predicted = drf.cross_val_predict(fitted, *rows)
        assert isinstance(predicted, da.Array) == (name not in ("arrays", "frame"))
        error = np.asarray(predicted).ravel() - frame["y"]
        assert np.sqrt(np.mean(np.square(error))) == pytest.approx(expected["rmse"], rel=1e-9)


@pytest.mark.usefixtures("in_this_thread")
def test_predictions_are_written_with_their_ids(frame: pd.DataFrame, tmp_path: Path) -> None:
    fitted = model().set_params(alpha=1e-2).fit(frame[["a", "b"]], frame["y"])
    prediction, std = fitted.predict(frame[["a", "b"]], return_std=True)
    for name, (X, *_), ids in in_storages(frame, tmp_path):
        out = str(tmp_path / f"{name}.parquet")
        report = drf.write_predictions(fitted, X, out, ids=ids, return_std=True)
        assert (report["n_samples"], report["n_kept"], report["shape"]) == (N, 0, (N,))
        found = pd.read_parquet(out)
        assert list(found) == [*IDS, "prediction", "std"]
        assert all(found[id_].tolist() == frame[id_].tolist() for id_ in IDS), name
        np.testing.assert_allclose(found["prediction"], prediction, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found["std"], std, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("in_this_thread")
@pytest.mark.parametrize("asked", ["evaluation", "importance", "calibration"])
def test_raw_frames_are_what_their_steps_make_of_them(rng: np.random.Generator, asked: str) -> None:
    raw = pd.DataFrame({"a": rng.standard_normal(N), "word": rng.choice(["u", "v"], N)})
    raw["y"] = raw["a"] + (raw["word"] == "u")
    data = drf.open_dataset(raw, target="y", one_hot=True)
    fitted = model().set_params(alpha=1.0).fit(data)
    encoded = pd.DataFrame(data.X.compute(), columns=list(data.column_names or ()))
    expected = ASKED[asked](fitted.model_, encoded, raw["y"])
    for rows in ((raw,), (raw.drop(columns="y"), raw["y"])):
        assert ASKED[asked](fitted.model_, *rows) == expected
