"""The errors of a model on rows: as data, as lines of text, and as parts of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from distrff.utils.text import (
    Bars,
    Facts,
    Items,
    Part,
    Section,
    Table,
    column_text,
    listed,
    number_text,
)

_MAX_CLASSES = 30  # as rows of a table
_MAX_LINES = 10  # as lines of text
_MAX_BARS = 12
_STILL_FALLS = 0.9  # of the error with half of the features
_UNBALANCED = 0.1
_ROWS_OF_FIT = "the rows of the fit"
MEASURES = {"r2": "R²", "d2": "D²", "accuracy": "accuracy"}  # where scores are shown
LOSS_NAMES = {
    "pinball_loss": "pinball loss",
    "poisson_deviance": "Poisson deviance",
    "gamma_deviance": "gamma deviance",
}
OF_VARIANCE = "squared error"  # the criterion of maps that is in units of the targets' variance


# In words.


def quality_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The error beside those of simpler models; before it that of new rows where the fit saw its judges."""
    quality = report["quality"]
    if (expected := _expected_of_new_rows(report)) is not None:
        yield f"new rows: {expected}"
    yield _quality_line(quality)
    if quality["rows"] == _ROWS_OF_FIT:
        yield _optimism(report)
    yield from _likeness(quality)


def _expected_of_new_rows(report: Mapping[str, Any]) -> str | None:
    """What the choice of the map tells of rows that the fit did not see, where nothing else does."""
    quality = report["quality"]
    if quality["rows"] != _ROWS_OF_FIT or not report.get("candidates") or loss_of(quality) is not None:
        return None
    # The measured error, not the one extrapolated to all rows: this fit's penalty may be a worse one.
    chosen = next(one for one in report["candidates"] if one["chosen"])
    share, of_variance = chosen["error"], chosen["criterion"] == OF_VARIANCE
    right = f"R² about {_r2_text(1 - share)}" if of_variance else f"accuracy about {share_text(1 - share)}"
    return f"{right} ± {chosen['spread']:.1g} (held out of a sample, by the small model that chose the map)"


def _likeness(quality: Mapping[str, Any]) -> Iterator[str]:
    """What rows held out at random do not tell, where rows near each other are alike."""
    found = quality.get("exchangeability")
    looks = [] if found is None else [{"rows": "stretches of rows"} | found, *found["also"]]
    alike = [(look["rows"], number_text(look["ratio"])) for look in looks if look["alarm"]]
    for rows, ratio in alike[:1]:
        more = "".join(f", on held-out {rows} {ratio} times" for rows, ratio in alike[1:])
        yield (
            f"Rows near each other are alike: the RMSE on held-out {rows} is {ratio} times that on rows "
            f"held out at random{more}. If new rows come from other people, places or times, give groups or "
            f"folds (--groups, --folds)."
        )


def _optimism(report: Mapping[str, Any]) -> str:
    penalty, folds = "C='cv'" if "C" in report else "alpha='cv'", report["quality"].get("held_out")
    penalty += f", which judges it on {folds}" if folds else ""
    return (
        f"The fit held no rows out: the model saw the rows that judge it here, and new rows will have larger "
        f"errors. To know these, judge it on other rows (distrff score, drf.evaluate), or fit with {penalty}."
    )


def _quality_line(quality: Mapping[str, Any]) -> str:
    """The error beside those of simpler models, in one line."""
    where = rows_text(quality)
    if (name := loss_of(quality)) is not None:
        loss, constant = (number_text(quality[key]) for key in (name, f"constant_{name}"))
        words = LOSS_NAMES[name]
        return f"D² {_r2_text(quality['d2'])}, {words} {loss} {where}; the best constant {constant}"
    if quality["kind"] == "numbers":
        line = f"R² {_r2_text(quality['r2'])}, RMSE {number_text(quality['rmse'])} {where}"
        others = [f"the mean {number_text(quality['constant_rmse'])}"]
        if "linear_rmse" in quality:
            others.append(f"a linear model {_linear_text(quality)}")
        return f"{line}; {', '.join(others)}"
    of_sample, is_sampled = _spread_text(quality), quality.get("accuracy_error") is not None
    if quality["kind"] == "labels":
        wrong, constant = (share_text(quality[key]) for key in ("hamming_loss", "constant_hamming_loss"))
        return (
            f"all labels right {share_text(quality['accuracy'])}{of_sample} {where}; single labels wrong "
            f"{wrong}, constant ones {constant}"
        )
    balanced = ""
    if is_sampled:  # an evaluation has a line of its own for it
        balanced = f", balanced accuracy {share_text(quality['balanced_accuracy'])}"
    return (
        f"accuracy {share_text(quality['accuracy'])}{of_sample}{balanced} {where}; always "
        f"{quality['majority']!r}: {share_text(quality['majority_accuracy'])}"
    )


