"""Permutation importance: the columns that predictions depend on, judged on rows drawn from all of the data.

The drawn rows are predicted again, a task for each column, with other values in this column; `dependence` has
curves of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse

from distrff.diagnostics.errors import LossSums
from distrff.diagnostics.evaluate import JudgedRows, judged_model, judged_rows, judging_cuts
from distrff.diagnostics.quality import MEASURES, judged_on
from distrff.engine.reduction import Arrays, Reduction
from distrff.engine.run import Run, begin_run
from distrff.errors import ColumnError, InputError
from distrff.features.fitted import FittedMap
from distrff.io.dataset import Dataset, RowBlock, Rows, check_block, check_known
from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets, Moments
from distrff.preprocessing.table import ColumnStep
from distrff.utils.arrays import as_columns, chosen_rows, dense_rows, joined_rows
from distrff.utils.random import child_seed, resolve_seed, row_hash
from distrff.utils.serialize import strict
from distrff.utils.text import (
    Bars,
    Part,
    Section,
    Table,
    html_card,
    listed,
    number_text,
    page_lines,
    part_lines,
)
from distrff.utils.validation import check_count, is_finite

MAX_ROWS = 20_000
"""Rows that are drawn unless more are wanted: a mean over them is off by 0.7 % of the rows' deviation."""

_MAX_BYTES, _MIN_ROWS = 2**26, 2**10  # of drawn rows: each task holds all of them, and a changed copy
_HASH_DIGITS = 53  # of a hash that become a number in [0, 1)
SHOWN_ROWS = 20


class JudgedResult:
    """A result of judged rows: as data, as lines of text, and as a card of a notebook."""

    _title: ClassVar[str]
    _items: ClassVar[str]  # the field that holds a dataclass for each column

    def to_dict(self) -> dict[str, Any]:
        """The result as strict JSON data: the attributes, each column as a dict of its own."""
        return strict(vars(self) | {self._items: [vars(item) for item in getattr(self, self._items)]})

    def lines(self) -> list[str]:
        """The result as lines of text: the rows that were judged, then a row for each column."""
        return [*page_lines(self._facts().items()), *part_lines(self._table())]

    def __repr__(self) -> str:
        return "\n".join([f"<{type(self).__name__}", *self.lines()]) + ">"

    def _repr_html_(self) -> str:
        return html_card(self._title, self._facts().items(), (), [Section(*self._section())])

    def _facts(self) -> dict[str, str]:
        """Numbers of rows of the result, as names with their values."""
        found: Any = self
        facts = {"rows judged": f"{number_text(found.n_judged)} of {number_text(found.n_samples)}"}
        if found.n_outside:
            facts["outside the bounds, left out"] = number_text(found.n_outside)
        return facts

    def _section(self) -> tuple[str, list[Part]]:
        return self._items.capitalize(), [self._table()]

    def _table(self) -> Table:
        raise NotImplementedError


@dataclass(frozen=True)
class ColumnImportance:
    """The loss of quality of predictions without the values of one column.

    Attributes
    ----------
    column : str
        The raw column, or the column of X where no steps of a table made it; its index without names.
    importance, std_error : float
        Fall of R² (the mean over the targets that vary) or of accuracy, and its standard error over rows.
    mse_rise, mse_rise_error : tuple of float, or None
        Rise of the mean squared error of each target, in its unit squared, and standard errors.
    n_columns : int
        Columns of X that were replaced together.
    n_left_out : int
        Rows that the replacement moved outside of the bounds of the model; they are left out.
    """

    column: str
    importance: float
    std_error: float
    mse_rise: tuple[float, ...] | None
    mse_rise_error: tuple[float, ...] | None
    n_columns: int
    n_left_out: int


