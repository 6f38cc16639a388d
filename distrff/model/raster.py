"""Rasters: predictions on a regular grid, written block by block as xarray reads them."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import zarr

from distrff.engine.reduction import Arrays, Reduction
from distrff.engine.run import begin_run
from distrff.errors import DataWarning, InputError, PlanRefused, warn
from distrff.features.fitted import FittedMap, having_prefix
from distrff.io.results import open_array
from distrff.io.storage import ROOT, Location, replacing, storage_errors
from distrff.model.model import Model, std_of
from distrff.model.write import frozen_model
from distrff.preprocessing.coding import ClassTargets
from distrff.preprocessing.table import RawColumn, SecondsStep
from distrff.preprocessing.words import MICROSECONDS, word_of_time
from distrff.utils.text import human_bytes, listed
from distrff.utils.validation import check_count

_CHUNK_CELLS, _CHUNK_VALUES, _MAX_CHUNKS = 2**20, 2**24, 10**5
_KINDS = ("raster",)
_OUTSIDE = -1  # the code of no class
_DRAWN = "drawn_"  # before the names of the draws' arrays


def predict_raster(
    model: Any,
    grid: Mapping[Any, Any],
    out: str,
    *,
    covariates: Mapping[str, Any] | None = None,
    return_std: bool | str = False,
    draws: int = 0,
    random_state: int | None = 0,
    crs: int | str | None = None,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write predictions on the product grid of some coordinates, as a Zarr group that xarray opens.

    The group holds `prediction`, with `return_std` also `std`, with `draws` also `draws`, and the
    coordinates. Dimensions have the names and the order of `grid`; several targets have one more, `target`,
    and draws have `draw` as their first. Classes are numbers from 0, whose labels are the attribute
    `flag_meanings` (the CF conventions). Cells outside the bounds of the model hold NaN, or −1 for classes.

    Parameters
    ----------
    model : fitted estimator or Model
    grid : mapping of column to 1-D array-like
        The coordinates of each column of the model: by name, or by number where columns have no names. Times,
        where the fit took a column of times as seconds. Not of the covariates of a trend.
    out : str
        Path or URL.
    covariates : xarray Dataset, or mapping of column to array, optional
        Those of a trend in the cells: dimensions of an xarray variable are found by their names, those of
        other arrays are in the order of `grid`. Cells of NaN have no prediction.
    return_std : bool or "observation"
        Also write standard deviations, of f or of new observations, if the model has them.
    draws : int
        Also write this many functions drawn from the posterior, those of `KernelRidge.sample`: what the map
        may be, where `std` says how far it may be off in each cell alone.
    random_state : int or None
        Seed of the draws. The same seed gives the same functions on all grids.
    crs : int or str, optional
        Coordinate reference system: WKT, or where pyproj is installed an EPSG code, or any other text that it
        reads. It becomes the grid mapping `spatial_ref`, and the coordinates of columns called lon or x and
        lat or y get the names and units that the CF conventions have for it.
    overwrite : bool
        Replace a raster that exists at `out`.
    storage_options : dict, optional
        For fsspec, where `out` is a URL.

    Returns
    -------
    dict
        `out`, `shape`, `dimensions`, `n_outside` (cells outside the bounds of the model), `seconds` and
        `workers`.

    Raises
    ------
    InputError
        For columns that are missing or not the model's, coordinates that are not finite numbers in order,
        results that the model does not have, and a place that may not be replaced.
    PlanRefused
        For more than 10⁵ chunks, or more bytes than a local disk has free.

    Notes
    -----
    Standard deviations of equispaced features are those of 64 drawn models, known to 9 %.

    A task writes one chunk of about 10⁶ cells; a raster that is not finished is removed. Models of
    `EquispacedFourierFeatures` are evaluated coordinate by coordinate, for m·(N + cells) products of a chunk,
    and 32 times as many for deviations: 7 s for 10⁶ cells at 250,000 features, 14 s at 10⁶. Others are
    evaluated row by row, as by `write_predictions`.
    """
    if return_std:
        std_of(return_std)
    check_count("draws", draws, 0)
    reference = Georeference.of(crs)
    # The grid is checked before a posterior is made, which takes D³.
    axes = _axes(frozen_model(model, False), grid)
    frozen = frozen_model(model, return_std or draws > 0)
    if frozen.kind == "KernelPCA":
        raise InputError("principal components have no predictions; a raster needs another model")
    if frozen.is_multilabel:
        raise InputError("a raster has one prediction a cell; of several labels, fit one classifier each")
    if return_std or draws:
        frozen.check_has_std()
    if draws and frozen.is_classifier:
        raise InputError("draws are of numbers, and this is a model of classes; leave them out")
    names = [str(name) for name in axes]
    shape = tuple(len(x) for x in axes.values())
    location = Location.of(out, storage_options)
    beside = _covariates(frozen, axes, covariates)
    n_values = 1 if frozen.is_classifier else frozen.n_outputs
    n_values += (bool(return_std) + draws) * frozen.n_outputs
    chunks = _chunks(shape, n_values)
    _check_size(location, shape, chunks, n_values)
    run = begin_run()
    light, sent = frozen.for_tasks(with_std=bool(return_std))
    if draws:
        # Made once and sent, not drawn by each task: a dense model need not send its factor of D² numbers.
        drawn = frozen.drawn(draws, random_state)
        sent |= {_DRAWN + "coef": drawn.coef, _DRAWN + "intercept": drawn.intercept}
    with (
        storage_errors(f"{location} could not be written"),
        replacing(location, overwrite=overwrite, kinds=_KINDS) as fresh,
    ):
        layers = _created(
            fresh, frozen, reference, names, axes, chunks, with_std=bool(return_std), n_draws=draws
        )
        order = [list(axes).index(name) for name in _columns(frozen) if name in axes]
        reduction = RasterReduction(light, fresh, layers, tuple(order), return_std)
        # A block is a chunk of the arrays: no two tasks write to one, and one that is repeated writes the
        # same bytes.
        blocks = _blocks(list(axes.values()), chunks, beside)
        n_outside = int(run.total("raster", blocks, reduction, arrays=sent))
        _finish(fresh, frozen, reference, names)
    if n_outside:
        n_cells = math.prod(shape)
        share = f"{n_outside:,} of {n_cells:,}" if n_outside < n_cells else "all"
        check = "" if n_outside < n_cells else "; check the grid's coordinates"
        warn(f"{share} cells are outside the bounds of the model{check}", DataWarning)
    return {
        "out": str(location),
        "shape": shape,
        "dimensions": names,
        "n_outside": n_outside,
        "seconds": run.seconds,
        "workers": run.execution.n_workers,
    }


