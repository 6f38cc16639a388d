"""`examples/digits.py` with few features: the table, and the pictures."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")


def test_the_table_and_the_pictures(example, tmp_path, capsys):
    digits = example("digits")
    assert digits.main(["--out", str(tmp_path), "--sizes", "32", "64", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    accuracy = {
        (name, size): float(value)
        for name, size, value in re.findall(r"^ *([\w ö]*\w) +(\d*) +(0\.\d{3}) +\d", out, re.MULTILINE)
    }
    assert accuracy["exact RBF", ""] == 0.972
    assert accuracy["linear", ""] == 0.934
    for name in digits.MAPS:
        assert accuracy[name, "64"] > 0.7
    for name in digits.PICTURES:
        assert (tmp_path / name).stat().st_size > 10_000


def test_what_cannot_be_used(example, tmp_path, capsys):
    digits = example("digits")
    assert digits.main(["--out", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert digits.main(["--out", str(tmp_path), "--sizes", "7", "--seeds", "1"]) == 2
    assert "n_components must be even" in capsys.readouterr().err
