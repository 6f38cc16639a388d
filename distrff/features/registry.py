"""From stored specifications back to maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distrff.errors import ModelFileError
from distrff.features.base import KernelMapSpecification
from distrff.features.binning import BinningSpecification, HashedBinningSpecification
from distrff.features.compose import ConcatenatedSpecification, LinearSpecification
from distrff.features.equispaced import EquispacedSpecification
from distrff.features.fourier import FourierSpecification
from distrff.features.nystroem import NystroemSpecification
from distrff.features.projected import ProjectedSpecification
from distrff.features.specification import MapSpecification
from distrff.features.transformer import TransformerSpecification

_KINDS: dict[str, type[MapSpecification]] = {
    cls.kind: cls
    for cls in (
        FourierSpecification,
        EquispacedSpecification,
        LinearSpecification,
        NystroemSpecification,
        TransformerSpecification,
        BinningSpecification,
        HashedBinningSpecification,
        ConcatenatedSpecification,
        ProjectedSpecification,
    )
}


def specification_from_dict(data: Mapping[str, Any]) -> MapSpecification:
    """Return the specification of what `to_dict` returned.

    Raises ModelFileError if its kind is unknown, or a field is missing.
    """
    kind = data.get("kind")
    if kind not in _KINDS:
        raise ModelFileError(
            f"feature map of kind {kind!r} is not known to this version; update distrff "
            f"(known: {', '.join(_KINDS)})"
        )
    try:
        if kind == ConcatenatedSpecification.kind:
            parts = tuple(map(specification_from_dict, data["parts"]))
            data = {**data, "parts": parts, "weights": tuple(data["weights"])}
        if kind == ProjectedSpecification.kind:
            inner = specification_from_dict(data["inner"])
            if not isinstance(inner, KernelMapSpecification):
                raise ModelFileError(f"a stored projected map holds a {inner.kind} map, which has no kernel")
            data = {**data, "inner": inner}
        return _KINDS[kind].from_dict(data)
    except KeyError as error:
        raise ModelFileError(f"the stored {kind} map lacks {error}") from error
