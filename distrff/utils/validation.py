"""Checks of parameters, rows, and what a stored group can hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from reprlib import repr as short
from typing import Any

import numpy as np

from distrff.errors import InputError, InputTypeError, NonFiniteError

Widths = float | tuple[float, ...] | str

FEW_COLUMNS = 2**20  # a row of so many columns is small, whatever is stored


def is_number(value: Any) -> bool:
    """Whether a value is a real number; True, False and time spans do not count as numbers here."""
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def is_finite(value: Any) -> bool:
    """Whether a value is a real number that a float can hold."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer or a fraction beyond the largest float
        return False


def check_count(name: str, value: Any, minimum: int = 1, *, or_none: bool = False) -> None:
    """Raise InputError unless a parameter is an integer of at least `minimum`, or None if it may be."""
    if value is None and or_none:
        return
    is_integer = is_number(value) and isinstance(value, Integral)
    is_huge = is_integer and abs(int(value)) > sys.maxsize
    # Python writes no integer of more than 4300 digits.
    got = f"an integer of {int(value).bit_length()} bits" if is_huge else repr(value)
    if not is_integer or value < minimum:
        kind = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise InputError(f"{name} must be {kind}{' or None' if or_none else ''}, got {got}")
    if is_huge:
        raise InputError(f"{name} must be at most {sys.maxsize}, the largest size of an array, got {got}")


def one_of(name: str, value: Any, allowed: Iterable[str], *, or_none: bool = False) -> None:
    """Raise InputError unless the value of a parameter is one of those allowed, or None if it may be."""
    allowed = tuple(allowed)
    if not (value is None and or_none) and (not isinstance(value, str) or value not in allowed):
        names = ", ".join(map(repr, allowed))
        raise InputError(f"{name} must be {'None or ' if or_none else ''}one of {names}, got {value!r}")


def positive(name: str, value: Any, kind: str = "a positive number") -> None:
    """Raise InputError, saying `kind`, unless the value of a parameter is a positive, finite number."""
    if not is_finite(value) or float(value) <= 0:
        raise InputError(f"{name} must be {kind}, got {value!r}")


def positive_number(value: Any, what: str, minimum: float = float(np.finfo(float).tiny)) -> float:
    """`value` as a finite float of at least `minimum`, or raise InputError.

    The default bound refuses zero and the subnormal numbers, whose reciprocals overflow.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not is_number(value):
        raise InputTypeError(f"{what} must be a number, got {short(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not minimum <= number < math.inf:
        bound = f"at least {minimum:g}" if minimum > 1e-300 else "positive"
        raise InputError(f"{what} must be {bound} and finite, got {short(value)}")
    return number


def float_array(values: Iterable[Any]) -> np.ndarray:
    """Numbers as an array of float64.

    Raises TypeError or ValueError if one is no number; True and False are none.
    """
    values = list(values)
    # NumPy would make them 1 and 0 in silence.
    if any(isinstance(value, bool | np.bool_) for value in values):
        raise TypeError("True and False are no numbers")
    return np.asarray(values, dtype=np.float64)


def checked_length_scale(value: Any) -> Widths:
    """`value` as a float, a tuple of floats (one per column), "auto" or "ard".

    Raises InputError if it is none of these, or a width is not positive and finite.
    """
    if isinstance(value, str):
        if value in ("auto", "ard"):
            return value
        raise InputError(
            f'length_scale must be a positive number, one per column, "auto" or "ard", got {value!r}'
        )
    if not isinstance(value, (tuple, list, np.ndarray)) or getattr(value, "ndim", 1) == 0:
        return positive_number(value, "length_scale")
    if len(value) == 0:
        raise InputError("length_scale must be a number or a list of one per column, got an empty list")
    return tuple(positive_number(width, f"length_scale of column {j}") for j, width in enumerate(value))


def finite_rows(X: Any, name: str) -> np.ndarray:
    """X as a finite float64 matrix; `name` stands for it in the errors.

    Raises InputError if it has not two dimensions, InputTypeError if it is not real, NonFiniteError if it is
    not finite.
    """
    try:
        X = np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name} must be a matrix: {error}") from error
    if X.ndim != 2:
        raise InputError(f"{name} must have two dimensions, rows and columns, got shape {X.shape}")
    # Columns of objects may be numbers, as those of a frame with mixed types; the cast tells.
    if X.dtype.kind not in "biufO":
        raise InputTypeError(f"{name} must hold real numbers, got dtype {X.dtype}")
    try:
        X = X.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must hold real numbers only: {error}") from error
    bad = np.argwhere(~np.isfinite(X))
    if len(bad):
        row, column = bad[0]
        raise NonFiniteError(f"{name} holds {X[row, column]} in row {row}, column {column}; remove it")
    return X


def storable(name: str, array: np.ndarray) -> np.ndarray:
    """The array as it is stored, little-endian in C order; raises for a dtype that cannot be stored."""
    A = np.asarray(array)
    if A.dtype.kind not in "biuf" or A.dtype.itemsize > 8:
        raise InputTypeError(f"array {name!r} has dtype {A.dtype}; give bool, int or float, at most 64 bits")
    return np.asarray(A, dtype=A.dtype.newbyteorder("<"), order="C")


def refuse_loose_json(value: Any, where: str) -> None:
    """Raise for a value that strict JSON cannot hold, naming the keys that lead to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputTypeError(f"{where} has the key {key!r}; JSON keys are strings")
            refuse_loose_json(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            refuse_loose_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} is {value}; strict JSON has no such number, store null")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise InputTypeError(f"{where} is of type {type(value).__name__}, which JSON cannot store")