@dataclass(frozen=True, repr=False)
class PermutationImportance(JudgedResult):
    """The importance of each column; see `permutation_importance`.

    Attributes
    ----------
    measure : {"r2", "d2", "accuracy"}
        The score that falls.
    score : float
        R² or accuracy of the judged rows as they are; R² in units of the variance of all rows' targets.
    mse : tuple of float, or None
        Mean squared error of each target.
    targets : tuple of str
        Names of the targets, of numbers.
    columns : tuple of ColumnImportance
        The most important first.
    rows : str
        Which rows were judged, as `Evaluation` says: "out of fold" for those of a fit with folds.
    n_samples, n_judged, n_outside : int
        All rows, the judged ones, and those left out, which are outside of the bounds of the model.
    n_never_held_out : int
        Rows drawn and left out as no fold holds them out.
    n_unseen : int
        Rows judged whose label the model never saw; they are wrong before and after.
    seed : int
    """

    _title, _items = "Permutation importance", "columns"

    measure: str
    score: float
    mse: tuple[float, ...] | None
    targets: tuple[str, ...]
    columns: tuple[ColumnImportance, ...]
    rows: str
    n_samples: int
    n_judged: int
    n_outside: int
    n_never_held_out: int
    n_unseen: int
    seed: int

    def _section(self) -> tuple[str, list[Part]]:
        table = self._table()
        return table.columns[1], [Bars([(row[0], row[1], number_text(row[1])) for row in table.rows]), table]

    def _table(self) -> Table:
        rises = ["rise of MSE" if len(self.targets) == 1 else f"rise of MSE, {t}" for t in self.targets]
        rows = [[c.column, c.importance, c.std_error, *(c.mse_rise or ())] for c in self.columns[:SHOWN_ROWS]]
        return Table(["column", f"fall of {MEASURES[self.measure]}", "± standard error", *rises], rows)

    def _facts(self) -> dict[str, str]:
        facts = {MEASURES[self.measure]: number_text(self.score)} | super()._facts()
        facts["judged on"] = judged_on({"rows": self.rows})
        if self.n_never_held_out:
            facts["held out by no fold, left out"] = number_text(self.n_never_held_out)
        if self.n_unseen:
            facts["labels never seen, always wrong"] = number_text(self.n_unseen)
        if len(self.columns) > SHOWN_ROWS:
            facts["columns shown"] = f"{SHOWN_ROWS} of {number_text(len(self.columns))}"
        return facts


def permutation_importance(
    model: Any,
    data: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    *,
    columns: Sequence[str | int] | None = None,
    max_rows: int = MAX_ROWS,
    random_state: int | None = 0,
) -> PermutationImportance:
    """The loss of quality of a model when the values of a column come from other rows.

    With x' = x except for the column j, which is another row's, the importance of j is the mean over rows of

        L(y, f(x')) − L(y, f(x)),

    where L is the squared error in units of the target's variance (the mean of these over several targets),
    so that it is the fall of R², of quantiles, counts and amounts their loss in units of that of the best
    constant, so that it is the fall of D², or for classes 1 where the label is wrong, so that it is the fall
    of accuracy. Columns that one raw column of a table became, such as categories or parts of a time, are
    replaced together. It says what this model uses, not what could be learned: of two columns that say the
    same, each may seem to matter little.

    The rows that an estimator was fitted to are judged out of fold, if the fit had folds, as by `evaluate`: f
    is the model that did not see the row's fold, which its own values decide and not those that replace them.
    Rows that no fold holds out are left out; of several folds' models a hash of the row number chooses one.
    Without folds it also counts what the model learned by heart, and `rows` says so: give others.

    Parameters
    ----------
    model : fitted estimator or Model
        Not of principal components.
    data : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame, optional
        Rows of any storage. A frame of raw columns goes through the model's steps, and brings its target if y
        is not given. Default: the rows of the estimator's fit, which are read again.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
    sample_weight : array-like of shape (n_samples,), optional
        Weights are multiplicities, of rows judged and of rows that values come from.
    columns : sequence of str or int, optional
        Raw columns, or columns of X by name or index where no steps of a table made them; default all. A
        column has the same importance whichever others are judged.
    max_rows : int
        At most so many rows are judged, and lend their values: one of each ⌈n/max_rows⌉ consecutive ones.
    random_state : int or None

    Returns
    -------
    PermutationImportance

    Raises
    ------
    InputError
        For data that do not fit the model, a column that it does not have, a target that does not vary, or
        if no judged row has a positive weight within the bounds of the model, or none is held out by a fold.

    Notes
    -----
    One pass over the rows; the result has the same bits for any number of workers and any chunks. The pass
    draws up to `max_rows` rows evenly from all of the data (fewer where they exceed 64 MB) and predicts them;
    then a task for each column predicts the rows again whose value changes, with the value of another drawn
    row, which a hash of the row number and the column's place chooses: at most max_rows·(1 + n) predictions
    for n columns. The standard error is that of the mean of the paired differences, σ/√(n − 1) with the
    effective number n = (Σs)²/Σs² of rows: of 20,000 rows of one weight it is 0.7 % of σ, the deviation of a
    row's difference. The values come from the same drawn rows, so another draw of these moves the result by
    about as much once more. Of rows that come in groups, which are not independent, it is too small.

    L. Breiman, Random forests, Machine Learning 45 (2001), section 10; A. Fisher, C. Rudin and F. Dominici,
    All models are wrong, but many are useful, JMLR 20 (2019), section 3.
    """
    check_count("max_rows", max_rows, 2)
    seed = resolve_seed(random_state)
    if judged_model(model).is_multilabel:
        raise InputError(
            "permutation_importance judges numbers or one class a row; of several labels, fit one classifier "
            "each"
        )
    judged, run = judged_rows(model, data, y, sample_weight), begin_run()
    groups = chosen_groups(column_groups(judged.model, judged.dataset.column_names), columns)
    rows = drawn_rows(run, judged.model, judged.dataset, max_rows, seed, with_target=True)
    return importance_of(run, judged, groups, rows, max_rows, seed)


