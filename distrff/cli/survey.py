"""What one pass over the rows of a dataset found: values for JSON, and lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset

_MOST_LISTED = 20


def described_rows(
    path: str, dataset: Dataset, remote: dict[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """Describe the rows of a dataset: missing values, target balance, drift, and how they are stored."""
    from distrff.diagnostics.reading_advice import reading_advice
    from distrff.diagnostics.row_survey import survey_rows, survey_to_dict
    from distrff.diagnostics.stored_layout import stored_layout
    from distrff.estimators.ridge_fit import features_dtype
    from distrff.estimators.run import begin_run

    run = begin_run()
    survey = survey_to_dict(survey_rows(run, dataset), dataset)
    storage = reading_advice(
        stored_layout(path, dataset, remote),
        n_columns=dataset.n_columns,
        n_outputs=max(1, dataset.n_targets),
        dtype=features_dtype(dataset, "auto"),
    )
    values = {
        **survey,
        "storage": storage["parts"],
        "advice": [*storage["advice"], *_shuffle_advice(survey)],
        "seconds": run.sweeps[-1][1],
    }
    return values, list(_lines(values, dataset.n_rows))


def _shuffle_advice(survey: dict[str, Any]) -> list[str]:
    drifting = [column for column in survey["columns"] if column["drifts"]]
    if survey["target"] is not None and survey["target"]["drifts"]:
        drifting.insert(0, {"name": "the target", **survey["target"]})
    if not drifting:
        return []
    most = max(found["drift"] for found in drifting)
    named = ", ".join(found["name"] for found in drifting[:3]) + (", …" if len(drifting) > 3 else "")
    return [
        f"shuffle the rows (distrff convert --shuffle SEED) for solver='sgd' or fold_by='contiguous', which "
        f"alone need it: of {named} up to {most:.0%} of the variance lies between sixteenths of the rows"
    ]


def _lines(values: dict[str, Any], n_rows: int) -> Iterator[str]:
    yield f"rows read in {values['seconds']:.3g} s"
    told = [c for c in values["columns"] if c["missing"] or c["infinite"] or c["drifts"]]
    for column in told[:_MOST_LISTED]:
        yield f"  {column['name']}: " + ", ".join(_told(column, n_rows))
    if len(told) > _MOST_LISTED:
        yield f"  … and {len(told) - _MOST_LISTED} columns more; --json lists all"
    if not any(column["missing"] for column in values["columns"]):
        yield "  no missing values in X"
    yield from _target_lines(values["target"], n_rows)
    for part in values["storage"]:
        yield (
            f"  {part['name']}: {part['n_requests']:,} requests a pass, "
            f"{part['stored_bytes'] / max(part['decoded_bytes'], 1):.2f} bytes stored for one decoded, "
            f"{part['decoded_share']:.2f} times the rows decoded"
        )
    yield from (f"advice: {sentence}" for sentence in values["advice"] or ["none; read as they are"])


def _told(column: dict[str, Any], n_rows: int) -> Iterator[str]:
    for what in ("missing", "infinite"):
        if column[what]:
            yield f"{column[what]:,} {what} ({column[what] / n_rows:.2%})"
    if column["drifts"]:
        yield f"drifts with the row number ({column['drift']:.0%} of its variance)"


def _target_lines(target: dict[str, Any] | None, n_rows: int) -> Iterator[str]:
    if target is None:
        return
    for told in _told({"infinite": 0, **target}, n_rows):
        yield f"  target: {told}"
    for found in target.get("labels", [])[:_MOST_LISTED]:
        yield f"  target {found['label']}: {found['rows']:,} rows ({found['share']:.2%})"
