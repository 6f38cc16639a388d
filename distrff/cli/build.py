"""From options to an estimator and a map, and `distrff fit`: from stored rows to a stored model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli import FOLDS, LAST_WORK, MAPS, MODELS, NOT_CONVERGED, spelt_as_options
from distrff.cli.command import (
    Names,
    Result,
    Value,
    WordOrJson,
    command,
    flag,
    given,
    parameter,
    parameters_of,
    progress_lines,
    spelt_as_option,
    together,
)
from distrff.cli.data import (
    check_has_target,
    checkpoint_options,
    cluster_options,
    exposure_option,
    fold_columns,
    open_data,
    rated,
    result_options,
    row_options,
    sample_dim_option,
    storage_options,
    table_options,
    workers_of,
)
from distrff.errors import CheckpointWarning, DataWarning, InputError, warn
from distrff.utils.text import listed

if TYPE_CHECKING:
    from distrff.io.dataset import Dataset
    from distrff.io.storage import Location

# Kernels by their words, and the options of classes.

KERNELS = {name.lower(): name for name in ("Gaussian", "Laplacian", "Cauchy", "Exponential", "Matern")}

_OF_KERNELS = ("kernel", "length_scale", "nu", "metric")
_KERNEL = {"kernel": "gaussian", "length_scale": "auto"}  # defaults; of some maps others
_KERNELS_OF_MAPS: dict[str, dict[str, Any]] = {
    "equispaced": {"kernel": "matern", "nu": "auto", "length_scale": "ard"},
    "binning": {"kernel": "laplacian"},
}
# Parameters under another name, as two classes of a fit have one of theirs; and those without an option.
_RENAMED = {("EquispacedFourierFeatures", "tol"): "kernel_tol", ("KernelPCA", "n_components"): "n_outputs"}
_RENAMED |= {("BlockFolds", name): f"block_{name}" for name in ("columns", "size", "like")}
_NO_OPTIONS = (
    "features", "fit_intercept", "warm_start", "callbacks", "maps", "n_folds", "seed", "first_row", "n_rows",
)  # fmt: skip


@cache
def options_of(name: str) -> dict[str, str]:
    """The options of a class, and the parameters that they stand for."""
    # From the signatures, so that what a class lacks is refused without a table to be kept beside it.
    found = {_RENAMED.get((name, p), p): p for p in parameters_of(name) if p not in _NO_OPTIONS}
    if name in MODELS.values():
        return found if name == "KernelPCA" else found | {"no_intercept": "fit_intercept", "folds": "cv"}
    found.pop("random_state", None)  # the estimator's
    return found | dict.fromkeys(_OF_KERNELS, "kernel") if "kernel" in found else found


def _values_of(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of a class's parameters among the options, without those that are not given."""
    return {p: options[option] for option, p in options_of(name).items() if options[option] is not None}


def _owners(option: str, classes: Mapping[str, str]) -> list[str]:
    return [word for word, name in classes.items() if option in options_of(name)]