# The pass, and the tasks.


def importance_of(
    run: Run, judged: JudgedRows, groups: Sequence[ColumnGroup], drawn: DrawnRows, max_rows: int, seed: int
) -> PermutationImportance:
    """The importance of columns to the predictions of at most so many of the drawn rows."""
    model, dataset, which = judged
    held_out = np.flatnonzero(drawn.judge >= 0)
    if not len(held_out):
        raise InputError(
            f"no fold holds out any of {len(drawn)} sampled rows; give other rows to judge, or a larger "
            f"max_rows"
        )
    rows = drawn.at(held_out).thinned(max_rows, seed)
    n_unseen = int(np.count_nonzero(rows.y < 0)) if isinstance(model.targets, ClassTargets) else 0
    if n_unseen == len(rows):
        assert isinstance(model.targets, ClassTargets)
        raise InputError(
            f"the model knows the label of none of {n_unseen} judged rows, so all are wrong whatever "
            f"their columns hold; its classes are {listed(model.targets.classes.tolist())}"
        )
    # Losses of classes are 0 or 1, and have the unit of accuracy.
    units = np.ones(1) if model.is_classifier else _units(model, rows)
    by_squares = model.measure == "r2"
    replaced = [
        # By its place in X: a column has the same replacements whichever others are judged beside it.
        ReplacedColumns(group.positions, child_seed(seed, "donors", group.positions[0]), units)
        for group in groups
    ]
    columns = []
    for group, rise in zip(groups, of_columns(run, "importance", model, rows, _rise, replaced), strict=True):
        (*mse_rise, fall), (*mse_error, error) = rise.mean.tolist(), rise.error.tolist()
        of_mse = [tuple(values) if by_squares else None for values in (mse_rise, mse_error)]
        counts = len(group.positions), rise.n_left_out
        columns.append(ColumnImportance(group.name, fall, error, of_mse[0], of_mse[1], *counts))
    # NaN, of columns that leave no row within the bounds, come last.
    columns.sort(key=lambda column: -column.importance if column.importance == column.importance else np.inf)
    mse = np.average(rows.losses, axis=0, weights=rows.weight)
    return PermutationImportance(
        measure=model.measure,
        score=1.0 - float((mse / units).mean()),
        mse=tuple(mse.tolist()) if by_squares else None,
        targets=output_names(model, dataset) if by_squares else (),
        columns=tuple(columns),
        n_samples=dataset.n_rows,
        rows=which,
        n_judged=len(rows),
        n_outside=rows.n_outside,
        n_never_held_out=len(drawn) - len(held_out),
        n_unseen=n_unseen,
        seed=seed,
    )


def _units(model: Model, rows: DrawnRows) -> np.ndarray:
    """Divisors of losses, so that their mean over targets is that of 1 − R², or 1 − D²."""
    targets = rows.targets
    # Targets that do not vary have no R²: they count for nothing, and the others for more.
    varies = ~targets.is_constant()
    if model.judge and varies.any():
        constant = LossSums.of(model, rows.y, rows.y, rows.weight).of_outputs()[f"constant_{model.judge}"]
        varies = constant > 0
        return np.where(varies, constant * varies.sum() / len(varies), np.inf)
    if not varies.any():
        raise InputError("the target does not vary in these rows, so there is no R² that could fall")
    variance = np.square(targets.standard_deviation())
    # The mean over all targets of mse/unit is then the mean over those that vary.
    return np.where(varies, variance * varies.sum() / len(varies), np.inf)


