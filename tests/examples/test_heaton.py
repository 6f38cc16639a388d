"""`examples/heaton.py` on a small image that is made up, without and with the published rows."""

import re
from typing import Any

import pytest

LINE = re.compile(r"^  (\S.*?) {2,}([0-9. ]+)$", re.MULTILINE)


@pytest.fixture
def heaton(example: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("DISTRFF_DATA", raising=False)
    return example("heaton")


def rows_of(text: str) -> dict[str, list[float]]:
    """Figures of each method."""
    return {method: [float(number) for number in numbers.split()] for method, numbers in LINE.findall(text)}


def test_our_row_stands_under_the_published_ones(
    heaton: Any, tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    table = heaton.made_places().query("lon < 1 and lat < 0.6")
    table.to_parquet(tmp_path / heaton.FILE)
    assert heaton.main([str(tmp_path)]) == 0
    *published, (method, ours) = rows_of(capsys.readouterr().out).items()
    assert [name for name, _ in published] == [row.method for row in heaton.PUBLISHED]
    assert dict(published)["LatticeKrig"] == [1.22, 1.68, 0.87, 7.55, 0.96, 28]
    assert method == "distrff, by default"
    hidden = table["true_temp"][table["train_temp"].isna()]
    mae, rmse, *_, coverage, _ = ours
    assert mae < rmse < hidden.std() and 0 < coverage <= 1

    row = heaton.Row(method, *ours)
    monkeypatch.setattr(heaton, "competed", lambda table, seed: (row, "a kernel"))
    assert heaton.main([]) == 0
    assert rows_of(capsys.readouterr().out) == {method: ours}


def test_scores_are_those_of_their_definitions(heaton: Any):
    """By simulation: CRPS = E|Y − y| − E|Y − Y'|/2."""
    np = heaton.np
    rng = np.random.default_rng(0)
    y, mean, std = np.array([0.0, 3.0]), np.array([0.5, 0.5]), np.array([1.0, 2.0])
    _, _, crps, score, coverage = heaton._judged(y, mean, std, mean - 1, mean + 1)
    Y, Y2 = mean + std * rng.standard_normal((2, 10**5, 2))
    terms = np.abs(Y - y) - np.abs(Y - Y2) / 2
    assert abs(crps - terms.mean()) < 5 * terms.std() / np.sqrt(terms.size)
    assert coverage == 0.5 and np.isclose(score, 2 + 40 * 1.5 / 2)


def test_a_folder_without_the_file_is_refused(heaton: Any, tmp_path: Any, refused: Any):
    assert "heaton_satellite.parquet does not exist; give the folder" in refused(heaton, tmp_path)
