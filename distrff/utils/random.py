"""Random streams from one seed and keys of Dask tasks, both by name.

Streams are independent of each other and of the order of their use.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from distrff.errors import InputTypeError
from distrff.utils.validation import is_number

PathStreams = Callable[..., np.random.Generator]
"""Streams by the rest of their names: what `streams_under` returns."""


def resolve_seed(random_state: int | None) -> int:
    """The seed that `random_state` stands for: a non-negative integer itself, for None a random one.

    Anything else is refused, a generator included: a generator has a position, and a fit that depends on it
    could not be repeated.
    """
    if random_state is None:
        return secrets.randbits(63)
    if is_number(random_state) and isinstance(random_state, Integral) and random_state >= 0:
        return int(random_state)
    raise InputTypeError(f"random_state must be a non-negative integer or None, got {random_state!r}")


def _key(name: str | int) -> int:
    # The stream "1" is not the stream 1.
    kind = "str" if isinstance(name, str) else "int"  # of NumPy's types likewise
    digest = hashlib.sha256(f"{kind}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of the stream called `names` under `seed`.

    The same seed and names give the same numbers, whatever else was drawn before.
    """
    # PCG64 by its name, and not default_rng, which NumPy may change: stored models derive frequencies anew.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(_key, names)])))


def streams_under(seed: int, *path: str | int) -> PathStreams:
    """The function of names that gives the streams called `path` and then those names."""
    return partial(stream, seed, *path)


def child_seed(seed: int, *names: str | int) -> int:
    """A seed of 63 bits for a part of the model that keeps its own streams."""
    return int(stream(seed, "child seed", *names).integers(0, 2**63 - 1))


def row_hash(rows: np.ndarray, seed: int) -> np.ndarray:
    """64 well-mixed bits for each row number."""
    with np.errstate(over="ignore"):
        return mixed_bits(
            # From row 1 on: the finaliser takes 0 to 0, which row 0 of seed 0 would be.
            (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int(seed) & (2**64 - 1))
        )


def mixed_bits(x: np.ndarray) -> np.ndarray:
    """The bits of each 64-bit number well mixed (SplitMix64's finaliser; Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# Keys of Dask tasks: by their first words Dask's dashboard groups tasks, and names the groups.


def group_of(what: str | Callable[..., Any]) -> str:
    """The group of tasks of a pass or a function: "distrff-held-out-errors", "distrff-fold-errors".

    Dask takes the words before the first one that has a digit (`dask.utils.key_split`).
    """
    name = what if isinstance(what, str) else getattr(what, "__qualname__", type(what).__name__)
    return "-".join(["distrff", *re.findall(r"[a-z]+", re.split(r"\d", name.lower())[0])])


def new_key(what: str | Callable[..., Any]) -> str:
    """A key in a group that no other task has."""
    return f"{group_of(what)}-{uuid.uuid4().hex}"
