"""`distrff fit`: from options to an estimator, and from stored rows to a stored model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from distrff.cli import NOT_CONVERGED, spelt_as_options
from distrff.cli.command import command
from distrff.cli.data import check_has_target, open_data, storage_options, workers_of
from distrff.cli.options import (
    LAST_WORK,
    checkpoint_options,
    fit_options,
    result_options,
    together,
    verbosity_options,
)
from distrff.cli.output import progress_lines, show
from distrff.errors import CheckpointWarning, InputError, warn
from distrff.utils.text import listed

if TYPE_CHECKING:
    from distrff.estimators.base import KernelEstimator
    from distrff.features.base import FeatureMap
    from distrff.io.dataset import Dataset
    from distrff.io.storage import Location
    from distrff.kernels.base import Kernel
    from distrff.model.model import Model

KEYS = (
    "model", "quality", "n_samples", "n_columns", "n_components", "n_outputs", "kernel", "length_scale",
    "alpha",
    "cv_score", "criterion", "noise_floor", "training_r2", "rkhs_norm", "dtype", "seed", "status",
    "C", "loss", "solver", "preconditioner", "tol", "relative_residual",
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
@verbosity_options
@click.pass_context
def fit(
    ctx: click.Context,
    data: str,
    out: str,
    page: str | None,
    checkpoint: str | None,
    checkpoint_every: float | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to DATA and write it to --out.

    DATA is a Parquet file, folder or glob, a Zarr group, or files of text (CSV, TSV, libsvm) or of NumPy;
    a path or a URL. Everything that can be checked is checked before the first row is read.
    """
    from distrff.io.checkpoints import has_written, note_model, remove_checkpoint
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
    replaces = overwrite or (kept is not None and has_written(kept, place, lambda: _digest_at(place)))
    check_writable(place, overwrite=replaces, kinds=("model",))
    if page is not None:
        refuse_overlap("--report", page, **others)
        _check_page(Location.of(page), overwrite=overwrite)
    estimator, dataset = estimator_and_data(ctx, data)
    if kept is not None:
        ctx.meta[LAST_WORK] = "what is finished is saved first"
    with workers_of(options), progress_lines(ctx):
        estimator.fit(
            dataset, checkpoint=checkpoint, checkpoint_every=checkpoint_every, storage_options=remote
        )
        if kept is not None:
            with suppress(InputError, OSError):  # which the fit has warned of; its model is well
                note_model(kept, place, _digest_of(estimator.model_))
        extra = {"include_std": True} if options["include_std"] else {}
        estimator.save(out, overwrite=replaces, storage_options=remote, **extra)
        if page is not None and options["model"] != "pca":  # after the model is safe
            from distrff.diagnostics.evaluate import judge_fit

            judge_fit(estimator)
    if kept is not None:
        try:
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
            error.add_note(f"the model is written to {place}")
            raise
        values["report"] = page
        lines.append(f"  report page {page}")
    show(values, as_json=as_json, lines=lines)
    if report["status"] not in ("CONVERGED", "CONVERGED_UNCERTIFIED", "STOPPED"):
        ctx.exit(NOT_CONVERGED)


def _digest_of(model: Model) -> str:
    """Return what tells models of one place apart."""
    from distrff.utils.serialize import digest_of

    return digest_of(model.coef, model.intercept)


def _digest_at(place: Location) -> str:
    from distrff.model.persistence import load_model

    try:
        return _digest_of(
            load_model(place.url, storage_options=dict(place.options) if place.options else None)
        )
    except InputError:
        return "no model"


def _check_page(page: Location, *, overwrite: bool) -> None:
    """Raise InputError for what would keep a page from being written there; writes nothing."""
    from distrff.io.storage import PAGE, check_writable

    if page.path is None:
        raise InputError(f"--report {page} is not a local path; write the page to one and copy it")
    if page.path.is_dir():
        raise InputError(f"--report {page} is a folder; name a file in it")
    check_writable(page, overwrite=overwrite, kinds=(PAGE,))


# From options to an estimator that is not fitted yet, as plan, bench and kernel-error need it too.

