"""Kernels from their names and from JSON data."""

from __future__ import annotations

from dataclasses import MISSING, fields
from reprlib import repr as short
from typing import Any

from distrff.errors import InputError
from distrff.kernels.base import Kernel, Product, Scaled, Sum
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.stationary import Cauchy, Exponential, Gaussian, Laplacian, Matern

KERNELS: dict[str, type[Kernel]] = {
    kind.__name__.lower(): kind for kind in (Gaussian, Laplacian, Cauchy, Exponential, Matern)
}
"""The kernels that a name alone gives, as on the command line."""

_KINDS = KERNELS | {kind.__name__.lower(): kind for kind in (Polynomial, Sum, Product, Scaled)}


def kernel_from_dict(data: Any) -> Kernel:
    """Return the kernel of `{"kernel": name, parameter: value, ...}`, as `Kernel.to_dict` writes it.

    Parameters that are left out have their default values. Raises InputError if `data` is not such a
    dictionary, or a name or value in it cannot be used.
    """
    if not isinstance(data, dict):
        raise InputError(f'a kernel must be a dictionary like {{"kernel": "gaussian"}}, got {short(data)}')
    kind = data.get("kernel")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f'"kernel" must be one of {", ".join(_KINDS)}, got {short(kind)}')
    known = {field.name: field.default is MISSING for field in fields(_KINDS[kind])}
    given = {name: value for name, value in data.items() if name != "kernel"}
    unknown = [name for name in given if name not in known]
    missing = [name for name, needed in known.items() if needed and name not in given]
    if unknown or missing:
        what = f"lacks {missing[0]!r}" if missing else f"has no parameter {unknown[0]!r}"
        raise InputError(f"the kernel {kind!r} {what}; its parameters are {', '.join(map(repr, known))}")
    try:
        operands = {n: kernel_from_dict(v) if n in ("k", "k1", "k2") else v for n, v in given.items()}
        return _KINDS[kind](**operands)
    except RecursionError as error:
        raise InputError("a kernel is nested too deeply; write it with fewer operations") from error
