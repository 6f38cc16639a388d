"""`examples/uci.py` on generated files: what it reaches, and what it refuses."""

import gzip

import numpy as np
import pytest


@pytest.fixture
def uci(example):
    return example("uci")


@pytest.fixture
def folder(tmp_path, uci, rng):
    """A smooth function of two of three columns, and two masks."""
    X = rng.uniform(-1, 1, (300, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(300)
    masks = np.zeros((300, 2), int)
    masks[rng.permutation(300)[:60], 0] = masks[rng.permutation(300)[:60], 1] = 1
    for name, A in ((uci.ROWS, np.column_stack([X, y])), (uci.MASKS, masks)):
        with gzip.open(tmp_path / name, "wt") as file:
            np.savetxt(file, A, delimiter=",")
    return tmp_path


def test_models_on_both_maps(uci, folder, rng):
    found = list(uci.results(folder, [0, 1], ["nystroem", "fourier"], 100))
    assert [(r.split, r.features) for r in found] == [
        (0, "nystroem"), (0, "fourier"), (1, "nystroem"), (1, "fourier"),
    ]  # fmt: skip
    for result in found:
        assert result.error < 0.5  # the mean alone reaches 1, the noise 0.05
        assert len(result.length_scale) == 3
        assert max(result.length_scale) == result.length_scale[2]  # the column that says nothing
    table, test = rng.standard_normal((50, 4)), np.arange(50) < 10  # whose rows do not count
    split = uci.split_of(table, test)
    assert split.y.mean() == pytest.approx(0, abs=1e-12)
    assert split.y.std() == pytest.approx(1)
    np.testing.assert_array_equal(split.X_test, table[:10, :-1])


def test_what_cannot_be_used(uci, folder, tmp_path, refused):
    assert "does not exist; give the folder" in refused(uci, tmp_path / "nowhere")
    assert refused(uci, folder, "--splits", 2) == "uci.py: there are splits 0 to 1, got 2\n"
    (folder / uci.MASKS).write_bytes(gzip.compress(b"0,1\n"))
    assert "got shapes (300, 4) and (1, 2)" in refused(uci, folder)
    (folder / uci.ROWS).write_bytes(b"no gzip")
    assert refused(uci, folder).startswith("uci.py: ")
