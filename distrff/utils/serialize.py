"""Values as JSON beside plain arrays: what sums and solvers return, stored without pickle.

A value is None, a truth value, a number, a text, an array, a CSR matrix, a list, tuple or dict of values, or
a dataclass or named tuple of distrff. Arrays come back in the memory order that they had, as BLAS takes
another path for a transposed matrix, with other last bits.

Reading runs no code of the file: a class is looked up in the packages that define sums and solutions, must
be a dataclass or a named tuple with exactly the stored fields, and its `__init__` is not called.

Beside these: digests of values, parameters as text, and results as strict JSON for people to see.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import joblib
import numpy as np
from scipy.sparse import csr_matrix

from distrff.errors import DistrffError, InputError

_PACKAGES = (
    "utils", "kernels", "solvers", "preprocessing", "features", "fitting", "estimators", "engine", "model",
)  # fmt: skip
ARRAY_KINDS = "biufcSUmM"
"""Of arrays whose bytes say everything: no objects."""


class NotStorable(TypeError):
    """A value that is none of those above."""


class DamagedValue(DistrffError):
    """JSON or arrays that no value was stored as."""


def encoded(value: Any) -> tuple[Any, list[np.ndarray]]:
    """A value as strict JSON, and the arrays that it refers to by their position.

    Raises NotStorable for any other value.
    """
    arrays: list[np.ndarray] = []
    return _encoded(value, arrays), arrays


def decoded(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
    """The value of these; raises DamagedValue where no value was stored like this."""
    try:
        return _decoded(tree, arrays)
    except DamagedValue:
        raise
    except Exception as error:  # whatever a damaged file makes of it
        raise DamagedValue(f"no stored value: {type(error).__name__}") from error


def _encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    # np.float64 is a float too, but a Python float in its place would promote float32 arrays differently.
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {"float": str(value)}
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.generic):
        return {"scalar": _kept(np.asarray(value), arrays)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return {"objects": [_encoded(v, arrays) for v in value.ravel().tolist()], "shape": value.shape}
        return {"array": _kept(value, arrays)}
    if isinstance(value, csr_matrix):
        return {"csr": [_encoded(part, arrays) for part in (value.data, value.indices, value.indptr)],
                "shape": value.shape}  # fmt: skip
    if isinstance(value, list):
        return [_encoded(item, arrays) for item in value]
    if isinstance(value, tuple) and type(value) is not tuple:
        return {"type": _name_of(type(value)), "items": [_encoded(item, arrays) for item in value]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        stored = {field.name: _encoded(getattr(value, field.name), arrays) for field in fields(value)}
        return {"type": _name_of(type(value)), "fields": stored}
    raise NotStorable(f"a value of type {type(value).__name__} cannot be stored")


def _kept(A: np.ndarray, arrays: list[np.ndarray]) -> int:
    if A.dtype.kind not in ARRAY_KINDS or A.dtype.hasobject:
        raise NotStorable(f"an array of dtype {A.dtype} cannot be stored")
    arrays.append(A)
    return len(arrays) - 1


def _name_of(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    # Asked when it is stored, so that no file holds a value that could not be read.
    if _class_of(name) is not kind:
        raise NotStorable(f"a value of type {kind.__name__} cannot be stored")
    return name


def _class_of(name: str) -> type | None:
    """A dataclass or named tuple of distrff by its name, or None."""
    module, _, qualname = name.partition(":")
    package, _, rest = module.partition(".")
    if package != "distrff" or rest.split(".")[0] not in _PACKAGES or not qualname.isidentifier():
        return None
    found = getattr(import_module(module), qualname, None)
    is_tuple = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    is_ours = isinstance(found, type) and found.__module__ == module and (is_tuple or is_dataclass(found))
    return found if is_ours else None


def _decoded(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
    if tree is None or isinstance(tree, bool | str | int | float):
        return tree
    if isinstance(tree, list):
        return [_decoded(item, arrays) for item in tree]
    if "float" in tree:
        return float(tree["float"])
    if "scalar" in tree:
        return arrays[tree["scalar"]][()]
    if "array" in tree:
        return arrays[tree["array"]]
    if "tuple" in tree:
        return tuple(_decoded(item, arrays) for item in tree["tuple"])
    if "dict" in tree:
        return {_decoded(key, arrays): _decoded(value, arrays) for key, value in tree["dict"]}
    if "objects" in tree:
        # Filled afterwards, or NumPy would make a matrix of items that are lists.
        flat = np.empty(len(tree["objects"]), dtype=object)
        flat[:] = [_decoded(item, arrays) for item in tree["objects"]]
        return flat.reshape(tree["shape"])
    if "csr" in tree:
        parts = tuple(_decoded(part, arrays) for part in tree["csr"])
        return csr_matrix(parts, shape=tuple(tree["shape"]))
    return _instance(tree, arrays)


def _instance(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
    kind: Any = _class_of(tree["type"])
    if kind is not None and "items" in tree and issubclass(kind, tuple):
        items = [_decoded(item, arrays) for item in tree["items"]]
        if len(items) == len(kind._fields):
            return kind._make(items)
    elif kind is not None and is_dataclass(kind) and {f.name for f in fields(kind)} == set(tree["fields"]):
        # A class may check or derive in `__init__`, which a damaged file must not run.
        value: Any = object.__new__(kind)  # type: ignore[arg-type]
        for name, item in tree["fields"].items():
            object.__setattr__(value, name, _decoded(item, arrays))
        return value
    raise DamagedValue(f"no stored value: {str(tree['type'])[:80]!r} has other fields")


def bytes_of(A: np.ndarray) -> memoryview:
    """The bytes of an array in its own memory order, without a copy where it has no gaps."""
    return np.ascontiguousarray(A.T if is_transposed(A) else A).reshape(-1).view(np.uint8).data


def is_transposed(A: np.ndarray) -> bool:
    """Whether an array lies in memory column by column."""
    return A.flags.f_contiguous and not A.flags.c_contiguous


def compact(value: Any) -> Any:
    """A value whose arrays lie in memory as they would after being sent or stored: without gaps.

    BLAS takes another path for a vector with gaps, with other last bits.
    """
    if isinstance(value, np.ndarray):
        # Both orders stay: a transposed matrix is sent and stored as it lies.
        has_gaps = not (value.flags.c_contiguous or value.flags.f_contiguous)
        return np.ascontiguousarray(value) if has_gaps else value
    if isinstance(value, list | tuple):
        made = list(map(compact, value))
        if all(map(operator.is_, made, value)):
            return value
        return value._make(made) if hasattr(value, "_make") else type(value)(made)
    if type(value) is dict:
        return {key: compact(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        changed = {name: made for name, item in found.items() if (made := compact(item)) is not item}
        if changed:
            value = copy(value)
        for name, made in changed.items():
            object.__setattr__(value, name, made)
    return value


# A digest of what a result depends on.


def update_digest(digest: Any, value: Any) -> None:
    """Add a value to a hash: what is no value of the kinds above counts by the name of its type only."""
    if isinstance(value, np.ndarray) and value.dtype.kind in ARRAY_KINDS:
        # The order in memory counts: the same numbers by columns give other last bits.
        layout = value.dtype.str, value.shape, is_transposed(value)
        digest.update(repr(layout).encode())
        digest.update(bytes_of(value))
    elif value is None or isinstance(value, bool | int | float | str | np.generic):
        digest.update(repr(value).encode() + b";")
    elif isinstance(value, Mapping):
        digest.update(b"{")
        for key, item in value.items():
            update_digest(digest, key)
            update_digest(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            update_digest(digest, item)
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__qualname__.encode())
        for field in fields(value):
            update_digest(digest, getattr(value, field.name))
    else:
        digest.update(type(value).__qualname__.encode())


def digest_of(*values: Any) -> str:
    """A digest of values, as 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for value in values:
        update_digest(digest, value)
    return digest.hexdigest()[:32]


