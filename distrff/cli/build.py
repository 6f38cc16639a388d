"""From options to an estimator that is not fitted yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from distrff.cli.data import open_data
from distrff.errors import InputError, is_number
from distrff.utils.text import listed

if TYPE_CHECKING:
    from distrff.estimators.base import KernelEstimator
    from distrff.features.base import FeatureMap
    from distrff.io.dataset import Dataset
    from distrff.kernels.base import Kernel


_OF_KERNELS = ("kernel", "nu", "length_scale")
_FOURIER_ONLY = ("form", "sampling")
_BINNING_ONLY = ("n_grids", "n_bins")
_RIDGE_ONLY = ("alpha", "alphas")
_MARGIN_ONLY = ("C", "Cs")
_ITERATIVE = ("tol", "max_sweeps")
_OWN = {"svc": ("loss",), "likelihood": ("noise", "sigma", "multi_class")}
_LEARNING = ("solver", "cv", "fold_by", "no_intercept", *_ITERATIVE)
_CLASSIFIERS = "--model ridge-classifier, svc or likelihood"


def estimator_and_data(ctx: click.Context, data: str) -> tuple[KernelEstimator, Dataset]:
    """Return the estimator that the options describe and the dataset at `data`, checked against each other.

    Everything is checked that shows without reading rows: a typing error costs no pass over them.
    """
    estimator = checked_estimator(ctx)
    dataset = open_data(data, ctx.params)
    adapt_to(estimator, dataset, ctx.params)
    tell_defaults(ctx)
    return estimator, dataset


def checked_estimator(ctx: click.Context) -> KernelEstimator:
    """Return the estimator that the options describe, its parameters checked as far as data is not needed.

    Raises
    ------
    click.UsageError
        For options that contradict each other.
    InputError
        For values that no data could make right.
    """
    options = ctx.params
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
        given[grid] = [options[grid]] if isinstance(options[grid], float) else options[grid]
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
    refuse_others(ctx, _map_rules(ctx.params))
    features = _features(ctx)
    features.check_parameters()
    return features


def adapt_to(estimator: KernelEstimator, dataset: Dataset, options: Mapping[str, Any]) -> None:
    """Give class weights the labels' type; raise InputError without a target, or for a wrong kind of it."""
    if options["model"] == "pca":
        return
    if not dataset.n_targets:
        columns = f"; its columns are {listed(dataset.column_names)}" if dataset.column_names else ""
        raise InputError(f"{dataset.source} has no target yet: name it with --target{columns}")
    assert dataset.y_dtype is not None
    if options["model"] == "ridge":
        if dataset.y_dtype.kind not in "biuf":
            names = ", ".join(map(repr, dataset.target_names or ("y",)))
            raise InputError(
                f"the target {names} does not hold numbers, which ridge predicts; "
                f"use {_CLASSIFIERS} for class labels"
            )
    elif options["class_weight"] is not None:
        estimator.set_params(class_weight=_class_weight(options["class_weight"], dataset.y_dtype.kind))


def tell_defaults(ctx: click.Context) -> None:
    """Print on standard error which of the choices that matter most were left to the defaults."""
    model = ctx.params.get("model")
    weights = [] if model in (None, "pca") else ["C" if model in _OWN else "alpha"]
    names = [name for name in ("length_scale", *weights, "scale") if not _given(ctx, name)]
    if ctx.params["features"] == "linear" or isinstance(ctx.params["kernel"], dict):
        names = [name for name in names if name != "length_scale"]
    if names:
        text = " ".join(f"{_spelt(name)} {ctx.params[name]}" for name in names)
        click.echo(f"defaults used: {text}", err=True)


def _refuse_contradictions(ctx: click.Context) -> None:
    o = ctx.params
    iterates = o["model"] in _OWN or o["solver"] in ("cg", "sgd") or o["features"] == "binning"
    rules = [
        (_LEARNING, o["model"] != "pca", "any --model but pca, which has no target"),
        (("n_outputs",), o["model"] == "pca", "--model pca"),
        (_RIDGE_ONLY, o["model"] not in (*_OWN, "pca"), "--model ridge or ridge-classifier"),
        (("include_std",), o["model"] not in (*_OWN, "pca"), "--model ridge or ridge-classifier"),
        (("include_std",), not iterates, "a Gram: not with --solver cg or sgd, nor with --features binning"),
        (_MARGIN_ONLY, o["model"] in _OWN, "--model svc or likelihood"),
        (_ITERATIVE, iterates, "--model svc or likelihood, or --solver cg or sgd, or --features binning"),
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
        (_OF_KERNELS, o["features"] != "linear", "--features fourier, binning or nystroem"),
        (("n_components",), o["features"] in ("fourier", "nystroem"), "--features fourier or nystroem"),
        (_FOURIER_ONLY, o["features"] == "fourier", "--features fourier"),
        (_BINNING_ONLY, o["features"] == "binning", "--features binning"),
        (("landmarks",), o["features"] == "nystroem", "--features nystroem"),
        (("length_scale",), not isinstance(o["kernel"], dict), "a kernel's name; JSON says its own widths"),
        (("nu",), o["kernel"] == "matern", "--kernel matern"),
    ]


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
    from distrff.features.fourier import FourierFeatures
    from distrff.features.nystroem import NystroemFeatures

    options = ctx.params
    if options["features"] == "linear":
        return LinearFeatures()
    if options["features"] == "binning":
        kernel = _kernel(options if _given(ctx, "kernel") else options | {"kernel": "laplacian"})
        return RandomBinningFeatures(kernel, options["n_grids"], n_bins=options["n_bins"])
    if options["features"] == "nystroem":
        return NystroemFeatures(_kernel(options), options["n_components"], landmarks=options["landmarks"])
    drawn = {name: options[name] for name in _FOURIER_ONLY}
    return FourierFeatures(_kernel(options), options["n_components"], **drawn)


def _kernel(options: Mapping[str, Any]) -> Kernel:
    from distrff.kernels import stationary

    kernel = options["kernel"]
    if isinstance(kernel, dict):
        from distrff.kernels.registry import kernel_from_dict

        return kernel_from_dict(kernel)
    smoothness = {"nu": options["nu"]} if kernel == "matern" else {}
    return getattr(stationary, kernel.capitalize())(options["length_scale"], **smoothness)


def _class_weight(given: Any, kind: str) -> Any:
    """Return weights keyed by labels of the target's kind; the keys of JSON are always text."""
    if isinstance(given, str):
        return given
    for label, weight in given.items():
        if not is_number(weight):
            raise InputError(f"--class-weight: the weight of {label!r} must be a number, got {weight!r}")
    if kind not in "biuf":
        return given
    truth = {"true": True, "false": False}
    try:
        return {truth[key.lower()] if key.lower() in truth else float(key): w for key, w in given.items()}
    except ValueError as error:
        raise InputError(f"--class-weight: the target holds numbers ({error})") from error
