"""Fits of rows in large pieces: what their workers took, against their plans; and refusals before a task."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from distributed import Client, LocalCluster

import distrff as drf
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused

FEATURES = drf.FourierFeatures(drf.Gaussian(5.0), 64, random_state=0)
MODELS = {
    "gram": drf.KernelRidge(FEATURES, alpha=1.0, scale="none", random_state=0),
    "cg": drf.KernelRidge(FEATURES, alpha=1.0, scale="none", solver="cg", max_sweeps=2, random_state=0),
    "sgd": drf.KernelRidge(FEATURES, alpha=1.0, scale="none", solver="sgd", max_sweeps=2, random_state=0),
    "lbfgs": drf.KernelSVC(FEATURES, scale="none", loss="squared_hinge", max_sweeps=2, random_state=0),
    "smoothed": drf.KernelSVC(FEATURES, scale="none", max_sweeps=2, random_state=0),
    "pca": drf.KernelPCA(FEATURES, scale="none", random_state=0),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "dtype", "group_rows", "solver"),
    [
        (200_000, 20, "f8", 1000, "gram"),
        (800_000, 20, "f8", 800_000, "gram"),
        (2_000_000, 20, "f4", 2_000_000, "gram"),
        (5_000_000, 4, "f4", 5_000_000, "gram"),
        *((800_000, 20, "f8", 800_000, solver) for solver in ("cg", "sgd", "lbfgs", "smoothed", "pca")),
    ],
)
def test_a_fit_takes_no_more_than_planned(tmp_path, n, d, dtype, group_rows, solver):
    path, rng = tmp_path / "rows.parquet", np.random.default_rng(0)
    columns = {f"x{j}": rng.standard_normal(n).astype(dtype) for j in range(d)}
    table = pa.table(columns | {"y": np.sign(rng.standard_normal(n)).astype(dtype)})
    pq.write_table(table, path, row_group_size=group_rows)
    _fit_within_plan(drf.open_dataset(path, target="y"), solver)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [2_000_000, 4_000_000])
def test_nor_where_one_chunk_holds_all_rows(tmp_path, chunk_rows):
    rng = np.random.default_rng(0)
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("X", data=rng.standard_normal((2_000_000, 20), dtype="f4"), chunks=(chunk_rows, 20))
    group.create_array("y", data=rng.standard_normal(2_000_000), chunks=(2_000_000,))
    _fit_within_plan(drf.open_dataset(tmp_path / "rows.zarr"), "gram")


def _fit_within_plan(data, solver):
    model = MODELS[solver]
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of few sweeps
        model.fit(data)
    report = model.report_
    assert report["measured_peak_bytes"] <= report["planned_peak_bytes"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A million rows of 20 columns, all the same, which take no time to write: by rows of a row group."""
    n, folder = 1_000_000, tmp_path_factory.mktemp("stored")
    column = pa.array(np.tile(np.arange(2.0), n // 2))
    table = pa.table({f"x{j}": column for j in range(20)} | {"y": column})
    paths = {group_rows: folder / f"{group_rows}.parquet" for group_rows in (n, 2**14)}
    for group_rows, path in paths.items():
        pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False)
    return paths


@pytest.mark.parametrize("solver", list(MODELS))
def test_a_row_group_that_does_not_fit_is_named(stored, solver):
    workers = Workers(n_workers=1, threads_per_worker=8, memory_limit=1_650_000_000)
    large, small = (drf.open_dataset(stored[group_rows], target="y") for group_rows in (1_000_000, 2**14))
    with pytest.raises(PlanRefused, match=r"smaller chunks or row groups .*`distrff convert`"):
        MODELS[solver].plan_for(workers, large)
    MODELS[solver].plan_for(workers, small)
