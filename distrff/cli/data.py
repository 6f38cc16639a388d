"""From DATA and its options to a dataset, and to the workers that read it; `distrff convert`."""

from __future__ import annotations

import ipaddress
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli import spelt_as_options
from distrff.cli.command import Result, StorageOption, command, flag, parameter, parameters, together
from distrff.errors import DataWarning, InputError, warn
from distrff.utils.text import listed, public_name

if TYPE_CHECKING:
    from distrff.io.convert.dialect import Dialect
    from distrff.io.dataset import Dataset
    from distrff.io.storage import Location

# The options of rows, of what is written, and of workers.

storage_option = click.option(
    "--storage-option",
    "storage_options",
    type=StorageOption(),
    multiple=True,
    metavar="KEY=VALUE",
    help="For the file systems behind URLs; may be repeated.",
)

text_options = together(
    parameter("convert", "delimiter", metavar="CHARACTER|whitespace"),
    parameter("convert", "decimal"),
    click.option(
        "--header/--no-header",
        default=None,
        help="Whether text begins with names; --header none is --no-header.  [default: if its first line has "
        "words and no number]",
    ),
    parameter("convert", "quote", metavar="CHARACTER|none"),
    parameter("convert", "encoding", help="Of text, such as latin-1.  [default: utf-8]"),
    section="Text files",
)

data_options = together(
    parameter(
        "open_dataset",
        "columns",
        help="Columns of X, names or indices; may be repeated.  [default: all numeric ones but target and "
        "weights; with a model, those it was fitted to]",
    ),
    parameter("open_dataset", "x_name", help="Array of the rows in a Zarr group or .npz."),
    storage_option,
    text_options,
    section="Rows",
)

row_options = together(
    click.option(
        "--target",
        multiple=True,
        metavar="NAME|INDEX",
        help="Column to predict; repeat it for several. An integer is an index unless a column has that "
        "name. Zarr: the name of an array.  [default for Zarr: y]",
    ),
    click.option("--sample-weight", metavar="NAME", help="Column or array of row weights."),
    click.option(
        "--y-name",
        metavar="NAME",
        help="Array of the targets in a .npz file; of a .npy file, another that holds them.  [default: y]",
    ),
    data_options,
    section="Rows",
)

exposure_option = together(
    click.option(
        "--exposure",
        metavar="NAME",
        help="Column of the time, area or number of units over which counts or amounts are taken. Models of "
        "--loss poisson or gamma predict those of one unit, or where this is given to predict, of as many.",
    ),
    section="Rows",
)
groups_option = together(parameter("open_dataset", "groups", type=str, metavar="NAME|INDEX"), section="Rows")
fold_columns = together(groups_option, parameter("open_dataset", "extra"), section="Rows")

sample_dim_option = together(
    parameter(
        "open_dataset",
        "sample_dim",
        help="Take the arrays of a Zarr group with this first dimension as the columns of a table; with a "
        "model, the one that its columns have in common.",
    ),
    section="Columns of tables",
)

_OF_TABLES = "drop one_hot max_categories hash_columns missing datetime types keep_index positive"
_OF_TEXT = "delimiter decimal header quote encoding"
_RULES = ("one_hot", "missing", "datetime", "positive")  # each may need a pass over the rows

table_options = together(
    parameter("open_dataset", "drop", help="Columns of a table to leave out."),
    parameters("convert", _OF_TABLES.removeprefix("drop ")),
    section="Columns of tables",
)

# Rows of so many bytes fit many times over into any process, and starting workers takes longer than most
# commands on them.
_FEW_BYTES = 2**26

cluster_options = together(
    click.option(
        "--scheduler",
        metavar="local|ADDRESS|FILE",
        help="Processes on this machine, or a running Dask scheduler.  [default: local; with no option of "
        f"workers this process itself, if the decoded rows have at most {_FEW_BYTES // 2**20} MiB]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Local worker processes.  [default: one for each core]",
    ),
    click.option(
        "--memory-limit",
        metavar="SIZE",
        help="Of each local worker, such as 4GB.  [default: an equal share of this machine's]",
    ),
    section="Workers",
)


