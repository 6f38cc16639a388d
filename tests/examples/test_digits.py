"""`examples/digits.py` with few features: the table, and the pictures."""

import numpy as np
import pytest

import distrff as drf


@pytest.fixture
def digits(example):
    return example("digits")


def test_the_table_and_the_pictures(digits, tmp_path, capsys, refused):
    assert digits.main(["--out", str(tmp_path), "--sizes", "32", "64", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()[1 : 1 + 2 + 2 * len(digits.MAPS)]
    accuracy = {(line[:15].strip(), line[16:24].strip()): float(line[25:34]) for line in lines}
    assert accuracy["exact RBF", ""] == 0.972
    assert accuracy["linear", ""] == 0.934
    for name in digits.MAPS:
        assert accuracy[name, "64"] > 0.7
    for name in digits.PICTURES:
        assert (tmp_path / name).stat().st_size > 10_000
    assert "is not a folder" in refused(digits, "--out", tmp_path / "nowhere")
    words = ("--out", tmp_path, "--sizes", 0, "--seeds", 1)
    assert "n_components must be a positive integer, got 0" in refused(digits, *words)


def test_rows_share_a_bin_where_no_line_is_between_them(digits, rng):
    X = rng.standard_normal((40, 2))
    binning = drf.RandomBinningFeatures(drf.Laplacian(1.5), 1, random_state=1).fit(X)
    cells = [np.searchsorted(lines, x) for lines, x in zip(digits.grid_lines(binning, X), X.T, strict=True)]
    same = np.logical_and(*(cell[:, None] == cell for cell in cells))
    assert (digits.adjacency(binning, X) == same).all()
    assert 0 < same.sum() - len(X) < len(X) ** 2 - len(X)
