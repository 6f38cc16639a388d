"""The same rows mean the same in every storage: a model fitted in one predicts alike in each other."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest
from dask.utils import is_dataframe_like
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distrff as drf
from distrff.errors import InputError
from tests.support.fits import fourier
from tests.support.storages import STORAGES, Drawn, tables

# Each example fits and predicts some dozen times: to shrink one would take minutes.
PHASES = (Phase.reuse, Phase.generate)
RULES = {"one_hot": True, "missing": "indicator", "datetime": "seconds"}


class Stored:
    """A table in one storage."""

    def __init__(self, drawn: Drawn, name: str, folder: Path) -> None:
        folder.mkdir()
        self.storage, self.folder = STORAGES[name], folder
        self.drawn = drawn.of_kinds(self.storage.holds)
        self.source = self.storage.write(self.drawn.table, folder / "rows")
        self.order = np.argsort(self.storage.rows(self.source))

    def opened(self, **options: Any) -> drf.Dataset:
        return self.storage.open(self.source, self.folder, **self.storage.options, **options)

    @property
    def target(self) -> dict[str, Any]:
        names = self.drawn.targets
        return {"target": names if len(names) > 1 else names[0]} if names else {}

    def fitted(self, names: Sequence[str], words: Sequence[str]) -> Any:
        """A model of some columns; `words` are those that are said to be text."""
        types = {name: "text" for name in (*names, *self.drawn.targets) if name in words}
        rows = self.opened(columns=list(names), types=types or None, **self.target, **RULES)
        kind = drf.KernelRidgeClassifier if self.drawn.is_classifier else drf.KernelRidge
        return kind(fourier(16), 1e-2, dtype="float64", random_state=0).fit(rows)

    def answers(self, model: Any, method: str = "predict") -> tuple[np.ndarray, float | None]:
        """The predictions in the order of the table, and the score if this storage holds the targets."""
        steps = model.model_.steps
        if steps is None:
            rows = self.opened(columns=list(model.model_.column_names), **self.target)
        else:
            rows = self.opened(steps=steps if self.target else steps.for_prediction())
        is_frame = is_dataframe_like(self.source) or isinstance(self.source, pa.Table)
        predicted = np.asarray(getattr(model, method)(self.source if is_frame and steps else rows))
        return predicted[self.order], model.score(rows) if self.target else None


def compare(drawn: Drawn, name: str, *, says_types: bool) -> None:
    """Fit a table in one storage, and predict it in each.

    Where types are not said, a storage that keeps none may read words as numbers, and a refusal names the
    column.
    """
    words = drawn.words if says_types else []
    fits: dict[tuple[str, ...], Any] = {}
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="synchronous"):
        first = Stored(drawn, name, Path(folder) / "first")
        for other, storage in STORAGES.items():
            names = tuple(drawn.of_kinds(storage.holds).names)
            if not names:
                continue
            second = Stored(drawn, other, Path(folder) / other)
            try:
                if names not in fits:
                    model = first.fitted(names, words)
                    fits[names] = model, *first.answers(model)
                    if says_types:
                        table = Stored(drawn, "pyarrow", Path(folder) / str(len(fits)))
                        assert_same(model, first, table.fitted(names, words), table)
                model, expected, expected_score = fits[names]
                predicted, score = second.answers(model)
                np.testing.assert_array_equal(predicted, expected, other)
                assert score is None or score == pytest.approx(expected_score), other
            except InputError as refusal:
                of_words = [*map(repr, drawn.words), "y has one class only"]  # "1" and "1.0" are one number
                assert not says_types and any(words in str(refusal) for words in of_words), other


def assert_same(model: Any, first: Stored, other: Any, second: Stored) -> None:
    """Both fits give the same values, as far as columns of float32 and of float64, in any order of rows, do.

    Of classes these are the decisions: a label hangs on the last bit of a decision of 0.
    """
    is_classifier = hasattr(model, "classes_")
    method = "decision_function" if is_classifier else "predict"
    found, expected = (rows.answers(one, method)[0] for one, rows in ((model, first), (other, second)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max() + 1e-9)
    if is_classifier:
        assert model.classes_.tolist() == other.classes_.tolist()


@pytest.mark.parametrize("name", STORAGES)
@settings(max_examples=2, phases=PHASES)
@given(data=st.data())
def test_a_model_predicts_alike_in_every_storage(name, data):
    compare(data.draw(tables(STORAGES[name].holds)), name, says_types=data.draw(st.booleans()))


@pytest.mark.slow
@pytest.mark.parametrize("name", STORAGES)
@settings(max_examples=100, phases=PHASES)
@given(data=st.data())
def test_a_model_predicts_many_tables_alike(name, data):
    compare(data.draw(tables(STORAGES[name].holds)), name, says_types=data.draw(st.booleans()))
