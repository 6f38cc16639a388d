"""What a stored group can hold: plain arrays and strict JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distrff.errors import InputError, InputTypeError


def storable(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array as it is stored, little-endian in C order; raise for what cannot be."""
    A = np.asarray(array)
    if A.dtype.kind not in "biuf" or A.dtype.itemsize > 8:
        raise InputTypeError(f"array {name!r} has dtype {A.dtype}; give bool, int or float, at most 64 bits")
    return np.asarray(A, dtype=A.dtype.newbyteorder("<"), order="C")


def refuse_loose_json(value: Any, where: str) -> None:
    """Raise for what JSON has no word for, naming the keys that lead to it."""
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