class ReplacedColumns(NamedTuple):
    """Columns of X that take the values of other rows; a seed says whose."""

    positions: tuple[int, ...]
    seed: int
    units: np.ndarray  # of the losses


def _rise(model: Model, rows: DrawnRows, columns: ReplacedColumns) -> Means:
    """By how much the losses rise where columns are replaced: each, and the mean of them in their units."""
    positions = list(columns.positions)
    values = dense_rows(rows.X[:, positions])
    replaced = values[rows.replacements(columns.seed)]
    # Where nothing changes the rise is exactly zero; rare categories hardly ever change.
    at = np.flatnonzero((values != replaced).any(axis=1))
    changed = rows.at(at)
    X = with_columns(changed.X, positions, replaced[at])
    outside = outside_rows(model, X)
    inside = np.flatnonzero(~outside)
    after = losses(model, replace(changed, X=X).at(inside))
    rises, left_out = np.zeros(rows.losses.shape), np.zeros(len(rows), dtype=bool)
    rises[at[inside]], left_out[at[outside]] = after - changed.losses[inside], True
    both = np.column_stack([rises, (rises / columns.units).mean(axis=1)])
    return means(both, rows.weight, left_out)


def n_results(model: Model) -> int:
    """Number of results that a row has."""
    return max(2, model.n_outputs) if model.likelihood is not None else model.n_outputs


def output_names(model: Model, dataset: Dataset) -> tuple[str, ...]:
    """The names of the results: classes, or targets."""
    k = n_results(model)
    if len(model.quantiles) > 1:
        return tuple(f"{tau:g}" for tau in model.quantiles)
    if isinstance(model.targets, ClassTargets):
        labels = [str(label) for label in model.targets.classes.tolist()]
        return tuple(labels[-1:] if k == 1 else labels)  # one decision value is positive for the second class
    steps = model.steps.target if model.steps is not None else None
    for names in (dataset.target_names, None if steps is None else steps.names):
        if names is not None and len(names) == k:
            return tuple(map(str, names))
    return ("y",) if k == 1 else tuple(map(str, range(k)))


# Columns that are replaced together.


@dataclass(frozen=True)
class ColumnGroup:
    """The columns of X that one raw column became, or one column of X where no steps made it."""

    name: str
    positions: tuple[int, ...]  # in X
    step: ColumnStep | None = None  # that made them
    made: tuple[int, ...] = (0,)  # for each of them, its place among the columns that the step makes


def column_groups(model: Model, column_names: Sequence[str] | None) -> list[ColumnGroup]:
    """The groups of a model's columns, in the order of X.

    A model without steps has a group for each column, named by the model, else by `column_names`, else by its
    index.
    """
    if model.steps is None:
        names = model.column_names or column_names or range(model.n_columns)
        return [ColumnGroup(str(name), (i,)) for i, name in enumerate(names)]
    made = [(step, i) for step in model.steps.columns for i in range(len(step.names_out))]
    chosen = range(len(made)) if model.steps.chosen is None else model.steps.chosen
    groups: dict[str, ColumnGroup] = {}
    for position, (step, i) in enumerate(made[place] for place in chosen):
        known = groups.get(step.name, ColumnGroup(step.name, (), step, ()))
        groups[step.name] = replace(known, positions=(*known.positions, position), made=(*known.made, i))
    return list(groups.values())


def chosen_groups(
    groups: Sequence[ColumnGroup], columns: str | int | Sequence[str | int] | None
) -> list[ColumnGroup]:
    """The groups of the columns asked for, each once; all of them for None."""
    if columns is None:
        return list(groups)
    is_list = isinstance(columns, Sequence | np.ndarray) and not isinstance(columns, str)
    asked: list[Any] = list(columns) if is_list else [columns]  # type: ignore[arg-type]
    if not asked:
        raise InputError("columns must name at least one column, got none")
    known: dict[Any, ColumnGroup] = {group.name: group for group in groups}
    if all(group.step is None for group in groups):  # of raw columns that became several it could mean either
        known |= dict(enumerate(groups))
    found = {}
    for column in asked:
        # True, 1.5 and NaN are no indices, though True == 1.
        is_index = not isinstance(column, str) and is_finite(column) and int(column) == column
        key = int(column) if is_index else column if isinstance(column, str) else None
        if key not in known:
            names = [group.name for group in groups]
            raise InputError(f"the model has no column {column!r}; it has: {listed(names)}")
        found[known[key].positions] = known[key]
    return list(found.values())


