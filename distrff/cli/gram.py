"""`distrff gram`, `merge` and `solve`: sums of rows, made apart, added, and solved without the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import distrff as drf
from distrff.cli import NOT_CONVERGED, spelt_as_options
from distrff.cli.build import (
    KEYS,
    check_target,
    checked_map,
    chosen_folds,
    fold_options,
    intercept_option,
    map_options,
    option,
    refuse,
    save,
    show_defaults,
)
from distrff.cli.command import Result, command, progress_lines
from distrff.cli.data import (
    check_has_target,
    chosen,
    cluster_options,
    fold_columns,
    kind_at,
    open_data,
    open_data_for,
    place_to_write,
    result_options,
    row_options,
    sample_dim_option,
    storage_option,
    storage_options,
    table_options,
    workers_of,
)
from distrff.errors import InputError
from distrff.utils.text import public_name

if TYPE_CHECKING:
    from distrff.io.dataset import Dataset

_KINDS = ("gram", "toeplitz")


@command()
@click.argument("data")
@result_options
@click.option(
    "--like",
    metavar="GRAM",
    help="Take map, scaling, classes, folds, columns and table steps from GRAM, so that merge can add both. "
    "Only --target is named again, unless the steps of a table have it. Rows are numbered, and assigned to "
    "folds, in each DATA by itself.",
)
@row_options
@fold_columns
@sample_dim_option
@table_options
@click.option(
    "--model",
    type=click.Choice(["ridge", "ridge-classifier"]),
    default="ridge",
    help="Whether targets are numbers, or class labels.",
)
@map_options
@fold_options
@option("dtype")
@cluster_options
@click.pass_context
def gram(ctx: click.Context, data: str, out: str, overwrite: bool, **options: Any) -> Result:
    """Write the Gram of DATA to --out: all that a ridge model needs of its rows, and none of them.

    Sites, days or shards each make theirs, the later ones --like the first; merge adds them, and solve makes
    the model of all rows. It has 8·(D + 2)² bytes a fold for D features and one target; of equispaced
    features, far less. Two passes over the rows.
    """
    like = options["like"]
    others = {"data": data} if like is None else {"data": data, "--like": like}
    place = place_to_write(out, options, overwrite=overwrite, kinds=_KINDS, **others)
    dataset, arguments = _rows_of(ctx, data) if like is None else _rows_like(ctx, data, like)

    from distrff.utils.random import resolve_seed

    # Drawn here, so that the result can name it: whoever makes the next Gram by itself needs the same.
    seed = resolve_seed(options["random_state"])
    with workers_of(options, dataset.decoded_bytes), progress_lines(ctx):
        found = drf.gram(dataset, random_state=seed, **arguments)
    found.save(out, overwrite=overwrite, storage_options=storage_options(options))
    return _result({**_described(found), "seed": seed, "out": str(place)}, [f"  seed {seed}"])


def _rows_of(ctx: click.Context, data: str) -> tuple[Dataset, dict[str, Any]]:
    """The rows of a Gram, and the arguments that its options say."""
    options, features, folds = ctx.params, checked_map(ctx), chosen_folds(ctx)
    check_has_target(data, options)
    dataset = open_data(data, options)
    check_target(dataset, options["model"])
    show_defaults(ctx, dataset)
    targets = "numeric" if options["model"] == "ridge" else "classes"
    cv = folds or (None if options["cv"] == 1 else options["cv"] or "auto")
    given = chosen(options, "fold_by scale dtype")
    return dataset, {"features": features, "targets": targets, "cv": cv, **given}


def _rows_like(ctx: click.Context, data: str, like: str) -> tuple[Dataset, dict[str, Any]]:
    """The rows of a Gram that takes all else from another one."""
    options = ctx.params
    for name in options.keys() - {*_WITH_LIKE}:
        # A file of options may be that of the first Gram.
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            refuse(ctx, name, "a Gram of its own, not with --like, which has all of these")
    first = _load(like, storage_options(options))
    dataset = open_data_for(first, data, options | _columns_of(first.folds, options))
    check_target(dataset, "ridge" if first.targets.kind == "numeric" else "ridge-classifier")
    return dataset, {"like": first}


def _columns_of(folds: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns beside X that the folds of another Gram go by, as options, unless these name them."""
    names = [place for place in getattr(folds, "places", ()) if isinstance(place, str)]
    if isinstance(folds, drf.GroupFolds) and folds.by is None:
        return {"groups": options["groups"] or names[0]}
    return {"extra": [*(options["extra"] or ()), *names]}


# Places, rows and workers: all that does not decide which sums are made.
_WITH_LIKE = (
    "data", "out", "overwrite", "like", "target", "sample_weight", "y_name", "columns", "x_name", "groups",
    "extra", "storage_options", "random_state", "scheduler", "workers", "memory_limit",
)  # fmt: skip


