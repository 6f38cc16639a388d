"""Every exception and warning that distrff raises on purpose.

The command line maps them to exit codes: `InputError` and its kinds to 2,
`PlanRefused` to 4. Their messages say what was wrong, what was got and what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence


class DistrffError(Exception):
    """Base of all errors raised on purpose by distrff."""


class InputError(DistrffError, ValueError):
    """Data, parameters or paths that cannot be used as given."""


class InputTypeError(InputError, TypeError):
    """An argument of a type that cannot be used; a `TypeError` as well."""


class ColumnError(InputError):
    """A column that cannot be used; it is known by its number until a caller adds its name.

    The message has "{column}" where the column is to be named.
    """

    def __init__(self, message: str, column: int, name: str | None = None) -> None:
        super().__init__(message, column, name)

    def __str__(self) -> str:
        message, column, name = self.args
        return str(message).replace("{column}", column_called(column, name))

    def named(self, names: Sequence[str] | None) -> ColumnError:
        """Return the error with the column's name, where columns have any."""
        message, column, _ = self.args
        return type(self)(message, column, None if names is None else str(names[column]))


class NonFiniteError(InputError):
    """NaN or infinity in the data, named by array, row and column."""


class NonFiniteColumnError(ColumnError, NonFiniteError):
    """The same, known by the column's number until a caller adds its name."""


class ModelFileError(InputError):
    """A stored model or Gram that is incomplete, altered, or of a newer format."""


class ClusterError(InputError):
    """A scheduler that does not answer, or a scheduler or workers that cannot run distrff."""


class PlanRefused(DistrffError, MemoryError):
    """A fit that would not fit into the workers' memory, refused before its first task."""


class FrequencyMismatch(DistrffError):
    """A worker derives other frequencies than the client from the same specification."""


class DataWarning(UserWarning):
    """Data that can be used, but probably not as meant (scales, constants, drift)."""


class ClusterWarning(UserWarning):
    """Workers that can be used, but differ from the client in what decides the last bits."""


class PrecisionWarning(UserWarning):
    """A result that is limited by the floating-point format of the fit."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of distrff that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "distrff":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def column_called(column: int, name: str | None) -> str:
    """Return how messages call a column: by its name, where it has one."""
    return f"column {column if name is None else repr(name)}"


def access_remedy(error: BaseException) -> str:
    """Return what to do about a store without its package or without credentials, else nothing."""
    if isinstance(error, ImportError):
        return "; install the package that is named, here and on every worker"
    if "Credential" not in type(error).__name__ and not isinstance(error, PermissionError):
        return ""
    return (
        "; give credentials that may do this, by the environment variables or files of the store's package, "
        "or by storage_options (--storage-option key=... --storage-option secret=...)"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
