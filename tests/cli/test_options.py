"""Values of options, and the estimators they stand for."""

import inspect

import click
import pytest

import distrff as drf
from distrff import (
    AutoFeatures,
    EquispacedFourierFeatures,
    Exponential,
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Laplacian,
    LinearFeatures,
    Matern,
    NystroemFeatures,
    Polynomial,
    RandomBinningFeatures,
)
from distrff.cli import MAPS, MODELS, main, spelt_as_options
from distrff.cli.build import KERNELS as KERNEL_NAMES
from distrff.cli.build import checked_estimator, fit
from distrff.cli.command import Names, StorageOption, Value, WordOrJson, parameters_of
from distrff.features.fourier import SAMPLING_CHOICES, FourierFeatures


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Value("int"), "1e-3", "1e-3"),
        (Value("float"), "1,2", "1,2"),
        (Value("array of float"), "1, 2,3e1", [1.0, 2.0, 30.0]),
        (Value('{"auto", True, False}'), "false", False),
        (Names(), "a, b,0", ["a", "b", "0"]),
        (WordOrJson("balanced"), ' {"1": 2}', {"1": 2}),
        (StorageOption(), "key=a=b", ("key", "a=b")),
        (StorageOption(), "port=8080", ("port", 8080)),
        (StorageOption(), "key=0012", ("key", "0012")),
        (StorageOption(), "token=", ("token", "")),
    ],
)
def test_values(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value  # click converts defaults, and sometimes twice


def test_a_kernel_from_a_file(tmp_path):
    (tmp_path / "kernel.json").write_text('{"kernel": "gaussian", "length_scale": 2.0}')
    description = WordOrJson(*KERNEL_NAMES).convert(str(tmp_path / "kernel.json"), None, None)
    assert description == {"kernel": "gaussian", "length_scale": 2.0}


def estimator_of(words: str = ""):
    """The estimator of a fit with these options, which hold no blanks."""
    with fit.make_context("fit", ["rows.zarr", "--out", "m.zarr", *words.split()]) as ctx:
        return checked_estimator(ctx)


def test_the_defaults():
    estimator = estimator_of()
    assert type(estimator) is KernelRidge
    assert (estimator.alpha, estimator.scale, estimator.cv) == ("cv", "auto", "auto")
    assert estimator.fit_intercept
    assert isinstance(estimator.features, AutoFeatures)
    assert estimator.features.n_components == "auto"
    assert estimator.features.maps is None  # all that the model can have


def test_every_option_reaches_the_estimator():
    estimator = estimator_of(
        "--model ridge-classifier --kernel matern --nu 2.5 --length-scale 1,2 --n-components 64 --form phase "
        "--sampling orthogonal --alpha cv --alphas 1,2 --cv 3 --fold-by contiguous --no-intercept "
        "--scale none --dtype float32 --random-state 7"
    )
    assert type(estimator) is KernelRidgeClassifier
    assert estimator.features.kernel == Matern((1.0, 2.0), nu=2.5)
    assert (estimator.features.form, estimator.features.sampling) == ("phase", "orthogonal")
    assert (estimator.alphas, estimator.cv, estimator.fold_by) == ([1.0, 2.0], 3, "contiguous")
    assert (estimator.fit_intercept, estimator.scale, estimator.dtype) == (False, "none", "float32")
    assert estimator.random_state == 7
    assert estimator_of("--alpha 0.5").alpha == 0.5
    assert float("inf") == estimator_of("--model svc --C inf").C
    for choice in SAMPLING_CHOICES:
        assert estimator_of(f"--sampling {choice}").features.sampling == choice
    assert estimator_of("--alpha gcv --alphas 2").alphas == [2.0]


CLASSES = [*MODELS.values(), *MAPS.values(), "convert", "open_dataset", "kernel_error", "gram"]


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_are_read_as_python_has_them(name):
    """They are read from the source, since `--help` must not load the library."""
    found = {key: one.default for key, one in parameters_of(name).items()}
    signature = inspect.signature(getattr(drf, name)).parameters.values()
    assert found == {one.name: None if one.default is one.empty else one.default for one in signature}


def test_every_option_says_what_it_is_for():
    context = click.Context(main)
    for name in main.list_commands(context):
        for option in main.get_command(context, name).params:
            assert isinstance(option, click.Argument) or len(option.help) > 15, (name, option.name)


SUM = '{"kernel":"sum","k1":{"kernel":"gaussian"},"k2":{"kernel":"exponential"}}'
BINNING = "--features binning --n-grids 20 --n-bins 4000 --length-scale 1,2 --tol 1e-4"
POLYNOMIAL = '--features nystroem --kernel {"kernel":"polynomial","degree":2}'
LEARNED = Matern(2.0, metric="learned")
ROTATED = '{"kernel":"gaussian","metric":[[1,2],[3,4]]}'
LEVERAGE = "--features nystroem --landmarks leverage --n-components 33"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--features linear", LinearFeatures()),
        ("--n-components 64", AutoFeatures(64)),
        ("--features auto --n-components 64", AutoFeatures(64)),
        ("--include-std", AutoFeatures(maps=("fourier", "nystroem", "equispaced"))),
        ("--features fourier", FourierFeatures(Gaussian("auto"), 1024)),
        ("--form phase", FourierFeatures(Gaussian("auto"), 1024, form="phase")),
        ("--sampling qmc", FourierFeatures(Gaussian("auto"), 1024, sampling="qmc")),
        ("--kernel matern --nu 2.5", FourierFeatures(Matern("auto", nu=2.5), 1024)),
        ("--kernel exponential", FourierFeatures(Exponential("auto"), 1024)),
        (f"--kernel {SUM}", FourierFeatures(Gaussian() + Exponential(), 1024)),
        ("--length-scale ard", FourierFeatures(Gaussian("ard"), 1024)),
        ("--metric learned", FourierFeatures(Gaussian("auto", metric="learned"), 1024)),
        ("--metric learned --kernel matern --length-scale 2", FourierFeatures(LEARNED, 1024)),
        ("--features binning --metric learned", RandomBinningFeatures(Laplacian("auto", metric="learned"))),
        (f"--features nystroem --kernel {ROTATED}", NystroemFeatures(Gaussian(metric=[[1, 2], [3, 4]]))),
        (LEVERAGE, NystroemFeatures(Gaussian("auto"), 33, landmarks="leverage")),
        (POLYNOMIAL, NystroemFeatures(Polynomial(2), 1024)),
        ("--features equispaced", EquispacedFourierFeatures()),
        ("--features equispaced --nu 1.5", EquispacedFourierFeatures(Matern("ard", nu=1.5))),
        ("--features binning", RandomBinningFeatures(Laplacian("auto"), 100)),
        (BINNING, RandomBinningFeatures(Laplacian((1.0, 2.0)), 20, n_bins=4000)),
    ],
)
def test_choices_of_features(words, expected):
    features = estimator_of(words).features
    assert type(features) is type(expected)
    assert features.get_params(deep=False) == expected.get_params(deep=False)


