"""`distrff calibrate`: intervals or prediction sets for a stored model, from rows that it did not see."""

from __future__ import annotations

from typing import Any

import click

from distrff.cli.command import command
from distrff.cli.data import model_and_targets, storage_options, workers_of
from distrff.cli.options import cluster_options, row_options, verbosity_options
from distrff.cli.output import show
from distrff.utils.text import public_name

COVERAGES = (0.8, 0.9, 0.95)


@command()
@click.argument("model")
@click.argument("data")
@row_options
@cluster_options
@verbosity_options
def calibrate(model: str, data: str, as_json: bool, **options: Any) -> None:
    """Give MODEL intervals, or prediction sets of classes, from the errors on DATA, and store them with it.

    DATA are rows that the fit did not see; then a share of at least the coverage of new rows of the same kind
    lies within (split conformal prediction). Weights count as repeated rows. predict --coverage writes
    the intervals. For some coverages it prints the half width of the intervals, target by target, or the
    largest score, 1 − p or minus the margin, of a class in a set.
    """
    from distrff.diagnostics.evaluate import calibrated
    from distrff.model.persistence import save_model

    remote = storage_options(options)
    fitted, dataset = model_and_targets(model, data, options)
    with workers_of(options):
        found = calibrated(fitted, dataset)
    save_model(found, model, overwrite=True, storage_options=remote)
    assert found.intervals is not None
    radii = {f"{c:g}": found.intervals.radius(c).tolist() for c in COVERAGES}
    values = {
        "model": public_name(model),
        "n_samples": found.intervals.n_rows,
        "n_outside": found.intervals.n_outside,
        "n_unseen": found.intervals.n_unseen,
        "radius": radii,
    }
    of = "score of a class in the set at most" if found.is_classifier else "± around predictions"
    lines = [f"{public_name(model)}: {found.intervals}"]
    for c, radius in radii.items():
        lines.append(f"  coverage {c}: {of} {', '.join(f'{r:.6g}' for r in radius)}")
    show(values, as_json=as_json, lines=lines)
