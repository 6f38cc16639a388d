"""Every exception and warning that distrff raises on purpose.

The command line maps `InputError` and its subclasses to exit code 2, `PlanRefused` to 4. Messages say what
was wrong, what was got and what to do.
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
    """An argument of a type that cannot be used; also a `TypeError`."""


class ColumnError(InputError):
    """A column that cannot be used, identified by its index until a caller adds its name.

    "{column}" in the message is replaced by the column.
    """

    def __init__(self, message: str, column: int, name: str | None = None) -> None:
        # All three as `args`, from which an exception of a worker is made again in the client.
        super().__init__(message, column, name)

    def __str__(self) -> str:
        message, column, name = self.args
        return str(message).replace("{column}", column_called(column, name))

    def named(self, names: Sequence[str] | None) -> ColumnError:
        """Error with the column's name, if columns have names."""
        message, column, _ = self.args
        return type(self)(message, column, None if names is None else str(names[column]))


class NonFiniteError(InputError):
    """NaN or infinity in the data, named by array, row and column."""


class NonFiniteColumnError(ColumnError, NonFiniteError):
    """The same, with the column's index until a caller adds its name."""


class PenaltyTooSmall(InputError):
    """A penalty is below the rounding noise of the matrix that it is added to."""


class ModelFileError(InputError):
    """A stored model or Gram that is missing, incomplete, altered, or of a newer format."""


class ClusterError(InputError):
    """A scheduler that does not answer, or a cluster that cannot run distrff or has lost its workers."""


class PlanRefused(DistrffError, MemoryError):
    """A fit that would exceed the workers' memory, refused before its first task."""


class FrequencyMismatch(DistrffError):
    """A worker derives other frequencies from a specification than the client."""


class DataWarning(UserWarning):
    """Data that can be used, but probably not as intended (scales, constants, drift)."""


class ClusterWarning(UserWarning):
    """Workers that can be used, but have other numerical packages than the client."""


class PrecisionWarning(UserWarning):
    """A result that is limited by the floating-point format of the fit."""


class CheckpointWarning(UserWarning):
    """A checkpoint that could not be written; the fit itself goes on."""


class Terminated(SystemExit):
    """The signal to end, SIGTERM, after the last checkpoint was written; the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


class FitStopped(KeyboardInterrupt):
    """A callback asked for the end of the fit, which ends as Ctrl-C ends it, but well."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of distrff that led to this call."""
    # By frames, not a fixed number: the same warning comes through estimators, functions and the command
    # line.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "distrff":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def column_called(column: int, name: str | None) -> str:
    """A column for messages: by its name if it has one, else by its index."""
    return f"column {column if name is None else repr(name)}"


def access_remedy(error: BaseException) -> str:
    """The remedy for a store whose package or credentials are missing, else ""."""
    if isinstance(error, ImportError):
        return "; install this package, here and on every worker"
    # By name, as each store's package has a class of its own, which need not be installed.
    if "Credential" not in type(error).__name__ and not isinstance(error, PermissionError):
        return ""
    return (
        "; give credentials with this permission, by the environment variables or files of the store's "
        "package, or by storage_options (--storage-option key=... --storage-option secret=...)"
    )


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its type if there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
