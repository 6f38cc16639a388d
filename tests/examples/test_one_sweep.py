"""`examples/one_sweep.py` on few rows, and the picture that README shows."""

from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def test_it_draws_the_picture(example, tmp_path, capsys, refused):
    script = example("one_sweep")
    out = tmp_path / "picture.svg"
    assert script.main(["--out", str(out), "--n-rows", "600", "--n-components", "32"]) == 0
    assert capsys.readouterr().out == f"written to {out}\n"
    assert ElementTree.parse(out).getroot().tag.endswith("svg")
    wrong = ("--out", out, "--n-rows", 2000, "--n-components", 0)
    assert "n_components must be a positive integer, got 0" in refused(script, *wrong)
    assert f"]({script.FIGURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    assert ElementTree.parse(script.FIGURE).getroot().tag.endswith("svg")
