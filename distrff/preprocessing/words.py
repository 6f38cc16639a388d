"""When two values are equal: one word for each value, in whatever type or spelling it comes.

1, 1.0, Decimal("1.0") and "1" are the same category, and so are True, "true" and "TRUE". Codes such as "01"
or "1e5" equal no number: whoever read them as numbers lost what told them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np

# As Python and NumPy spell numbers.
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]\d\d+)?", re.ASCII)


def number_pattern(decimal: str = ".", whole: str = "[0-9]+") -> str:
    """Regular expression of a number without blanks; `whole` is the part before the decimal sign."""
    point = re.escape(decimal)
    return rf"[-+]?({whole}({point}[0-9]*)?|{point}[0-9]+)([eE][-+]?[0-9]+)?"


_NUMBER = re.compile(number_pattern(whole="(0|[1-9][0-9]*)"))  # codes such as 007 are none
_TRUTH = {"false": 0, "true": 1}

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second, by unit
MICROSECONDS = TICKS["us"]
_TIME = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?)"
    r"((?<=\.\d{6})\d+)?"  # digits beyond microseconds
    r"(?P<offset>Z|[+-]\d\d:?\d\d)?"
)


def word_of(value: Any) -> str:
    """The spelling of a value: of whole numbers their digits, of fractions those of their own precision."""
    # Before numbers, among which Python counts booleans: a file spells them true and false.
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    # Beyond all integers of 64 bits a float has more digits than mean anything.
    if isinstance(value, Decimal | float | np.floating) and abs(float(value)) < 2**64 and value == value // 1:
        return str(int(value))
    return format(value.normalize(), "f") if isinstance(value, Decimal) else str(value)


def word_of_time(ticks: int, per_second: int) -> str:
    """The spelling of a time without zeros at its end: 2020-01-01, 2020-01-01 12:30:00.5."""
    date, clock = str(times_of(np.array(ticks, np.int64), per_second)).split("T")
    clock = clock.rstrip("0").rstrip(".") if "." in clock else clock
    return date if clock == "00:00:00" else f"{date} {clock}"


def times_of(ticks: np.ndarray, per_second: int) -> np.ndarray:
    """Ticks since 1970 as datetime64."""
    unit = next(unit for unit, n in TICKS.items() if n == per_second)
    return ticks.view(f"M8[{unit}]")


def number_in(word: str) -> int | float | None:
    """The number that text spells, 1 or 0 of a truth value; None for codes such as "01", and for NaN."""
    word = word.strip()
    if word.lower() in _TRUTH:
        return _TRUTH[word.lower()]
    # float() would take "infinity", "1_000" and digits of other scripts.
    if not _NUMBER.fullmatch(word):
        return None
    is_integer = word.lstrip("+-").isdecimal() and len(word) < 30  # int() refuses thousands of digits
    return int(word) if is_integer else float(word)


def is_same_label(word: str, label: str) -> bool:
    """Whether two texts are one label, but for blanks around them and the case of true and false."""
    word, label = word.strip(), label.strip()
    return word == label or (word.lower() == label.lower() and label.lower() in _TRUTH)


def microseconds_in(word: str) -> int | None:
    """The time that text spells in the manner of ISO 8601, in microseconds since 1970; None without one."""
    found = _TIME.fullmatch(word)
    if found is None:
        return None
    try:
        ticks = int(np.datetime64(found["time"], "us").astype(np.int64))
    except ValueError:  # such as a 13th month
        return None
    if (offset := found["offset"] or "Z") != "Z":  # NumPy warns of it
        minutes = 60 * int(offset[1:3]) + int(offset[-2:])
        ticks -= (minutes if offset[0] == "+" else -minutes) * 60 * MICROSECONDS
    return ticks


def has_zone(word: str) -> bool:
    """Whether text that spells a time says where on earth it is, as 2020-01-01T12:00:00Z does."""
    found = _TIME.fullmatch(word)
    return found is not None and found["offset"] is not None


def _key(word: str) -> Any:
    """A key that words of equal values have in common."""
    word = word.strip()
    if _PLAIN_NUMBER.fullmatch(word):
        # Not a float: labels that differ in their 20th digit are two.
        return Decimal(word)
    if word.lower() in _TRUTH:
        return word.lower()
    # Most words begin with no year, and are spared the longer pattern.
    ticks = microseconds_in(word) if word[:4].isdecimal() else None
    return word if ticks is None else ("time", ticks)


class Vocabulary:
    """The words of a fit, to be found again.

    A word is looked for as it is, then without blanks around it, and only then by its value: what the fit
    told apart, such as the versions "1.1" and "1.10", stays apart.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._places = {word: i for i, word in enumerate(words)}
        keys = list(map(_key, words))
        # Where all are true, false, 1 or 0, the numbers are truth values.
        self._truth = _TRUTH if set(keys) <= {*_TRUTH, *_TRUTH.values()} else {}
        self._by_key: dict[Any, int] = {}
        for i, key in enumerate(map(self._common, keys)):
            # Words of the fit that are equal by value, such as "1.1" and "1.10", are found by their spelling
            # alone.
            self._by_key[key] = -1 if key in self._by_key else i

    def _common(self, key: Any) -> Any:
        return self._truth.get(key, key) if isinstance(key, str) else key

    def find(self, word: str) -> int:
        """The position of the word that equals this one; −1 for none, or where several do."""
        for spelling in (word, word.strip()):
            if spelling in self._places:
                return self._places[spelling]
        return self._by_key.get(self._common(_key(word)), -1)

    def find_all(self, words: Iterable[str]) -> list[int]:
        """The position of each word."""
        return [self.find(word) for word in words]


SHOWN = 5


@dataclass(frozen=True)
class Unseen:
    """Rows of a column whose words are none of a vocabulary, and the first few of these words."""

    n_rows: int
    words: tuple[str, ...]

    def __add__(self, other: Unseen) -> Unseen:
        return Unseen(self.n_rows + other.n_rows, tuple(dict.fromkeys(self.words + other.words))[:SHOWN])

    @staticmethod
    def total(parts: Iterable[Mapping[str, Unseen]]) -> dict[str, Unseen]:
        """The sums by column."""
        sums: dict[str, Unseen] = {}
        for name, found in chain.from_iterable(part.items() for part in parts):
            sums[name] = sums[name] + found if name in sums else found
        return sums
