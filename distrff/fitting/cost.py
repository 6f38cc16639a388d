"""The cost of a fit, counted before its first task, and what stays in memory between its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from distrff.engine.reduction import (
    LARGE_PARTIAL,
    Segmentation,
    gram_segmentation,
    light_segmentation,
    margin_tile_rows,
    n_levels,
    sampled_tile_rows,
    sparse_segmentation,
)
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from distrff.features.fitted import KEY_ROWS, MapCost
from distrff.io.storage import SPAN_BYTES
from distrff.utils.text import Bars, Section, html_card, human_bytes, human_seconds, number_text

# Dask pauses a worker at 0.8 of its memory limit; a fit planned beyond that would stall.
_USABLE_SHARE = 0.8
# A worker that has imported distrff, scikit-learn included.
IDLE_BYTES = 330 * 2**20
# Memory that allocators and readers hold beyond the arrays that are counted.
SLACK_BYTES = 80 * 2**20
# The reduction to a band runs at about half the rate of a product.
_REDUCTION_SLOWNESS = 2.0
# Time of a flop of a thin product relative to one of the Gram: thin products are bound by memory.
THIN_SLOWNESS = 2.5
_BIN_BYTES = 16 + 48  # its key and count, and its slots in the table of columns


@dataclass(frozen=True)
class Size:
    """The numbers that every choice and count follows from; a solver may add its own."""

    n_rows: int
    n_columns: int
    n_features: int
    n_outputs: int
    n_folds: int
    n_alphas: int  # 1 for a given alpha
    dtype: str
    row_bytes: int  # decoded bytes of a row in storage
    chunk_rows: int  # rows of a storage chunk
    map_cost: MapCost
    outputs_are_presumed: bool = False  # True until the classes are counted
    gram_stride: int = 1  # the Gram is summed over one row in this many
    n_light_sweeps: int = 0  # light passes presumed after the Gram
    n_light_columns: int = 0  # coefficient vectors evaluated in each light pass
    sparse_entries: int = 0  # entries in a row of Z; 0 where Z is dense
    n_map_passes: int = 0  # passes over all rows to fit the map
    n_eigensystems: int = 0  # eigensystems of the Gram beyond those of the alpha path
    column_share: float = 1.0  # share of columns in which a row has entries; below 1 for sparse rows
    n_other_sums: int = 0  # accumulators of a sweep for all folds, beside one a fold
    memberships: float = 1.0  # of all of them that a row enters
    held_out: str = ""  # how folds hold rows out, in words
    n_factors: int = 0  # at most; one per distinct penalty, to precondition conjugate gradients
    held_bytes: int = 0  # held by a reading task beside decoded rows
    whole_rows: int = 0  # rows of the largest storage unit that is decoded whole; 0 for none
    block_rows: int | None = None  # rows of a block that comes with a task; None where tasks read rows
    persisted_bytes: int = 0  # of rows that stay in the memory of the workers
    search_flops: float = 0.0  # of the search for the map, or for its widths
    search_bytes: int = 0  # held by each thread in that search; 0 where the client searches
    saving_buffer: int | None = None  # bytes of a checkpoint's file, beside its sum; None without one
    n_places: int = 0  # columns of a lattice of frequencies; 0 for all
    n_covariates: int = 0  # beside it
    n_weightings: int = 0  # of the parts of a map, at most, that are tried with all alphas
    climbs: bool = False  # whether the likelihood of the rows chooses the kernel
    wide: bool = False  # Grams without the products of two targets

    @property
    def column_entries(self) -> float:
        """Numbers in a row of X, those of sparse rows with an index each."""
        return self.n_columns * self.column_share

    @property
    def n_sums(self) -> int:
        """Accumulators of a sweep for all folds."""
        return self.n_folds + self.n_other_sums

    @property
    def gram_size(self) -> int:
        """Columns p of the rows [z | 1 | y]."""
        return self.n_features + 1 + self.n_outputs

    @property
    def row_entries(self) -> int:
        """Numbers in a row of Z."""
        return self.sparse_entries or self.n_features

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def segmentation(self) -> Segmentation:
        """The cuts of the Gram sweep."""
        cuts = gram_segmentation(self.n_rows, self.n_features, self.n_outputs, np.dtype(self.dtype))
        return replace(cuts, tile_rows=sampled_tile_rows(cuts.tile_rows, self.gram_stride))

    def reading_bytes(self, segment_rows: int) -> int:
        """The most that a task holds of stored rows: two spans, and what decoding takes."""
        # The longest segments are often those of the first pass.
        n_columns = self.n_columns + (self.n_outputs if self.wide else 0)
        longest = max(segment_rows, light_segmentation(self.n_rows, n_columns).segment_rows)
        longest = min(longest, self.n_rows)
        if self.block_rows == 0:  # arrays, of which two segments are there beside `sent_bytes`
            return 2 * self.row_bytes * longest
        if self.block_rows is not None:
            # Rows come with tasks in the blocks that they touch, and those of three are in memory: of the
            # task that runs, of one that is ready, and of one whose result is fetched.
            return 3 * self.row_bytes * (longest + self.block_rows)
        return self.row_bytes * (2 * self.chunk_rows + min(self.whole_rows, longest)) + self.held_bytes

    def sent_bytes(self, n_workers: int) -> int:
        """The bytes of a worker's share of rows in arrays, or of rows that stay on the workers."""
        # Dask keeps what came with a task until nothing that was made from its result is wanted: in a pass,
        # its sum.
        if self.block_rows == 0:
            return self.row_bytes * -(-self.n_rows // n_workers)
        return -(-self.persisted_bytes // n_workers)

    def n_partials(self, n_segments: int, threads: int) -> int:
        """How many partials there are beside those of the segments that are summed."""
        # One of each thread, into which it packs float64 sums or which it made last, a merge's result, the
        # partial that arrives for it, and at worst all that wait for their neighbours.
        return threads + 2 + n_levels(n_segments)

    def busy_bytes(self, threads: int, summing: float, partial: float) -> float:
        """Peak bytes of busy threads; each sums rows or moves one checkpoint file."""
        if self.saving_buffer is None:
            return threads * summing
        # A small file that goes to an object store, or comes from it, is there twice more. A partial that was
        # read is there for a moment beside the one whose place it takes.
        saving = partial + min(2 * partial, self.saving_buffer)
        return threads * max(summing, saving) + partial

    def in_small_chunks(self) -> Size:
        """The same rows as if they were stored in small chunks."""
        chunk_rows = min(self.chunk_rows, max(1, SPAN_BYTES // self.row_bytes))
        block_rows = None if self.block_rows is None else min(self.block_rows, chunk_rows)
        return replace(self, chunk_rows=chunk_rows, block_rows=block_rows, held_bytes=0, whole_rows=0)

    @property
    def gram_flops(self) -> float:
        """Flops of the Gram sweep: its map and its products."""
        rows = self.memberships * self.n_rows / self.gram_stride
        # p² and not 2·p² flops a row: a symmetric product makes one triangle.
        p = self.gram_size
        return rows * (self.map_flops + (2 * (self.n_features + 1) * p if self.wide else p**2))

    @property
    def map_flops(self) -> float:
        """Flops of a row's features, cosines not counted."""
        return self.map_cost.flops(self.row_entries, self.column_share)

    @property
    def basis_flops(self) -> float:
        """Flops of a row in a light sweep, which solves against the factors once a vector, not once a row."""
        return self.map_flops - self.triangle_numbers

    @property
    def triangle_numbers(self) -> float:
        """Numbers in the map's triangular factors: flops of a row's solve."""
        return self.map_cost.triangle_numbers(self.n_features)

    @property
    def map_factor_flops(self) -> float:
        """Flops of the map's triangular factors: once with pivots, and again in each process."""
        # A triangle of m columns counts m² numbers here and takes m³/3 flops.
        return 2 / 3 * self.triangle_numbers**1.5

    @property
    def map_bytes(self) -> float:
        """Bytes of the map's arrays in a process: in float64 and in the dtype of the products."""
        if self.sparse_entries:
            return float(_BIN_BYTES * self.n_features)
        return (8 + self.itemsize) * self.map_cost.numbers(self.n_features) + 8 * self.triangle_numbers

    @property
    def light_flops(self) -> float:
        """Flops of one light sweep: its map and its thin products."""
        # 2·D·k for the values; 4·D·k for sums of slopes, which margin losses keep apart by their sign.
        return self.n_rows * (self.basis_flops + 6.0 * self.n_features * self.n_light_columns)


# Reports have these of every plan, whoever counts them.
_OF_MARGINS = {"n_problems": 0, "model_rows": 0, "n_hessians": 0, "dual_rows": 0}


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan:
    """Work, passes and memory of a fit.

    Parameters
    ----------
    solver : {"gram", "cg", "sgd", "toeplitz"}
        How it is counted: with a Gram of all rows or of a sample, by light passes alone, by epochs, or from
        the sums of equispaced features.
    size : Size
    folds_per_task : int
        Folds, or their sums, of a pass: fewer than all where these would not fit; then rows are read more
        often.
    n_sweeps : int
        Passes over the rows. How many light ones there are shows only in the fit; ten are presumed.
    n_segments, segment_rows, tile_rows : int
        Of the largest pass.
    flops : float
        Of all passes' products and maps, and of the factorisations.
    cosines : float
    bytes_read : float
        Decoded bytes of all passes.
    worker_peak_bytes : int
        Largest resident set of a worker above its idle one.
    client_peak_bytes : int
        The same of the client; data that it already holds is not counted.
    n_workers, threads_per_worker, memory_limit : int
        Of the cluster that was planned for; limit 0 is none.
    seconds : float or None
        Predicted from rates measured on the live workers; None where nothing was measured.
    stride : int
        Conjugate gradients: the preconditioner is the factor of the Gram of one row in `stride`; 0 for a
        diagonal preconditioner.
    n_factors : int
        0 for a diagonal preconditioner.
    n_search_sweeps : int
        Passes presumed for the choice of alpha, in each of which `folds_per_task` folds are solved together.
    kept_features, kept_rows : int
        Rows whose features stay in the workers' memory between light passes, and further rows that stay as
        they were read.
    kept_bytes : int
        What that takes of a worker; it is part of its peak.
    """

    solver: str
    size: Size
    folds_per_task: int
    n_sweeps: int
    n_segments: int
    segment_rows: int
    tile_rows: int
    flops: float
    cosines: float
    bytes_read: float
    worker_peak_bytes: int
    client_peak_bytes: int
    n_workers: int
    threads_per_worker: int
    memory_limit: int
    seconds: float | None = None
    stride: int = 0
    n_factors: int = 0
    n_search_sweeps: int = 0
    kept_features: int = 0
    kept_rows: int = 0
    kept_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The plan as strict JSON data."""
        own = asdict(self)
        values = _OF_MARGINS | own.pop("size") | own
        # A report's "n_folds" are the sums, as far as these are those of folds, and "n_paths" tells others.
        del values["memberships"], values["wide"]
        n_paths = self.size.n_folds if values.pop("n_other_sums") else 0
        values |= {"n_folds": self.size.n_sums, "n_paths": n_paths}
        solver = values.pop("solver")
        for name in () if solver == "cg" else ("stride", "n_factors", "n_search_sweeps"):
            del values[name]
        return {name.replace("stride", "one_in"): value for name, value in values.items()}

    @property
    def fits(self) -> bool:
        """Whether it fits in the workers' memory."""
        limit = _USABLE_SHARE * self.memory_limit
        return not self.memory_limit or self.worker_peak_bytes + IDLE_BYTES <= limit

    @property
    def has_gram(self) -> bool:
        """Whether a matrix of D × D is made, of all rows or of a sample."""
        return self.solver == "gram" or self.stride > 0

    @property
    def is_direct(self) -> bool:
        """Whether the number of passes is certain: no light ones follow the sums."""
        return self.solver in ("gram", "toeplitz") and not self.size.n_light_sweeps

    @property
    def preconditioner(self) -> str:
        """The preconditioner of conjugate gradients in words."""
        if not self.stride:
            return "diagonal"
        return "factor of the Gram of " + ("all rows" if self.stride == 1 else f"one row in {self.stride}")

    def with_seconds(self, seconds: float | None) -> Plan:
        """The plan with its predicted time."""
        return replace(self, seconds=seconds)

    def remarks(self) -> list[str]:
        """Sentences on the solver, and on what stays in memory."""
        return self._on_solver() + self._on_memory()

    def _on_memory(self) -> list[str]:
        rows = [(self.kept_features, "features of {} rows"), (self.kept_rows, "{} rows without features")]
        kept = [words.format(number_text(n)) for n, words in rows if n]
        if not kept:
            return []
        return [f"kept between light sweeps: {' and '.join(kept)}, {human_bytes(self.kept_bytes)} a worker"]

    def _on_solver(self) -> list[str]:
        if self.solver == "sgd":
            return [f"SGD; {PRESUMED_EPOCHS} epochs and their evaluations presumed"]
        if self.solver == "gram":
            n = self.size.n_weightings
            return [f"weights of maps: up to {n} settings, each for all folds and alphas"] if n else []
        if self.solver == "toeplitz":
            from distrff.features.equispaced import resolved_share  # with its FFTs, for a line that few read

            share = resolved_share(self.size.n_features, self.size.n_places or self.size.n_columns)
            resolved = (
                f"resolve a Matérn kernel of ν = 3/2 from widths of {share:.2g} of the columns' range on"
                if share < 1
                else "are too few for widths within the columns' range"
            )
            return [
                "sums of equispaced features by non-uniform FFTs, then conjugate gradients without the rows",
                f"{self.size.n_features} features, which is the most that the fit may take, {resolved}",
            ]
        method = "no Gram" if self.size.sparse_entries else "conjugate gradients"
        search = f" after {self.n_search_sweeps} that choose alpha" if self.n_search_sweeps else ""
        sweeps = f"{PRESUMED_SWEEPS} light sweeps presumed{search}"
        return [f"{method}, preconditioner: {self.preconditioner}; {sweeps}"]

    @property
    def folds_in_words(self) -> str:
        one_held_out = self.size.n_folds == 1 and self.size.n_sums > 1
        of_what = "a fold held out of the others" if one_held_out else f"{self.size.n_folds} fold(s)"
        of_what += f" of {self.size.held_out}" if self.size.held_out and not one_held_out else ""
        sums = f", {self.size.n_sums} sums of rows for them" if self.size.n_other_sums else ""
        return f"{of_what}{sums}, {self.folds_per_task} a task"

    def __repr__(self) -> str:
        s = self.size
        presumed = " presumed until the classes are counted" if s.outputs_are_presumed else ""
        lines = [
            f"{s.n_rows:,} rows × {s.n_columns} columns → {s.n_features} features, "
            f"{s.n_outputs} output(s){presumed}, {s.dtype}",
            f"{self.n_sweeps} sweeps, {self.n_segments} segment(s) of {self.segment_rows:,} rows "
            f"(tiles of {self.tile_rows:,}), {self.folds_in_words}",
            f"{self.flops:.3g} flops, {self.cosines:.3g} cosines, {human_bytes(self.bytes_read)} read",
            f"peak memory {human_bytes(self.worker_peak_bytes)} a worker above idle, "
            f"{human_bytes(self.client_peak_bytes)} for the client",
            f"{self.n_workers} worker(s) × {self.threads_per_worker} thread(s), memory limit "
            + (human_bytes(self.memory_limit) if self.memory_limit else "none"),
        ]
        if self.seconds is not None:
            lines.append(f"about {self.seconds:.0f} s, from rates measured on these workers")
        return "\n".join([*lines, *self.remarks()])

    def _repr_html_(self) -> str:
        s = self.size
        shown = {
            "rows": number_text(s.n_rows),
            "columns": number_text(s.n_columns),
            "features": number_text(s.n_features),
            "outputs": number_text(s.n_outputs) + (", presumed" if s.outputs_are_presumed else ""),
            "products in": s.dtype,
            "passes over the rows": number_text(self.n_sweeps),
            "folds": self.folds_in_words,
            "segments": f"{self.n_segments} of {self.segment_rows:,} rows",
            "flops": number_text(self.flops),
            "cosines": number_text(self.cosines),
            "read": human_bytes(self.bytes_read),
            "workers": f"{self.n_workers} of {self.threads_per_worker} thread(s)",
        }
        if self.seconds is not None:
            shown["predicted, from rates measured on these workers"] = human_seconds(self.seconds)
        memory = {
            "a worker at its peak, above idle": self.worker_peak_bytes,
            "a worker's memory limit": self.memory_limit,
            "the client at its peak, above idle": self.client_peak_bytes,
        }
        bars = [(name, size, human_bytes(size)) for name, size in memory.items() if size]
        limit = [] if self.memory_limit else ["The workers have no memory limit."]
        sections = [Section("Memory", [Bars(bars), *limit])]
        if self.remarks():
            sections.append(Section("Solver", self.remarks()))
        return html_card("Plan of a fit", shown.items(), sections=sections)


def planned(
    solver: str,
    size: Size,
    workers: Workers,
    cuts: Segmentation,
    *,
    n_passes: int,
    n_turns: int = 1,
    **counted: Any,
) -> Plan:
    """A plan with `n_passes` after the first pass and those of the map, the largest in `n_turns`."""
    n_sweeps = 1 + size.n_map_passes + n_passes
    searching = workers.threads_per_worker * size.search_bytes + SLACK_BYTES if size.search_bytes else 0
    counted["flops"] += size.search_flops
    sent = size.sent_bytes(workers.n_workers)
    counted["worker_peak_bytes"] = max(counted["worker_peak_bytes"] + sent, searching)
    return Plan(
        solver=solver,
        size=size,
        n_sweeps=n_sweeps,
        n_segments=cuts.n_segments * n_turns,
        segment_rows=cuts.segment_rows,
        tile_rows=cuts.tile_rows,
        bytes_read=float(size.n_rows) * size.row_bytes * n_sweeps,
        n_workers=workers.n_workers,
        threads_per_worker=workers.threads_per_worker,
        memory_limit=workers.memory_limit,
        **counted,
    )


def first_that_fits(plans: Iterable[Plan]) -> Plan:
    """The first of a solver's plans that fits in memory; if none does the last, which takes the least."""
    for plan in plans:
        if plan.fits:
            break
    return plan


def min_memory_limit(plan: Plan) -> float:
    """About the smallest memory limit, in bytes, under which the plan fits, with nothing kept."""
    # It is printed with three digits, and has to be enough when it is given back as printed.
    return 1.01 * (plan.worker_peak_bytes - plan.kept_bytes + IDLE_BYTES) / _USABLE_SHARE


def refusal(plan: Plan, cost: Callable[[Size, Workers], Iterator[Plan]]) -> str:
    """Why a plan is refused, and the smallest changes that fit; `cost` is that of its solver."""
    needed, sparse = plan.worker_peak_bytes + IDLE_BYTES, plan.size.sparse_entries
    too_many = f"too many bins, {plan.size.n_features:,} at least: " if sparse else ""
    changes = [f"a memory limit of {human_bytes(min_memory_limit(plan))}", *_remedies(plan, cost)]
    return (
        f"{too_many}the plan needs {human_bytes(needed)} a worker "
        f"({human_bytes(plan.worker_peak_bytes)} above an idle worker), "
        f"but {_USABLE_SHARE:.0%} of its memory limit of {human_bytes(plan.memory_limit)} is "
        f"{human_bytes(_USABLE_SHARE * plan.memory_limit)}; smallest changes that fit: "
        + "; or ".join(changes)
    )


def _remedies(plan: Plan, cost: Callable[[Size, Workers], Iterator[Plan]]) -> list[str]:
    """The smallest changes to the fit, or to the threads, each of which alone makes it fit."""
    size, remedies = plan.size, []

    def does_fit(changed: Size, threads: int = plan.threads_per_worker) -> bool:
        workers = Workers(plan.n_workers, threads, plan.memory_limit)
        return first_that_fits(cost(changed, workers)).fits

    if does_fit(size.in_small_chunks()):
        n_bytes = human_bytes(size.reading_bytes(plan.segment_rows))
        remedies.append(
            f"smaller chunks or row groups (to read one takes {n_bytes}; `distrff convert` writes them)"
        )
    # Even ones, since Fourier features come in pairs of cosine and sine.
    if D := largest(range(2, size.n_features, 2), lambda D: does_fit(replace(size, n_features=D))):
        remedies.append(f"{'n_bins' if size.sparse_entries else 'n_components'}={D}")
    if plan.solver == "gram" and (
        n_folds := largest(
            range(2, size.n_folds),
            lambda n: does_fit(replace(size, n_folds=n)),
        )
    ):
        remedies.append(f"cv={n_folds}")
    if threads := largest(range(1, plan.threads_per_worker), lambda threads: does_fit(size, threads)):
        remedies.append(f"{threads} thread(s) a worker")
    if size.saving_buffer is not None and does_fit(replace(size, saving_buffer=None)):
        remedies.append("no checkpoint")
    return remedies


def largest(candidates: range, fits: Callable[[int], bool]) -> int:
    """The largest candidate that fits, by bisection; 0 if none does."""
    # All candidates below one that fits do too: memory grows with each of these numbers.
    low, top = 0, len(candidates)
    while low < top:
        middle = (low + top) // 2
        low, top = (middle + 1, top) if fits(candidates[middle]) else (low, middle)
    return candidates[low - 1] if low else 0


# With a Gram: of all rows, per fold, or of a sample.


def ready_bytes(threads: int, partial: float) -> float:
    """The bytes of small partials, one a thread, that wait while a ready segment is summed."""
    return threads * partial if partial <= LARGE_PARTIAL else 0.0


MAX_PATH_BYTES = 2**25
"""Of the models of all folds and alphas, which a search keeps in the client."""


def client_peak_bytes(size: Size) -> int:
    """The largest resident set of the client above idle, in bytes."""
    D = size.n_features
    of_map = 2 * D if size.sparse_entries else size.map_cost.numbers(D)  # keys and counts, or arrays
    from_features = 8 * (of_map + 4 * D * size.n_outputs)
    light = light_segmentation(size.n_rows, size.n_columns)
    factors = 2 * 8 * size.triangle_numbers  # K_LL while it is factored, beside the factor
    paths = MAX_PATH_BYTES if size.n_sums > 1 and size.n_alphas > 1 else 0  # of the models of folds, at most
    if size.wide:  # two copies of the models of folds, in coded and in own units
        paths = 2 * 8 * size.n_folds * D * size.n_outputs
    return int(SLACK_BYTES + 4 * from_features + factors + paths + 2**25 * min(4, light.n_segments))


# Of light passes, which multiply features by a few vectors.

PRESUMED_SWEEPS = 10
PRESUMED_EPOCHS = 5
MAX_DIRECTIONS = 64  # that one light sweep of a search multiplies
MAX_BLOCK_VALUES = 15 * 2**10  # of margin losses at a time: 120 KiB; from 128 arrays are fresh memory


def light_cuts(size: Size) -> Segmentation:
    """The cuts of a light sweep: a tile of features in float64 stays in a cache."""
    if size.sparse_entries:
        return sparse_segmentation(size.n_rows, size.sparse_entries)
    exact = np.dtype(np.float64)
    tile_rows = margin_tile_rows(size.n_features, exact, size.map_cost.min_tile_rows)
    return replace(size.segmentation(), tile_rows=tile_rows)


def light_peak_bytes(
    size: Size,
    k: int,
    threads: int,
    cuts: Segmentation | None = None,
    n_block_tiles: int = 1,
    kept_bytes: float = 0.0,
) -> int:
    """The largest resident set above idle in a light sweep of k vectors: O(D·k) a thread, and a tile.

    `kept_bytes` are those of the rows that a sum holds.
    """
    s, cuts = size, light_cuts(size) if cuts is None else cuts
    # Features in their dtype, in float64 and squared, or the bins of sparse ones and the keys of some rows.
    features = (
        4 * cuts.tile_rows * s.sparse_entries + 3 * 8 * KEY_ROWS * s.sparse_entries
        if s.sparse_entries
        else cuts.tile_rows * s.n_features * (s.itemsize + 16)
    )
    # Values and rows of a block of tiles, the rows of a storage chunk, and a thread's sums and a tile's.
    block_rows = min(n_block_tiles * cuts.tile_rows, cuts.segment_rows)
    tile = features + max(cuts.tile_rows * k, min(block_rows * k, MAX_BLOCK_VALUES)) * 8 * 6
    tile_bytes = s.row_bytes + 16 * s.column_entries
    rows = s.reading_bytes(cuts.segment_rows) + tile_bytes * block_rows
    sums = 8 * s.n_features * (2 + 2 * k) + kept_bytes
    n_partials = s.n_partials(cuts.n_segments, threads)
    # The map and the points, as they arrived and in the dtype of the tiles.
    arrays = s.map_bytes + 16 * s.n_features * k
    busy = s.busy_bytes(threads, tile + rows + 2 * sums, sums)
    return int(busy + n_partials * sums + ready_bytes(threads, sums) + arrays + SLACK_BYTES)


# What stays in memory between light passes.

# Where Dask begins to write values to disk (distributed.worker.memory.target).
_KEPT_SHARE = 0.6
# Of the machine's memory, where tasks run in the client: the rest is not the fit's alone.
_SHARE_OF_MACHINE = 0.25
# What a core takes, about, to tell whether features take longer to make than to read: a flop of a product, a
# cosine, a kernel value with a landmark (always float64), and a byte of features that are in no cache.
_FLOP = {"float32": 1e-11, "float64": 2e-11}
_COSINE = {"float32": 0.35e-9, "float64": 0.8e-9}
_KERNEL_VALUE = 3e-9
_BYTE = 1e-10


LightPasses = tuple[list[Segmentation], int]
"""The cuts of each kind of light pass, and how many passes there are in all."""


def with_kept(
    plan: Plan, requested: str | bool, workers: Workers, cuts: list[Segmentation], n_passes: int
) -> Plan:
    """The plan with what stays on the workers between its light passes, of which there are `n_passes`.

    `cuts` are those of each kind of pass. `requested` is "auto", which keeps features that there is room for
    if they take longer to make than to read, but nothing in a nested fit; True for all features, or False for
    nothing.

    Raises PlanRefused if all were wished for and there is no room for them.
    """
    size = plan.size
    if requested is False or not cuts:
        return plan
    if not workers.hold_values:
        if requested is True:
            raise PlanRefused(
                "keep_features=True needs workers that hold what they made, and dask's processes send it to "
                "and fro with each task; use a cluster or threads, or keep_features='auto'"
            )
        return plan
    share_of_memory = _SHARE_OF_MACHINE if workers.in_client else _KEPT_SHARE
    # Of sparse rows each thread joins the pieces to a segment that is kept.
    longest = max(one.segment_rows for one in cuts)
    joining = float(plan.threads_per_worker * longest * size.row_bytes) if size.column_share < 1 else 0.0
    # What the fit itself takes comes first: features are kept in what it leaves.
    room = _room(plan, share_of_memory) - joining
    of_features, of_rows = _feature_bytes(size) + size.row_bytes, size.row_bytes
    if requested is True:
        room = max(room, 0.0) if plan.memory_limit else float("inf")
    # Without a limit nothing says how much may be filled; fits beside this one would each take as much.
    elif not plan.memory_limit or workers.is_nested:
        return plan
    # Passes of other cuts have other tiles, and so a cache of their own.
    share, n_workers = room / len(cuts), workers.n_workers
    n_features = min(_rows_within(share, one, of_features, n_workers) for one in cuts)
    if requested is True and n_features < size.n_rows:
        needed = sum(of_features * _rows_a_worker(size.n_rows, one, n_workers) for one in cuts)
        raise PlanRefused(_refusal(plan, needed, share_of_memory))
    if requested == "auto" and not _pays(size):
        n_features = 0
    taken = [of_features * _rows_a_worker(n_features, one, n_workers) for one in cuts]
    n_rows = min(
        _rows_within(share - bytes_, one, of_rows, n_workers) for one, bytes_ in zip(cuts, taken, strict=True)
    )
    # Rows whose features are kept have their numbers kept with them.
    n_rows = min(n_rows, size.n_rows - n_features)
    kept_bytes = sum(taken) + sum(of_rows * _rows_a_worker(n_rows, one, n_workers) for one in cuts)
    # The first pass of each kind still reads and makes what it keeps.
    again = n_passes - len(cuts)
    return replace(
        plan,
        kept_features=n_features,
        kept_rows=n_rows,
        kept_bytes=int(kept_bytes),
        worker_peak_bytes=plan.worker_peak_bytes + int(kept_bytes + (joining if kept_bytes else 0.0)),
        flops=plan.flops - again * n_features * size.basis_flops,
        cosines=plan.cosines - again * float(n_features) * size.row_entries,
        bytes_read=plan.bytes_read - again * float(n_features + n_rows) * size.row_bytes,
    )


def _room(plan: Plan, share: float) -> float:
    """The bytes of a worker that the fit leaves of the share of its memory that may be filled."""
    return share * plan.memory_limit - plan.worker_peak_bytes - IDLE_BYTES


def _feature_bytes(size: Size) -> float:
    """The bytes of a row's features as light passes take them, those of a basis in float64."""
    if size.sparse_entries:
        return 4.0 * size.sparse_entries
    return float(size.n_features) * (8 if size.triangle_numbers else size.itemsize)


def _rows_within(room: float, cuts: Segmentation, row_bytes: float, n_workers: int) -> int:
    """How many rows all workers keep, in whole segments."""
    a_worker = min(room / (cuts.segment_rows * row_bytes), -(-cuts.n_segments // n_workers))
    return min(max(0, int(a_worker)) * n_workers * cuts.segment_rows, cuts.n_rows)


def segments_a_worker(n_rows: int, cuts: Segmentation, n_workers: int) -> int:
    """The most segments that a worker keeps where all workers together keep so many rows."""
    return -(-n_rows // (cuts.segment_rows * n_workers))


def _rows_a_worker(n_rows: int, cuts: Segmentation, n_workers: int) -> int:
    """Their rows, of whole segments: the workers with most of them decide the peak."""
    return min(n_rows, segments_a_worker(n_rows, cuts, n_workers) * cuts.segment_rows)


def _pays(size: Size) -> bool:
    """Whether a row's features take longer to make than to read."""
    entry = _KERNEL_VALUE if size.triangle_numbers or size.sparse_entries else _COSINE[size.dtype]
    making = size.basis_flops * _FLOP[size.dtype] + size.row_entries * entry
    return making > _feature_bytes(size) * _BYTE


def _refusal(plan: Plan, needed: float, share: float) -> str:
    whole = needed + plan.worker_peak_bytes + IDLE_BYTES
    return (
        f"keep_features=True needs {human_bytes(needed)} a worker, in whole segments, beside the "
        f"{human_bytes(plan.worker_peak_bytes)} of the fit and the {human_bytes(IDLE_BYTES)} of an idle "
        f"worker, but {share:.0%} of its memory limit of {human_bytes(plan.memory_limit)} are "
        f"{human_bytes(share * plan.memory_limit)}; use keep_features='auto', which keeps what there is room "
        f"for, or a memory limit of {human_bytes(1.01 * whole / share)}"
    )
