"""`distrff kernel-error`: the error of a map's kernel on stored rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import distrff as drf
from distrff.cli.build import checked_map, map_options, show_defaults
from distrff.cli.command import command, show, verbosity_options
from distrff.cli.data import chosen, cluster_options, open_data, row_options, workers_of
from distrff.cli.options import parameter
from distrff.errors import InputError

if TYPE_CHECKING:
    from distrff.diagnostics.kernel_error import KernelError
    from distrff.io.dataset import Dataset


@command("kernel-error")
@click.argument("data")
@row_options
@map_options
@parameter("kernel_error", "n_pairs")
@parameter("kernel_error", "n_blocks", help="Blocks of rows to sample.")
@parameter("kernel_error", "block_rows", help="Rows of a block.")
@parameter("kernel_error", "alpha")
@parameter("kernel_error", "confidence", help="Confidence of the intervals and the bounds.")
@cluster_options
@verbosity_options
@click.pass_context
def kernel_error(ctx: click.Context, data: str, as_json: bool, **options: Any) -> None:
    """Fit a map to DATA, and measure how far its kernel is from the exact one.

    The error is measured on sampled pairs and blocks of rows, and printed beside its theoretical bound,
    which is known for independent draws, CountSketch, bins and landmarks. A target is used only to find
    an automatic width.
    """
    features = checked_map(ctx)
    if options["features"] == "linear":
        raise InputError("--features linear approximates no kernel; there is no error to measure")
    dataset = open_data(data, options)
    show_defaults(ctx)
    with workers_of(options):
        found = _measured(features, dataset, options)
    show(found.to_dict(), as_json=as_json, lines=_lines(found))


def _measured(features: Any, dataset: Dataset, options: dict[str, Any]) -> KernelError:
    import numpy as np

    from distrff.estimators.gram import prepare_map
    from distrff.fitting.problem import features_dtype
    from distrff.utils.random import group_of, resolve_seed

    seed = resolve_seed(options["random_state"])
    scale = options["scale"] or "auto"
    preparation = prepare_map(features, dataset, scale=scale, random_state=seed)
    dtype = np.dtype(features_dtype(dataset, "auto"))
    scaled = dataset.X.map_blocks(
        preparation.scaling.apply, dtype, token=group_of("scale"), dtype=dtype, meta=np.empty((0, 0), dtype)
    )
    assert preparation.features is not None
    arguments = chosen(options, "n_pairs n_blocks block_rows alpha confidence")
    return drf.kernel_error(preparation.features, scaled, random_state=seed, **arguments)


def _lines(found: KernelError) -> list[str]:
    level = f"{100 * found.confidence:g} %"
    return [
        f"kernel error of {found.n_components} features on {found.n_samples:,} rows, at {level} confidence",
        f"  {found.kernel}",
        f"  RMS of {found.n_pairs:,} pairs      {found.rms_error:.4g}  {_range(found.rms_interval)}"
        + _theory("expected", found.rms_expected)
        + _theory("expected at most", found.rms_bound),
        f"  largest of the pairs   {found.max_error:.4g}" + _theory("bound", found.max_bound),
        f"    at most {found.max_exceeded_share:.2g} of all pairs have a larger error",
        f"  spectral norm, {found.n_blocks} block(s) of {found.block_rows} rows  {found.spectral_error:.4g}"
        f"  {_range(found.spectral_interval)}" + _theory("bound", found.spectral_bound),
        f"    the kernel's own norm there {found.kernel_norm:.4g}",
        f"  effective dimension of a block at alpha {found.alpha:g}  {found.effective_dimension:.4g}"
        f"  {_range(found.effective_dimension_interval)}",
        f"  seed {found.seed}",
    ]


def _range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"({interval[0]:.4g} to {interval[1]:.4g})"


def _theory(name: str, value: float | None) -> str:
    return "" if value is None else f"  {name} {value:.4g}"
