"""Columns that a partitioned folder of files keeps in its names, as in year=2019/part-0.parquet."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa

from distrff.io.storage import GLOB_CHARACTERS

Keys = dict[str, pa.Scalar]

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def path_keys(files: Sequence[str], roots: Sequence[str], as_text: Collection[str] = ()) -> list[Keys]:
    """Return the keys of each file below what the given paths (files, folders, globs) have in common.

    As pyarrow infers them, int32 where all values of a key are, else text; but int64 where pyarrow has text
    of larger integers, which are numbers in any other table. Null in a path without the key. Those of
    `as_text` stay text, as they were where other values stood beside them: "007" is no 7 then.
    """
    known = set(files)
    folders = [_folder(root, known) for root in roots]
    above = len(_segments(posixpath.commonpath(folders)))
    found = [_pairs(_segments(file)[above:-1]) for file in files]
    values: dict[str, set[str | None]] = {}
    for pairs in found:
        for key, value in pairs.items():
            values.setdefault(key, set()).add(value)
    types = {
        key: pa.string() if key in as_text else _type_of(those - {None}) for key, those in values.items()
    }
    made = {
        (key, value): pa.scalar(value, pa.string()).cast(types[key])
        for key, those in values.items()
        for value in those | {None}
    }
    return [{key: made[key, pairs.get(key)] for key in values} for pairs in found]


def _folder(root: str, files: Collection[str]) -> str:
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


def _type_of(values: Iterable[str | None]) -> pa.DataType:
    for bits, kind in ((31, pa.int32()), (63, pa.int64())):
        if all(_INTEGER.fullmatch(text or "") and -(2**bits) <= int(text or "") < 2**bits for text in values):
            return kind
    return pa.string()


_INTEGER = re.compile(r"-?[0-9]{1,19}")