def _linear_text(quality: Mapping[str, Any]) -> str:
    linear = quality["linear_rmse"]
    return "not judged by these folds" if linear is None else number_text(linear)


def loss_of(quality: Mapping[str, Any]) -> str | None:
    """The loss that judges the model in the place of squares, by the name of its entry."""
    return next((name for name in LOSS_NAMES if name in quality), None)


def _spread_text(quality: Mapping[str, Any]) -> str:
    spread = quality.get("accuracy_error")
    # On rows that the fit saw the error of their sample is the small one: it would look like a promise.
    return "" if spread is None or quality["rows"] == _ROWS_OF_FIT else f" ± {spread:.1g}"


def _r2_text(r2: float | None) -> str:
    """R² for reading; None and NaN stand for targets without any variance."""
    is_defined = r2 is not None and not math.isnan(r2)
    return number_text(r2) if is_defined else "not defined (all targets are equal)"


def quality_facts(quality: Mapping[str, Any]) -> list[list[str]]:
    """The error beside those of simpler models, as names with their values."""
    of_sample = _spread_text(quality)
    # The keys of the errors with their names, in the order in which they are shown.
    shown: dict[str, str | None] = {"judged on": judged_on(quality)}
    if (loss := loss_of(quality)) is not None:
        shown["D²"] = _r2_text(quality["d2"])
        names = {loss: LOSS_NAMES[loss], f"constant_{loss}": f"{LOSS_NAMES[loss]} of the best constant"}
        for band in quality.get("bands", ()):
            score = number_text(band["interval_score"])
            text = f"{share_text(band['coverage'])} of the rows, interval score {score}"
            shown[f"within the quantiles of {band['nominal']:.3g}"] = text
        if loss != "pinball_loss":
            names |= {"rmse": "RMSE", "mae": "mean absolute error"}
    elif quality["kind"] == "numbers":
        shown["R²"] = _r2_text(quality["r2"])
        names = {
            "rmse": "RMSE",
            "constant_rmse": "RMSE of the mean",
            "linear_rmse": "RMSE of a linear model",
            "mae": "mean absolute error",
            "relative_error": "relative error",
            "crps": "CRPS",
            "negative_log_density": "negative log density",
        }
    elif quality["kind"] == "labels":
        shown |= {
            "all labels right": share_text(quality["accuracy"]) + of_sample,
            "single labels wrong": share_text(quality["hamming_loss"]),
            "constant labels wrong": share_text(quality["constant_hamming_loss"]),
        }
        names = {}
    else:
        shown["accuracy"] = share_text(quality["accuracy"]) + of_sample
        shown[f"always “{quality['majority']}”"] = share_text(quality["majority_accuracy"])
        for key, name in _SHARES.items():
            shown[name] = None if quality.get(key) is None else share_text(quality[key])
        names = {
            "log_loss": "log loss",
            "majority_log_loss": "log loss of the shares",
            "brier": "Brier score",
        }
    for key, name in names.items():
        shown[name] = None if quality.get(key) is None else number_text(quality[key])
    if "linear_rmse" in quality:
        shown["RMSE of a linear model"] = _linear_text(quality)
    if quality.get("n_outside"):
        what = "left out" if quality["kind"] == "numbers" else "counted as wrong"
        shown["outside the bounds"] = f"{quality['n_outside']:,} rows, {what}"
    return [[name, text] for name, text in shown.items() if text]


_SHARES = {
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "area under ROC",
    "average_precision": "average precision",
}


def share_text(share: float | None) -> str:
    """A share of 1 with three significant digits; near 1, of the part that is missing to 1."""
    if share is None:
        return "–"
    if 0 < share < 0.01:
        return number_text(share)
    # 0.99996 must not read 1.000: digits are added until the part that is missing to 1 has one.
    digits = 3
    while digits < 6 and 0.5 < share < 1 and 1 - share < 10.0 ** (1 - digits):
        digits += 1
    return f"{share:.{digits}f}"


def rows_text(quality: Mapping[str, Any]) -> str:
    """On which rows a model was judged, as the end of a sentence."""
    rows, is_sampled = quality["rows"], quality.get("accuracy_error") is not None
    if rows == "out of fold":
        n_rows = f"{quality['n_rows']:,} " if is_sampled else ""
        return f"on {n_rows}rows left out{_how(quality)}"
    of_sample = f" ({quality['n_rows']:,} of them)" if is_sampled else ""
    return f"by {rows}" if "cross-validation" in rows else f"on {rows}{of_sample}"