def with_columns(X: Any, positions: Sequence[int], values: np.ndarray) -> Any:
    """A copy of the rows, dense or CSR, with other values in some columns.

    `values` has shape (n_rows, n_positions), or (1, n_positions) for the same in all rows.
    """
    values = np.broadcast_to(values, (X.shape[0], len(positions)))
    if not issparse(X):
        replaced = np.array(X)
        replaced[:, positions] = values
        return replaced
    kept = X.copy()
    # No assignment: SciPy warns of those that change which entries CSR stores. Old entries become zeros, and
    # new ones are added.
    kept.data[np.isin(kept.indices, positions)] = 0
    rows, columns = np.nonzero(values)
    entries = values[rows, columns].astype(X.dtype), (rows, np.asarray(positions)[columns])
    changed = csr_matrix(kept + csr_matrix(entries, shape=X.shape))
    changed.eliminate_zeros()
    return changed


# Rows that are drawn by their numbers, in one pass.


@dataclass(frozen=True)
class RowDraw:
    """One row of each `stride` consecutive rows; a last run that is shorter may have none."""

    # The place in a run is a hash of the run's number. So every row has the same chance, rows are drawn
    # evenly from all of the data whatever their order, and no period of the rows is met again.

    stride: int
    seed: int

    @classmethod
    def of(cls, n_rows: int, max_rows: int, seed: int) -> RowDraw:
        """The draw of at most `max_rows` of the rows."""
        return cls(-(-n_rows // max_rows), child_seed(seed, "judged rows"))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Numbers of the drawn rows in [start, stop)."""
        # The runs that [start, stop) touches; a run that segments share has the same place in both.
        runs = np.arange(start // self.stride, (stop - 1) // self.stride + 1)
        places = row_hash(runs.astype(np.uint64), self.seed) % np.uint64(self.stride)
        drawn = runs * self.stride + places.astype(np.int64)
        return drawn[(drawn >= start) & (drawn < stop)]


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Drawn rows that models predict, of positive weight and within their bounds.

    Each is judged, and each may lend its values to others.
    """

    numbers: np.ndarray  # (n,)
    X: Any  # as it is read, dense or CSR
    y: np.ndarray  # (n, k) numbers, (n, 1) places of classes with −1 for others, or (n, 0)
    weight: np.ndarray  # (n,)
    judge: np.ndarray  # (n,) the fold whose model judges it, -1 where none does; 0 for a model of all rows
    losses: np.ndarray  # of the shape of y; see `losses`
    targets: Moments  # of the numbers of all rows, drawn or not
    n_outside: int  # other drawn rows, outside the bounds of the model
    n_drawn: int

    def __add__(self, other: DrawnRows) -> DrawnRows:
        return DrawnRows(
            **{name: np.concatenate([A, getattr(other, name)]) for name, A in self._fields().items()},
            X=joined_rows([self.X, other.X]),
            targets=self.targets.merge(other.targets),
            n_outside=self.n_outside + other.n_outside,
            n_drawn=self.n_drawn + other.n_drawn,
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def _fields(self) -> dict[str, np.ndarray]:
        """The arrays with an item a row, beside X."""
        return {name: getattr(self, name) for name in ("numbers", "y", "weight", "judge", "losses")}

    def at(self, places: np.ndarray) -> DrawnRows:
        """The rows at these places."""
        fields = {name: A[places] for name, A in self._fields().items()}
        return replace(self, X=chosen_rows(self.X, places), **fields)

    def thinned(self, max_rows: int, seed: int) -> DrawnRows:
        """At most so many of the rows, drawn evenly from these as these are from all."""
        return self.at(RowDraw.of(len(self), max_rows, seed).rows(0, len(self)))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that go to the tasks."""
        X = {name: getattr(self.X, name) for name in _CSR} if issparse(self.X) else {"dense": self.X}
        return {f"drawn {name}": A for name, A in (X | self._fields()).items()}

    @classmethod
    def received(cls, arrays: Arrays, n_columns: int) -> DrawnRows:
        """The rows in a task, from the arrays that were sent."""
        sent = {name.removeprefix("drawn "): A for name, A in arrays.items() if name.startswith("drawn ")}
        X: Any = sent.pop("dense", None)
        if X is None:
            X = csr_matrix(tuple(map(sent.pop, _CSR)), shape=(len(sent["numbers"]), n_columns))
        return cls(X=X, targets=Moments.empty(0), n_outside=0, n_drawn=X.shape[0], **sent)

    def replacements(self, seed: int) -> np.ndarray:
        """For each row the place of another, which its number decides."""
        # A hash is a uniform number; where the cumulated weights pass it is a row, with a probability
        # proportional to its weight.
        bits = row_hash(self.numbers.astype(np.uint64), seed) >> np.uint64(64 - _HASH_DIGITS)
        cumulated = np.cumsum(self.weight)
        places = np.searchsorted(cumulated, bits * 2.0**-_HASH_DIGITS * cumulated[-1], side="right")
        return np.minimum(places, len(self) - 1)  # a product may round up to its end


_CSR = ("data", "indices", "indptr")


def drawn_rows(
    run: Run, model: Model, dataset: Dataset, max_rows: int, seed: int, *, with_target: bool
) -> DrawnRows:
    """Rows drawn evenly, at most `max_rows` and 64 MB of them, in one pass that checks all rows.

    Raises InputError for rows that cannot be used, and if none drawn can be.
    """
    kind = model.targets.kind if with_target else "none"
    check_known(dataset, kind)
    most = min(max_rows, max(_MIN_ROWS, _MAX_BYTES // dataset.row_bytes))
    draw, cuts = RowDraw.of(dataset.n_rows, most, seed), judging_cuts(model, dataset)
    light, sent = model.for_tasks()
    reduction = DrawSum(light, draw, kind, dataset.row_bytes, cuts.tile_rows)
    try:
        rows: DrawnRows = run.total("drawn rows", dataset, reduction, cuts, sent)
    except ColumnError as error:
        raise error.named(dataset.column_names) from None
    if not len(rows):
        raise InputError(
            f"none of {rows.n_drawn} sampled rows has a positive weight and is within the bounds of the "
            f"model; give such rows"
        )
    return rows


@dataclass(frozen=True)
class DrawSum(Reduction):
    """Reduction to `DrawnRows` with their losses, which checks every number on the way."""

    model: Model
    draw: RowDraw
    target_kind: str  # of the model's targets, or "none"
    row_bytes: int
    tile_rows: int

    def shared(self) -> FittedMap:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        k = self.model.n_outputs
        return -(-n_rows // self.draw.stride) * (self.row_bytes + 8 * (3 + 2 * k)) + 48 * k

    def update(self, total: DrawnRows | None, rows: Rows, arrays: Arrays) -> DrawnRows:
        model = self.model.restored(arrays)
        drawn = reduce(DrawnRows.__add__, map(self._of_block, rows.tiles(self.tile_rows)))
        outside = outside_rows(model, drawn.X)
        usable = drawn.at(np.flatnonzero(~outside & (drawn.weight > 0)))
        # All of a segment at once: a transform for few rows takes as long as for many.
        judged = losses(model, usable)
        return self.merge(total, replace(usable, losses=judged, n_outside=int(np.count_nonzero(outside))))

    def _of_block(self, block: RowBlock) -> DrawnRows:
        """The drawn rows of a block, not judged yet."""
        check_block(block, self.target_kind)
        numbers = self.draw.rows(block.start, block.start + block.X.shape[0])
        at = numbers - block.start
        s = np.ones(len(at)) if block.sample_weight is None else block.sample_weight[at]
        y, n = self._targets(block, at), len(at)
        judge = np.zeros(n, np.int64)
        if self.model.fold_models is not None:
            # By a hash of its own: that of the draw says which rows are here.
            hashes = row_hash(numbers.astype(np.uint64), child_seed(self.draw.seed, "judges"))
            judge = self.model.fold_models.folds.held_out(block.keys.chosen(at)).one_each(hashes)
        return DrawnRows(numbers, chosen_rows(block.X, at), y, s, judge, y, self._moments(block), 0, n)

    def _targets(self, block: RowBlock, at: np.ndarray) -> np.ndarray:
        """The targets of some rows, as `DrawnRows` has them."""
        if self.target_kind == "none":
            return np.empty((len(at), 0))
        assert block.y is not None
        if isinstance(self.model.targets, ClassTargets):
            return self.model.targets.indices(block.y[at])[:, None]
        Y = as_columns(np.asarray(block.y[at], dtype=np.float64))
        return np.broadcast_to(Y, (len(at), self.model.n_outputs))  # of several quantiles the same target

    def _moments(self, block: RowBlock) -> Moments:
        if self.target_kind != "numeric":
            return Moments.empty(0)
        Y = np.asarray(block.y, dtype=np.float64).reshape(block.X.shape[0], -1)
        return Moments.of(Y, block.sample_weight)


def losses(model: Model, rows: DrawnRows) -> np.ndarray:
    """Losses of the rows by their judges, of the shape of `y`; 0 where there are none."""
    if model.fold_models is None:
        return _losses(model, rows.X, rows.y)
    found = np.zeros(rows.y.shape)
    for fold in np.unique(rows.judge[rows.judge >= 0]):
        own = rows.at(np.flatnonzero(rows.judge == fold))
        found[rows.judge == fold] = _losses(model.fold_models.of(model, fold), own.X, own.y)
    return found


def _losses(model: Model, X: Any, y: np.ndarray) -> np.ndarray:
    """Squared errors of numbers, or what else judges them; 1 where the class is wrong."""
    if not y.size:  # no rows, or no targets
        return np.zeros(y.shape)
    F = model.decision(X)
    if isinstance(model.targets, ClassTargets):
        return (model.targets.chosen(F)[:, None] != y).astype(np.float64)
    return model.losses(F, y)


def outside_rows(model: Model, X: Any) -> np.ndarray:
    """True for rows outside of the bounds of the model; maps with bounds take no sparse rows."""
    return np.zeros(X.shape[0], dtype=bool) if issparse(X) else model.outside(X)


# A task for each column.


class Means(NamedTuple):
    """Weighted means over rows; NaN where no row is left."""

    mean: np.ndarray
    error: np.ndarray  # standard errors of the means
    deviation: np.ndarray  # of the rows
    n_left_out: int


def means(values: np.ndarray, weight: np.ndarray, left_out: np.ndarray) -> Means:
    """Means over the rows that are not left out, with standard errors; NaN for fewer than two rows."""
    values, s = values[~left_out], weight[~left_out]
    n_left_out = int(np.count_nonzero(left_out))
    if not len(s):
        none = np.full(values.shape[1], np.nan)
        return Means(none, none, none, n_left_out)
    moments, n = Moments.of(values, s), s.sum() ** 2 / (s @ s)
    deviation = moments.standard_deviation()
    # σ/√(n − 1), where n = (Σs)²/Σs² is the effective number of rows: n of one weight.
    # A sum of equal weights may round to just above one row.
    error = deviation / (np.sqrt(n - 1) if n > 1 + 1e-9 else np.nan)
    return Means(moments.mean, error, deviation, n_left_out)


def of_columns(
    run: Run,
    label: str,
    model: Model,
    rows: DrawnRows,
    judge: Callable[[Model, DrawnRows, Any], Means],
    columns: Sequence[Any],
) -> list[Means]:
    """The value of `judge` for each of the columns, a task for each."""
    light, sent = model.for_tasks()
    n = len(rows)
    tasks = [ColumnTask(i * n, (i + 1) * n, column) for i, column in enumerate(columns)]
    # As a pass, not by `run.map`: a worker that derives other frequencies than this process, and had no row
    # of the pass before, is sent them.
    return run.total(label, tasks, ColumnSum(light, judge), arrays=sent | rows.arrays())


class ColumnTask(NamedTuple):
    """A column in the place of a segment; [start, stop) counts the rows that are predicted for it."""

    start: int
    stop: int
    column: Any


@dataclass(frozen=True)
class ColumnSum(Reduction):
    """Reduction to a list of the columns' `Means`."""

    model: Model
    judge: Callable[[Model, DrawnRows, Any], Means]

    def shared(self) -> FittedMap:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        # Some numbers a column; drawn rows are sent to a worker once, and not a part of the sums.
        return 2**16

    def update(self, total: list[Means] | None, task: ColumnTask, arrays: Arrays) -> list[Means]:
        model = self.model.restored(arrays)
        rows = DrawnRows.received(arrays, model.n_columns)
        # Lists in the order of the columns, which ordered merges keep.
        return self.merge(total, [self.judge(model, rows, task.column)])
