"""What the engine makes of a reduction, in this thread."""

from functools import reduce
from itertools import pairwise
from typing import Any

from distrff.engine.reduction import Reduction
from distrff.preprocessing.coding import Scaling


def of_features(
    specification: Any,
    targets: Any,
    *,
    scaling: Scaling | None = None,
    dtype: str = "float64",
    tile_rows: int = 16,
) -> dict[str, Any]:
    """Return the fields that every reduction over features has."""
    return {
        "specification": specification,
        "scaling": Scaling() if scaling is None else scaling,
        "targets": targets,
        "dtype": dtype,
        "tile_rows": tile_rows,
    }


def partials(
    reduction: Reduction, dataset: Any, arrays: dict[str, Any] | None = None, cuts: Any = ()
) -> list:
    """Return the finished result of each run of rows between the cuts."""
    runs = pairwise([0, *cuts, dataset.n_rows])
    arrays = {} if arrays is None else arrays
    return [
        reduction.finish(reduction.update(reduction.zero(), dataset.rows(start, stop), arrays))
        for start, stop in runs
        if start < stop
    ]


def swept(reduction: Reduction, dataset: Any, arrays: dict[str, Any] | None = None, cuts: Any = ()) -> Any:
    """Return the result of all rows, cut into runs that are merged from the first to the last."""
    return reduce(reduction.merge, partials(reduction, dataset, arrays, cuts))