def _how(quality: Mapping[str, Any]) -> str:
    words = quality.get("held_out")
    return "" if words is None else " at random" if words == "rows at random" else f": {words}"


def judged_on(quality: Mapping[str, Any]) -> str:
    """The rows on which a model was judged, in words."""
    rows = quality["rows"]
    of_sample = f", {quality['n_rows']:,} sampled" if quality.get("accuracy_error") is not None else ""
    words = {
        "out of fold": f"rows that were left out{_how(quality)}",
        _ROWS_OF_FIT: "the rows of the fit (optimistic)",
    }
    return words.get(rows, rows) + of_sample


def unseen_line(evaluation: Mapping[str, Any]) -> str:
    """Labels that the model never saw, and the number of rows with them."""
    shown = [f"{one['label']!r} ({one['n_rows']:,})" for one in evaluation["unseen_labels"][:_MAX_LINES]]
    more = evaluation["n_unseen_labels"] - len(shown)
    others = f" and {more} more" if more else ""
    return (
        f"{evaluation['n_unseen']:,} rows have labels that the model never saw, and count as wrong: "
        f"{', '.join(shown)}{others}"
    )


# As parts of a page.


def evaluation_sections(
    evaluation: Mapping[str, Any], charts: Mapping[str, Any] | None = None
) -> list[Section]:
    """The sections of an evaluation below its facts; `charts` are given by heading."""
    sections = [Section(heading, [chart, *_legend(heading)]) for heading, chart in (charts or {}).items()]
    if loss_of(evaluation) is not None:
        sections.append(Section("Losses", _losses(evaluation)))
    if evaluation["kind"] == "numbers":
        return [*sections, Section("Residuals", _residuals(evaluation["targets"]), wide=True)]
    if evaluation["kind"] == "labels":
        keys = ("share", "error", "precision", "recall", "f1")
        rows = [
            [one["label"], *(share_text(one[key]) for key in keys)]
            for one in evaluation["labels"][:_MAX_CLASSES]
        ]
        table = Table(["label", "share of the rows", "wrong", "precision", "recall", "F1"], rows)
        return [*sections, Section("Labels", [table], wide=True)]
    if evaluation["confused"]:
        rows = [
            [str(one["actual"]), str(one["predicted"]), one["weight"], share_text(one["share"])]
            for one in evaluation["confused"]
        ]
        table = Table(["class", "taken for", "weight of the rows", "share of the class"], rows)
        sections.append(Section("Most frequent confusions", [table]))
    if evaluation["n_unseen"]:
        rows = [[str(one["label"]), one["n_rows"]] for one in evaluation["unseen_labels"]]
        parts: list[Part] = [unseen_line(evaluation), Table(["label", "rows"], rows)]
        sections.append(Section("Labels never seen", parts))
    return [*sections, Section("Classes", _classes(evaluation), wide=True)]


def _legend(heading: str) -> list[Part]:
    if heading.startswith("Which classes"):
        return [
            "Each row is a true class; the fuller a cell, the larger the share of it that is predicted so."
        ]
    if heading.startswith(("Predicted", "Residuals")):
        return ["Quantiles of a sample of at most 8,192 rows, in bins of equally many."]
    return []


def _losses(evaluation: Mapping[str, Any]) -> list[Part]:
    name, covered = loss_of(evaluation), any("covered" in one for one in evaluation["targets"])
    keys = ["target", name, f"constant_{name}", "d2", *(["covered"] if covered else [])]
    heads = [
        "target",
        LOSS_NAMES[str(name)],
        "of the best constant",
        "D²",
        *(["rows below"] if covered else []),
    ]
    return [Table(heads, [[one[key] for key in keys] for one in evaluation["targets"][:_MAX_CLASSES]])]


def _residuals(targets: list[Mapping[str, Any]]) -> list[Part]:
    # Of more than eight targets the others have sums alone.
    detailed = [one for one in targets if one.get("residual_quantiles")]
    shares = list(detailed[0]["residual_quantiles"]) if detailed else []
    names = ["target", "R²", "RMSE", "of the mean", "mean error", "absolute"]
    rows = []
    for one in targets[:_MAX_CLASSES]:
        quantiles = [one.get("residual_quantiles", {}).get(share) for share in shares]
        numbers = [one["r2"], one["rmse"], one["constant_rmse"], one["bias"], one["mae"]]
        rows.append([one["target"], *numbers, *quantiles])
    table = Table([*names, *(f"{100 * float(share):g} %" for share in shares)], rows)
    legend = (
        "The mean error is that of prediction − actual. The last columns are quantiles of the residuals "
        "actual − prediction: 98 % of the rows lie between the outer ones."
    )
    return [table, legend]