@command()
@click.argument("grams", nargs=-1, required=True)
@result_options
@storage_option
def merge(grams: tuple[str, ...], out: str, overwrite: bool, **options: Any) -> Result:
    """Write the sum of GRAMS to --out: the Gram of all their rows together, fold by fold.

    They must have the same map, scaling, classes and folds, as those made --like the first have.
    Three are in memory at once.
    """
    remote, others = storage_options(options), {f"GRAM {i}": path for i, path in enumerate(grams, 1)}
    # By its name alone: a copy under another name cannot be told from other rows.
    if twice := next((path for i, path in enumerate(grams) if path in grams[:i]), None):
        raise InputError(f"{public_name(twice)} is named twice, and its rows would count twice; name it once")
    place = place_to_write(out, options, overwrite=overwrite, kinds=_KINDS, **others)
    # One after the other: three of D² numbers are in memory at once, however many there are.
    total: Any = _load(grams[0], remote)
    for path in grams[1:]:
        other = _load(path, remote)
        if type(other) is not type(total):
            raise InputError(
                f"{public_name(grams[0])} holds a {_noun(total)}, but {public_name(path)} a {_noun(other)}; "
                f"make it with distrff gram --like the first"
            )
        try:
            total = total + other
        except InputError as error:
            # The sums know what differs, and this loop which file it is.
            raise InputError(f"{public_name(path)} cannot be added: {error}") from None
    total.save(out, overwrite=overwrite, storage_options=remote)
    return _result({**_described(total), "out": str(place)}, [f"  of {len(grams)} Gram(s)"])


@command()
@click.argument("path", metavar="GRAM")
@result_options
@option("alpha")
@option("alphas")
@intercept_option
@option("tol")
@option("include_std")
@storage_option
@click.pass_context
def solve(ctx: click.Context, path: str, out: str, overwrite: bool, **options: Any) -> Result:
    """Write the ridge model of GRAM to --out, without any row.

    It is the model that fit makes of the same rows, for numbers or for class labels, as GRAM has them, and
    takes raw tables where the rows came from one. --alpha cv needs a Gram with folds.
    """
    remote = storage_options(options)
    place = place_to_write(out, options, overwrite=overwrite, kinds=("model",), GRAM=path)
    if options["alphas"] and options["alpha"] not in (None, "cv", "gcv"):
        refuse(ctx, "alphas", "--alpha cv or --alpha gcv")
    found = _load(path, remote)
    kind = drf.KernelRidge if found.targets.kind == "numeric" else drf.KernelRidgeClassifier
    estimator = kind(
        fit_intercept=not options["no_intercept"],
        random_state=0,  # nothing is drawn
        **chosen(options, "alpha alphas tol"),
    )
    estimator.fit_gram(found)
    is_map = found.kind == "toeplitz" and found.targets.kind == "numeric"
    save(estimator, out, options["include_std"], is_map=is_map, overwrite=overwrite, storage_options=remote)
    report = estimator.report_
    # No seed, since nothing was drawn.
    values = {key: report[key] for key in KEYS if key in report and key != "seed"} | {"out": str(place)}
    lines = [*map(spelt_as_options, repr(report).splitlines()), f"  written to {place}"]
    return Result(values, lines, 0 if report["status"] == "CONVERGED" else NOT_CONVERGED)


# Helpers of all three commands.


def _load(path: str, remote: dict[str, Any] | None) -> Any:
    """The sums at a path; raises InputError for anything else."""
    kind = kind_at(path, remote)  # before gigabytes are read
    kinds: dict[Any, Any] = {"gram": drf.GramStatistics, "toeplitz": drf.ToeplitzStatistics}
    if kind not in kinds:
        what = "does not hold" if kind is None else f"holds a {kind}, not"
        raise InputError(f"{public_name(path)} {what} a Gram; write one with distrff gram")
    return kinds[kind].load(path, storage_options=remote)


def _noun(sums: Any) -> str:
    return "Gram" if isinstance(sums, drf.GramStatistics) else "sum on equispaced features"


def _described(sums: Any) -> dict[str, Any]:
    specification = sums.specification
    return {
        "kind": "gram" if _noun(sums) == "Gram" else "toeplitz",
        "n_samples": sums.n_rows,
        "n_columns": specification.n_columns,
        "n_components": specification.n_features,
        "n_outputs": sums.targets.n_outputs,
        **held_out_by(sums),
        "weight": sums.weight,
        "targets": sums.targets.kind,
        "dtype": sums.dtype,
    }


def held_out_by(sums: Any) -> dict[str, Any]:
    """The number and the words of the folds of sums; files of earlier versions do not hold the rule."""
    has_rule = sums.n_folds > 1 and sums.folds is not None
    return {"n_folds": sums.n_folds, "held_out": sums.folds.words if has_rule else None}


def _result(values: dict[str, Any], more: list[str]) -> Result:
    what = "Gram" if values["kind"] == "gram" else "sums on equispaced features"
    held_out = "" if values["held_out"] is None else f" of {values['held_out']}"
    lines = [
        f"{what} of {values['n_samples']:,} rows, {values['n_columns']} columns, {values['n_components']} "
        f"features ({values['dtype']})",
        f"  {values['n_outputs']} {values['targets']} output(s), {values['n_folds']} fold(s){held_out}",
        *more,
        f"  written to {values['out']}",
    ]
    return Result(values, lines)
