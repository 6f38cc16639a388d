"""Which runs of rows of an unfinished result are written: an empty file for each."""

from __future__ import annotations

from dataclasses import dataclass

from distrff.sweeps.location import Location

_FOLDER = "_written"


@dataclass(frozen=True)
class RegionMarks:
    """Marks beside the data, each made once its run of rows is written whole."""

    place: Location

    def begin(self) -> None:
        """Make room for marks."""
        self.place.within(_FOLDER).make_folder()

    def mark(self, start: int) -> None:
        """Note that the run that begins at row `start` is written."""
        self.place.within(f"{_FOLDER}/{start:012d}").write(b"")

    def starts(self) -> frozenset[int]:
        """Return where the written runs begin."""
        return frozenset(map(int, self.place.within(_FOLDER).names()))

    def clear(self) -> None:
        """Remove all marks."""
        self.place.within(_FOLDER).remove()