def _result_options(what: str) -> Any:
    return together(
        click.option("--out", required=True, metavar="PATH", help=f"{what} to write; a path or URL."),
        flag("--overwrite", "Replace what distrff wrote there before."),
        section="Result",
    )


result_options = _result_options("Zarr")
table_result_options = _result_options("Zarr, Parquet (.parquet) or CSV (.csv, .csv.gz), by its ending,")


def place_to_write(
    out: str, options: Mapping[str, Any], *, overwrite: bool, kinds: tuple[str, ...], **others: str
) -> Location:
    """The place of `--out`; raises InputError where it may not be written, or is one of the others."""
    from distrff.io.storage import Location, check_writable, refuse_overlap

    place = Location.of(out, storage_options(options))
    refuse_overlap("--out", out, **others)
    check_writable(place, overwrite=overwrite, kinds=kinds)
    return place


checkpoint_options = together(
    click.option(
        "--checkpoint",
        metavar="URL",
        help="Folder for what is finished so far, seen by all workers; after any death the same command goes "
        "on from it. Removed at the end.",
    ),
    click.option(
        "--checkpoint-every",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Time between two writes of it. Default: 40 times as long as the last one took, at least 10.",
    ),
    section="Checkpoint",
)


# From DATA to a dataset.


def open_data(path: str, options: Mapping[str, Any], *, columns: Any = None) -> Dataset:
    """The dataset at `path`, its columns those of `--columns` or else `columns`."""
    of_table = chosen(options, _OF_TABLES)
    sample_dim = options.get("sample_dim")
    arguments = arguments_of(options, columns) | of_table
    if _is_raw(path, options):
        if sample_dim is not None:
            raise InputError(f"--sample-dim goes with a Zarr group; {public_name(path)} is none")
        if options.get("ids"):
            raise InputError(
                f"--id goes with Parquet and Zarr, and with text for a model of named columns; write "
                f"{public_name(path)} as Parquet first"
            )
        arguments |= chosen(options, _OF_TEXT) | {"y_name": options.get("y_name")} | _beside(options)
        return converted(path, options, lambda rows: drf.convert(path, rows, **arguments))
    # Only these rules read rows when a dataset is opened; all else is in the files' metadata.
    passes = any(of_table.get(name) not in (None, False, "error") for name in _RULES)
    with _workers_for_pass(options, passes):
        return drf.open_dataset(path, **arguments, sample_dim=sample_dim, **_beside(options))


def chosen(options: Mapping[str, Any], names: str) -> dict[str, Any]:
    """The options of some names that were given; for the others functions have their own defaults."""
    return {name: options[name] for name in names.split() if options.get(name) is not None}


def check_has_target(path: str, options: Mapping[str, Any]) -> None:
    """Raise InputError, before rows are read, if neither options nor file name the target of a model."""
    if options["target"] or options["model"] == "pca":
        return
    source = _table_source(path, options)
    if source is not None and not getattr(source, "targets", ()):
        raise InputError(
            f"{public_name(path)} has no target yet: name it with --target; its columns are "
            f"{listed(source.kinds)}"
        )


def _table_source(path: str, options: Mapping[str, Any], known: Sequence[str] = ()) -> Any:
    """The table of named columns at a path; None for a Zarr group and libsvm files."""
    from distrff.io.convert.convert import open_source
    from distrff.io.convert.text import LibsvmSource
    from distrff.io.open import stored_kind

    # Groups and libsvm files bring their targets, and are refused without once they are open.
    if not _is_raw(path, options) and stored_kind(path, storage_options(options)) == "zarr":
        return None
    source = open_source(path, known=known, **_source_options(options))
    return None if isinstance(source, LibsvmSource) else source


def arguments_of(options: Mapping[str, Any], columns: Any = None) -> dict[str, Any]:
    """Arguments of `open_dataset` for rows stored as X and y, or as columns of numbers."""
    return {
        **chosen(options, "sample_weight x_name"),
        "target": target_of(options),
        "columns": options["columns"] or columns,
        "storage_options": storage_options(options),
    }