_OF_KERNELS = ("kernel", "nu", "length_scale", "metric")
_FOURIER_ONLY = ("form", "sampling")
_EQUISPACED_ONLY = ("kernel_tol", "bounds", "period")
_OF_EQUISPACED = {"kernel": "matern", "nu": "auto", "length_scale": "ard", "n_components": None}  # defaults
_RIDGE_ONLY = ("alpha", "alphas")
_MARGIN_ONLY = ("C", "Cs")
_ITERATIVE = ("tol", "max_sweeps")
_KEPT = {"auto": "auto", "true": True, "false": False}
_OWN = {"svc": ("loss",), "likelihood": ("noise", "sigma", "multi_class")}
_ITERATES = "--model svc or likelihood, or --solver cg or sgd, or --features binning"
_CLASSIFIERS = "--model ridge-classifier, svc or likelihood"


def estimator_and_data(ctx: click.Context, data: str) -> tuple[KernelEstimator, Dataset]:
    """Return the estimator that the options describe and the dataset at `data`, checked against each other.

    Everything is checked that shows without reading rows: a typing error costs no pass over them.
    """
    estimator = checked_estimator(ctx)
    check_has_target(data, ctx.params)
    dataset = open_data(data, ctx.params)
    adapt_to(estimator, dataset, ctx.params)
    show_defaults(ctx)
    show_left_out(dataset)
    return estimator, dataset


def checked_estimator(ctx: click.Context) -> KernelEstimator:
    """Return the estimator that the options describe.

    Raises UsageError for options that contradict each other, and InputError for values that no data could
    make right.
    """
    options = ctx.params
    choose_features(ctx)
    # Before the imports: they take a second or two, which a wrong option need not wait for.
    _refuse_contradictions(ctx)

    from distrff.estimators.pca import KernelPCA
    from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
    from distrff.estimators.svm import KernelLikelihoodClassifier, KernelSVC

    model, names = options["model"], ["scale", "dtype", "random_state"]
    given: dict[str, Any] = {"features": _features(ctx)}
    if model == "pca":
        given["n_components"] = options["n_outputs"]
    else:
        given["fit_intercept"] = not options["no_intercept"]
        weight, grid = _MARGIN_ONLY if model in _OWN else _RIDGE_ONLY
        given[grid] = options[grid]
        given["keep_features"] = _KEPT[options["keep_features"]]
        names += [weight, *_ITERATIVE, *_OWN.get(model, ()), "solver", "cv", "fold_by"]
    kinds: dict[str, type[KernelEstimator]] = {
        "ridge": KernelRidge,
        "ridge-classifier": KernelRidgeClassifier,
        "svc": KernelSVC,
        "likelihood": KernelLikelihoodClassifier,
        "pca": KernelPCA,
    }
    estimator = kinds[model](**given, **{name: options[name] for name in names})
    estimator.check_parameters()
    return estimator


def checked_map(ctx: click.Context) -> FeatureMap:
    """Return the map that the options describe, checked like `checked_estimator`."""
    choose_features(ctx)
    refuse_others(ctx, _map_rules(ctx.params))
    features = _features(ctx)
    features.check_parameters()
    return features


def adapt_to(estimator: KernelEstimator, dataset: Dataset, options: Mapping[str, Any]) -> None:
    """Set class weights; raise InputError without a target, or for a wrong kind of it."""
    if options["model"] == "pca":
        return
    check_target(dataset, options["model"], options["target"])
    if options["model"] != "ridge" and options["class_weight"] is not None:
        estimator.set_params(class_weight=_class_weight(options["class_weight"]))


def check_target(dataset: Dataset, model: str, named: Sequence[str] = ()) -> None:
    """Raise InputError without a target, or for a wrong kind of it.

    `named` are the columns of --target. The copy from which a text file is fitted calls its target y.
    """
    if not dataset.n_targets:
        columns = f"; its columns are {listed(dataset.column_names)}" if dataset.column_names else ""
        raise InputError(f"{dataset.source} has no target yet: name it with --target{columns}")
    assert dataset.y_dtype is not None
    if model == "ridge" and dataset.y_dtype.kind not in "biuf":
        names = ", ".join(map(repr, named or dataset.target_names or ("y",)))
        raise InputError(
            f"the target {names} does not hold numbers, which ridge predicts; "
            f"use {_CLASSIFIERS} for class labels"
        )


