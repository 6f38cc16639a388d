"""Checkpoints in any storage: a folder of files, each of which is complete or does not count.

::

    _distrff.json                      {"kind": "checkpoint", "version", "fingerprint", "seed", ...}
    progress.json                      how far the fit is, and what it will take
    steps/000001.part ...              finished steps, in the order of their writing
    sums/PASS/LEVEL-INDEX.part         sums of finished segments, where the pass goes on

A part is one line of JSON, then the arrays that it describes::

    {"checksum": sha256 of the rest of the file, "header_bytes": n}
    {"arrays": [[dtype, shape, order], ...], "tree": ...}

On a local disk a part is written beside its place and renamed. Object stores show an object when it is
complete; on other file systems the checksum reveals a part that was cut off.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distrff.engine.checkpoint import DamagedPart, Node, Step
from distrff.engine.reduction import Partial
from distrff.errors import DistrffError, InputError
from distrff.io.groups import package_version
from distrff.io.storage import (
    FOLDER_MARK,
    MAX_JSON_BYTES,
    ROOT,
    Location,
    json_of,
    remove_folder,
    storage_errors,
)
from distrff.utils.values import DamagedValue, bytes_of, decoded, encoded, is_transposed

KIND = "checkpoint"
_FORMAT = 1
_KINDS = "biufcSUmM"  # of arrays: no objects
_LINE_BYTES = 200
_MAX_DIMENSIONS = 32
_NODE = re.compile(r"(\d{1,3})-(\d{1,9})\.part")
_STEPS = re.compile(r"\d{6}\.part")


# One file: JSON and arrays.


def write_part(location: Location, tree: Any, arrays: list[np.ndarray]) -> int:
    """Write one part, completely or not at all, and return its bytes."""
    pieces: list[Any] = [bytes_of(A) for A in arrays if A.size]
    described = [[A.dtype.str, list(A.shape), _order(A)] for A in arrays]
    header = json.dumps({"arrays": described, "tree": tree}, allow_nan=False).encode() + b"\n"
    digest = hashlib.sha256(header)
    for piece in pieces:
        digest.update(piece)
    first = json.dumps({"checksum": digest.hexdigest(), "header_bytes": len(header)}).encode() + b"\n"
    pieces = [first, header, *pieces]
    with storage_errors(f"{location} could not be written"):
        _write_whole(location, pieces)
    return sum(len(piece) for piece in pieces)


def _write_whole(location: Location, pieces: list[Any]) -> None:
    path = location.path
    if path is None:
        location.write(b"".join(pieces))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_part(location: Location) -> tuple[Any, list[np.ndarray]]:
    """Return JSON and arrays of a part; raise DamagedPart if it is missing or not as it was written.

    What the header says must agree with the size of the file before anything of that size is allocated.
    """
    fs, path = location.file_system()
    with storage_errors(f"{location} cannot be read", DamagedPart):
        size = int(fs.size(path))
        with fs.open(path, "rb") as file:
            try:
                return _read(file, size)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DamagedPart(f"{location} is damaged ({str(error)[:80]})") from error


def _read(file: Any, size: int) -> tuple[Any, list[np.ndarray]]:
    line = file.readline(_LINE_BYTES)
    first = json.loads(line)
    n_header = first["header_bytes"]
    if not isinstance(n_header, int) or not 0 < n_header <= min(size - len(line), MAX_JSON_BYTES):
        raise ValueError("a header of another size")
    header = file.read(n_header)
    digest = hashlib.sha256(header)
    described = json.loads(header)
    arrays, left = [], size - len(line) - n_header
    for name, shape, order in described["arrays"]:
        A = _empty(name, shape, order, left)
        left -= A.nbytes
        if A.size:
            content = bytes_of(A)  # of A itself, which has no gaps
            if file.readinto(content) != len(content):
                raise ValueError("fewer bytes than its arrays have")
            digest.update(content)
        arrays.append(A)
    if left:
        raise ValueError("more bytes than its arrays have")
    if digest.hexdigest() != first["checksum"]:
        raise ValueError("another checksum")
    return described["tree"], arrays


def _empty(name: str, shape: list[int], order: str, left: int) -> np.ndarray:
    """Return an array to be filled; refuse one that is larger than what is left of its file."""
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS or dtype.hasobject or order not in ("C", "F"):
        raise ValueError(f"an array of dtype {name!r:.40}")
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array without a shape")
    if math.prod(shape) * dtype.itemsize > left or math.prod(filter(None, shape)) > 2**62:
        raise ValueError("fewer bytes than its arrays have")
    return np.empty(tuple(shape), dtype, order="F" if order == "F" else "C")


def _order(A: np.ndarray) -> str:
    return "F" if is_transposed(A) else "C"


# A sum, which tasks write and read.


@dataclass(frozen=True)
class StoredSum:
    """The place of one sum."""

    location: Location

    def write(self, partial: Partial) -> None:
        write_part(self.location, *encoded(partial))

    def read(self) -> Partial:
        try:
            found = decoded(*read_part(self.location))
            if not isinstance(found, Partial):
                raise DamagedPart(f"{self.location} holds no sum")
        except (DamagedPart, DamagedValue) as error:
            with suppress(DistrffError):
                self.location.remove()
            raise DamagedPart(str(error)) from error
        return found


def copies_of_a_sum(location: Location) -> int:
    """Return how many copies of a sum a thread holds, beside it, while it writes the sum or reads it back.

    A local file is written from the sum itself, and read while the sum that it takes the place of is still
    there. To others a file goes as one piece, cut into pieces again, and what is read has been fetched and
    joined before.
    """
    return 1 if location.path is not None else 3


# The whole.


class CheckpointStore:
    """A checkpoint at a location; `begin` creates it, or finds the one of the same fit."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._places: dict[str, tuple[str, int]] = {}  # file and position of each step
        self._last: tuple[str, list[Any], list[np.ndarray]] | None = None  # the file that was read last
        self._n_files = 0

    def begin(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Create the checkpoint with this header, or return the header of the same fit that is there.

        Raises InputError if there is something else, or the checkpoint of another fit, naming what differs.
        """
        found = self.location.header()
        if found is None:
            self._create(header)
            return dict(header)
        if found.get("kind") != KIND:
            raise InputError(f"{self.location} is not a checkpoint of distrff; choose another place")
        if found.get("format") != _FORMAT:
            raise InputError(f"{self.location} was written by another distrff; choose another place")
        if differences := _differences(found.get("fingerprint"), header["fingerprint"]):
            raise InputError(
                f"{self.location} is the checkpoint of another fit: {'; '.join(differences)}; choose another "
                f"place, or delete it"
            )
        self._remove_leftovers()
        self._find_steps()
        return found

    def _create(self, header: Mapping[str, Any]) -> None:
        names = [name for name in self.location.names() if not name.startswith(".")]
        if names:
            raise InputError(
                f"{self.location} holds other things ({names[0]}); choose an empty folder, or one that does "
                f"not exist"
            )
        document = {"kind": KIND, "format": _FORMAT, "version": package_version(), **header}
        text = json.dumps({"attributes": {ROOT: document}}, indent=2, allow_nan=False)
        with storage_errors(f"{self.location} could not be written"):
            _write_whole(self.location.within(FOLDER_MARK), [text.encode()])

    def _remove_leftovers(self) -> None:
        """Remove what killed writers left; a writer that still runs fails, and its sum is made again."""
        path = self.location.path
        if path is not None:
            for left in path.rglob(".*.tmp"):
                left.unlink(missing_ok=True)

    def _find_steps(self) -> None:
        """Find the steps in all files; a damaged file is left out."""
        for name in sorted(filter(_STEPS.fullmatch, self.location.within("steps").names())):
            self._n_files = max(self._n_files, int(name[:6]))
            try:
                stored, _ = self._read(name)
                self._places |= {step["key"]: (name, i) for i, step in enumerate(stored)}
            except (DistrffError, KeyError, TypeError):
                continue
        self._last = None

    def _read(self, name: str) -> tuple[list[Any], list[np.ndarray]]:
        if self._last is None or self._last[0] != name:
            self._last = (name, *read_part(self.location.within(f"steps/{name}")))
        return self._last[1], self._last[2]

    def keys(self) -> Iterable[str]:
        return self._places

    def step(self, key: str) -> tuple[list[tuple[str, float]], list[Any]]:
        name, position = self._places[key]
        try:
            stored, arrays = self._read(name)
            step = stored[position]
            first, stop = step["arrays"]
            values = decoded(step["tree"], arrays[first:stop])
            return [(str(label), float(seconds)) for label, seconds in step["sweeps"]], values
        except (DamagedValue, DamagedPart, KeyError, TypeError, ValueError, IndexError) as error:
            raise DamagedPart(f"{self.location}: a step in {name} is damaged") from error

    def append(self, steps: list[Step], progress: Mapping[str, Any]) -> None:
        if steps:
            tree: list[Any] = []
            arrays: list[np.ndarray] = []
            for step in steps:
                place = [len(arrays), len(arrays) + len(step.arrays)]
                tree.append({"key": step.key, "sweeps": step.sweeps, "arrays": place, "tree": step.tree})
                arrays += step.arrays
            self._n_files += 1
            write_part(self.location.within(f"steps/{self._n_files:06d}.part"), tree, arrays)
        text = json.dumps(dict(progress), indent=2, allow_nan=False)
        with storage_errors(f"{self.location} could not be written"):
            _write_whole(self.location.within("progress.json"), [text.encode()])

    def passes(self) -> Iterable[str]:
        return self.location.within("sums").names()

    def nodes(self, key: str) -> list[Node]:
        found = map(_NODE.fullmatch, self.location.within(f"sums/{key}").names())
        return [(int(name[1]), int(name[2])) for name in found if name is not None]

    def sum_file(self, key: str, node: Node) -> StoredSum:
        return StoredSum(self._sum(key, node))

    def _sum(self, key: str, node: Node) -> Location:
        return self.location.within(f"sums/{key}/{node[0]}-{node[1]}.part")

    def remove(self, key: str, nodes: Iterable[Node] | None = None) -> None:
        if nodes is None:
            self.location.within(f"sums/{key}").remove()
            return
        for node in nodes:
            self._sum(key, node).remove()

    def is_seen(self) -> bool:
        """Whether this process sees the checkpoint; for workers, which write to it themselves."""
        return self.location.header() is not None


def remove_checkpoint(location: Location) -> None:
    """Remove a checkpoint, if there is one."""
    header = location.header()
    if header is not None and header.get("kind") == KIND:
        if location.path is not None:
            remove_folder(Path(location.path))
        else:
            location.remove()


def _differences(stored: Any, mine: Mapping[str, Any]) -> list[str]:
    """Return in words what differs between two fingerprints."""
    stored = stored if isinstance(stored, dict) else {}
    changed = []
    for name, value in mine.items():
        other = stored.get(name)
        if other != value:
            changed.append(f"{name} was {_short(other)}, now {_short(value)}")
    return changed


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"


# What `distrff inspect` shows.


def described(location: Location) -> dict[str, Any]:
    """Return header, progress and sizes of a checkpoint, which a fit may be writing."""
    header = location.header() or {}
    fs, path = location.file_system()
    try:
        progress = json_of(fs, f"{path}/progress.json", MAX_JSON_BYTES)
    except (OSError, ValueError, RecursionError):
        progress = {}
    with storage_errors(f"{location} cannot be read"):
        fs.invalidate_cache(path)
        sizes = fs.find(path, detail=True)
    n_bytes = sum(int(info.get("size") or 0) for info in sizes.values())
    return {"header": header, "progress": progress if isinstance(progress, dict) else {}, "bytes": n_bytes}
