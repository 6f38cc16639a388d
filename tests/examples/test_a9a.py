"""`examples/a9a.py` on generated files: what it writes, that its commands run, and what it refuses."""

import gzip
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.commands import DISTRFF, run

SCRIPT = Path(__file__).parents[2] / "examples" / "a9a.py"
SIZES = {"a9a.gz": 300, "a9a.t.gz": 200}


@pytest.fixture
def a9a(example, monkeypatch):
    """The script, for files of few rows."""
    script = example("a9a")
    for name in ("TRAIN", "TEST"):
        part = getattr(script, name)
        monkeypatch.setattr(script, name, part._replace(n_rows=SIZES[part.file]))
    return script


@pytest.fixture
def files(tmp_path, rng, write_libsvm):
    """The folder of both files, and the rows they hold: fourteen ones each, farther right for +1."""
    folder, held = tmp_path / "data", {}
    folder.mkdir()
    for name, n_rows in SIZES.items():
        X, y = np.zeros((n_rows, 123), dtype=np.int8), np.where(np.arange(n_rows) % 3, -1, 1)
        for row, label in zip(X, y, strict=True):
            row[rng.choice(80, 14, replace=False) + (43 if label > 0 else 0)] = 1
        write_libsvm(folder / name, X, y)
        held[name] = X, y
    return folder, held


def test_groups_hold_the_rows_of_the_files(a9a, files, tmp_path):
    folder, held = files
    assert a9a.main([str(folder), str(tmp_path / "deep" / "build")]) == 0
    build = tmp_path / "deep" / "build"
    train, test = (zarr.open_group(build / name, mode="r") for name in ("a9a.zarr", "a9a-test.zarr"))
    for group in (train, test):
        assert group["X"].dtype == np.float32
        assert group["y"].dtype == np.int8
        assert group["X"].chunks[0] == group["y"].chunks[0]
    order = np.random.default_rng(train.attrs["shuffled_with_seed"]).permutation(300)
    assert (order != np.arange(300)).any()
    for group, rows, name in ((train, order, "a9a.gz"), (test, slice(None), "a9a.t.gz")):
        X, y = held[name]
        np.testing.assert_array_equal(group["X"][:], X[rows])
        np.testing.assert_array_equal(group["y"][:], y[rows])
    assert sorted(os.listdir(build)) == ["a9a-test.zarr", "a9a.zarr"]


@pytest.mark.slow
def test_its_commands_run_as_they_stand(a9a, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert a9a.main([str(files[0]), "a folder"]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("distrff ")]
    results = []
    for command, smaller in zip(commands, (["--n-components", "64"], []), strict=True):
        done = run(*DISTRFF, *shlex.split(command)[1:], "--workers", 1, *smaller)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    fitted, scored = results
    assert (fitted["n_samples"], fitted["n_columns"]) == (300, 123)
    assert scored["n_samples"] == 200
    assert scored["error"] < 0.2


def test_an_earlier_result_is_replaced_only_when_asked_and_nothing_else(a9a, files, tmp_path, refused):
    build = tmp_path / "build"
    assert a9a.main([str(files[0]), str(build)]) == 0
    marker = build / "a9a.zarr" / "marker"
    marker.touch()
    assert "--overwrite" in refused(a9a, files[0], build)
    assert marker.exists()
    assert a9a.main([str(files[0]), str(build), "--overwrite"]) == 0
    assert not marker.exists()
    group = zarr.create_group(tmp_path / "other" / "a9a-test.zarr", attributes={"precious": True})
    assert "a9a-test.zarr" in refused(a9a, files[0], tmp_path / "other", "--overwrite")
    assert os.listdir(tmp_path / "other") == ["a9a-test.zarr"]
    assert zarr.open_group(group.store.root).attrs["precious"]
    (tmp_path / "file").write_text("precious")
    assert "is not a folder" in refused(a9a, files[0], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


NO_FILE = "not a whole libsvm file"
WRONG = {
    "missing": (None, "does not exist"),
    "cut off": (lambda content: content[:-40], NO_FILE),
    "not compressed": (gzip.decompress, NO_FILE),
    "no numbers": ("age,income\n", NO_FILE),
    "a column too many": ("+1 1:1\n-1 124:1\n", NO_FILE),
    "other labels": ("1 1:1\n2 2:1\n", "labels -1 and 1, got 1, 2"),
    "empty": ("", "labels -1 and 1, got no rows"),
    "few rows": ("+1 1:1\n-1 2:1\n", "200 rows, got 2"),
}


@pytest.mark.parametrize("damage", WRONG)
def test_wrong_files_are_refused_in_one_line_and_leave_nothing(a9a, files, tmp_path, refused, damage):
    (harm, words), file = WRONG[damage], files[0] / "a9a.t.gz"
    if harm is None:
        file.unlink()
    else:
        content = harm(file.read_bytes()) if callable(harm) else gzip.compress(harm.encode())
        file.write_bytes(content)
    (line,) = refused(a9a, files[0], tmp_path / "build").splitlines()
    assert words in line and "a9a.t.gz" in line
    assert not (tmp_path / "build").exists()
