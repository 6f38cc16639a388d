"""From stored specifications back to maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distrff.errors import ModelFileError
from distrff.features.binning import BinningSpecification, HashedBinningSpecification
from distrff.features.compose import ConcatenatedSpecification, LinearSpecification
from distrff.features.fourier import FourierSpecification
from distrff.features.nystroem import NystroemSpecification
from distrff.features.specification import MapSpecification
from distrff.features.transformer import TransformerSpecification

_Stored = (
    type[FourierSpecification]
    | type[LinearSpecification]
    | type[NystroemSpecification]
    | type[TransformerSpecification]
    | type[BinningSpecification]
    | type[HashedBinningSpecification]
)

_KINDS: dict[str, _Stored] = {
    cls.kind: cls
    for cls in (
        FourierSpecification,
        LinearSpecification,
        NystroemSpecification,
        TransformerSpecification,
        BinningSpecification,
        HashedBinningSpecification,
    )
}


def specification_from_dict(data: Mapping[str, Any]) -> MapSpecification:
    """Return the specification whose `to_dict` gave `data`.

    Raises
    ------
    ModelFileError
        If its kind is not known here, or a field is missing.
    """
    kind = data.get("kind")
    known = [*_KINDS, ConcatenatedSpecification.kind]
    if kind not in known:
        raise ModelFileError(
            f"feature map of kind {kind!r} is not known (known: {', '.join(known)}); update distrff"
        )
    try:
        if kind == ConcatenatedSpecification.kind:
            parts = tuple(map(specification_from_dict, data["parts"]))
            return ConcatenatedSpecification(
                n_columns=data["n_columns"],
                digest=data["digest"],
                parts=parts,
                weights=tuple(data["weights"]),
            )
        return _KINDS[kind].from_dict(data)
    except KeyError as error:
        raise ModelFileError(f"the stored {kind} map lacks {error}") from error
