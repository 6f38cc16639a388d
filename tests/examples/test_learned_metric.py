"""`examples/learned_metric.py` on few rows."""

import re
from typing import Any
from xml.etree import ElementTree


def test_it_finds_and_draws_two_directions(example: Any, tmp_path: Any, capsys: Any, refused: Any) -> None:
    script = example("learned_metric")
    out = tmp_path / "picture.svg"
    assert script.main(["--out", str(out), "--n-rows", "1500", "--n-components", "256"]) == 0
    told = capsys.readouterr().out
    one_width, learned = (float(r2) for r2 in re.findall(r"R² (-?[0-9.]+)", told))
    assert learned > 0.8 > one_width  # at best 1 − 0.04/2.3 = 0.98
    assert float(re.search(r"([0-9.]+) degrees", told)[1]) < 15  # type: ignore[index]
    assert ElementTree.parse(out).getroot().tag.endswith("svg")
    assert ElementTree.parse(script.FIGURE).getroot().tag.endswith("svg")
    assert "needs at least" in refused(script, "--out", out, "--n-rows", 3)