MAP = "--folds blocks --block-columns lon,lat"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--folds hash", drf.HashFolds()),
        ("--folds hash --cv auto", drf.HashFolds()),
        ("--folds contiguous --cv 3", drf.ContiguousFolds(3)),
        ("--folds groups --by who", drf.GroupFolds("who")),
        ("--folds groups --groups who --cv 4", drf.GroupFolds(n_folds=4)),
        ("--folds forward --gap 5 --window 100", drf.ForwardFolds(gap=5.0, window=100.0)),
        ("--folds forward --by day --gap 7d --window 365d --cv 1", drf.ForwardFolds("day", 1, "7d", "365d")),
        ("--folds forward --by year,month,day", drf.ForwardFolds(("year", "month", "day"))),
        (f"{MAP} --block-size .1 --buffer .05", drf.BlockFolds(("lon", "lat"), 0.1, buffer=0.05)),
        (f"{MAP} --block-size .1,.2 --cv 7", drf.BlockFolds(("lon", "lat"), (0.1, 0.2), 7)),
        (f"{MAP} --block-like gaps --alpha 1", drf.BlockFolds(("lon", "lat"), like="gaps")),
    ],
)
def test_choices_of_folds(words, expected):
    assert estimator_of(words).cv.to_dict() == expected.to_dict()


