"""Columns that a partitioned folder of files keeps in its names, as in year=2019/part-0.parquet."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from urllib.parse import unquote

import pyarrow as pa

from distrff.io.storage import GLOB_CHARACTERS

Keys = dict[str, pa.Scalar]

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def path_keys(files: Sequence[str], roots: Sequence[str], as_text: Collection[str] = ()) -> list[Keys]:
    """Return the keys of each file below what the given paths (files, folders, globs) have in common.

    As pyarrow infers them: int32 where all values of a key are, else text; null in a path without the key.
    Those of `as_text` stay text, as they were where other values stood beside them: "007" is no 7 then.
    """
    folders = [_folder(root, files) for root in roots]
    above = len(_segments(posixpath.commonpath(folders)))
    found = [_pairs(_segments(file)[above:-1]) for file in files]
    values: dict[str, set[str | None]] = {}
    for pairs in found:
        for key, value in pairs.items():
            values.setdefault(key, set()).add(value)
    numbers = {
        key for key, those in values.items() if key not in as_text and all(map(_is_int32, those - {None}))
    }
    types = {key: pa.int32() if key in numbers else pa.string() for key in values}
    made = {
        (key, value): pa.scalar(value, pa.string()).cast(types[key])
        for key, those in values.items()
        for value in those | {None}
    }
    return [{key: made[key, pairs.get(key)] for key in values} for pairs in found]


def _folder(root: str, files: Sequence[str]) -> str:
    """Return a folder itself, and the folder that a file, or all of a glob, lies in."""
    if root in files:
        return posixpath.dirname(root)
    parts = root.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if any(c in part for c in GLOB_CHARACTERS)), len(parts))
    return "/".join(parts[:fixed])


def _segments(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _pairs(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the keys and their values in the names of nested folders."""
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    return {unquote(key): None if value == _MISSING else unquote(value) for key, _, value in pairs}


def _is_int32(text: str | None) -> bool:
    digits = (text or "").removeprefix("-")
    return digits.isascii() and digits.isdigit() and -(2**31) <= int(text or "") < 2**31
