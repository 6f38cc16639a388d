"""A dataset as a card of a notebook: what is known of its rows without reading any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distrff.display.axes import number_text
from distrff.display.elements import facts, notes
from distrff.display.names import listed
from distrff.display.page import html_card
from distrff.display.units import human_bytes

if TYPE_CHECKING:
    from distrff.data.dataset import Dataset


def dataset_card(dataset: Dataset) -> str:
    """Return the card; nothing is read."""
    shown = {
        "rows from": dataset.source,
        "rows": number_text(dataset.n_rows),
        "columns": f"{number_text(dataset.n_columns)} of {dataset.dtype}{_filling(dataset)}",
        "target": _target(dataset),
        "weights": "yes" if dataset.has_weights else "none",
        "decoded": f"{human_bytes(dataset.n_rows * dataset.row_bytes)}, {dataset.row_bytes:,} bytes a row",
        "decoded at once": f"{number_text(dataset.chunk_rows)} rows",
    }
    if dataset.column_names is not None:
        shown["column names"] = listed(dataset.column_names)
    if dataset.id_dtypes:
        shown["id columns"] = listed(dataset.id_dtypes)
    if dataset.steps is not None:
        shown["made of the raw columns"] = listed(dataset.steps.raw_names)
    remarks = _remarks(dataset)
    return html_card("Dataset", "\n".join([facts(shown.items()), *([notes(remarks)] if remarks else [])]))


def _filling(dataset: Dataset) -> str:
    return f", {dataset.column_share:.2%} filled" if dataset.is_sparse else ""


def _target(dataset: Dataset) -> str:
    if not dataset.n_targets:
        return "none"
    names = "y" if dataset.target_names is None else listed(dataset.target_names)
    return f"{names}, {dataset.y_dtype}"


def _remarks(dataset: Dataset) -> list[str]:
    table = dataset.table_report or {}
    remarks = []
    if dataset.skipped_columns:
        remarks.append(f"left out because they are not numbers: {listed(dataset.skipped_columns)}")
    if table.get("rows_dropped"):
        remarks.append(
            f"{table['rows_dropped']:,} of {table['rows_read']:,} rows lack a value and are left out"
        )
    if table.get("columns_dropped"):
        remarks.append(f"columns left out: {listed(table['columns_dropped'])}")
    return remarks
