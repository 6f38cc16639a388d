"""`examples/table1.py` on generated files: each of the data is read, and a missing one is named."""

import re

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def folder(tmp_path, rng, write_libsvm):
    """Small files of the four kinds."""
    for name, n in (("a9a.gz", 400), ("a9a.t.gz", 200)):  # errors of .10 to .22 in 25 draws
        X = rng.random((n, 123)) < 0.1
        X[:, 0] = np.arange(n) % 2
        write_libsvm(tmp_path / name, X, np.where(X[:, 0], 1, -1))
    X = rng.standard_normal((200, 4))
    frame = pd.DataFrame(np.column_stack([X, 50 + X[:, 0]]), columns=[*"abcd", "target"])
    frame.to_csv(tmp_path / "cpu_act.tsv.gz", sep="\t", index=False)
    for name in ("kddcup99_10pct.gz", "kddcup99_test.gz"):
        size = rng.integers(0, 10**6, 200)
        kind = np.where(size > 5 * 10**5, "smurf.", "normal.")
        pd.DataFrame({0: size, 1: rng.choice(["tcp", "udp"], 200), 2: kind}).to_csv(
            tmp_path / name, header=False, index=False
        )
    cover = pd.DataFrame(rng.random((300, 3)), columns=[*"abc"])
    cover["Cover_Type"] = np.where(cover["a"] > 0.5, 2, 1 + 2 * (cover["b"] > 0.5))
    cover.to_parquet(tmp_path / "covtype_93k.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["adult", "cpu", "kdd", "covtype"])
def test_each_of_the_data(example, folder, name, capsys, monkeypatch, refused, tmp_path):
    table1 = example("table1")
    small = {n: lambda s, f=f: f(s)._replace(n_components=64, n_grids=20) for n, f in table1.TASKS.items()}
    monkeypatch.setattr(table1, "TASKS", small)
    task = small[name](folder)
    assert len(task.X) == len(task.y) and len(task.X_test) == len(task.y_test)
    assert table1.fitted(task, table1.fourier, 1).error < 0.3
    if name != "adult":  # of whose many columns so few rows are not enough for binning
        assert table1.fitted(task, table1.binning, 1).error < 0.3
    assert table1.main([str(folder), "--data", name, "--seeds", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(name)
    message = refused(table1, tmp_path / "nowhere", "--data", name)
    assert re.search(r"(gz|parquet) does not exist; give the folder", message)