# The grid.


def _columns(model: Model) -> list[Any]:
    """Names of the model's columns, or their numbers."""
    return list(range(model.n_columns)) if model.column_names is None else list(model.column_names)


def _axes(model: Model, grid: Mapping[Any, Any]) -> dict[Any, np.ndarray]:
    """Coordinates in the order of the grid; raises InputError unless all columns have some."""
    if not isinstance(grid, Mapping):
        raise InputError(f"grid must map each column to its coordinates, got {type(grid).__name__}")
    off_axes = _off_axes(model)
    known = [name for j, name in enumerate(_columns(model)) if j not in off_axes]
    if unknown := [name for name in grid if name not in known]:
        raise InputError(
            f"the model has no column {unknown[0]!r}; its columns are {listed(list(map(str, known)))}"
        )
    if missing := [name for name in known if name not in grid]:
        raise InputError(f"grid has no coordinates of column {missing[0]!r}; give some, perhaps a single one")
    if reserved := {*_LONG_NAMES, "target", "draw", _GRID_MAPPING} & set(map(str, grid)):
        raise InputError(f"a column {reserved.pop()!r} would have the name of a result; rename it")
    if nested := [name for name in map(str, grid) if "/" in name]:
        raise InputError(f"a column {nested[0]!r} cannot name a dimension, as it has a slash; rename it")
    return {name: _coordinates(name, values, _time_step(model, name)) for name, values in grid.items()}


def _off_axes(model: Model) -> list[int]:
    """Numbers of the columns that are no dimension: covariates that are not a coordinate as well."""
    trend = getattr(model.specification, "trend", None)
    return [] if trend is None else [j for j in range(model.n_columns) if j not in trend.places]


