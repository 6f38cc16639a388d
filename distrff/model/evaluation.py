"""The evaluation sweep: a frozen model's predictions against the targets, in one light pass over the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.engine.reduction import Arrays, Reduction
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.io.dataset import check_block
from distrff.io.rows import RowBlock, Rows
from distrff.model.class_errors import ClassErrors
from distrff.model.folds import FoldModels
from distrff.model.model import Model
from distrff.model.number_errors import NumberErrors
from distrff.model.predict import restored
from distrff.preprocessing.targets import ClassTargets

Errors = NumberErrors | ClassErrors

_SUM_BYTES = 2**20  # of sketches and samples, more or less


@dataclass(frozen=True)
class EvaluationReduction(Reduction):
    """Reduction to the errors of a model; with `folds`, each row's by the model that did not see it."""

    model: Model
    tile_rows: int
    folds: FoldModels | None = None

    def shared(self) -> MapSpecification:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return _SUM_BYTES

    def zero(self) -> Errors:
        targets = self.model.targets
        if isinstance(targets, ClassTargets):
            return ClassErrors.empty(targets, has_probabilities=self.model.likelihood is not None)
        return NumberErrors.empty(self.model.n_outputs)

    def update(self, errors: Errors, rows: Rows, arrays: Arrays) -> Errors:
        model = restored(self.model, arrays)
        folds = None if self.folds is None else self.folds.restored(arrays)
        for block in rows.tiles(self.tile_rows):
            if block.y is None:
                raise InputError("scoring needs targets; give y, or the target's name")
            check_block(block, "classes" if model.is_classifier else "numeric")
            errors = self.merge(errors, _errors_of(model, folds, block, block.y))
        return errors

    def merge(self, first: Any, second: Any) -> Errors:
        return first.merge(second)


def _errors_of(model: Model, folds: FoldModels | None, block: RowBlock, y: np.ndarray) -> Errors:
    X, s = block.X, block.sample_weight
    F = model.decision(X) if folds is None else folds.decision(model, X, block.start)
    outside = model.outside(X)
    if isinstance(model.targets, ClassTargets):
        P = None if model.likelihood is None else model.probabilities(F)
        return ClassErrors.of(model.targets, F, P, y, s, outside)
    rows = np.arange(block.start, block.start + len(F))
    return NumberErrors.of(F, y, s, rows, outside)
