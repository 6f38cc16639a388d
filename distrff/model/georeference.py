"""Where a raster lies: attributes of its coordinates and its reference system, by the CF conventions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.preprocessing.table import RawColumn, SecondsStep, TableSteps
from distrff.preprocessing.words import MICROSECONDS, word_of_time

CONVENTIONS = "CF-1.11"
GRID_MAPPING = "spatial_ref"  # the name by which GDAL and rioxarray know it
_LONGITUDES, _LATITUDES = ("lon", "long", "lng", "longitude"), ("lat", "latitude")
_AXES = {
    **dict.fromkeys([*_LONGITUDES, "x", "easting"], "X"),
    **dict.fromkeys([*_LATITUDES, "y", "northing"], "Y"),
}
_DEGREES = {
    "X": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
    "Y": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
}
_WKT = re.compile(r"\s*(PROJ|GEOG|GEOD|BOUND|COMP|ENG|DERIVED)\w*\s*\[", re.IGNORECASE)


@dataclass(frozen=True)
class Georeference:
    """The attributes of a raster's grid mapping, empty without one, and of coordinates along X and Y."""

    mapping: dict[str, Any] = field(default_factory=dict)
    axes: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, crs: int | str | None) -> Georeference:
        """That of an EPSG code, of WKT, or of any other text that pyproj reads, if it is installed.

        Raises InputError for what is none of these.
        """
        if crs is None:
            return cls()
        try:
            import pyproj
        except ImportError:
            return cls._of_wkt(crs)
        try:
            code = int(crs) if isinstance(crs, str) and crs.isascii() and crs.isdigit() else crs
            found = pyproj.CRS.from_user_input(code)
        except pyproj.exceptions.CRSError as error:
            raise InputError(
                f"the coordinate reference system {crs!r} is not known ({error}); give an EPSG code such as "
                f"32633, or WKT"
            ) from error
        mapping = found.to_cf()
        axes = {axis["axis"]: axis for axis in found.cs_to_cf() if "axis" in axis}
        return cls({**mapping, GRID_MAPPING: mapping["crs_wkt"]}, axes)

    @classmethod
    def _of_wkt(cls, crs: Any) -> Georeference:
        if not isinstance(crs, str) or not _WKT.match(crs):
            raise InputError(
                f"the coordinate reference system {crs!r} takes pyproj to be read; install pyproj, or give "
                f"the system as WKT"
            )
        first = re.search(r"\b(PROJ|GEOG|GEOD)", crs, re.IGNORECASE)
        is_geographic = first is not None and first[1].upper() != "PROJ"
        planar = {
            letter: {"axis": letter, "standard_name": f"projection_{letter.lower()}_coordinate"}
            for letter in "XY"
        }
        return cls({"crs_wkt": crs, GRID_MAPPING: crs}, _DEGREES if is_geographic else planar)

    def attributes(self, name: str, steps: TableSteps | None) -> dict[str, Any]:
        """The attributes of a column's coordinates; none where its name says nothing."""
        if (step := time_step(steps, name)) is not None:
            since = f"seconds since {word_of_time(step.origin, step.ticks)}"
            return {
                "standard_name": "time",
                "units": since,
                "calendar": "proleptic_gregorian",
                "axis": "T",
            }
        letter = _AXES.get(name.lower(), "")
        if self.mapping:
            return self.axes.get(letter, {})
        return _DEGREES[letter] if name.lower() in _LONGITUDES + _LATITUDES else {}


def time_step(steps: TableSteps | None, name: Any) -> SecondsStep | None:
    """The step that takes the times of this column as seconds; None for other columns."""
    own = [step for step in (steps.columns if steps else ()) if step.name == name]
    return own[0] if own and type(own[0]) is SecondsStep else None


def seconds_of(step: SecondsStep, times: Any) -> np.ndarray:
    """Times as the model has them: seconds since the first of the fit, NaN for what is no time."""
    at = np.asarray(times, dtype="datetime64[us]")
    column = RawColumn("time", at.ravel().astype(np.int64), ticks=MICROSECONDS)
    made = np.empty((at.size, len(step.names_out)))
    step.encode(column, made, 0)
    return np.where(np.isnat(at), np.nan, made[:, 0].reshape(at.shape))
