"""Which raw columns of a table become X, y and weights, and why others do not."""

from __future__ import annotations

from typing import Any, NamedTuple

from distrff.data.raw_table import RawTable
from distrff.data.selection import find_columns
from distrff.display.names import listed
from distrff.errors import InputError
from distrff.ingest.table_options import LEFT_OUT_TIMES, TableOptions


class Choice(NamedTuple):
    """Names of raw columns.

    columns : of X, in the table's order unless they were named in another.
    target : of y; weight : of sample weights, or None.
    dropped : why others are left out, by name.
    """

    columns: tuple[str, ...]
    target: tuple[str, ...]
    weight: str | None
    dropped: dict[str, str]

    @property
    def used(self) -> tuple[str, ...]:
        """All names, each once."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*self.columns, *self.target, *weight]))


def choose_columns(table: RawTable, options: TableOptions) -> Choice:
    """Return what the options mean in this table.

    Raises
    ------
    InputError
        If a column that they name is missing, of a kind that they do not take, or named for two uses.
    """
    target = _named(table, options.target)
    weights = _named(table, options.sample_weight)
    if len(weights) > 1:
        raise InputError(f"sample_weight must name one column, got {listed(weights)}")
    rest = [n for n in table.kinds if n not in {*target, *weights, *table.row_labels}]
    reasons = {name: why for name in rest if (why := _left_out(table.kinds[name], options))}
    if options.columns is not None:
        columns, dropped = _named(table, options.columns), {}
        _check_named(table, columns, target, weights, options)
    else:
        unwanted = set(_named(table, options.drop))
        columns = [n for n in rest if n not in reasons and n not in unwanted]
        dropped = {n: why for n, why in reasons.items() if n not in unwanted}
    if not columns:
        raise InputError(
            f"{table.source} has no columns for X; besides target and weights it has: "
            f"{', '.join(f'{name} ({why})' for name, why in list(dropped.items())[:10]) or 'none'}"
        )
    return Choice(tuple(columns), tuple(target), weights[0] if weights else None, dropped)


def _named(table: RawTable, keys: Any) -> list[str]:
    if keys is None:
        return []
    plain = [name for name in table.kinds if name not in table.row_labels]
    if isinstance(keys, str) and keys in table.kinds:
        return [keys]
    return [plain[i] for i in find_columns(keys, plain, table.source)]


def _left_out(kind: str | None, options: TableOptions) -> str | None:
    """Why columns of a kind are left out; None if they are not."""
    if kind is None:
        return "its type is neither numbers nor text nor times"
    if kind == "text" and not options.one_hot:
        return "it holds text; one_hot=True takes it"
    if kind in ("time", "clock") and options.datetime is None:
        return LEFT_OUT_TIMES
    return None


def _check_named(
    table: RawTable, columns: list[str], target: list[str], weights: list[str], options: TableOptions
) -> None:
    for name in columns:
        if name in target or name in weights:
            other = "y" if name in target else "weights"
            raise InputError(f"column {name!r} is asked for as a column of X and as {other}")
        why = _left_out(table.kinds[name], options)
        if why is not None:
            raise InputError(f"column {name!r} of {table.source} cannot be a column of X: {why}")