@pytest.mark.parametrize(
    ("of_python", "of_the_command_line"),
    [
        ("use scale='standard' or dtype='float64'", "use --scale standard or --dtype float64"),
        ("or n_components=1234; or cv=4", "or --n-components 1234; or --cv 4"),
        ("n_bins must be even, got 3", "--n-bins must be even, got 3"),
        ("alpha must be positive, got -1", "--alpha must be positive, got -1"),
        ("hash_columns needs one_hot=True: it", "--hash-columns needs --one-hot: it"),
        ("pass overwrite=True or --overwrite to replace it", "pass --overwrite to replace it"),
        ("needs dtype='float64' (--dtype float64)", "needs --dtype float64"),
        ("repeat with resume=True (--resume) to continue", "repeat with --resume to continue"),
        ("2 cores: take n_workers=2, more", "2 cores: take --workers 2, more"),
        ("or take fewer n_workers; in a script put it under `if`", "or take fewer workers"),
        ("give it by storage_options (--storage-option)", "give it by --storage-option"),
        ("as open_dataset(..., missing='drop') does", "as --missing drop does"),
        ("convert with missing='drop' (--missing), or", "convert with --missing drop, or"),
        (
            "it holds times; datetime='seconds', 'parts' or 'both' takes them",
            "it holds times; --datetime seconds, parts or both takes them",
        ),
        ("alpha has 2 values; or a number (alpha=…)", "--alpha has 2 values; or a number (--alpha …)"),
        ("by max_sweeps, or a larger tol", "by --max-sweeps, or a larger --tol"),
        ("use n_bins=, fewer grids", "use --n-bins, fewer grids"),
        ("positive goes with tables", "--positive goes with tables"),
        ("test_fraction=2 of 3 rows leaves none", "--test-fraction 2 of 3 rows leaves none"),
        ("pass header=False (--no-header) if", "pass --no-header if"),
        ("pass header=True (--header) if", "pass --header if"),
        ("memory_limit must be a size", "--memory-limit must be a size"),
        ("sampling='iid', 'qmc' or 'sorf'; or", "--sampling iid, qmc or sorf; or"),
        ("n_components=9, but the map has 8 features", "--n-outputs 9, but the map has 8 features"),
        ("use FourierFeatures or NystroemFeatures", "use --features fourier or --features nystroem"),
        ("a KernelSVC tells none; fit a KernelRidge", "a KernelSVC tells none; fit a --model ridge"),
        ("give fewer folds: GroupFolds(n_folds=3)", "give fewer folds: --folds groups --cv 3"),
        ("n_folds must be an integer, got 1", "--cv must be an integer, got 1"),
        ("use cv=GroupFolds(), or", "use --folds groups, or"),
        (
            "size must be a positive number, or one a column",
            "--block-size must be a positive number, or one a column",
        ),
        ("Give extra=['day'] to open_dataset for", "Give --extra day for"),
        # Names that are no parameters stay.
        ("column 'n_components' has missing values; see open_dataset(path)",) * 2,
        ("Matern(1.5, nu=2.5) + Gaussian((1.0, 2.0), length_scale=3) has no widths",) * 2,
        ("the target of the model is alpha, and its scale is 'alpha=3'",) * 2,
        ("nothing at https://host/n_components=3?target=y&scale=2",) * 2,
    ],
)
def test_parameters_of_messages_are_spelt_as_options(of_python, of_the_command_line):
    assert spelt_as_options(of_python) == of_the_command_line
    assert spelt_as_options(of_the_command_line) == of_the_command_line
