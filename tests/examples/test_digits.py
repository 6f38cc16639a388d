"""`examples/digits.py` with few features: the table, and the pictures."""

import pytest


@pytest.fixture
def digits(example):
    return example("digits")


def test_the_table_and_the_pictures(digits, tmp_path, capsys, refused):
    assert digits.main(["--out", str(tmp_path), "--sizes", "8", "64", "--seeds", "1"]) == 0
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
