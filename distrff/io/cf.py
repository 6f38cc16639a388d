"""Stored values as numbers, times and text, by the CF conventions for the attributes of an array.

As xarray reads them: packed values are stored * scale_factor + add_offset, `_FillValue` and `missing_value`
stand for a missing one, units such as "days since 2000-01-01" make times. `valid_range`, `flag_values` and
`flag_meanings` change nothing.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from distrff.errors import InputError
from distrff.io.dataset import native
from distrff.io.storage import one_line

_MICROSECONDS = {
    "day": 86_400 * 10**6,
    "hour": 3_600 * 10**6,
    "minute": 60 * 10**6,
    "second": 10**6,
    "millisecond": 10**3,
    "microsecond": 1,
}
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_REFORM = np.datetime64("1582-10-15")  # the first day of the Gregorian calendar
_NAT = np.iinfo(np.int64).min
_FARTHEST = 2.0**62  # ticks, which leaves room for an epoch


@dataclass(frozen=True)
class Coding:
    """How the stored values of an array become values of `dtype`.

    Parameters
    ----------
    name : str
        Of the array, for messages.
    stored : dtype
        The type of stored values; integers may be signed although their bytes say that they are not.
    missing : tuple
        Stored values that stand for a missing one.
    scale, offset : number or None
        Of packed numbers.
    unit : int
        Ticks of a stored 1, for times and durations: `dtype` says what a tick is.
    epoch : int
        Ticks from 1970 to the time 0.
    """

    name: str
    dtype: np.dtype
    stored: np.dtype
    missing: tuple[Any, ...] = ()
    scale: Any = None
    offset: Any = None
    unit: int = 0
    epoch: int = 0

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Return the values; a missing one is NaN or NaT, or None among objects."""
        values = values.astype(self.stored, copy=False)  # integers of one width keep their bits
        masks = [values == value for value in self.missing]
        absent = np.logical_or.reduce(masks) if masks else None
        made = values.astype(np.float64 if self.unit and self._is_packed else self._numbers)
        if self.scale is not None:
            made *= self.scale
        if self.offset is not None:
            made += self.offset
        if self.unit:
            return self._times(made, absent)
        if absent is not None:
            made[absent] = None if made.dtype == object else np.nan
        return made

    @property
    def _is_packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    @property
    def _numbers(self) -> np.dtype:
        """The type of the numbers before they become times."""
        return self.dtype if not self.unit else np.dtype("f8" if self.stored.kind == "f" else "i8")

    def _times(self, numbers: np.ndarray, absent: np.ndarray | None) -> np.ndarray:
        lost = np.isnan(numbers) if numbers.dtype.kind == "f" else numbers == _NAT
        lost = lost if absent is None else lost | absent
        numbers = np.where(lost, 0, numbers)
        if (np.abs(numbers.astype(np.float64)) * self.unit > _FARTHEST).any():
            raise InputError(
                f"array {self.name!r} holds times that are too far from its epoch for {self.dtype}; name a "
                f"value that stands for a missing one by the attribute _FillValue"
            )
        ticks = np.round(numbers * self.unit).astype(np.int64) + self.epoch
        ticks[lost] = _NAT
        return ticks.view(self.dtype)


def coding_of(array: Any) -> Coding | None:
    """Return the coding that the attributes of a Zarr array tell of; None if they tell of none.

    Raises InputError for attributes that cannot be read, and for calendars of other years than ours.
    """
    attributes = dict(array.attrs)
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value  # where xarray keeps it in this format
    try:
        return _coding(array.basename, attributes, native(array.dtype))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"array {array.basename!r}: its CF attributes cannot be read ({one_line(error)}); write it again"
        ) from error


def _coding(name: str, attributes: Mapping[str, Any], stored: np.dtype) -> Coding | None:
    if stored.kind not in "biufOU":
        return None
    given = [attributes[key] for key in ("missing_value", "_FillValue") if key in attributes]
    missing = [_fill_value(one, stored) for values in given for one in np.ravel(values).tolist()]
    missing = [one for one in dict.fromkeys(missing) if not pd.isnull(one)]
    scale, offset = (_factor(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    is_packed, made = scale is not None or offset is not None, stored
    signs = {("true", "i"): "u", ("false", "u"): "i"}
    if kind := signs.get((str(attributes.get("_Unsigned")).lower(), stored.kind)):
        made = stored = np.dtype(f"{kind}{stored.itemsize}")
        missing = np.array(missing, np.int64).astype(stored).tolist()
    elif attributes.get("dtype") == "bool" and not missing:
        made = np.dtype(bool)
    if (clock := _clock(name, attributes)) is not None:
        return Coding(name, clock[0], stored, tuple(missing), scale, offset, *clock[1:])
    # Floats of which only NaN is missing keep their type although they are packed.
    if is_packed and (missing or not given or stored.kind != "f"):
        of_factors = np.float64 if offset is not None else type(scale)
        made = np.result_type(stored, of_factors) if of_factors is int else np.dtype(np.float64)
    if missing and made.kind != "f":
        made = np.result_type(made, np.float32) if made.kind in "biu" else np.dtype(object)
    is_plain = made == native(made) and not (missing or is_packed or kind or made != stored)
    return None if is_plain else Coding(name, made, stored, tuple(missing), scale, offset)


def _fill_value(value: Any, stored: np.dtype) -> Any:
    """Return a value of an attribute; xarray writes a float in Zarr format 3 as the base64 of its bytes."""
    if stored.kind != "f" or not isinstance(value, str):
        return value
    try:
        return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
    except (ValueError, struct.error):
        return float(value)


def _factor(value: Any) -> Any:
    """Return a number, which other writers may have in a list or as text."""
    if value is None:
        return None
    (number,) = np.ravel(value).tolist()
    return float(number) if isinstance(number, str) else number


def _clock(name: str, attributes: Mapping[str, Any]) -> tuple[np.dtype, int, int] | None:
    """Return the dtype of times or durations, the ticks of a unit, and the ticks from 1970 to the time 0."""
    units = attributes.get("units")
    found = re.fullmatch(r"(\w+)( since (-?\d.*))?", units.strip()) if isinstance(units, str) else None
    is_duration = str(attributes.get("dtype")).startswith("timedelta64")
    if found is None or (found[2] is None and not is_duration):
        return None
    unit, tick = found[1].lower().removesuffix("s"), "us"
    if unit == "nanosecond":
        n_ticks, tick = 1, "ns"
    elif (n_ticks := _MICROSECONDS.get(unit, 0)) == 0:
        raise InputError(f"array {name!r} counts time in {units!r}; count days, hours, minutes or seconds")
    if found[2] is None:
        return np.dtype(f"m8[{tick}]"), n_ticks, 0
    calendar = str(attributes.get("calendar", "standard")).lower()
    start = pd.Timestamp(found[3])
    epoch = start.tz_convert(None) if start.tzinfo else start
    if calendar not in _CALENDARS or (calendar != _CALENDARS[-1] and epoch.to_datetime64() < _REFORM):
        raise InputError(
            f"array {name!r} counts {units!r} in the {calendar} calendar, whose days are not those of "
            f"{_CALENDARS[-1]}; convert it, for example with xarray's convert_calendar"
        )
    return np.dtype(f"M8[{tick}]"), n_ticks, int(epoch.to_datetime64().astype(f"M8[{tick}]").astype(np.int64))