def show_defaults(ctx: click.Context) -> None:
    """Print on standard error which of the choices that matter most were left to the defaults."""
    model = ctx.params.get("model")
    weights = [] if model in (None, "pca") else ["C" if model in _OWN else "alpha"]
    features = ctx.params["features"]
    of_map = ["features"] if features == "auto" else ["length_scale"]
    if features == "equispaced" and ctx.params["kernel"] == "matern":
        of_map = ["nu", *of_map]
    of_rows = [] if features == "equispaced" else ["scale"]
    names = [name for name in (*of_map, *weights, *of_rows) if not _given(ctx, name)]
    if features == "linear" or isinstance(ctx.params["kernel"], dict):
        names = [name for name in names if name != "length_scale"]
    if names:
        text = " ".join(f"{_spelt(name)} {ctx.params[name]}" for name in names)
        click.echo(f"defaults used: {text}", err=True)


def show_left_out(dataset: Dataset) -> None:
    """Print on standard error which columns are left out, and which option takes them."""
    reasons = dict.fromkeys(dataset.skipped_columns, "no numbers; --one-hot takes text, --datetime times")
    reasons |= (dataset.table_report or {}).get("columns_dropped", {})
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(spelt_as_options(why), []).append(name)
    for why, names in by_reason.items():
        click.echo(f"left out: {listed(names)} ({why})", err=True)


def choose_features(ctx: click.Context) -> None:
    """Take Fourier features where nothing but their kernel, or how they are drawn, is given.

    Equispaced ones where an option is for these alone; they have other defaults.
    """
    options = ctx.params
    if not _given(ctx, "features"):
        if any(_given(ctx, name) for name in _EQUISPACED_ONLY) or options["nu"] == "auto":
            options["features"] = "equispaced"
        elif any(_given(ctx, name) for name in (*_OF_KERNELS, *_FOURIER_ONLY)):
            options["features"] = "fourier"
    if options["features"] == "equispaced":
        options |= {name: value for name, value in _OF_EQUISPACED.items() if not _given(ctx, name)}


def _refuse_contradictions(ctx: click.Context) -> None:
    o = ctx.params
    learning = ("solver", "cv", "fold_by", "no_intercept", *_ITERATIVE)
    has_gram = o["solver"] not in ("cg", "sgd") and o["features"] != "binning"
    may_bin = o["features"] == "auto" and o["solver"] == "auto"
    iterates = o["model"] in _OWN or not has_gram or may_bin
    has_tol = iterates or o["features"] == "equispaced"
    rules = [
        (learning, o["model"] != "pca", "any --model but pca, which has no target"),
        (("n_outputs",), o["model"] == "pca", "--model pca"),
        ((*_RIDGE_ONLY, "include_std"), "ridge" in o["model"], "--model ridge or ridge-classifier"),
        (("include_std",), has_gram, "a Gram: not with --solver cg or sgd, nor with --features binning"),
        (_MARGIN_ONLY, o["model"] in _OWN, "--model svc or likelihood"),
        (("tol",), has_tol, _ITERATES + " or equispaced"),
        (("max_sweeps", "keep_features"), iterates, _ITERATES),
        *((names, o["model"] == model, f"--model {model}") for model, names in _OWN.items()),
        *_map_rules(o),
        (("alphas",), isinstance(o["alpha"], str), "--alpha cv or --alpha gcv"),
        (("Cs",), o["C"] == "cv", "--C cv"),
        (("cv", "fold_by"), o["C" if o["model"] in _OWN else "alpha"] == "cv", "--alpha cv or --C cv"),
        (("class_weight",), o["model"] not in ("ridge", "pca"), _CLASSIFIERS),
    ]
    refuse_others(ctx, rules)


