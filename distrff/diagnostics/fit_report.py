"""What a fit was, as strict JSON data: the same for `report_`, the command line and the report page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distrff.diagnostics.fit_page import fit_page
from distrff.diagnostics.report_page import report_body, report_page
from distrff.display.page import html_card
from distrff.display.units import human_bytes


class FitReport(Mapping[str, Any]):
    """A read-only mapping of strict JSON values.

    Keys
    ----
    model, status, n_samples, n_columns, n_components, n_outputs, dtype, seed : as named
    features : the map as fitted, its specification
    kernel, length_scale, length_scale_search : the kernel as fitted, and how its widths were found
    expected_collisions : of random binning, pairs of occupied bins expected to share a column
    alpha, criterion, cv_score, alphas, mean_score, fold_scores, noise_floor : choice of alpha, of ridge
    training_r2 : of ridge, the share of the targets' variance that the rows' own fit explains; a target each
    solver : which
    tol, relative_residual, preconditioner : of conjugate gradients; the target of largest residual
    C, loss, tol, primal, dual, duality_gap, relative_gradient : of margin machines; the worst class
    Cs, mean_score, fold_scores : the choice of C by held-out loss
    history : of iterative machines, what was known after each light sweep: `measure`, the name of what
        `tol` bounds, and lists `sweep`, `error` and, where there are bounds, `primal` and `dual`; of the
        class that is worst in the end, of targets always the worst; at most 200 sweeps
    explained_variance, explained_variance_ratio : of principal components
    margin, smallest_margin : with C=inf, 1/‖w‖ and the least y·f over all rows
    learning_curve : list of [n_components, score, alpha]
    n_sweeps, sweep_seconds, sweep_labels, seconds, workers, threads : the work done
    phases : list of [name, seconds], which add up to `seconds`
    source, column_names : of the rows
    planned_peak_bytes, measured_peak_bytes : of a worker, above its idle resident set; without a cluster of
        the one process that is client and worker
    plan : what was counted before the fit, as of `Plan`; `seconds` is what `plan` predicted, null without it
    rkhs_norm : ‖w‖₂, one number or one an output
    table : rows read and dropped, columns made and dropped, of a table of mixed columns
    notes : list of sentences on choices that were made
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = strict(dict(values))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the report as plain data."""
        return json.loads(json.dumps(self._values, allow_nan=False))

    def to_html(
        self,
        *,
        title: str | None = None,
        facts: Iterable[Sequence[str]] = (),
        scores: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the report as one HTML page, which needs nothing outside itself; write it as UTF-8.

        It shows what was fitted on what, plan against measured, the path of the penalty with the spread
        of the folds, the learning curve in the number of features, how the certificate closed, which
        columns matter, and where the time went: each where the fit has it.

        Parameters
        ----------
        title : str, optional
            Default: what was fitted.
        facts : iterable of (name, text)
            What the report cannot know, shown first.
        scores : {"columns": [...], "rows": [[...], ...]}, optional
            The machine beside its rivals, as a table; the first column names the rows.
        """
        return report_page(
            fit_page(
                self,
                title=self._title() if title is None else title,
                facts=facts,
                scores=scores,
            )
        )

    def _repr_html_(self) -> str:
        return html_card(self._title(), report_body(fit_page(self, title="")))

    def _title(self) -> str:
        return f"Fit of {self['model']}"

    def __repr__(self) -> str:
        return "\n".join([f"FitReport of {self['model']}", *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        r = self._values
        size = f"{r['n_samples']:,} rows, {r['n_columns']} columns"
        yield f"{size}, {r['n_components']} features ({r['dtype']})"
        if r.get("kernel"):
            yield f"kernel {r['kernel']}"
        yield self._objective_line()
        yield f"{r['n_sweeps']} sweeps in {r['seconds']:.2f} s on {r['workers']} worker(s); {r['status']}"
        if r.get("measured_peak_bytes") and r.get("planned_peak_bytes"):
            yield (
                f"peak memory of a worker {human_bytes(r['measured_peak_bytes'])}, "
                f"planned {human_bytes(r['planned_peak_bytes'])}"
            )
        yield from r["notes"]

    def _objective_line(self) -> str:
        r = self._values
        if "explained_variance_ratio" in r:
            share = sum(r["explained_variance_ratio"])
            return f"{r['n_outputs']} components with {share:.1%} of the variance"
        if "C" in r:
            name = "relative_gradient" if r["duality_gap"] is None else "duality_gap"
            error = "not known" if r[name] is None else f"{r[name]:.2g}"
            C = r["C"] if isinstance(r["C"], str) else f"{r['C']:g}"
            return f"C {C}, {r['loss']}, {name.replace('_', ' ')} {error}"
        score = "" if r["cv_score"] is None else f", {r['criterion']} {r['cv_score']:.6g}"
        for name in ("relative_residual", "duality_gap"):
            if r.get(name) is not None:
                score += f", {name.replace('_', ' ')} {r[name]:.2g} by {r['solver']}"
        return f"alpha {r['alpha']}{score}"


def strict(value: Any) -> Any:
    """Return the value as strict JSON data: NumPy unwrapped, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
