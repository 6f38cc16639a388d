"""`examples/kill_anything.py`: all deaths, and the same bits at the end."""

import pytest


@pytest.mark.slow
def test_the_fit_survives_all_deaths(example, capsys, monkeypatch):
    kill_anything = example("kill_anything")
    monkeypatch.setattr("sys.argv", ["kill_anything.py"])
    assert kill_anything.main() == 0
    told = capsys.readouterr().out
    assert all(f"killed: {death}" in told for death in kill_anything.DEATHS)
    assert "the same bits" in told
