"""Immutable values: parameters in scikit-learn's convention, sums that are added field by field."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from distrff.errors import InputError


@dataclass(frozen=True)
class Value:
    """An immutable value: its dataclass fields are its parameters."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep` also those of inner values, as `k1__length_scale`."""
        params = {field.name: getattr(self, field.name) for field in fields(self)}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Value):
                    params.update({f"{name}__{inner}": v for inner, v in value.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Return a new value with these parameters, named as in `get_params`; this one stays as it is.

        Raises
        ------
        InputError
            For a name that is not a parameter, or something that a parameter cannot be.
        """
        own = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            head, separator, rest = name.partition("__")
            if head not in own or (separator and not isinstance(params.get(head, own[head]), Value)):
                valid = ", ".join(self.get_params())
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {valid}")
            if separator:
                nested.setdefault(head, {})[rest] = value
            else:
                own[head] = value
        for head, inner in nested.items():
            own[head] = own[head].set_params(**inner)
        return type(self)(**own)

    def __sklearn_clone__(self) -> Self:
        """Return itself: a value needs no copy."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the value as strict JSON data, which `kernel_from_dict` reads."""
        data: dict[str, Any] = {"kernel": type(self).__name__.lower()}
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, Value):
                data[name] = value.to_dict()
            else:
                data[name] = list(value) if isinstance(value, tuple) else value
        return data


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows, one a field; those of two runs of rows are added field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