def _classes(evaluation: Mapping[str, Any]) -> list[Part]:
    classes = sorted(evaluation["classes"], key=lambda one: -one["weight"])
    rows = [
        [str(one["label"]), one["n_rows"], *(share_text(one[key]) for key in ("precision", "recall", "f1"))]
        for one in classes[:_MAX_CLASSES]
    ]
    parts: list[Part] = [Table(["class", "rows", "precision", "recall", "F1"], rows)]
    if len(classes) > _MAX_CLASSES:
        parts.append(f"{len(classes) - _MAX_CLASSES} classes of fewer rows are not shown.")
    # Of classes with rows: one without may well never be predicted.
    never = [c["label"] for c in evaluation["classes"] if c["n_rows"] > 0 and not c["predicted_weight"] > 0]
    if never:
        parts.append(f"Never predicted: {listed(never)}")
    return parts


def quality_sections(
    report: Mapping[str, Any], errors: Mapping[str, Any], curves: Mapping[str, Any]
) -> list[Section]:
    """The sections with which the page of a fit begins; charts are given by heading."""
    sections = []
    if report.get("quality"):
        facts = quality_facts(report["quality"])
        if (expected := _expected_of_new_rows(report)) is not None:
            facts.insert(0, ["new rows", expected])
        parts: list[Part] = [Facts(facts)]
        if advice := list(_advice(report, report["quality"])):
            parts.append(Items(advice))
        sections.append(Section("Quality", parts, wide=True))
    if report.get("evaluation"):
        sections += evaluation_sections(report["evaluation"], errors)
    if report.get("importance"):
        sections.append(Section("What matters", _importance(report["importance"])))
    return [*sections, *(Section(heading, [chart]) for heading, chart in curves.items())]


def _advice(report: Mapping[str, Any], quality: Mapping[str, Any]) -> Iterator[str]:
    """Sentences with something to try, where a simpler model does as well or a larger one may do better."""
    if quality["rows"] == _ROWS_OF_FIT:
        yield _optimism(report)
    yield from _likeness(quality)
    if quality["kind"] == "classes" and quality["accuracy"] <= quality["majority_accuracy"]:
        yield f"It is right no more often than whoever always says {quality['majority']!r}."
    rmse, constant = quality.get("rmse"), quality.get("constant_rmse")
    if (d2 := quality.get("d2")) is not None:  # of a loss of its own, whose best constant may be no mean
        if d2 <= 0:
            yield "It is no better than the best constant."
    elif rmse is not None and constant is not None and rmse >= constant > 0:
        yield "It is no better than whoever always says the mean of the target."
    # A curved model that is no better than a line has too few features, or widths far from right.
    linear = quality.get("linear_rmse")
    if rmse is not None and linear is not None and rmse >= linear:
        yield (
            "A linear model has no larger error: more features (n_components), other widths, or a search for "
            "both (AutoFeatures) may do better."
        )
    curve = report.get("learning_curve") or []
    # None stands in strict JSON for the infinite error of a size that had no model.
    if len(curve) > 1 and None not in (curve[-2][1], curve[-1][1]):
        (smaller, before, _), (size, error, _) = curve[-2:]
        if error < _STILL_FALLS * before:
            yield (
                f"The error still falls with the number of features, by {1 - error / before:.0%} from "
                f"{smaller:,} to {size:,}: more (n_components) may do better."
            )
    balanced = quality.get("balanced_accuracy")
    is_of_all_rows = "accuracy_error" not in quality  # a sample has too few rows of a rare class
    if balanced is not None and is_of_all_rows and balanced < quality["accuracy"] - _UNBALANCED:
        yield (
            f"Rare classes are found less often: the mean recall is {share_text(balanced)}; class_weight "
            f"'balanced' weighs classes alike."
        )


def _importance(importance: Mapping[str, Any]) -> list[Part]:
    columns = importance["columns"][:_MAX_BARS]
    bars = [
        (
            column_text(one["column"]),
            one["importance"],
            f"{number_text(one['importance'])} ± {number_text(one['std_error'])}",
        )
        for one in columns
    ]
    left_out = len(importance["columns"]) - len(columns)
    more = f" {left_out} columns that matter less are not drawn." if left_out else ""
    is_held_out = importance.get("rows") == "out of fold"
    by = ", each by a model that did not see it" if is_held_out else ""
    legend = (
        f"By how much {MEASURES[importance['measure']]} falls, ± its standard error, where the values of a "
        f"column come from other rows; of {importance['n_judged']:,} rows of the fit{by}.{more}"
    )
    if columns and (columns[0]["importance"] or 0.0) > importance["score"]:
        legend += (
            " A fall by more than all of it comes of rows unlike any real one, since columns that depend on "
            "each other are torn apart: compare the bars with each other."
        )
    return [Bars(bars), legend]
