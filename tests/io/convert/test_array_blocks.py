"""Arrays of .npy and .npz files, in runs of rows."""

from __future__ import annotations

import zipfile

import fsspec
import numpy as np
import pytest

from distrff.errors import InputError
from distrff.io.convert.npz import ArraySource
from distrff.io.convert.text import TextFile


@pytest.fixture
def saved(tmp_path):
    def save(name: str = "rows.npz", **arrays: np.ndarray) -> TextFile:
        path = tmp_path / name
        if name.endswith(".npy"):
            np.save(path, arrays["X"])
        else:
            np.savez_compressed(path, **arrays)
        return TextFile(fsspec.filesystem("file"), str(path))

    return save


def read(source: ArraySource) -> dict[str, np.ndarray]:
    names = list(source.kinds)
    found = [source.raw(piece, names) for piece in source.pieces(names)]
    return {name: np.concatenate([raw[name].values for raw in found]) for name in names}


def test_targets_of_one_and_several_columns_and_of_another_file(saved, tmp_path, rng):
    X, y, Y = rng.standard_normal((20, 2)), rng.integers(0, 3, 20), rng.standard_normal((20, 2))
    source = ArraySource(saved(a=X, y=y, Y=Y), "a")
    np.testing.assert_array_equal(read(source)["y"], y)
    source = ArraySource(saved(a=X, y=y, Y=Y), "a", "Y")
    assert source.targets == ("y_0", "y_1")
    np.testing.assert_array_equal(read(source)["y_1"], Y[:, 1])
    np.save(tmp_path / "labels.npy", y)
    file = saved("rows.npy", X=X)
    np.testing.assert_array_equal(read(ArraySource(file, y_name=str(tmp_path / "labels.npy")))["y"], y)
    with pytest.raises(InputError, match=r"none.npy does not exist; for a .npy file y_name"):
        ArraySource(file, y_name=str(tmp_path / "none.npy"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"Z": np.zeros((2, 2))}, r"has no array 'X'; give x_name as one of: Z"),
        ({"X": np.zeros((2, 2)), "y": np.zeros(3)}, r"shape \(3,\), but .* has 2 rows"),
        ({"X": np.zeros((0, 2))}, "holds no rows"),
        ({"X": np.zeros((2, 2), complex)}, "Complex data not supported"),
        ({"X": np.array([[object()]])}, "save plain numbers"),
        ({"X": np.zeros((2, 1)), "y": np.array(["2020"] * 2, "M8")}, "targets are numbers or text"),
    ],
)
def test_arrays_that_cannot_be_rows(saved, arrays, message):
    with pytest.raises(InputError, match=message):
        ArraySource(saved(**arrays))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["rows.npz", "rows.npy"])
def test_truncated_files_and_damaged_archives(saved, tmp_path, order, name, rng):
    X = np.asarray(rng.standard_normal((10_000, 3)), order=order)
    file = saved("rows.npy", X=X)
    data = (tmp_path / "rows.npy").read_bytes()
    (tmp_path / "rows.npy").write_bytes(data[:-50])
    if name.endswith("npz"):
        file = TextFile(file.fs, str(tmp_path / "rows.npz"))
        with zipfile.ZipFile(file.path, "w") as archive:
            archive.write(tmp_path / "rows.npy", "X.npy")
    with pytest.raises(InputError, match="ends before its 10000 rows"):
        read(ArraySource(file))
    file = saved(X=X)
    data = bytearray((tmp_path / "rows.npz").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "rows.npz").write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        read(ArraySource(file))