# Parameters of estimators, maps and kernels as text, by which a fit is recognized.


def parameters_as_text(value: Any, prefix: str = "") -> dict[str, str]:
    """All parameters of an estimator, a map or a kernel, those of its parts included, as text."""
    found: dict[str, str] = {}
    for name, part in sorted(value.get_params(deep=False).items()):
        # They decide when the fit ends and where features are, not what its passes find: a fit that memory
        # ended can go on with keep_features=False.
        if name in ("callbacks", "keep_features"):
            continue
        found |= described(part, prefix + name)
    specification = getattr(value, "specification_", None)
    if specification is not None:
        found[f"{prefix.rstrip('.')}, fitted"] = digest_of(specification)
    return found


def described(value: Any, name: str) -> dict[str, str]:
    """A parameter as text by its name, and its parts likewise, in words that do not name addresses."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        parts = parameters_as_text(value, f"{name}.")
        if not type(value).__module__.startswith("distrff."):  # it may be fitted, or a function of the user
            parts[f"{name}, as it is"] = _content(value, name)
        return {name: type(value).__name__} | parts
    if isinstance(value, list | tuple):
        parts = {}
        for i, item in enumerate(value):
            parts |= described(item, f"{name}[{i}]")
        return {name: f"{len(value)} item(s)"} | parts
    if isinstance(value, Mapping):
        items = sorted((repr(key), item) for key, item in value.items())
        parts = {}
        for key, item in items:
            parts |= described(item, f"{name}[{key}]")
        return {name: f"{len(items)} item(s)"} | parts
    if isinstance(value, np.ndarray):
        return {name: f"array {value.shape} {digest_of(value)}"}
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return {name: repr(value)}
    return {name: _content(value, name)}


def _content(value: Any, name: str) -> str:
    """A digest of any other value: of what it holds, and not of where it lies in memory."""
    try:
        return str(joblib.hash(value))
    except Exception as error:  # whatever pickling a stranger's value raises
        raise InputError(
            f"a checkpoint cannot tell whether {name} is the same after a restart, as it cannot be pickled "
            f"({type(error).__name__}); use a function or class of a module, or fit without a checkpoint"
        ) from error


# Results as strict JSON data, from which notebooks, the command line and pages show them.


class StrictMapping(Mapping[str, Any]):
    """A read-only mapping of strict JSON values."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = strict(dict(values))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_dict(self) -> dict[str, Any]:
        """A copy as plain data."""
        return json.loads(json.dumps(self._values, allow_nan=False))


def strict(value: Any) -> Any:
    """The value as strict JSON data: NumPy unwrapped, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