def _covariates(
    model: Model, axes: Mapping[Any, np.ndarray], given: Mapping[str, Any] | None
) -> dict[int, Any]:
    """The covariates by number, with the dimensions of the grid; xarray's need not be in memory."""
    dimensions, shape = [str(name) for name in axes], tuple(map(len, axes.values()))
    found, off_axes = dict[int, Any](), _off_axes(model)
    if given is not None and not off_axes:
        raise InputError("the model has no covariates beside the grid; leave covariates out")
    for j in off_axes:
        name = _columns(model)[j]
        if given is None or name not in given:
            raise InputError(
                f"the model has a covariate {name!r}; give its values in the cells as covariates"
            )
        found[j] = given[name] if hasattr(given[name], "shape") else np.asarray(given[name], np.float64)
        if hasattr(found[j], "dims"):
            if {*found[j].dims} != {*dimensions}:
                raise InputError(
                    f"covariate {name!r} has dimensions {[*found[j].dims]}, and the grid has {dimensions}"
                )
            found[j] = found[j].transpose(*dimensions)
        if np.shape(found[j]) != shape:
            raise InputError(f"covariate {name!r} has shape {np.shape(found[j])}, and the grid {shape}")
        # Without coordinates of its own xarray would count cells.
        known = getattr(found[j], "coords", {})
        for column, x in axes.items():
            dimension = str(column)
            if dimension not in known:
                continue
            other = _coordinates(column, np.asarray(known[dimension]), _time_step(model, column))
            # Rounding of single precision may show, and a shift by a part of a cell must.
            step = np.abs(np.diff(x)).min() if len(x) > 1 else np.abs(x).max() * 1e-4
            if not (np.abs(other - x) <= _SAME_PLACE * step).all():
                raise InputError(
                    f"covariate {name!r} has other coordinates of {dimension!r} than the grid; bring it "
                    f"there first, by its reindex or interp"
                )
    return found


_SAME_PLACE = 0.02  # of a step of the grid


