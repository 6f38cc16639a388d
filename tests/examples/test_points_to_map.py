"""`examples/points_to_map.py` on few rows."""

import re
from typing import Any
from xml.etree import ElementTree


def test_it_maps_the_field_and_knows_where_it_is_unsure(
    example: Any, tmp_path: Any, capsys: Any, refused: Any
) -> None:
    script = example("points_to_map")
    out = tmp_path / "picture.svg"
    assert script.main(["--out", str(out), "--n-rows", "1500"]) == 0
    told = capsys.readouterr().out
    error, noise = map(float, re.search(r"RMSE ([0-9.]+), noise ([0-9.]+)", told).groups())  # type: ignore[union-attr]
    assert noise * 0.95 < error < noise * 1.4  # 1,500 points leave some of the fine structure
    gap, islands = map(float, re.search(r"([0-9.]+) in the gap, ([0-9.]+) around", told).groups())  # type: ignore[union-attr]
    assert gap > 3 * islands
    assert float(re.search(r"([0-9.]+)% of the cells", told)[1]) > 80  # type: ignore[index]
    assert ElementTree.parse(out).getroot().tag.endswith("svg")
    assert ElementTree.parse(script.FIGURE).getroot().tag.endswith("svg")
    assert script.FIGURE.stat().st_size < 200_000
    assert "needs at least" in refused(script, "--out", out, "--n-rows", 3)
