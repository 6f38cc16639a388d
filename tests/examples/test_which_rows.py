"""`examples/which_rows.py` on made-up rows, and the pictures that the guide shows."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

GUIDE = Path(__file__).parents[2] / "examples" / "guide"
LINE = re.compile(r"^  (\S.*?) +([0-9.]+) +([0-9.]+) +([0-9.]+)  ([0-9.]+)%$", re.MULTILINE)


def told_of(text: str) -> dict[str, list[float]]:
    """Errors reported and reached, that of the mean, and coverage, by the way to hold rows out."""
    return {way: [float(number) for number in numbers] for way, *numbers in LINE.findall(text)}


@pytest.fixture
def which_rows(example: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("DISTRFF_DATA", raising=False)
    return example("which_rows")


def test_errors_on_rows_at_random_are_not_those_on_new_people(which_rows: Any, tmp_path: Any, capsys: Any):
    assert which_rows.main(["--only", "people", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("people: made-up rows\n")
    found = told_of(told)
    reported, reached, _, covered = found["rows at random"]
    assert 3 * reported < reached and covered < 50
    reported, reached, mean, covered = found["whole people"]
    assert 0.6 * reached < reported < 1.8 * reached and reached < 1.2 * mean and covered > 70  # seven people
    assert ElementTree.parse(tmp_path / "which-rows-people.svg").getroot().tag.endswith("svg")


@pytest.mark.slow
def test_nor_are_they_those_in_gaps_and_later(which_rows: Any, capsys: Any):
    assert which_rows.main(["--only", "places", "days"]) == 0
    places, days = map(told_of, capsys.readouterr().out.split("days: made-up rows"))
    reported, reached, _, _ = places["rows at random"]
    assert 1.5 * reported < reached
    for way, (reported, reached, *_) in places.items():
        assert way == "rows at random" or 0.7 * reached < reported < 1.3 * reached
    optimism = {way: reached / reported for way, (reported, reached, *_) in days.items()}
    assert optimism["what comes a week later"] < optimism["rows at random"]


def test_the_guide_shows_its_pictures(which_rows: Any):
    page = (GUIDE / "which-rows.md").read_text()
    for name in which_rows.QUESTIONS:
        file = GUIDE.parent / "figures" / f"which-rows-{name}.svg"
        assert f"](../figures/{file.name})" in page
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
        assert file.stat().st_size < 200_000


def test_a_folder_without_the_files_is_refused(which_rows: Any, tmp_path: Any, refused: Any):
    assert "parkinsons.parquet does not exist; give the folder" in refused(which_rows, tmp_path)
