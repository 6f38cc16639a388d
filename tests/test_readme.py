"""README's Python runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import dask

README = Path(__file__).parents[1] / "README.md"


def test_its_python_runs_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    with dask.config.set(scheduler="threads"):
        for block in blocks:
            exec(block, names)
    model, X, y = names["model"], names["X"], names["y"]
    assert model.score(X, y) > 0.9
    assert "sweeps" in capsys.readouterr().out