def target_of(options: Mapping[str, Any]) -> Any:
    """The column of `--target`, a list of several, or None."""
    target = [*(options.get("target") or ())]
    # One name gives a y of one dimension.
    return target[0] if len(target) == 1 else target or None


def open_data_for(model: Any, path: str, options: Mapping[str, Any]) -> Dataset:
    """The dataset at `path` with the columns that the model was fitted to, found by their names.

    A table goes through the model's steps, to its target as well where `options` have one.
    """
    from distrff.io.open import takes_steps

    remote = storage_options(options)
    if model.steps is not None and _is_raw(path, options):
        from distrff.io.convert.convert import convert_like

        steps = _wanted_steps(model.steps, path, options)
        # The steps decide how text is read: guessed anew, a column of few rows could get another type.
        more = _source_options(options) | _beside(options)
        return converted(path, options, lambda rows: convert_like(path, rows, steps, **more))
    x_name = _x_name(options)
    if model.steps is not None and takes_steps(path, model.steps, x_name, remote):
        steps = _wanted_steps(model.steps, path, options)
        with _workers_for_pass(options, bool(steps.required)):
            more = _beside(options)
            return drf.open_dataset(path, steps=steps, x_name=x_name, storage_options=remote, **more)
    names = None if model.column_names is None else list(model.column_names)
    try:
        dataset = open_data(path, options, columns=names)
    except InputError:
        if names is None or options["columns"]:
            raise
        dataset = open_data(path, options)
        _check_steps(model, dataset, options)  # where categories differ, these say why a column lacks
        if dataset.column_names is not None:
            raise
        # A Zarr X without names is taken as it is.
    _check_steps(model, dataset, options)
    if dataset.n_columns != model.n_columns:
        raise InputError(
            f"{dataset.source} has {dataset.n_columns} columns, but the model was fitted to "
            f"{model.n_columns}; choose them with --columns"
        )
    return dataset


def _check_steps(model: Any, dataset: Dataset, options: Mapping[str, Any]) -> None:
    """Raise InputError for rows that a conversion encoded by other steps than those of the model."""
    from distrff.model.rows import check_steps

    remedy = "give the raw file, which the model encodes itself, or convert it with --steps MODEL"
    check_steps(model.steps, dataset, remedy, with_target="target" in options)


def model_and_targets(path: str, data: str, options: Mapping[str, Any]) -> tuple[Any, Dataset]:
    """The stored model at `path`, and the rows at `data` with targets, by which it is judged."""
    model = drf.load_model(path, storage_options=storage_options(options))
    if model.kind == "KernelPCA":
        raise InputError(
            f"{public_name(path)} holds principal components, which have no predictions to judge"
        )
    dataset = open_data_for(model, data, options)
    # A Zarr group brings its y; a table without --target has none.
    if not dataset.n_targets:
        raise InputError(f"{dataset.source} has no target yet: name it with --target")
    loss = model.loss or {"loss": None}
    if loss.get("exposure") and options.get("exposure") is None:
        warn("the fit had exposures, and these rows have none: the target is taken for rates", DataWarning)
    return model, rated(dataset, options, loss["loss"])


def rated(dataset: Dataset, options: Mapping[str, Any], loss: str | None) -> Dataset:
    """The dataset with rates for targets, where --exposure names a column."""
    if options.get("exposure") is None:
        return dataset
    if loss not in ("poisson", "gamma"):
        raise InputError("--exposure goes with --model regressor and --loss poisson or gamma")
    from distrff.io.open import with_rates

    return with_rates(dataset, options["exposure"], weighted=loss == "poisson")


def _wanted_steps(steps: Any, path: str, options: Mapping[str, Any]) -> Any:
    """Steps of a model with the target that the command names, or without one for predictions."""
    if options["columns"]:
        raise InputError("--columns goes with models of plain numbers; this one's steps name its columns")
    # Predictions need no target, and rows without one would be dropped.
    if "target" not in options:
        steps = steps.for_prediction()
    elif steps.target is not None and options["target"]:
        names = _target_names(steps, path, options)
        is_1d = len(names) == 1 and steps.target.is_1d
        steps = replace(steps, target=replace(steps.target, names=names, is_1d=is_1d))
    return replace(steps, weight=options["sample_weight"]) if options.get("sample_weight") else steps


