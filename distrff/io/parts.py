"""Checkpoints in any storage: a folder of files, each of which is complete or does not count.

That of a fit::

    _distrff.json                      {"kind": "checkpoint", "version", "fingerprint", "seed", ...}
    progress.json                      how far the fit is, and what it will take
    steps/000001-TOKEN.part ...        finished steps, in the order of their writing; no file is written over
    sums/PASS/LEVEL-INDEX.part         sums of finished segments, where the pass goes on

A part is one line of JSON, then the arrays that it describes::

    {"checksum": sha256 of the rest of the file, "header_bytes": n}
    {"arrays": [[dtype, shape, order], ...], "tree": ...}

On a local disk a part is written beside its place and renamed. Object stores show an object when it is
complete. Elsewhere, and of a large part that goes piece by piece, the checksum reveals what was cut off.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distrff.engine.checkpoint import DamagedPart, Node, Step
from distrff.engine.tasks import Partial
from distrff.errors import CheckpointWarning, DistrffError, InputError, warn
from distrff.io.storage import (
    FOLDER_MARK,
    MAX_JSON_BYTES,
    PIECE_BYTES,
    ROOT,
    Location,
    full_disk_errors,
    json_of,
    package_version,
    patiently,
    remove_folder,
    storage_errors,
)
from distrff.utils.serialize import ARRAY_KINDS, DamagedValue, bytes_of, decoded, encoded, is_transposed
from distrff.utils.text import human_bytes, in_one_line

KIND = "checkpoint"
_FORMAT = 2
_LINE_BYTES = 200
_MAX_DIMENSIONS = 32
_NODE = re.compile(r"(\d{1,3})-(\d{1,9})\.part")
_STEPS = re.compile(r"\d{6}-[0-9a-f]{8}\.part")


# One file: JSON and arrays.


def write_part(location: Location, tree: Any, arrays: list[np.ndarray], *, is_lasting: bool = True) -> int:
    """Write one part, completely or not at all, and return its bytes.

    A part that only this process reads has a header of any size, and no checksum of its arrays.
    """
    # Views: a sum of gigabytes is written without a copy of it.
    pieces: list[Any] = [bytes_of(A) for A in arrays if A.size]
    described = [[A.dtype.str, list(A.shape), _order(A)] for A in arrays]
    header = json.dumps({"arrays": described, "tree": tree}, allow_nan=False).encode() + b"\n"
    if is_lasting and len(header) > MAX_JSON_BYTES:  # which nobody would read
        raise InputError(
            f"{location} would hold {human_bytes(len(header))} of names and numbers, of so many columns or "
            f"classes; go on without a checkpoint"
        )
    digest = hashlib.sha256(header)
    for piece in pieces if is_lasting else ():
        digest.update(piece)
    first = json.dumps({"checksum": digest.hexdigest(), "header_bytes": len(header)}).encode() + b"\n"
    pieces = [first, header, *pieces]
    with storage_errors(f"{location} could not be written"):
        _write_whole(location, pieces, is_lasting=is_lasting)
    return sum(len(piece) for piece in pieces)


def _write_whole(location: Location, pieces: list[Any], *, is_lasting: bool = True) -> None:
    path = location.path
    if path is None:
        location.write_pieces(pieces)
        return
    # Beside its place and renamed. What nobody finds again after this process does not wait for the disk.
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with full_disk_errors(location), beside.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            if is_lasting:
                file.flush()
                # The rename may reach the disk before the content does.
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_part(location: Location) -> tuple[Any, list[np.ndarray]]:
    """Read JSON and arrays of a part; raise DamagedPart if it is missing or not as it was written."""
    fs, path = location.file_system()

    def read() -> tuple[Any, list[np.ndarray]]:
        size = int(fs.size(path))
        # Read straight into the arrays, of which no second copy is in memory.
        with fs.open(path, "rb", block_size=PIECE_BYTES) as file:
            return _read(file, size)

    with _reading(location):
        return patiently(read, lasting=_OF_CONTENT)


# What is wrong in the content stays wrong: it is read once, and counts as damage.
_OF_CONTENT = (ValueError, LookupError, TypeError, RecursionError)


@contextmanager
def _reading(location: Location) -> Iterator[None]:
    """Raise DamagedPart for a missing or damaged part, InputError for a store that does not answer."""
    try:
        with storage_errors(f"{location} cannot be read"):
            yield
    except InputError as error:  # what a silent store holds may be well, and must not be removed
        if isinstance(error.__cause__, (*_OF_CONTENT, FileNotFoundError)):
            raise DamagedPart(in_one_line(error)) from error
        raise


# One request brings the header of most parts.
_HEAD_BYTES = 2**16


def read_head(location: Location) -> tuple[Any, list[Any], int]:
    """JSON of a part, dtype, shape and order of its arrays, and the byte at which they begin.

    Raises DamagedPart if it is missing, or has more or fewer bytes than its arrays need.
    """
    fs, path = location.file_system()
    with _reading(location):
        size = int(patiently(lambda: fs.size(path)))
        head = bytes(patiently(lambda: fs.cat_file(path, start=0, end=min(size, _HEAD_BYTES))))
        line = _first_line(head)
        start = len(line) + int(json.loads(line)["header_bytes"])
        if len(head) < start <= size:
            head = bytes(patiently(lambda: fs.cat_file(path, start=0, end=start)))
        header = json.loads(head[len(line) : start])
        # A file that was cut off is known by its size, without reading it.
        n_bytes = sum(np.dtype(name).itemsize * math.prod(shape) for name, shape, _ in header["arrays"])
        if start + n_bytes != size:
            raise ValueError("another size")
        return header["tree"], header["arrays"], start


def read_range(location: Location, start: int, stop: int) -> bytes:
    """Some bytes of a part, fewer only at its end; raise DamagedPart if it is missing."""
    fs, path = location.file_system()
    with _reading(location):
        return bytes(patiently(lambda: fs.cat_file(path, start=start, end=stop)))


def _first_line(head: bytes) -> bytes:
    return head[: head.index(b"\n") + 1]


def _read(file: Any, size: int) -> tuple[Any, list[np.ndarray]]:
    line = _first_line(file.read(_LINE_BYTES))
    file.seek(len(line))
    first = json.loads(line)
    n_header = first["header_bytes"]
    # What the header says must agree with the size of the file before anything of that size is allocated.
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
            for start in range(0, len(content), PIECE_BYTES):  # what other file systems read is copied
                piece = content[start : start + PIECE_BYTES]
                if file.readinto(piece) != len(piece):
                    raise ValueError("fewer bytes than its arrays have")
            digest.update(content)
        arrays.append(A)
    if left:
        raise ValueError("more bytes than its arrays have")
    if digest.hexdigest() != first["checksum"]:
        raise ValueError("another checksum")
    return described["tree"], arrays


def _empty(name: str, shape: list[int], order: str, left: int) -> np.ndarray:
    """An array to be filled; refuse one that is larger than what is left of its file."""
    dtype = np.dtype(name)
    # Bytes that are read into an array of objects would be taken for pointers.
    if dtype.kind not in ARRAY_KINDS or dtype.hasobject or order not in ("C", "F"):
        raise ValueError(f"an array of dtype {name!r:.40}")
    # By `type`: for isinstance JSON's true is an int.
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array without a shape")
    # NumPy refuses the size of the other dimensions even where one is 0, by another error.
    if math.prod(shape) * dtype.itemsize > left or math.prod(filter(None, shape)) > 2**62:
        raise ValueError("fewer bytes than its arrays have")
    return np.empty(tuple(shape), dtype, order="F" if order == "F" else "C")


def _order(A: np.ndarray) -> str:
    return "F" if is_transposed(A) else "C"


# The sums of a pass, which tasks write and read.


@dataclass(frozen=True)
class StoredSums:
    """The stored sums of one pass, in a folder."""

    location: Location

    def __hash__(self) -> int:
        # The options of a location are a dict, which has no hash.
        return hash(str(self.location))

    def _place(self, node: Node) -> Location:
        return self.location.within(f"{node[0]}-{node[1]}.part")

    def nodes(self) -> list[Node]:
        found = map(_NODE.fullmatch, self.location.names())
        return [(int(name[1]), int(name[2])) for name in found if name is not None]

    def write(self, node: Node, partial: Partial) -> None:
        write_part(self._place(node), *encoded(partial))

    def read(self, node: Node) -> Partial:
        place = self._place(node)
        try:
            found = decoded(*read_part(place))
            # Well-formed values of another kind would fail much later, in a merge.
            if not isinstance(found, Partial):
                raise DamagedPart(f"{place} holds no sum")
        # A sum that is removed is not tried again: its rows are summed anew.
        except (DamagedPart, DamagedValue) as error:
            with suppress(DistrffError):
                place.remove()
            raise DamagedPart(str(error)) from error
        return found

    def remove(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._place(node).remove()


# The whole.


class CheckpointStore:
    """A checkpoint at a location; `begin` creates it, or finds the one of the same fit."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._places: dict[str, tuple[str, int]] = {}  # file and position of each step
        self._last: tuple[str, list[Any], list[np.ndarray]] | None = None  # the file that was read last
        self._n_files = 0
        self._header: dict[str, Any] = {}

    def begin(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Create the checkpoint with this header, or return the header of the same fit; see `begun`."""
        found = self._header = begun(self.location, header)
        remove_leftovers(self.location)
        self._find_steps()
        return found

    def _find_steps(self) -> None:
        """Find the steps in all files; a damaged file is left out."""
        # In the order of writing, so that a step that was made again has its last value.
        damaged = []
        for name in sorted(filter(_STEPS.fullmatch, self.location.within("steps").names())):
            self._n_files = max(self._n_files, int(name[:6]))
            try:
                stored, _ = self._read(name)
                self._places |= {step["key"]: (name, i) for i, step in enumerate(stored)}
            except (DamagedPart, KeyError, TypeError):
                damaged.append(name)
        if damaged:
            warn(
                f"{self.location}: {len(damaged)} file(s) with finished passes are damaged; these passes are "
                f"made again",
                CheckpointWarning,
            )
        # The last file that was read may be large, and perhaps nobody asks for its steps.
        self._last = None

    def _read(self, name: str) -> tuple[list[Any], list[np.ndarray]]:
        # Steps of one file are asked for one after the other.
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
        except InputError:
            raise
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
            # With a token, as another process may write here that this one does not know of.
            name = f"{self._n_files:06d}-{secrets.token_hex(4)}.part"
            write_part(self.location.within(f"steps/{name}"), tree, arrays)
            self._places |= {step.key: (name, i) for i, step in enumerate(steps)}
        if self.location.header() is None:  # someone removed it: what follows is worth keeping all the same
            write_header(self.location, self._header)
        write_progress(self.location, progress)

    def progress(self) -> Mapping[str, Any]:
        return read_progress(self.location)

    def passes(self) -> Iterable[str]:
        return self.location.within("sums").names()

    def sums(self, key: str) -> StoredSums:
        return StoredSums(self.location.within(f"sums/{key}"))

    def remove(self, key: str) -> None:
        self.sums(key).location.remove()

    def is_seen(self) -> bool:
        """Whether this process sees this checkpoint; for workers, which write to it themselves."""
        found = self.location.header()
        # By the time of its beginning: the same path on the worker's own disk may hold an older one.
        return found is not None and found.get("began") == self._header["began"]


def begun(location: Location, header: Mapping[str, Any], what: str = "fit") -> dict[str, Any]:
    """Create a checkpoint with this header, or return the header of the one that is there.

    Raises InputError if there is something else, or the checkpoint of another fit, or of something else than
    a fit, naming what differs.
    """
    found = location.header()
    if found is None:
        # Hidden files are of file browsers, and of whoever holds the folder.
        names = [name for name in location.names() if not name.startswith(".")]
        # Without its header nothing says of what fit it is; but whose files these are can be told.
        if names and all(map(_OURS.fullmatch, names)):
            raise InputError(f"{location} is what is left of a damaged checkpoint; delete it")
        if names:
            raise InputError(
                f"{location} holds other things ({names[0]}); choose an empty folder, or one that does not "
                f"exist"
            )
        header = {"kind": KIND, "of": what, "format": _FORMAT, "version": package_version(), **header}
        write_header(location, header)
        return header
    if found.get("kind") != KIND:
        raise InputError(f"{location} is not a checkpoint of distrff; choose another place")
    if found.get("format") != _FORMAT:
        raise InputError(f"{location} was written by another distrff; choose another place")
    _check_sealed(location, found)
    if found["of"] != what:
        raise InputError(f"{location} is the checkpoint of a {found['of']}; choose another place")
    if differences := _differences(found["fingerprint"], header["fingerprint"]):
        raise InputError(
            f"{location} is the checkpoint of another {what}: {'; '.join(differences)}; choose another "
            f"place, or delete it"
        )
    return found


def note_model(location: Location, place: Location, digest: str) -> None:
    """Note in a fit's checkpoint which model is about to be written to a place where nothing else is."""
    header = location.header()
    if header is not None:
        write_header(location, header | {"model": f"{digest} {place}"})


def has_written(location: Location, place: Location, digest: Callable[[], str]) -> bool:
    """Whether the fit of this checkpoint wrote the model at a place, of some digest, and was killed then."""
    header = location.header() or {}
    noted = header.get("model")
    # Asked before the digest, for which the whole model is read.
    is_here = header.get("kind") == KIND and isinstance(noted, str) and noted.endswith(f" {place}")
    return is_here and noted == f"{digest()} {place}"


_OURS = re.compile(r"progress\.json|steps|sums|runs|\w+\.part|" + re.escape(FOLDER_MARK))


def write_header(location: Location, header: Mapping[str, Any]) -> None:
    _write_document(location, FOLDER_MARK, {"attributes": {ROOT: _sealed(header)}})


def write_progress(location: Location, progress: Mapping[str, Any]) -> None:
    """Write how far it is, for `described`."""
    _write_document(location, "progress.json", _sealed(progress))


def _write_document(location: Location, name: str, document: Any) -> None:
    text = json.dumps(document, indent=2, allow_nan=False)
    with storage_errors(f"{location} could not be written"):
        _write_whole(location.within(name), [text.encode()])


def _sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the checksum of its other values."""
    others = {name: value for name, value in document.items() if name != "checksum"}
    # Checks of each field would find nothing: a seed with one flipped bit is a seed as well.
    text = json.dumps(others, sort_keys=True)
    return others | {"checksum": hashlib.sha256(text.encode()).hexdigest()}


def _check_sealed(location: Location, header: Mapping[str, Any]) -> None:
    if header != _sealed(header):
        raise InputError(f"{location} is damaged (its header has another checksum); delete it")


def remove_leftovers(location: Location) -> None:
    """Remove what killed writers left; a writer that still runs fails, and writes its part again."""
    path = location.path
    if path is not None:
        for left in path.rglob(".*.tmp"):
            left.unlink(missing_ok=True)


def remove_checkpoint(location: Location) -> None:
    """Remove a checkpoint, if there is one."""
    header = location.header()
    if header is not None and header.get("kind") == KIND:
        for name in location.names():  # its header last: without it the rest would be something else
            if name != FOLDER_MARK:
                location.within(name).remove()
        if location.path is not None:
            remove_folder(Path(location.path))
        else:
            location.remove()


_MAX_DIFFERENCES = 6
_DIGEST = re.compile("[0-9a-f]{32}")  # which tells nobody anything


def _differences(stored: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The differences between two fingerprints, in words."""
    changed = []
    for name, value in mine.items():
        other = stored.get(name)
        if other != value and _DIGEST.fullmatch(str(value)):
            changed.append(f"{name}: changed")
        elif other != value:
            was = _short(other) if name in stored else "not there"
            changed.append(f"{name} was {was}, now {_short(value)}")
    left_out = len(changed) - _MAX_DIFFERENCES
    return [*changed[:_MAX_DIFFERENCES], *([f"and {left_out} more"] if left_out > 0 else [])]


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:38]}…{text[-41:]}"  # paths differ at their ends


# For `distrff inspect`.


def described(location: Location) -> dict[str, Any]:
    """Header, progress and size of a checkpoint, which may be written at the same time."""
    header, progress = location.header() or {}, read_progress(location)
    _check_sealed(location, header)
    fs, path = location.file_system()
    with storage_errors(f"{location} cannot be read"):
        # fsspec remembers listings, and the fit writes meanwhile.
        fs.invalidate_cache(path)
        sizes = fs.find(path, detail=True)
    n_bytes = sum(int(info.get("size") or 0) for info in sizes.values())
    header = {name: value for name, value in header.items() if value is not None}
    return {"header": header, "progress": progress, "bytes": n_bytes}


def read_progress(location: Location) -> dict[str, Any]:
    """How far a checkpoint is, as it was written last; nothing if that cannot be read."""
    fs, path = location.file_system()
    try:
        found = json_of(fs, f"{path}/progress.json", MAX_JSON_BYTES)
    except (OSError, ValueError, RecursionError):
        return {}
    # It may be read while it is written; whoever looks at it looks again.
    return found if isinstance(found, dict) and found == _sealed(found) else {}
