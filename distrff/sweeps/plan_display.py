"""A plan for people: as lines of text, and as a card of a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distrff.display.axes import number_text
from distrff.display.elements import facts, paragraph, section
from distrff.display.page import html_card
from distrff.display.svg import bar_chart
from distrff.display.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from distrff.sweeps.plan import Plan


def plan_text(plan: Plan) -> str:
    """Return what will be done and needed, a line for each kind of it."""
    s = plan.shape
    presumed = " presumed until the classes are counted" if s.outputs_are_presumed else ""
    lines = [
        f"{s.n_rows:,} rows × {s.n_columns} columns → {s.n_features} features, "
        f"{s.n_outputs} output(s){presumed}, {s.dtype}",
        f"{plan.n_sweeps} sweeps, {plan.n_segments} segment(s) of {plan.segment_rows:,} rows "
        f"(tiles of {plan.tile_rows:,}), {_folds(plan)}",
        f"{plan.flops:.3g} flops, {plan.cosines:.3g} cosines, {human_bytes(plan.bytes_read)} read",
        f"peak memory {human_bytes(plan.worker_peak_bytes)} a worker above idle, "
        f"{human_bytes(plan.client_peak_bytes)} for the client",
        f"{plan.n_workers} worker(s) × {plan.threads_per_worker} thread(s), memory limit "
        + (human_bytes(plan.memory_limit) if plan.memory_limit else "none"),
    ]
    if plan.seconds is not None:
        lines.append(f"about {plan.seconds:.0f} s, from rates measured on these workers")
    return "\n".join([*lines, *plan.remarks()])


def _folds(plan: Plan) -> str:
    one_held_out = plan.shape.n_paths == 1 and plan.shape.n_folds == 2
    of_what = "a fold held out of the others" if one_held_out else f"{plan.shape.n_folds} fold(s)"
    return f"{of_what}, {plan.folds_per_task} a task"


def plan_card(plan: Plan) -> str:
    """Return the same as HTML, with the memory as bars."""
    s = plan.shape
    shown = {
        "rows": number_text(s.n_rows),
        "columns": number_text(s.n_columns),
        "features": number_text(s.n_features),
        "outputs": number_text(s.n_outputs) + (", presumed" if s.outputs_are_presumed else ""),
        "products in": s.dtype,
        "passes over the rows": number_text(plan.n_sweeps),
        "folds": _folds(plan),
        "segments": f"{plan.n_segments} of {plan.segment_rows:,} rows",
        "flops": number_text(plan.flops),
        "cosines": number_text(plan.cosines),
        "read": human_bytes(plan.bytes_read),
        "workers": f"{plan.n_workers} of {plan.threads_per_worker} thread(s)",
    }
    if plan.seconds is not None:
        shown["predicted, from rates measured on these workers"] = human_seconds(plan.seconds)
    memory = {
        "a worker at its peak, above idle": plan.worker_peak_bytes,
        "a worker's memory limit": plan.memory_limit,
        "the client at its peak, above idle": plan.client_peak_bytes,
    }
    bars = [(name, size, human_bytes(size)) for name, size in memory.items() if size]
    limit = [] if plan.memory_limit else [paragraph("The workers have no memory limit.")]
    parts = [
        facts(shown.items()),
        section("Memory", "\n".join([bar_chart(bars, title="Memory"), *limit])),
        *map(paragraph, plan.remarks()),
    ]
    return html_card("Plan of a fit", "\n".join(parts))