def _target_names(steps: Any, path: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the columns that `--target` gives by name or index."""
    from distrff.io.tables import named_columns

    given, steps = list(options["target"]), steps.for_prediction()
    source = _table_source(path, options, steps.raw_names)
    if source is None:
        return tuple(given)
    source.follow(steps)
    return tuple(named_columns(source, given))


def _is_raw(path: str, options: Mapping[str, Any]) -> bool:
    """Tell whether files must be converted before their rows can be read; else refuse options of text."""
    from distrff.io.open import is_raw

    found = is_raw(path, storage_options(options))
    if not found:
        _dialect(options).refuse_for(f"{public_name(path)} is no text file")
    return found


def _source_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `open_source` for a raw file."""
    arrays = {"x_name": _x_name(options), "y_name": options.get("y_name")}
    return arrays | {"dialect": _dialect(options), "storage_options": storage_options(options)}


def _dialect(options: Mapping[str, Any]) -> Dialect:
    from distrff.io.convert.dialect import Dialect

    return Dialect(**chosen(options, _OF_TEXT))


def _x_name(options: Mapping[str, Any]) -> str:
    return options["x_name"] or "X"


def _beside(options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that come beside X, for the functions that open rows."""
    used, dropped = options.get("columns"), options.get("drop") or ()
    # Coordinates mostly are features; a date is none, as no model is good beyond the dates that it saw.
    coordinates = options.get("block_columns") or ()
    others = [name for name in coordinates if name in dropped or (used and name not in used)]
    exposure = options.get("exposure")
    extra = [
        *(options.get("extra") or ()),
        *(options.get("by") or ()),
        *others,
        *([exposure] if exposure else []),
    ]
    given = chosen(options, "ids groups") | {"extra": extra}
    return {role: names for role, names in given.items() if names}


def storage_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The pairs of `--storage-option`, or None without any."""
    return dict(options["storage_options"]) or None


# Raw files in the place of stored rows are converted into a folder that is removed when the command ends.

_REPORTED = (
    "rows_read",
    "rows_dropped",
    "columns_made",
    "categories",
    "missing",
    "columns_dropped",
    "n_unseen_categories",
    "read_as",
)


def converted(path: str, options: Mapping[str, Any], convert: Callable[[str], dict[str, Any]]) -> Dataset:
    """The rows of raw files, after `convert` has written them to a path in a temporary folder."""
    from distrff.io.storage import Location, own_folder
    from distrff.io.tables import warn_of_left_out

    scheduler, name = options.get("scheduler") or "local", public_name(path)
    if scheduler != "local" and not _is_here(scheduler):
        raise InputError(
            f"{name} would be converted to a folder of this machine, which workers of "
            f"{public_name(scheduler)} may not see; convert it first, to a place that they see: "
            f"distrff convert {name} ROWS.zarr, for a model with --steps MODEL"
        )
    parent = Path(tempfile.gettempdir())
    # The command's context removes it, however the command ends; a killed one leaves it to the next.
    folder = click.get_current_context().with_resource(own_folder(parent, "distrff-rows-", mode=0o700))
    rows = str(folder / "rows.zarr")
    report = convert(rows)
    place = (Location.of(path, storage_options(options)),)
    counts = {key: report[key] for key in _REPORTED if key in report}
    if "read_as" in report:
        click.echo(f"{name} is read as: {spelt_as_options(report['read_as'])}", err=True)
    dataset = drf.open_dataset(rows, **report.get("beside", {}))  # by names, where options may have indices
    # Named as the user named it: the folder is gone when somebody reads the report, and its target is y. The
    # place tells calibrate where the rows of a fit came from.
    target = dataset.steps and dataset.steps.target
    names = target.names if target else None
    dataset = replace(dataset, source=name, target_names=names, table_report=counts, places=place)
    warn_of_left_out(dataset)
    return dataset


def _is_here(scheduler: str) -> bool:
    """Whether an address, or the one in a scheduler file, is of this machine itself."""
    if Path(scheduler).is_file():
        scheduler = json.loads(Path(scheduler).read_text()).get("address", "")
    protocol, _, rest = scheduler.rpartition("://")
    # An IPv6 address stands in brackets before its port.
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return protocol == "inproc" or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# The workers of a command.


def _workers_for_pass(options: Mapping[str, Any], needed: bool) -> AbstractContextManager[None]:
    """Run a pass before the command's work on a scheduler that is there already, or else in this process."""
    # To start local processes for this pass alone would mostly take longer than the pass.
    is_local = options.get("scheduler") in (None, "local")
    return nullcontext() if is_local or not needed else workers_of(options)


@contextmanager
def workers_of(options: Mapping[str, Any], n_bytes: float = math.inf) -> Iterator[None]:
    """Make the cluster that `--scheduler` names the ambient one, with workers that can run distrff.

    Where no option names workers, few bytes of decoded rows are left to this process, as Python does without
    a client. Results have the same bits.
    """
    scheduler, n_workers, limit = options["scheduler"], options["workers"], options["memory_limit"]
    # By a number of the rows alone: a command does the same on all machines, however busy they are.
    if n_bytes <= _FEW_BYTES and (scheduler, n_workers, limit) == (None, None, None):
        yield
        return
    from distrff.engine.cluster import check_workers

    scheduler = scheduler or "local"
    if scheduler != "local" and (n_workers, limit) != (None, None):
        raise click.UsageError("--workers and --memory-limit go with --scheduler local")
    with ExitStack() as stack:
        if scheduler == "local":
            stack.enter_context(_scratch_folder())
        # Workers are checked before they get work: one of another version fails late, and with other words.
        check_workers(stack.enter_context(drf.connect(scheduler, n_workers=n_workers, memory_limit=limit)))
        yield


@contextmanager
def _scratch_folder() -> Iterator[None]:
    """Let local workers spill into a folder that the next command removes if this one is killed."""
    import dask

    from distrff.io.storage import own_folder

    parent = Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    with (
        own_folder(parent, "distrff-workers-", mode=0o700) as folder,
        dask.config.set({"temporary-directory": str(folder)}),
    ):
        yield


@command()
@click.argument("src", nargs=-1, required=True)
@click.argument("dst")
@row_options
@fold_columns
@table_options
@click.option(
    "--steps",
    metavar="MODEL|ZARR",
    help="Encode the columns as for a model, or as in an earlier DST, for rows to predict or score; other "
    "options of columns are left out.",
)
@parameters("convert", "shuffle test_fraction")
@parameter("convert", "dtype", help="Type of X.")
@parameters("convert", "chunk_rows overwrite")
@checkpoint_options
def convert(src: tuple[str, ...], dst: str, **options: Any) -> Result:
    """Convert the files SRC to the Zarr group DST, to be fitted and scored as DATA.

    SRC are files, folders or globs of one format, found by their first bytes: delimited text or
    libsvm files, compressed or not; a .npz or .npy file of NumPy; Parquet. DST becomes a group with
    the arrays X, y and sample_weight, whole or not at all. Memory is that of a few blocks for files of
    any size.
    """
    from distrff.io.storage import refuse_overlap

    for path in src:
        refuse_overlap("DST", dst, source=path)
    arguments = {name: value for name, value in options.items() if value is not None}
    remote = storage_options(options)
    arguments |= {"target": target_of(options), "storage_options": remote}
    if options["steps"] is not None:
        arguments["steps"] = _steps_at(options["steps"], remote)
    return Result(drf.convert(list(src), dst, **arguments))


def kind_at(path: str, remote: dict[str, Any] | None) -> str | None:
    """What the root of a group says that it holds."""
    from distrff.io.storage import Location, header_of

    return (header_of(Location.of(path, remote).root() or {}) or {}).get("kind")


def _steps_at(path: str, remote: dict[str, Any] | None) -> Any:
    """The steps of the model, or of the converted rows, at a path."""
    is_model = kind_at(path, remote) == "model"
    found = (drf.load_model if is_model else drf.open_dataset)(path, storage_options=remote)
    if found.steps is None:
        raise InputError(
            f"{public_name(path)} has no steps, as its columns are numbers that were taken as they are; "
            f"leave out --steps"
        )
    return found.steps
