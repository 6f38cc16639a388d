"""The same rows give the same bits however they are chunked, laid out and stored, in this process."""

from __future__ import annotations

from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import distrff as drf

N, D = 1503, 16
SETTINGS = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def many_cuts(monkeypatch):
    """Segments and tiles of a few hundred rows, so that chunks straddle all of them."""
    for name, rows in (("_MIN_SEGMENT_ROWS", 128), ("_LIGHT_SEGMENT_ROWS", 400), ("_MAX_TILE_ROWS", 512)):
        monkeypatch.setattr(f"distrff.engine.segments.{name}", rows)


@cache
def rows(dtype):
    """X, y and weights, the same in every test of this module; all of it is about how they are cut."""
    rng = np.random.default_rng(8)
    X = (rng.standard_normal((N, 3)) * [1, 100, 0.01] + [0, 1e4, 0]).astype(dtype)
    y = np.sin(X[:, 0]) + 0.01 * X[:, 1] + 0.1 * rng.standard_normal(N)
    return X, y, rng.exponential(size=N)


def bits_of(data, y=None, s=None, *, kind="ridge"):
    """Everything that rows decide: the Gram of folds, or a model that was chosen by them."""
    width = "auto" if kind == "auto" else 2.0
    features = drf.FourierFeatures(drf.Matern(width), D)
    if kind == "gram":
        found = drf.gram(data, features, y, s, cv=3, scale="standard", random_state=1)
        parts = found.A, found.scaling.arrays()["column_scale"], found.targets.shift
        return [part.tobytes() for part in parts]
    options = dict(cv=3, scale="standard", random_state=1)
    model = drf.KernelRidge(features, "cv", **options).fit(data, y, s)
    return model.coef_.tobytes(), model.intercept_, model.alpha_, repr(model.features_.kernel_)


@cache
def expected(dtype, kind):
    with dask.config.set(scheduler="synchronous"):
        return bits_of(*rows(dtype), kind=kind)


def chunks_of(n, largest_number=9):
    """Sizes that add to n: a few cuts anywhere, one row apart if need be."""
    cuts = st.lists(st.integers(1, n - 1), max_size=largest_number, unique=True)
    return cuts.map(lambda ends: tuple(int(size) for size in np.diff([0, *sorted(ends), n])))


SCHEDULERS = st.sampled_from(["synchronous", "threads"])
DTYPES = st.sampled_from(["float32", "float64"])
KINDS = st.sampled_from(["gram", "ridge", "auto"])


@SETTINGS
@given(
    of_X=chunks_of(N),
    of_y=chunks_of(N),
    of_s=chunks_of(N),
    of_columns=st.sampled_from([(3,), (1, 2), (1, 1, 1)]),
    scheduler=SCHEDULERS,
    dtype=DTYPES,
    kind=KINDS,
)
def test_dask_arrays_of_any_chunks(of_X, of_y, of_s, of_columns, scheduler, dtype, kind):
    X, y, s = rows(dtype)
    chunks = (of_X, of_columns), (of_y,), (of_s,)
    lazy = [da.from_array(values, chunks=sizes) for values, sizes in zip((X, y, s), chunks, strict=True)]
    with dask.config.set(scheduler=scheduler, num_workers=3):
        assert bits_of(*lazy, kind=kind) == expected(dtype, kind)


@SETTINGS
@given(
    chunk_of_X=st.integers(60, N + 50),
    columns=st.integers(1, 3),
    chunk_of_y=st.integers(60, N + 50),
    per_shard=st.sampled_from([None, 1, 3]),
    scheduler=SCHEDULERS,
    dtype=DTYPES,
    kind=KINDS,
)
def test_zarr_arrays_of_any_chunks(
    tmp_path_factory, chunk_of_X, columns, chunk_of_y, per_shard, scheduler, dtype, kind
):
    X, y, s = rows(dtype)
    group = zarr.create_group(tmp_path_factory.mktemp("any") / "rows.zarr")
    shards = None if per_shard is None else (per_shard * chunk_of_X, columns)
    # Filled afterwards: zarr before 3.1.3 spoils shards that it makes from data.
    group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(chunk_of_X, columns), shards=shards)[:] = X
    group.create_array("y", data=y, chunks=(chunk_of_y,))
    group.create_array("sample_weight", data=s, chunks=(chunk_of_X,))
    dataset = drf.open_dataset(str(group.store.root))
    with dask.config.set(scheduler=scheduler, num_workers=3):
        assert bits_of(dataset, kind=kind) == expected(dtype, kind)


@SETTINGS
@given(
    of_X=chunks_of(N),
    of_y=chunks_of(N),
    scheduler=SCHEDULERS,
    fold_by=st.sampled_from(["hash", "contiguous"]),
)
def test_classes_of_any_chunks(of_X, of_y, scheduler, fold_by):
    X, y, s = rows("float32")
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [99, 101])]

    def bits(*data):
        features = drf.FourierFeatures(drf.Laplacian(1.0), D)
        options = dict(cv=3, fold_by=fold_by, scale="standard", class_weight="balanced", random_state=2)
        model = drf.KernelRidgeClassifier(features, "cv", **options).fit(*data)
        return model.coef_.tobytes(), model.intercept_.tobytes(), model.alpha_, model.classes_.tolist()

    with dask.config.set(scheduler="synchronous"):
        whole = bits(X, labels, s)
    lazy = da.from_array(X, chunks=(of_X, 3)), *(da.from_array(v, chunks=(of_y,)) for v in (labels, s))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        assert bits(*lazy) == whole
