"""The options that commands share, in groups; named like the parameters in Python."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from distrff.utils.text import public_text

# Of a context's meta, which the commands share with their group.
VERBOSE = "distrff.verbose"
LAST_WORK = "distrff.last_work"  # what is done yet after Ctrl-C, in words

# Values of options that are more than one word or number.

KERNEL_NAMES = ("gaussian", "laplacian", "cauchy", "exponential", "matern")


class Numbers(click.ParamType):
    """A word of a given few, a number, or numbers with commas between: str, float or list of float."""

    name = "numbers"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self._words:
            return value
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            accepted = ", ".join([*self._words, "a number", "numbers with commas between"])
            self.fail(f"{value!r} is none of: {accepted}", param, ctx)
        return numbers[0] if len(numbers) == 1 else numbers


class Names(click.ParamType):
    """Names with commas between: list of str."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class OfColumn(click.ParamType):
    """COLUMN=NUMBER or COLUMN=LOW:HIGH: a column's name or number, and one number or two."""

    name = "column=value"

    def __init__(self, n_numbers: int) -> None:
        self._n_numbers = n_numbers

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        column, _, text = value.rpartition("=")
        try:
            numbers = tuple(float(part) for part in text.split(":"))
        except ValueError:
            numbers = ()
        if not column or len(numbers) != self._n_numbers:
            form = "COLUMN=NUMBER" if self._n_numbers == 1 else "COLUMN=LOW:HIGH"
            self.fail(f"{value!r} is not {form}", param, ctx)
        return column, numbers[0] if self._n_numbers == 1 else numbers


class TypesOfColumns(click.ParamType):
    """COLUMN=TYPE with commas between: list of pairs of str."""

    name = "column=type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().rpartition("=")[::2] for part in value.split(",")]
        if not all(name and kind for name, kind in pairs):
            self.fail(f"{value!r} is not COLUMN=TYPE,...", param, ctx)
        return pairs