def _map_rules(o: Mapping[str, Any]) -> list[tuple[tuple[str, ...], bool, str]]:
    """Return which options of maps go together: names, whether they may be given, and with what."""
    return [
        (
            ("metric",),
            o["features"] in ("fourier", "binning", "nystroem"),
            "--features fourier, binning or nystroem",
        ),
        (
            _OF_KERNELS,
            o["features"] not in ("auto", "linear"),
            "--features fourier, equispaced, binning or nystroem",
        ),
        (
            ("n_components",),
            o["features"] not in ("binning", "linear"),
            "--features auto, fourier, equispaced or nystroem",
        ),
        (_FOURIER_ONLY, o["features"] == "fourier", "--features fourier"),
        (_EQUISPACED_ONLY, o["features"] == "equispaced", "--features equispaced"),
        (("n_grids", "n_bins"), o["features"] == "binning", "--features binning"),
        (("landmarks",), o["features"] == "nystroem", "--features nystroem"),
        (("length_scale",), not isinstance(o["kernel"], dict), "a kernel's name; JSON says its own widths"),
        (("metric",), not isinstance(o["kernel"], dict), 'a kernel\'s name; JSON says "metric": "learned"'),
        (("metric",), _is_one_width(o["length_scale"]), "--length-scale auto or one number"),
        (("nu",), o["kernel"] == "matern", "--kernel matern"),
    ]


def _is_one_width(length_scale: Any) -> bool:
    return length_scale == "auto" or isinstance(length_scale, float)


def refuse_others(ctx: click.Context, rules: list[tuple[tuple[str, ...], bool, str]]) -> None:
    """Raise UsageError for an option that was given though a rule does not allow it."""
    for names, allowed, remedy in rules:
        for name in names:
            if not allowed and _given(ctx, name):
                raise click.UsageError(f"{_spelt(name)} goes with {remedy}", ctx)


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _spelt(name: str) -> str:
    return "--" + name.replace("_", "-")


def _features(ctx: click.Context) -> FeatureMap:
    from distrff.features.binning import RandomBinningFeatures
    from distrff.features.compose import LinearFeatures
    from distrff.features.equispaced import EquispacedFourierFeatures
    from distrff.features.fourier import FourierFeatures
    from distrff.features.nystroem import NystroemFeatures
    from distrff.features.search.candidates import AutoFeatures

    options = ctx.params
    if options["features"] == "linear":
        return LinearFeatures()
    if options["features"] == "auto":
        maps = ("fourier", "nystroem", "equispaced") if options.get("include_std") else None
        return AutoFeatures(options["n_components"], maps=maps)
    if options["features"] == "binning":
        kernel = _kernel(options if _given(ctx, "kernel") else options | {"kernel": "laplacian"})
        return RandomBinningFeatures(kernel, options["n_grids"], n_bins=options["n_bins"])
    if options["features"] == "nystroem":
        return NystroemFeatures(_kernel(options), options["n_components"], landmarks=options["landmarks"])
    if options["features"] == "equispaced":
        given: dict[str, Any] = {name: _by_column(name, options[name]) for name in ("bounds", "period")}
        return EquispacedFourierFeatures(
            _kernel(options), options["n_components"], tol=options["kernel_tol"], **given
        )
    drawn = {name: options[name] for name in _FOURIER_ONLY}
    return FourierFeatures(_kernel(options), options["n_components"], **drawn)


def _by_column(name: str, values: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """Return the values of columns; raise UsageError where one has two."""
    found = dict(values)
    if len(found) < len(values):
        raise click.UsageError(f"{_spelt(name)} has two values for a column; give one")
    return found or None


def _kernel(options: Mapping[str, Any]) -> Kernel:
    from distrff.kernels.base import kernel_from_dict
    from distrff.kernels.stationary import KERNELS

    kernel = options["kernel"]
    if isinstance(kernel, dict):
        return kernel_from_dict(kernel)
    smoothness = {"nu": options["nu"]} if kernel == "matern" else {}
    kind: Any = KERNELS[kernel]  # each has its own parameters
    return kind(options["length_scale"], metric=options["metric"], **smoothness)


def _class_weight(given: Any) -> Any:
    """Return weights keyed by labels, which JSON spells as text; raise InputError for other weights."""
    from distrff.utils.validation import is_number

    for label, weight in given.items() if isinstance(given, dict) else ():
        if not is_number(weight):
            raise InputError(f"--class-weight: the weight of {label!r} must be a number, got {weight!r}")
    return given
