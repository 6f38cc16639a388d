"""Rows that belong together across lazy frames: paired, in one order for all passes, or refused."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from distrff.errors import DataWarning, InputError, PlanRefused
from distrff.estimators.base import open_rows
from distrff.io.arrays import as_dataset, counted
from distrff.io.open import open_dataset

N = 90
RNG = np.random.default_rng(3)
TABLE = pd.DataFrame(
    {
        "x": RNG.normal(size=N),
        "key": RNG.permutation(N),
        "group": RNG.integers(0, 4, N),
        "word": ["a", "b"] * 45,
    }
)
TABLE["y"], TABLE["w"] = 2.0 * TABLE.x, np.exp(TABLE.x)


def plain(n=3):
    return dd.from_pandas(TABLE, npartitions=n)


def merged():
    return plain().merge(dd.from_pandas(TABLE[["key"]].assign(j=1.0), npartitions=4), on="key")


FROM_OTHERS = {
    "merge": merged,
    "shuffle": lambda: plain().shuffle("key"),
    "set_index": lambda: plain().set_index("key"),
    "sort_values": lambda: plain().sort_values("w"),
    "drop_duplicates": lambda: plain().drop_duplicates(subset=["key"], split_out=2),
    "groupby": lambda: (
        plain().groupby("group")[["x", "y", "w"]].apply(lambda part: part, meta=TABLE.iloc[:0, [0, 4, 5]])
    ),
    "filtered merge": lambda: merged().reset_index(drop=True).query("x > -1"),
    "sums": lambda: plain().assign(total=lambda frame: frame.x.cumsum()),
}
OF_THEIR_OWN = {
    "plain": plain,
    "query": lambda: plain().query("x > 0"),
    "mapped": lambda: plain().map_partitions(lambda part: part.iloc[::-1]),
    "twice": lambda: dd.concat([plain(), plain()]),
    "persisted": lambda: merged().persist(),
}


def assert_paired(X, y, w, x=0):
    np.testing.assert_array_equal(y, 2.0 * X[:, x])
    np.testing.assert_allclose(w, np.exp(X[:, x]), rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "scheduler"), [*((name, "sync") for name in FROM_OTHERS), ("filtered merge", "threads")]
)
def test_rows_stay_together_in_one_order(read_dataset, scheduler, name):
    with dask.config.set(scheduler=scheduler):
        frame = FROM_OTHERS[name]()
        data = as_dataset(frame[["x"]], frame["y"], frame["w"])
        first = read_dataset(data, 17, 5, scheduler=scheduler)
        again = read_dataset(data, 40, 7, scheduler=scheduler)
        table = open_dataset(frame, target="y", columns=["x"], sample_weight="w")
        opened = read_dataset(table, 17, 5, scheduler=scheduler)
    assert_paired(*first)
    np.testing.assert_array_equal(first[0], again[0])
    assert_paired(*opened)
    assert data.persisted_bytes > 0 < table.persisted_bytes
    assert data.source.startswith("dask DataFrame, of which ")
    assert data.source.endswith(" stay in memory")


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_partitions_of_their_own_are_not_kept(read_dataset, name):
    with dask.config.set(scheduler="sync"):
        frame = OF_THEIR_OWN[name]()
        data = as_dataset(frame[["x"]], frame["y"], frame["w"])
        assert_paired(*read_dataset(data, 17, 5))
        assert (data.persisted_bytes, data.source) == (0, "dask DataFrame")
        assert open_dataset(frame, target="y", columns=["x"]).persisted_bytes == 0


def test_what_dask_itself_computes_apart_in_one_call(read_dataset):
    """Its optimizer pushes the column of y, but not all columns of X, below the merge."""
    with dask.config.set(scheduler="threads"):
        frame = plain().shuffle("key").drop(columns="word")
        data = as_dataset(frame, frame["y"].fillna(0.0), frame["w"])
        assert_paired(*read_dataset(data, 17, 5))


def test_on_a_cluster(read_dataset, client):
    """By peer to peer; the rows live as long as what was made of them."""
    frame = merged()
    assert_paired(*read_dataset(as_dataset(frame[["x"]], frame["y"], frame["w"]), 17, 5, scheduler=client))
    data = open_rows(frame[["x", "word"]], frame["y"], frame["w"])
    assert_paired(*read_dataset(data, 17, 5, scheduler=client))
    assert data.column_names == ("x", "word=a", "word=b")
    X, y, w = dask.compute(data.X, data.y, data.sample_weight)
    assert_paired(X, y, w)


def test_arrays_of_one_shuffled_frame(read_dataset):
    with dask.config.set(scheduler="threads"):
        A = merged()[["x", "y", "w"]].to_dask_array(lengths=True)
        data = as_dataset(A[:, :1], A[:, 1], A[:, 2])
        assert_paired(*read_dataset(data, 17, 5))
        assert data.persisted_bytes > 0
        B = da.random.default_rng(0).random((50, 2), chunks=10)[np.arange(50)[::-1]]  # an order is one, too
        assert as_dataset(B, B[:, 0]).persisted_bytes == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda f: (f[["x"]], f["y"].compute()),
            "X comes from a merged or shuffled dask frame.*y is in memory",
        ),
        (lambda f: (TABLE[["x"]], f["y"]), "y comes from a merged or shuffled dask frame.*X is in memory"),
        (
            lambda f: (f[["x"]].to_dask_array(lengths=True), f["y"].to_dask_array(lengths=True)),
            r"y was made apart from it.*frame = frame.persist\(\) first",
        ),
        (lambda f: (f[["x"]], f["y"].to_dask_array(lengths=True)), "y was made apart from it"),
        (lambda f: (f[["x"]], f["y"], TABLE["w"].to_numpy()), "sample_weight is in memory"),
        (lambda f: (f[["x"]], f.shuffle("group")["y"]), "y was made apart from it"),
    ],
)
def test_rows_that_cannot_be_paired_are_refused(make, told):
    with dask.config.set(scheduler="threads"), pytest.raises(InputError, match=told):
        as_dataset(*make(merged()))


def test_a_persisted_frame_goes_with_rows_in_memory(read_dataset):
    with dask.config.set(scheduler="threads"):
        frame = merged().persist()
        y, w = dask.compute(frame["y"], frame["w"])
        assert_paired(*read_dataset(as_dataset(frame[["x"]], y, w.to_numpy()), 17, 5))


def test_rows_that_do_not_fit_in_memory_are_refused_before_they_are_kept(monkeypatch):
    monkeypatch.setattr("distrff.engine.tasks.MEMORY_LIMIT", 2_000)
    frame, kept = merged(), []
    monkeypatch.setattr(dask, "persist", lambda *args, **options: kept.append(args))
    told = (
        r"they take .* kB, but 50% of the workers' memory is 1 kB: write them first, frame.to_parquet\(path\)"
    )
    with dask.config.set(scheduler="sync"), pytest.raises(PlanRefused, match=told):
        as_dataset(frame[["x"]], frame["y"])
    assert not kept


def test_passes_compute_no_merge_again(monkeypatch):
    """It is computed to measure the rows and to keep them, also beside a column that could number them."""
    calls, merge = [], pd.DataFrame.merge
    monkeypatch.setattr(pd.DataFrame, "merge", lambda *args, **how: calls.append(1) or merge(*args, **how))
    with dask.config.set(scheduler="sync"):
        frame = merged().rename(columns={"group": "id"})
        calls.clear()  # of empty frames, while the graph was built
        dataset = open_dataset(frame, target="y", columns=["x", "id"])
        n_calls = len(calls)
        dataset.X.compute()
    assert 0 < n_calls == len(calls)


def test_sums_of_all_rows_are_computed_again_where_the_rows_do_not_fit(monkeypatch):
    """Their order is the same each time, which every pass checks."""
    monkeypatch.setattr("distrff.engine.tasks.MEMORY_LIMIT", 2_000)
    frame = FROM_OTHERS["sums"]()
    with dask.config.set(scheduler="sync"):
        dataset = as_dataset(frame[["x"]], frame["y"], frame["w"])
        assert dataset.persisted_bytes == 0
        assert_paired(*map(np.asarray, dask.compute(dataset.X, dataset.y, dataset.sample_weight)))


@pytest.mark.parametrize("change", ["order", "number", "values"])
def test_partitions_that_come_otherwise_than_they_were_counted(read_dataset, change):
    calls = []

    def unsteady(part):
        calls.append(1)
        if change == "values":
            return part + len(calls)
        rows = np.random.default_rng(len(calls)).permutation(len(part))
        return part.iloc[rows if change == "order" else rows[: -len(calls)]]

    with dask.config.set(scheduler="sync"):
        frame = dd.from_pandas(TABLE[["x", "y"]], npartitions=1).map_partitions(
            unsteady, meta=TABLE.iloc[:0, [0, 4]]
        )
        told = r"a partition of the dask DataFrame has .* when it was opened: .* frame = frame.persist\(\)"
        with pytest.raises(InputError, match=told):
            read_dataset(as_dataset(frame), 30, 30)
        with pytest.raises(InputError, match=told):
            open_dataset(frame, target="y", missing="mean", positive=TABLE.y[0])


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([[1, 2], [3]] * 20),
        pd.Series(["a", None] * 20, dtype="string"),
        pd.Series(pd.array([1, None] * 20, dtype="Int64")),
        pd.Series(pd.date_range("2020", periods=40, tz="UTC")),
        pd.Series([1.0, np.inf, np.nan, -1e308] * 10),
        pd.Series([b"a", {"b": 1}] * 20),
    ],
    ids=["lists", "text", "nullable", "times", "gaps", "objects"],
)
def test_columns_of_any_type_are_recognized(column):
    with dask.config.set({"scheduler": "sync", "dataframe.convert-string": False}):
        frame = dd.from_pandas(column.to_frame("c"), npartitions=2)
        (read,) = dask.compute([part for part, _ in counted({"X": frame})["X"]])
    assert [len(part) for part in read] == [20, 20]


def test_last_bits_may_differ(read_dataset):
    """As those of a logarithm do between processors."""
    calls = []

    def nearly(part):
        calls.append(1)
        return part * (1 + 2.0**-52 * (len(calls) % 2))

    with dask.config.set(scheduler="sync"):
        frame = dd.from_pandas(TABLE[["x"]], npartitions=1).map_partitions(nearly, meta=TABLE.iloc[:0, :1])
        X, _, _ = read_dataset(as_dataset(frame), 30, 30)
    np.testing.assert_allclose(X, TABLE[["x"]], rtol=1e-15)


def with_one(change):
    """A frame whose second partition is another than its metadata say."""

    def changed(part, partition_info=None):
        return change(part) if partition_info and partition_info["number"] == 1 else part

    return plain().map_partitions(changed, meta=TABLE.iloc[:0], enforce_metadata=False)


def test_columns_are_found_by_name_in_each_partition(read_dataset):
    with dask.config.set(scheduler="sync"):
        frame = with_one(lambda part: part[part.columns[::-1]]).drop(columns="word")
        X, y, w = read_dataset(as_dataset(frame, frame["y"], frame["w"]), 17, 5)
        assert_paired(X, y, w)
        np.testing.assert_array_equal(X, TABLE.drop(columns="word"))
        lacking = with_one(lambda part: part.drop(columns=["group", "word"]))
        told = (
            "a partition of the dask DataFrame has the columns x, key, y, w, but the frame x, key, group, y"
        )
        numbers = TABLE.iloc[:0].drop(columns="word")
        with pytest.raises(InputError, match=told):
            as_dataset(
                lacking.map_partitions(
                    lambda part: part.drop(columns="word", errors="ignore"),
                    meta=numbers,
                    enforce_metadata=False,
                )
            )


def test_types_are_those_of_all_partitions(read_dataset):
    """A partition with fractions makes a column of integers one of floats, and cuts none off."""
    with dask.config.set(scheduler="sync"):
        frame = with_one(lambda part: part.assign(group=part.group + 0.25))
        X, y, _ = read_dataset(as_dataset(frame[["group"]], frame["group"]), 17, 5)
        expected = TABLE.group + 0.25 * (np.arange(N) // 30 == 1)
        np.testing.assert_array_equal(X[:, 0], expected)
        np.testing.assert_array_equal(y, expected)
        frame = with_one(lambda part: part.assign(group=part.group.astype(str)))
        with pytest.raises(InputError, match=r"column 'group' of X has dtype .*, which is not a number"):
            as_dataset(frame[["group"]], frame["y"])


@pytest.mark.filterwarnings("error")
def test_index_labels_in_other_orders():
    X = TABLE[["x"]].sort_values("x")
    with pytest.warns(
        DataWarning, match=r"X and y have the same index labels in other orders.*y.loc\[X.index\]"
    ):
        as_dataset(X, TABLE["y"])
    with pytest.warns(DataWarning, match="X and sample_weight have the same index labels"):
        as_dataset(X, TABLE["y"].to_numpy(), TABLE["w"])
    as_dataset(X, TABLE["y"].loc[X.index], TABLE["w"].to_numpy())
    as_dataset(TABLE[["x"]].set_axis(np.arange(N) + 1000), TABLE["y"])  # numbers from 0 say nothing


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("labels", [None, [f"row {i}" for i in range(N)]])
@pytest.mark.parametrize("n", [None, 3])
def test_index_labels_of_other_rows(labels, n):
    table = TABLE if labels is None else TABLE.set_axis(labels)
    shuffled = table.sample(frac=1.0, random_state=0)
    halves = table.sample(frac=0.5, random_state=1), table.sample(frac=0.5, random_state=2)
    if n is not None:
        table, shuffled = (dd.from_pandas(t, npartitions=n, sort=False) for t in (table, shuffled))
        halves = table.sample(frac=0.5, random_state=1), table.sample(frac=0.5, random_state=2)
    one, other = halves
    with pytest.warns(DataWarning, match=r"X and y have other index labels .*y.reset_index\(drop=True\)"):
        as_dataset(one[["x"]], other["y"])
    with pytest.warns(DataWarning, match="X and sample_weight have .* index labels"):
        as_dataset(table[["x"]], table["y"], shuffled["w"])
    as_dataset(one[["x"]], one["y"], other["w"].reset_index(drop=True))


@pytest.mark.filterwarnings("error")
def test_indices_of_other_kinds_are_compared():
    with pytest.warns(DataWarning, match="other index labels"):
        as_dataset(TABLE.set_index(["key", "group"])[["x"]], TABLE.set_index("word")["y"])