def _either(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


# In the place of a docstring's first sentence: what several classes mean by an option, or how it is given.
_HELP = {
    "block_like": "Hold rows out in the shapes of the empty places between them, where predictions are "
    "wanted; shapes of given places are for Python.",
    "by": "Column of the groups, by default --groups, or of the order, by default that of the rows; it may "
    "be several: year,month,day. No feature unless --columns names it, or --datetime keeps times.",
    "cv": "Number of folds; auto are five, and of gram 1 makes none.",
    "features": "auto chooses map, kernel and widths by small models on a sample; it is fourier where "
    "--kernel, --nu, --length-scale, --metric, --form or --sampling is given. equispaced is for 1 to 3 "
    "columns. binning is for --kernel laplacian, which is its default.",
    "include_std": "Store what predict --return-std needs, a D × D matrix, or of --features equispaced 64 "
    "sampled models; of --model ridge or ridge-classifier.  [default: of --features equispaced with ridge]",
    "kernel": 'JSON, as text or a .json file, says its own widths: {"kernel": "matern", "nu": 2.5, '
    '"length_scale": "auto"}; sums and products are {"kernel": "sum", "k1": {...}, "k2": {...}}.  [default: '
    "gaussian]",
    "length_scale": "Width of the kernel, or one for each column; auto finds one by a small fit on a "
    "sample, ard one for each column by the likelihood of a smaller sample. --features equispaced chooses "
    "both from sums over all rows, and has ard as its default.  [default: auto]",
    "metric": "Learn which directions of the columns matter; with one width. JSON of --kernel may give its "
    '"metric" as a list of rows.  [default: each column alike]',
    "loss": "Of regressor: quantiles, robust squares, a tube in which errors cost nothing and its square, "
    "counts, amounts; of svc the hinge or its square.",
    "model": "Numbers by ridge, or by other losses by regressor; labels by ridge-classifier, svc and "
    "likelihood; principal components by pca.",
    "n_components": "Number of features; auto, for --features auto alone, takes as many as pay; of "
    "--features equispaced the most, by default up to 1,048,576.  [default: auto, or 1024 of other maps]",
    "nu": "Smoothness of --kernel matern; auto, the default of --features equispaced and for these alone, "
    "chooses it from sums over all rows.  [default: 1.5]",
    "random_state": "Seed; by default a fresh one, which the result names.",
    "scale": "Bring columns to mean 0 and deviation 1, before that by signed logarithms (log) or ranks made "
    "normal (quantile); auto chooses with --features auto, is else standard, and only divides sparse rows.",
    "solver": "For ridge gram, or cg, which needs less memory and a given --alpha; lbfgs for smooth losses, "
    "smoothed for the hinge; sgd for any loss on shuffled rows, where no Gram fits in memory.",
    "tol": "Relative duality gap to be reached; of cg and equispaced features the relative residual.",
}
_SWITCHES = ("include_std",)  # can be turned off as well
# Where the docstring does not say how the command line takes it, or there is no parameter of this name.
_GIVEN: dict[str, dict[str, Any]] = {
    "by": {"type": Names(), "metavar": "NAME,..."},
    "C": {"metavar": "cv|inf|NUMBER"},
    "features": {"type": click.Choice([*MAPS]), "default": "auto"},
    "form": {"type": click.Choice(["cos_sin", "phase"]), "metavar": None},  # complex is for transform alone
    "include_std": {"is_flag": True, "default": None},
    "kernel": {"type": WordOrJson(*KERNELS), "metavar": "|".join([*KERNELS, "JSON"])},
    "length_scale": {"type": Value("float, tuple"), "metavar": "auto|ard|NUMBER|NUMBER,..."},
    "n_components": {"type": Value("int"), "metavar": "auto|INTEGER", "default": None},
    "metric": {"type": click.Choice(["learned"])},
    "model": {"type": click.Choice([*MODELS]), "default": "ridge"},
    "nu": {"type": Value("float"), "metavar": "auto|NUMBER"},
    "random_state": {"type": int},
}


def _options(section: str, names: str) -> Any:
    return together(*map(option, names.split()), section=section)


def option(name: str) -> Any:
    """The option of a parameter of models, maps or folds; its help says which have it, unless nearly all."""
    help, settings = _HELP.get(name), _GIVEN.get(name, {})
    for selector, classes in (("model", MODELS), ("features", MAPS), ("folds", FOLDS)):
        words = [] if name in _OF_KERNELS else _owners(name, classes)
        if words:
            parameter_name = options_of(classes[words[0]])[name]
            of = "" if len(words) > len(classes) - 3 else f"Of --{selector} {_either(words)}."
            return parameter([classes[word] for word in words], parameter_name, name, help, of=of, **settings)
    spelt = spelt_as_option(name)
    return click.option(f"{spelt}/--no-{spelt[2:]}" if name in _SWITCHES else spelt, help=help, **settings)


map_options = _options(
    "Feature map and kernel",
    "features n_components max_components min_gain effort n_grids n_bins kernel nu length_scale kernel_tol "
    "bounds period trend metric form "
    "sampling landmarks scale random_state",
)
fold_options = together(
    click.option(
        "--folds",
        type=click.Choice([*FOLDS]),
        help="Which rows are held out, as new ones will come: at random (hash), runs of rows, whole groups, "
        "cells of a map, or what comes later (forward).  [default: groups with --groups, else hash; for "
        "--features equispaced on maps of 10,000 rows or more blocks --block-like gaps]",
    ),
    _options("Rows held out", "cv by gap window block_columns block_size buffer block_like fold_by"),
    section="Rows held out",
)
intercept_option = flag("--no-intercept", "Fit without the constant b.")
fit_options = together(
    row_options,
    exposure_option,
    fold_columns,
    sample_dim_option,
    table_options,
    _options("Model", "model loss quantile epsilon delta noise sigma multi_class class_weight"),
    together(intercept_option, option("n_outputs"), section="Model"),
    map_options,
    _options("Penalty", "alpha alphas alpha_per_target C Cs"),
    fold_options,
    _options("Solver", "solver tol max_sweeps keep_features dtype include_std"),
    cluster_options,
)

# From options to an estimator that is not fitted yet.

_OF_LOSSES = {
    "quantile": ("quantile",),
    "delta": ("huber",),
    "epsilon": ("epsilon_insensitive", "squared_epsilon_insensitive"),
    "exposure": ("poisson", "gamma"),
}
_GRIDS = {"alphas": "alpha", "Cs": "C"}  # each for a search of its penalty


def estimator_and_data(ctx: click.Context, data: str) -> tuple[Any, Dataset]:
    """The estimator that the options describe and the dataset at `data`, checked against each other."""
    # All that shows without reading rows is checked here: a typing error must cost no pass over them.
    estimator = checked_estimator(ctx)
    check_has_target(data, ctx.params)
    dataset = open_data(data, ctx.params)
    if ctx.params["model"] != "pca":
        check_target(dataset, ctx.params["model"])
    show_defaults(ctx, dataset)
    return estimator, rated(dataset, ctx.params, getattr(estimator, "loss", None))


def checked_estimator(ctx: click.Context) -> Any:
    """The estimator that the options describe.

    Raises UsageError for an option that the model or map lacks or would not use, and InputError for values
    that no data could make right.
    """
    options = ctx.params
    choose_features(ctx)
    # Before the library is loaded: that takes a second or two, which a wrong option need not wait for.
    _refuse_others(ctx, "model", MODELS)
    _refuse_others(ctx, "features", MAPS)
    _refuse_unused(ctx)
    name = MODELS[options["model"]]
    values = _values_of(options, name)
    # --no-intercept is its opposite.
    if "fit_intercept" in values:
        values["fit_intercept"] = not values["fit_intercept"]
    if (folds := chosen_folds(ctx)) is not None:
        values["cv"] = folds
    estimator = getattr(drf, name)(_features(ctx), **values)
    # Constructors store alone, as scikit-learn's do: values are checked here, before a row is read.
    estimator.check_parameters()
    return estimator


def checked_map(ctx: click.Context) -> Any:
    """The map that the options describe, checked like `checked_estimator`."""
    choose_features(ctx)
    _refuse_others(ctx, "features", MAPS)
    features = _features(ctx)
    features.check_parameters()
    return features


def chosen_folds(ctx: click.Context) -> Any:
    """The folds of --folds and its options, None where it is not given.

    Raises UsageError for options that the rule lacks, or that it needs.
    """
    _refuse_others(ctx, "folds", FOLDS)
    options, rule = ctx.params, ctx.params["folds"]
    if rule is None:
        return None
    if "fold_by" in given(ctx):
        refuse(ctx, "fold_by", "a number of folds; --folds names the rule by itself")
    values = _values_of(options, FOLDS[rule])
    by = values.get("by", [])
    if rule == "blocks" and "columns" not in values:
        raise click.UsageError("--folds blocks needs --block-columns, such as lon,lat", ctx)
    if rule == "groups" and bool(by) == bool(options["groups"]):
        raise click.UsageError("--folds groups needs the column of the groups, by --groups or --by", ctx)
    if rule == "groups" and len(by) > 1:
        raise click.UsageError("--folds groups goes by one column; make one of several first", ctx)
    if len(by) == 1:
        values["by"] = by[0]
    if options["cv"] not in (None, "auto"):
        values["n_folds"] = options["cv"]
    return getattr(drf, FOLDS[rule])(**values)


def choose_features(ctx: click.Context) -> None:
    """Take the map for which alone an option is given, or else Fourier features where a kernel is."""
    found, options = given(ctx), ctx.params
    if "features" not in found:
        # Equispaced features before the kernel is looked at: they have other defaults of it.
        if {"kernel_tol", "bounds", "period", "trend"} & found.keys() or options["nu"] == "auto":
            options["features"] = "equispaced"
        elif {*_OF_KERNELS, "form", "sampling"} & found.keys():
            options["features"] = "fourier"


def _refuse_others(ctx: click.Context, selector: str, classes: Mapping[str, str]) -> None:
    """Raise UsageError for an option that the chosen class lacks and others have."""
    for option in given(ctx):
        owners = _owners(option, classes)
        if owners and ctx.params[selector] not in owners:
            refuse(ctx, option, f"--{selector} {_either(owners)}")


def _refuse_unused(ctx: click.Context) -> None:
    """Raise UsageError for an option that the chosen classes have, and that would not count."""
    # The classes have these and use them only beside others: alone they would be ignored without a word.
    o, found = ctx.params, given(ctx)
    is_margin = "C" in options_of(MODELS[o["model"]])
    name = "C" if is_margin else "alpha"
    default = parameters_of(MODELS[o["model"]]).get(name)  # --model pca has neither
    penalty = default.default if default is not None and o[name] is None else o[name]
    if o["model"] == "regressor":
        loss = o["loss"] or parameters_of("KernelRegressor")["loss"].default
        for option, losses in _OF_LOSSES.items():
            if option in found and loss not in losses:
                refuse(ctx, option, f"--loss {' or '.join(losses)}")
    elif "exposure" in found:
        refuse(ctx, "exposure", "--model regressor and --loss poisson or gamma")
    may_search = penalty in ("cv", "gcv")
    for grid, name in _GRIDS.items():
        if grid in found and not may_search:
            refuse(ctx, grid, f"--{name} cv" + (" or --alpha gcv" if name == "alpha" else ""))
    if "alpha_per_target" in found and penalty != "cv":
        refuse(ctx, "alpha_per_target", "--alpha cv")
    # A search for the map splits its sample by --folds, too; --alpha gcv leaves out one row at a time.
    of_map = "folds" in found and penalty != "gcv" and _chooses_map(o)
    if not (of_map or penalty == "cv"):
        for option in sorted({"cv", "fold_by", "folds"} & found.keys()):
            refuse(ctx, option, "--alpha cv or --C cv" + ", or a search for the map" * (option == "folds"))
    has_gram = o["solver"] not in ("cg", "sgd") and o["features"] != "binning"
    if "include_std" in found and o["include_std"] and not ("ridge" in o["model"] and has_gram):
        refuse(
            ctx,
            "include_std",
            "the Gram of --model ridge or ridge-classifier: not with --solver cg or sgd, nor with "
            "--features binning",
        )
    may_iterate = is_margin or not has_gram or (o["features"] == "auto" and o["solver"] in (None, "auto"))
    for option in sorted({"tol", "max_sweeps", "keep_features"} & found.keys()) if not may_iterate else ():
        if option != "tol" or o["features"] != "equispaced":
            words = "--model regressor, svc or likelihood, or --solver cg or sgd, or --features binning"
            refuse(ctx, option, words)


def _chooses_map(options: Mapping[str, Any]) -> bool:
    if options["features"] in ("auto", "linear"):
        return options["features"] == "auto"
    kernel = kernel_options(options)
    searched = {"auto", "ard", "learned"}.intersection(map(str, kernel.values()))
    return bool(searched) or isinstance(kernel["kernel"], dict)


def refuse(ctx: click.Context, option: str, remedy: str) -> None:
    """Raise UsageError: the option goes with something else."""
    raise click.UsageError(f"{spelt_as_option(option)} goes with {remedy}", ctx)


def _features(ctx: click.Context) -> Any:
    """The map of the options, not fitted."""
    options, name = ctx.params, MAPS[ctx.params["features"]]
    values = _values_of(options, name)
    if "kernel" in options_of(name):
        values["kernel"] = _kernel(ctx)
    if name == "AutoFeatures" and options.get("include_std"):
        values["maps"] = ("fourier", "nystroem", "equispaced")  # which have a Gram
    return getattr(drf, name)(**values)


def _kernel(ctx: click.Context) -> Any:
    """The kernel of the options; raises UsageError for one that it would not use."""
    found = {name: ctx.params[name] for name in _OF_KERNELS if ctx.params[name] is not None}
    if not found and ctx.params["features"] == "equispaced":
        return None  # the map's own choice, which may turn widths and add a second range
    kernel = found.get("kernel")
    if isinstance(kernel, dict):
        from distrff.kernels.base import kernel_from_dict

        for option in ("length_scale", "metric", "nu"):
            if option in found:
                refuse(ctx, option, "a kernel's name; JSON says its own widths, smoothness and metric")
        return kernel_from_dict(kernel)
    values = kernel_options(ctx.params)
    kind = values.pop("kernel")
    if kind != "matern" and "nu" in found:
        refuse(ctx, "nu", "--kernel matern")
    return getattr(drf, KERNELS[kind])(**values)


def kernel_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kernel, those that are not given as the map has them."""
    of_map = _KERNEL | _KERNELS_OF_MAPS.get(options["features"], {})
    found = of_map | {name: options[name] for name in _OF_KERNELS if options[name] is not None}
    if found["kernel"] != "matern":
        found.pop("nu", None)
    return found


def check_target(dataset: Dataset, model: str) -> None:
    """Raise InputError without a target, or for a wrong kind of it."""
    if not dataset.n_targets:
        columns = f"; its columns are {listed(dataset.column_names)}" if dataset.column_names else ""
        raise InputError(f"{dataset.source} has no target yet: name it with --target{columns}")
    assert dataset.y_dtype is not None
    if model in ("ridge", "regressor") and dataset.y_dtype.kind not in "biuf":
        names = ", ".join(map(repr, dataset.target_names or ("y",)))
        raise InputError(
            f"the target {names} does not hold numbers, which {model} predicts; "
            f"use --model ridge-classifier, svc or likelihood for class labels"
        )


def show_defaults(ctx: click.Context, dataset: Dataset | None = None) -> None:
    """Print on standard error which of the choices that matter most were left to the defaults.

    Also which columns of the dataset folds go by and X does not have.
    """
    model, features = ctx.params.get("model"), ctx.params["features"]
    values: dict[str, Any] = {"features": "auto"} if features == "auto" else {}
    if features not in ("auto", "linear") and not isinstance(ctx.params["kernel"], dict):
        of_kernel = kernel_options(ctx.params)
        values |= {name: of_kernel[name] for name in ("nu", "length_scale") if name in of_kernel}
    if model not in (None, "pca"):
        penalty = "C" if "C" in options_of(MODELS[model]) else "alpha"
        values[penalty] = parameters_of(MODELS[model])[penalty].default
    if features != "equispaced":
        values["scale"] = "auto"
    found = given(ctx)
    text = " ".join(f"{spelt_as_option(name)} {value}" for name, value in values.items() if name not in found)
    if text:
        click.echo(f"defaults used: {text}", err=True)
    columns = () if dataset is None else dataset.raw_features
    named = (ctx.params.get("groups"), *(ctx.params.get("by") or ()))
    beside = [name for name in dict.fromkeys(named) if name not in (None, *columns)]
    if beside and not ctx.params["columns"]:
        text = (
            f"not features, since --groups or --by names them: {listed(beside)}; --columns with the names of "
            f"all features keeps them, --datetime keeps times"
        )
        click.echo(text, err=True)


# The command.

KEYS = (
    "model", "quality", "folds", "n_samples", "n_columns", "n_components", "n_outputs", "kernel",
    "length_scale", "alpha", "trend",
    "cv_score", "criterion", "noise_floor", "training_r2", "rkhs_norm", "dtype", "seed", "status",
    "C", "in_units_of_y", "loss", "solver", "preconditioner", "tol", "relative_residual",
    "explained_variance", "explained_variance_ratio",
    "primal", "dual", "duality_gap", "relative_gradient",
    "n_sweeps", "sweep_seconds", "seconds", "planned_peak_bytes", "measured_peak_bytes", "workers",
    "candidates", "table", "alerts", "notes",
)  # fmt: skip


@command()
@click.argument("data")
@result_options
@together(
    click.option(
        "--report",
        "page",
        metavar="FILE",
        help="Also write the report as an HTML page to FILE, a local path; --overwrite replaces an earlier "
        "one. It takes more passes over the rows: for the model's errors, out of fold where the fit had "
        "folds, and for the columns that matter.",
    ),
    section="Result",
)
@checkpoint_options
@fit_options
@click.pass_context
def fit(
    ctx: click.Context,
    data: str,
    out: str,
    page: str | None,
    checkpoint: str | None,
    checkpoint_every: float | None,
    overwrite: bool,
    **options: Any,
) -> Result:
    """Fit a model to DATA and write it to --out.

    DATA is a Parquet file, folder or glob, a Zarr group, or files of text (CSV, TSV, libsvm) or of NumPy;
    a path or a URL. Everything that can be checked is checked before the first row is read.
    """
    from distrff.io.parts import has_written, note_model, remove_checkpoint
    from distrff.io.storage import PAGE, Location, check_writable, refuse_overlap, write_file

    remote = storage_options(options)
    place, others = Location.of(out, remote), {"data": data, "model": out}
    kept = None if checkpoint is None else Location.of(checkpoint, remote)
    if kept is not None:
        refuse_overlap("--checkpoint", kept, **others)
        others["checkpoint"] = kept.url
    elif checkpoint_every is not None:
        raise click.UsageError("--checkpoint-every goes with --checkpoint", ctx)
    refuse_overlap("--out", out, data=data)
    # The same command, killed between model and checkpoint, finds a model there that is its own.
    replaces = overwrite or (kept is not None and has_written(kept, place, lambda: _digest_at(place)))
    check_writable(place, overwrite=replaces, kinds=("model",))
    if page is not None:
        refuse_overlap("--report", page, **others)
        _check_page(Location.of(page), overwrite=overwrite)
    estimator, dataset = estimator_and_data(ctx, data)
    if kept is not None:
        ctx.meta[LAST_WORK] = "what is finished is saved first"
    # Only now: workers take seconds to start, and everything that could be refused has been.
    with workers_of(options, dataset.decoded_bytes), progress_lines(ctx):
        estimator.fit(
            dataset, checkpoint=checkpoint, checkpoint_every=checkpoint_every, storage_options=remote
        )
        if kept is not None:
            with suppress(InputError, OSError):  # the fit has already warned; the model is usable
                # Before the model is written: if this process is killed in between, the next one knows whose
                # model lies there.
                note_model(kept, place, _digest_of(estimator.model_))
        asked, settings = options["include_std"], {"overwrite": replaces, "storage_options": remote}
        save(estimator, out, asked, is_map=is_map(ctx.params), **settings)
        if page is not None and options["model"] != "pca":  # after the model is safe
            from distrff.diagnostics.report import judge_fit

            judge_fit(estimator)
    if kept is not None:
        try:
            # Last, once the model is safe.
            remove_checkpoint(kept)
        except (InputError, OSError) as error:
            warn(f"the checkpoint could not be removed ({error}); delete it", CheckpointWarning)
    report = estimator.report_
    values = {key: report[key] for key in KEYS if key in report} | {"out": str(place)}
    lines = [spelt_as_options(line) for line in repr(report).splitlines()]
    lines += [f"  seed {report['seed']}", f"  written to {place}"]
    if page is not None:
        try:
            write_file(report.to_html(), Location.of(page), overwrite=overwrite, kinds=(PAGE,))
        except (InputError, OSError) as error:
            # A page that cannot be written must not look like a fit that was lost.
            error.add_note(f"the model is written to {place}")
            raise
        values["report"] = page
        lines.append(f"  report page {page}")
    # A callback's wish to stop is no failure, and a missing certificate is told by the report.
    is_well = report["status"] in ("CONVERGED", "CONVERGED_UNCERTIFIED", "STOPPED")
    return Result(values, lines, 0 if is_well else NOT_CONVERGED)


def is_map(options: Mapping[str, Any]) -> bool:
    """Whether a fit makes a map, of which standard deviations are stored unless --no-include-std is given."""
    return options["features"] == "equispaced" and options["model"] == "ridge"


def keeps_std(options: Mapping[str, Any]) -> bool:
    """Whether --include-std is given, or holds by default."""
    asked = options["include_std"]
    return is_map(options) if asked is None else asked


def save(estimator: Any, out: str, include_std: bool | None, *, is_map: bool, **settings: Any) -> None:
    """Write a model, with what its standard deviations need if that is asked for, or by default of a map.

    Where nobody asked for these and they cannot be computed, the model is written without them and a warning
    says why.
    """
    if include_std or (is_map and include_std is None):
        try:
            estimator._with_posterior()
        except InputError as error:
            if include_std:
                raise
            warn(f"written without what standard deviations need: {error}", DataWarning)
        else:
            return estimator.save(out, include_std=True, **settings)
    return estimator.save(out, **settings)


def _digest_of(model: Any) -> str:
    """Digest that tells models of one place apart."""
    from distrff.utils.serialize import digest_of

    return digest_of(model.coef, model.intercept)


def _digest_at(place: Location) -> str:
    try:
        return _digest_of(
            drf.load_model(place.url, storage_options=dict(place.options) if place.options else None)
        )
    except InputError:
        return "no model"


def _check_page(page: Location, *, overwrite: bool) -> None:
    """Raise InputError if a page cannot be written there; writes nothing."""
    from distrff.io.storage import PAGE, check_writable

    if page.path is None:
        raise InputError(f"--report {page} is not a local path; write the page to one and copy it")
    if page.path.is_dir():
        raise InputError(f"--report {page} is a folder; name a file in it")
    check_writable(page, overwrite=overwrite, kinds=(PAGE,))