class WordOrJson(click.ParamType):
    """A word of a given few, or a JSON object as text or in a file: str or dict."""

    name = "word or JSON"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self._words:
            return value
        if not value.lstrip().startswith("{") and not value.endswith(".json"):
            self.fail(f"{value!r} is none of {', '.join(self._words)}, JSON, or a .json file", param, ctx)
        try:
            data = json.loads(Path(value).read_text() if value.endswith(".json") else value)
        except (OSError, ValueError) as error:
            self.fail(f"{value!r} cannot be read as JSON ({error})", param, ctx)
        if not isinstance(data, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return data


class StorageOption(click.ParamType):
    """key=value: a pair; the value is a bool or int if it is spelt like one, else str."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            # Not what was given: it may be a secret.
            self.fail("a text without '=' is not of the form key=value", param, ctx)
        if text.lower() in ("true", "false"):
            return key, text.lower() == "true"
        return key, int(text) if re.fullmatch(r"-?[1-9]\d*|0", text) else text  # "007" is no number


F = TypeVar("F", bound=Callable[..., Any])


OTHER = "Other options"
"""The last heading in `--help`, of the options without one."""


def together(*options: Callable[[F], F], section: str | None = None) -> Callable[[F], F]:
    """Return the options as one decorator, first in `--help` what is first here.

    There `section` is the heading of those that have none yet.
    """

    def decorated(function: F) -> F:
        n_before = len(getattr(function, "__click_params__", ()))
        function = reduce(lambda done, option: option(done), reversed(options), function)
        for param in function.__click_params__[n_before:]:  # type: ignore[attr-defined]
            if section is not None and not hasattr(param, "section"):
                param.section = section
        return function

    return decorated


def choice(name: str, words: str, help: str | None = None) -> Callable[[F], F]:
    """Return an option of one of some words, the first by default."""
    return click.option(name, type=click.Choice(words.split()), default=words.split()[0], help=help)


def flag(name: str, help: str) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(name, is_flag=True, help=help)


def integer(name: str, help: str, default: int | None = None, *, minimum: int = 1) -> Callable[[F], F]:
    """Return an option of an integer of at least `minimum`."""
    return click.option(name, type=click.IntRange(min=minimum), default=default, help=help)


def repeated(name: str, type: click.ParamType, metavar: str, help: str) -> Callable[[F], F]:
    """Return an option whose lists of values are joined when it is repeated; None where it is not given."""

    def joined(ctx: click.Context, param: click.Parameter, given: tuple[Any, ...]) -> list[Any] | None:
        lists = (values if isinstance(values, list) else [values] for values in given)
        return [value for values in lists for value in values] or None

    key = name.removeprefix("--")  # click would turn Cs into lower case
    return click.option(name, key, type=type, multiple=True, metavar=metavar, callback=joined, help=help)


storage_option = click.option(
    "--storage-option",
    "storage_options",
    type=StorageOption(),
    multiple=True,
    metavar="KEY=VALUE",
    help="For the file systems behind URLs; may be repeated.",
)

text_options = together(
    click.option(
        "--delimiter",
        metavar="CHARACTER|whitespace",
        help="Between the fields of a text file; tab is a word as well.  [default: guessed by many records]",
    ),
    click.option(
        "--decimal", type=click.Choice([".", ","]), help="Decimal sign of text.  [default: guessed]"
    ),
    click.option(
        "--header/--no-header",
        default=None,
        help="Whether text begins with names; --header none is --no-header.  [default: if its first line has "
        "words and no number]",
    ),
    click.option("--quote", default='"', metavar="CHARACTER|none", help="Around fields of text."),
    click.option("--encoding", metavar="NAME", help="Of text, such as latin-1.  [default: utf-8]"),
    section="Text files",
)

data_options = together(
    repeated(
        "--columns",
        Names(),
        "NAME,...",
        "Columns of X, names or indices; may be repeated.  [default: all numeric ones but target and "
        "weights; with a model, those it was fitted to]",
    ),
    click.option("--x-name", default="X", help="Array of the rows in a Zarr group or .npz."),
    storage_option,
    text_options,
    section="Rows",
)

target_options = together(
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
    section="Rows",
)

row_options = together(target_options, data_options)

sample_dim_option = together(
    click.option(
        "--sample-dim",
        metavar="NAME",
        help="Take the arrays of a Zarr group with this first dimension as the columns of a table; with a "
        "model, the one that its columns have in common.",
    ),
    section="Columns of tables",
)

table_options = together(
    repeated("--drop", Names(), "NAME,...", "Columns of a table to leave out; may be repeated."),
    flag("--one-hot", "Make text and categories columns of 0 and 1, one a category."),
    integer("--max-categories", "Leave out columns with more categories.", 256, minimum=2),
    flag("--hash-columns", "Hash their words into --max-categories columns instead."),
    choice(
        "--missing",
        "error drop mean indicator",
        "error refuses missing values, drop leaves out their rows, mean fills them with the column's mean, "
        "indicator also adds a column that marks them.",
    ),
    click.option(
        "--datetime",
        type=click.Choice(["seconds", "parts"]),
        help="Take dates and times: as seconds since the column's minimum, or as sine and cosine of year, "
        "weekday and hour.  [default: leave them out]",
    ),
    click.option(
        "--types",
        type=TypesOfColumns(),
        multiple=True,
        metavar="COLUMN=TYPE,...",
        callback=lambda ctx, param, given: dict(pair for pairs in given for pair in pairs) or None,
        help="Columns that hold text, number or time though their values do not tell, such as zip=text; may "
        "be repeated.",
    ),
    flag("--keep-index", "Take a column that only numbers the rows."),
    click.option(
        "--positive", metavar="LABEL", help="Label of the target that becomes 1; all others become 0."
    ),
    section="Columns of tables",
)

map_options = together(
    choice(
        "--features",
        "auto fourier equispaced binning nystroem linear",
        "auto chooses map, kernel and widths by small models on a sample; it is fourier where --kernel, "
        "--nu, --length-scale, --metric, --form or --sampling is given. equispaced is for 1 to 3 columns. "
        "binning is for --kernel laplacian, which is its default.",
    ),
    click.option(
        "--n-components",
        type=int,
        default=1024,
        help="Number of features; of --features equispaced the most, by default up to 1,048,576. "
        "--features auto has this number unless it chooses binning or equispaced features.",
    ),
    click.option("--n-grids", type=int, default=100, help="Number of grids of --features binning."),
    click.option(
        "--n-bins",
        type=int,
        help="Hash the bins of --features binning into that many features.  [default: one each]",
    ),
    click.option(
        "--kernel",
        type=WordOrJson(*KERNEL_NAMES),
        default="gaussian",
        metavar="|".join([*KERNEL_NAMES, "JSON"]),
        help='JSON, as text or a .json file, says its own widths: {"kernel": "matern", "nu": 2.5, '
        '"length_scale": "auto"}; sums and products are {"kernel": "sum", "k1": {...}, "k2": {...}}.',
    ),
    click.option(
        "--nu",
        type=Numbers("auto"),
        default=1.5,
        metavar="auto|NUMBER",
        help="Smoothness of --kernel matern; auto, the default of --features equispaced and for these alone, "
        "chooses it by held-out errors.",
    ),
    click.option(
        "--length-scale",
        type=Numbers("auto", "ard"),
        default="auto",
        metavar="auto|ard|NUMBER|NUMBER,...",
        help="Width of the kernel, or one for each column; auto finds one by a small fit on a sample, ard "
        "one for each column by the likelihood of a smaller sample. --features equispaced chooses both by "
        "held-out errors of all rows, and has ard as its default.",
    ),
    click.option(
        "--kernel-tol",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=1e-3,
        help="Largest error of the kernel of --features equispaced, as a share of k(0).",
    ),
    click.option(
        "--bounds",
        type=OfColumn(2),
        multiple=True,
        metavar="COLUMN=LOW:HIGH",
        help="Range of a column for which --features equispaced make the model; may be repeated.  [default: "
        "a little more than that of DATA]",
    ),
    click.option(
        "--period",
        type=OfColumn(1),
        multiple=True,
        metavar="COLUMN=PERIOD",
        help="Column in which the kernel of --features equispaced is periodic; may be repeated.",
    ),
    click.option(
        "--metric",
        type=click.Choice(["learned"]),
        help="Learn which directions of the columns matter; with one width. JSON of --kernel may give its "
        '"metric" as a list of rows.  [default: each column alike]',
    ),
    choice("--form", "cos_sin phase"),
    choice(
        "--sampling",
        "iid orthogonal qmc sorf fastfood countsketch auto",
        "How frequencies are drawn; auto takes the fastest of the accurate ways.",
    ),
    choice(
        "--landmarks",
        "uniform leverage",
        "Rows that --features nystroem compares with: any, or those that others explain least.",
    ),
    choice(
        "--scale",
        "auto standard none",
        "Bring columns to mean 0 and deviation 1 first; auto only divides those of sparse rows, which stay "
        "sparse.",
    ),
    integer("--random-state", "Seed; by default a fresh one, which the result names.", minimum=0),
    section="Feature map and kernel",
)

model_options = together(
    choice("--model", "ridge ridge-classifier svc likelihood pca"),
    choice("--loss", "hinge squared_hinge", "Of --model svc."),
    choice("--noise", "logistic probit laplace", "What blurs the sign of f, for --model likelihood."),
    click.option("--sigma", type=float, default=1.0, help="Scale of the noise."),
    choice(
        "--multi-class",
        "ovr softmax",
        "One class against the rest each, or one loss for all; of --model likelihood.",
    ),
    click.option(
        "--class-weight",
        type=WordOrJson("balanced"),
        metavar="balanced|JSON",
        help='JSON: {"label": weight, ...}.',
    ),
    flag("--no-intercept", "Fit without the constant b."),
    integer("--n-outputs", "Principal components of --model pca, which transform writes.", 2),
    section="Model",
)

penalty_options = together(
    click.option(
        "--alpha",
        type=Numbers("cv", "gcv"),
        default="cv",
        metavar="cv|gcv|NUMBER|NUMBER,...",
        help="Penalty, or one for each target; cv and gcv choose it by cross-validation.",
    ),
    repeated("--alphas", Numbers(), "NUMBER,...", "Grid for --alpha cv or gcv; may be repeated."),
    click.option(
        "--C",
        "C",
        type=Numbers("cv"),
        default=1.0,
        metavar="cv|inf|NUMBER",
        help="Weight of the loss against the penalty, for --model svc or likelihood; cv chooses it, and inf "
        "is the hard margin of --model svc.",
    ),
    repeated("--Cs", Numbers(), "NUMBER,...", "Grid for --C cv; may be repeated."),
    click.option("--cv", type=int, default=5, help="Folds for --alpha cv or --C cv."),
    choice("--fold-by", "hash contiguous"),
    section="Penalty",
)

solver_options = together(
    choice(
        "--solver",
        "auto gram cg lbfgs smoothed sgd",
        "For ridge gram, or cg, which needs less memory and a given --alpha; lbfgs for smooth losses, "
        "smoothed for the hinge; sgd for any loss on shuffled rows, where no Gram fits in memory.",
    ),
    click.option(
        "--tol",
        type=float,
        default=1e-3,
        help="Relative duality gap to be reached; of cg and equispaced features the relative residual.",
    ),
    integer("--max-sweeps", "Light sweeps at most.  [default: 200]"),
    choice(
        "--keep-features",
        "auto true false",
        "Whether light sweeps keep features in the workers' memory: auto keeps what there is room for.",
    ),
    choice("--dtype", "auto float32 float64"),
    flag(
        "--include-std",
        "Store what predict --return-std needs, a D × D matrix, or of --features equispaced 64 sampled "
        "models; of --model ridge or ridge-classifier.",
    ),
    section="Solver",
)

estimator_options = together(model_options, map_options, penalty_options, solver_options)

cluster_options = together(
    click.option(
        "--scheduler",
        default="local",
        metavar="local|ADDRESS|FILE",
        help="Processes on this machine, or a running Dask scheduler.",
    ),
    integer("--workers", "Local worker processes.  [default: one for each core]"),
    click.option(
        "--memory-limit",
        metavar="SIZE",
        help="Of each local worker, such as 4GB.  [default: an equal share of this machine's]",
    ),
    section="Workers",
)

fit_options = together(row_options, sample_dim_option, table_options, estimator_options, cluster_options)

result_options = together(
    click.option("--out", required=True, metavar="PATH", help="Zarr to write; a path or URL."),
    flag("--overwrite", "Replace what distrff wrote there before."),
    section="Result",
)

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

resume_option = together(
    flag("--resume", "Continue what an interrupted run of the same command left."), section="Result"
)

prediction_options = together(
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="NAME",
        help="Column or array of DATA to write beside the results; may be repeated.",
    ),
    choice(
        "--method",
        "predict decision_function predict_proba",
        "Labels or numbers; values of the decision function; probabilities, for --model likelihood only.",
    ),
    flag("--return-std", "Standard deviations as well, of a MODEL fitted with --include-std."),
    click.option(
        "--coverage",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Intervals (lower, upper) or prediction sets (set) as well, that hold this share of new rows, "
        "of a MODEL that distrff calibrate gave them.",
    ),
    choice(
        "--outside",
        "nan error",
        "Rows outside the bounds of a MODEL of equispaced features become NaN and are counted, or are "
        "refused; labels always are.",
    ),
    section="Result",
)


def be_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Callback of `--verbose`."""
    ctx.meta[VERBOSE] = value  # for the group, which reports failures
    if value:
        logging.disable(logging.NOTSET)
        logging.getLogger("distrff").setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(_PublicFormatter("%(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler])


class _PublicFormatter(logging.Formatter):
    """Writes lines of any library without the secrets of the URLs that they quote."""

    def format(self, record: logging.LogRecord) -> str:
        return public_text(super().format(record))


verbosity_options = together(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else on standard output."
    ),
    click.option(
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=be_verbose,
        help="Show logs, all warnings, and tracebacks.",
    ),
)