def _coordinates(name: Any, values: Any, step: SecondsStep | None) -> np.ndarray:
    try:
        if step is not None and np.asarray(values).dtype.kind not in "iuf":
            values = _seconds(step, values)
        if np.asarray(values).dtype.kind not in "iufbO":
            raise TypeError(f"got {np.asarray(values).dtype}")
        x = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"coordinates of column {name!r} must be numbers ({error})") from error
    if x.ndim != 1 or not len(x):
        raise InputError(
            f"coordinates of column {name!r} must be a 1-D array with values, got shape {x.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError(f"coordinates of column {name!r} hold NaN or infinity; leave these out")
    steps = np.diff(x)
    if not ((steps > 0).all() or (steps < 0).all()):  # as the CF conventions ask of coordinates, section 1.3
        raise InputError(
            f"coordinates of column {name!r} must rise, or fall, from each to the next; sort them, and leave "
            f"out those that stand twice"
        )
    return x


def _chunks(shape: Sequence[int], n_values: int) -> tuple[int, ...]:
    """Shape of chunks of about 10⁶ cells, nearly cubes; fewer where the values of each take 128 MB."""
    chunks = list(shape)
    # The longest side is halved: values along a coordinate are cheapest where a chunk is nearly a cube.
    while math.prod(chunks) > max(1, min(_CHUNK_CELLS, _CHUNK_VALUES // n_values)):
        longest = int(np.argmax(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def _check_size(location: Location, shape: Sequence[int], chunks: Sequence[int], n_layers: int) -> None:
    """Raise PlanRefused for more chunks than tasks can be, or more bytes than a local disk has free."""
    n_chunks = math.prod(-(-n // chunk) for n, chunk in zip(shape, chunks, strict=True))
    # As if nothing compressed, which is about right for smooth fields in double precision.
    n_bytes = 8 * math.prod(shape) * n_layers
    asked = f"a raster of {math.prod(shape):,} cells"
    if n_chunks > _MAX_CHUNKS:
        raise PlanRefused(f"{asked} has {n_chunks:,} chunks, more than {_MAX_CHUNKS:,}; write it in parts")
    # The folder of the raster need not exist yet; its first parent that does is on the same disk.
    folder = next((p for p in location.path.parents if p.exists()), None) if location.path else None
    if folder is not None and n_bytes > (free := shutil.disk_usage(folder).free):
        raise PlanRefused(
            f"{asked} takes up to {human_bytes(n_bytes)}, and {folder} has {human_bytes(free)} free; write "
            f"fewer cells, or elsewhere"
        )


@dataclass(frozen=True)
class GridBlock:
    """One chunk of a raster: where it begins, and its coordinates in the order of the dimensions."""

    start: int  # of its cells, counted over all chunks
    stop: int
    corner: tuple[int, ...]
    axes: tuple[np.ndarray, ...]
    covariates: Mapping[int, Any]  # by number of their columns, with the dimensions of the grid


def _blocks(
    axes: Sequence[np.ndarray], chunks: Sequence[int], covariates: Mapping[int, Any]
) -> list[GridBlock]:
    corners = itertools.product(*(range(0, len(x), n) for x, n in zip(axes, chunks, strict=True)))
    blocks, start = [], 0
    for corner in corners:
        own = tuple(x[i : i + n] for x, i, n in zip(axes, corner, chunks, strict=True))
        stop = start + math.prod(map(len, own))
        region = tuple(slice(i, i + len(x)) for i, x in zip(corner, own, strict=True))
        blocks.append(GridBlock(start, stop, corner, own, {j: A[region] for j, A in covariates.items()}))
        start = stop
    return blocks


# Where the grid lies: attributes of its coordinates and its reference system, by the CF conventions.

_GRID_MAPPING = "spatial_ref"  # the name by which GDAL and rioxarray know it
_DEGREES = {
    "X": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
    "Y": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
}
_PLANE = {
    "X": {"standard_name": "projection_x_coordinate", "axis": "X"},
    "Y": {"standard_name": "projection_y_coordinate", "axis": "Y"},
}
_OF_EARTH = {"lon": "X", "long": "X", "lng": "X", "longitude": "X", "lat": "Y", "latitude": "Y"}
_AXES = {**_OF_EARTH, "x": "X", "easting": "X", "y": "Y", "northing": "Y"}


@dataclass(frozen=True)
class Georeference:
    """The attributes of a raster's grid mapping, empty without one, and of coordinates along X and Y."""

    mapping: dict[str, Any]
    axes: Mapping[str, dict[str, Any]]

    @classmethod
    def of(cls, crs: int | str | None) -> Georeference:
        """That of an EPSG code, WKT, or what else pyproj reads; raises InputError for what is none."""
        if crs is None:
            return cls({}, {})
        try:
            pyproj = import_module("pyproj")  # few need it
        except ImportError:
            kind = re.match(r"\s*(PROJ|GEOG|GEOD)\w*\s*\[", str(crs), re.IGNORECASE)
            if kind is None:
                raise InputError(
                    f"the coordinate reference system {crs!r} takes pyproj to be read; install pyproj, or "
                    f"give the system as WKT"
                ) from None
            axes = _PLANE if kind[1].upper() == "PROJ" else _DEGREES
            return cls({"crs_wkt": crs, _GRID_MAPPING: crs}, axes)
        try:
            found = pyproj.CRS.from_user_input(int(crs) if str(crs).isdecimal() else crs)
        except pyproj.exceptions.CRSError as error:
            raise InputError(
                f"the coordinate reference system {crs!r} is not known ({error}); give an EPSG code such as "
                f"32633, or WKT"
            ) from error
        mapping = found.to_cf()
        axes = {axis["axis"]: axis for axis in found.cs_to_cf() if "axis" in axis}
        return cls({**mapping, _GRID_MAPPING: mapping["crs_wkt"]}, axes)

    def attributes(self, model: Model, name: str) -> dict[str, Any]:
        """The attributes of a column's coordinates; none where its name says nothing."""
        if (step := _time_step(model, name)) is not None:
            units = f"seconds since {word_of_time(step.origin, step.ticks)}"
            return {
                "standard_name": "time",
                "units": units,
                "calendar": "proleptic_gregorian",
                "axis": "T",
            }
        if self.mapping:
            return self.axes.get(_AXES.get(name.lower(), ""), {})
        return _DEGREES.get(_OF_EARTH.get(name.lower(), ""), {})


def _time_step(model: Model, name: Any) -> SecondsStep | None:
    """The step that takes the times of this column as seconds; None for other columns."""
    steps = () if model.steps is None else model.steps.columns
    return next((step for step in steps if type(step) is SecondsStep and step.name == name), None)


def _seconds(step: SecondsStep, times: Any) -> np.ndarray:
    """Times as the model has them: seconds since the first of the fit, NaN for what is no time."""
    at = np.atleast_1d(np.asarray(times, dtype="datetime64[us]"))
    made = np.empty((at.size, len(step.names_out)))
    step.encode(RawColumn("time", at.ravel().astype(np.int64), ticks=MICROSECONDS), made, 0)
    return np.where(np.isnat(at), np.nan, made[:, 0].reshape(at.shape))


# The values of a block.


def grid_values(model: Model, axes: Sequence[np.ndarray]) -> np.ndarray:
    """f on the product grid of the columns' coordinates, (n_1, …, n_d, n_outputs); NaN outside."""
    # Equispaced features separate: m·(N + cells) products in place of a transform of scattered points. Other
    # maps have no values on a grid, and take the cells as rows.
    F = model.specification.build(model.arrays).values_on_grid(axes, model.coef)
    return _by_cells(model, axes, model.decision) if F is None else F + model.intercept


def grid_std(model: Model, axes: Sequence[np.ndarray], of: str) -> np.ndarray:
    """`Model.std` on the same grid, (n_1, …, n_d), or with several targets last."""
    S = model.check_has_std().std_on_grid(model.specification.build(model.arrays), axes)
    return _by_cells(model, axes, partial(model.std, of=of)) if S is None else model.finished_std(S, of)


def _by_cells(
    model: Model, axes: Sequence[np.ndarray], method: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    cells = model.specification.cells(axes)
    X = cells.reshape(-1, model.n_columns)
    complete = ~np.isnan(X).any(axis=1)
    found = method(X[complete])
    values = np.full((len(X), *found.shape[1:]), np.nan)
    values[complete] = found
    return values.reshape(*cells.shape[:-1], *found.shape[1:])


@dataclass(frozen=True)
class RasterReduction(Reduction):
    """Writes chunks; the sum is the number of cells outside the bounds of the model."""

    model: Model
    place: Location
    layers: tuple[str, ...]
    order: tuple[int, ...]  # the dimension of each column of the model
    return_std: bool | str

    def shared(self) -> FittedMap:
        return self.model.specification

    def size_bytes(self, n_rows: int) -> int:
        return 8

    def zero(self) -> int:
        return 0

    def update(self, n_outside: int, block: GridBlock, arrays: Arrays) -> int:
        model = self.model.restored(arrays)
        of_axes = iter(self.order)
        axes = [
            np.asarray(block.covariates[j], np.float64).transpose(self.order)
            if j in block.covariates
            else block.axes[next(of_axes)]
            for j in range(model.n_columns)
        ]
        F = grid_values(model, axes)
        # Outside the bounds every output is NaN.
        is_outside = np.isnan(F[..., 0])
        found = {"prediction": _predictions(model, F, is_outside)}
        if self.return_std:
            found["std"] = grid_std(model, axes, std_of(self.return_std))
        if "draws" in self.layers:
            parts: dict[str, Any] = having_prefix(_DRAWN, arrays)
            drawn = grid_values(replace(model, **parts), axes)
            drawn = drawn.reshape(*F.shape[:-1], -1, model.n_outputs)
            found["draws"] = drawn[..., 0] if model.y_is_1d else drawn.swapaxes(-1, -2)
        # The model has its own order of columns, the group that of the grid.
        back = np.argsort(self.order)
        for name in self.layers:
            values = found[name]
            values = values.transpose(*back, *range(len(back), values.ndim))
            region = tuple(slice(i, i + len(x)) for i, x in zip(block.corner, block.axes, strict=True))
            array = open_array(self.place.within(name), mode="r+")
            if name != "draws":
                array[region] = values
                continue
            for draw in range(values.shape[-1]):
                array[(draw, *region)] = values[..., draw]
        return n_outside + int(np.count_nonzero(is_outside))


def _predictions(model: Model, F: np.ndarray, is_outside: np.ndarray) -> np.ndarray:
    if not isinstance(model.targets, ClassTargets):
        F = model.of_link(F)
        return F[..., 0] if model.y_is_1d else F
    chosen = model.targets.chosen(F.reshape(-1, F.shape[-1])).reshape(F.shape[:-1])
    # argmax of a row of NaN would be class 0.
    return np.where(is_outside, _OUTSIDE, chosen).astype(np.int32)


# The Zarr group.


def _created(
    place: Location,
    model: Model,
    reference: Georeference,
    names: Sequence[str],
    axes: Mapping[Any, np.ndarray],
    chunks: tuple[int, ...],
    *,
    with_std: bool,
    n_draws: int,
) -> tuple[str, ...]:
    """Create the coordinates and the empty layers; return the names of the layers."""
    for name, x in zip(names, axes.values(), strict=True):
        array = zarr.create_array(
            place.within(name).zarr_store(),
            shape=x.shape,
            # xarray reads a coordinate whole, before anything else.
            chunks=x.shape,
            dtype=x.dtype,
            dimension_names=[name],
            fill_value=np.nan,
            attributes=reference.attributes(model, name),
        )
        array[:] = x
    if reference.mapping:
        store = place.within(_GRID_MAPPING).zarr_store()
        zarr.create_array(store, shape=(), dtype=np.int32, attributes=reference.mapping)
    shape = tuple(map(len, axes.values()))
    layers = ("prediction", *(["std"] if with_std else []), *(["draws"] if n_draws else []))
    several = not model.is_classifier and not model.y_is_1d
    of_all = {"grid_mapping": _GRID_MAPPING} if reference.mapping else {}
    attributes: dict[str, Any] = {}
    if isinstance(model.targets, ClassTargets):
        classes = model.targets.classes.tolist()
        attributes = {
            "flag_values": list(range(len(classes))),
            # CF separates meanings by blanks, so that labels can have none.
            "flag_meanings": " ".join(str(c).replace(" ", "_") for c in classes),
        }
    for layer in layers:
        more = (model.n_outputs,) if several else ()
        # A draw is a chunk, as one is looked at after another.
        first, its_chunk = ((n_draws,), (1,)) if layer == "draws" else ((), ())
        is_code = model.is_classifier and layer == "prediction"
        zarr.create_array(
            place.within(layer).zarr_store(),
            shape=first + shape + more,
            chunks=its_chunk + chunks + more,
            dtype=np.int32 if is_code else np.float64,
            fill_value=_OUTSIDE if is_code else np.nan,
            dimension_names=[*(["draw"] if first else []), *names, *(["target"] if several else [])],
            attributes={"long_name": _LONG_NAMES[layer], **of_all, **(attributes if is_code else {})},
        )
    return layers


_LONG_NAMES = {
    "prediction": "predicted value",
    "std": "standard deviation",
    "draws": "functions drawn from the posterior",
}


def _finish(place: Location, model: Model, reference: Georeference, names: Sequence[str]) -> None:
    """Write the root of the group, which makes it complete."""
    header = {
        "kind": "raster",
        "format": 1,
        "complete": True,
        "model": model.kind,
        "model_digest": model.digest,
    }
    # As text: files of netCDF, which xarray may write, hold no nested attributes.
    attributes = {
        ROOT: json.dumps(header),
        "Conventions": "CF-1.11",
        "title": f"predictions of a {model.kind} on a grid of {', '.join(names)}",
    }
    if reference.mapping:
        attributes["coordinates"] = _GRID_MAPPING  # or xarray would take it for a layer
    # Last: readers refuse a group whose root does not say that it is complete.
    zarr.create_group(place.zarr_store(), attributes=attributes, overwrite=False)
    with warnings.catch_warnings():
        # Consolidated metadata are no part of Zarr's format 3 yet, but xarray looks for them first.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(place.zarr_store())
