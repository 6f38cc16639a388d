"""The one layout in memory of arrays that enter products.

BLAS takes another path for a matrix that is stored by columns, or with gaps, than for one that is stored by
rows, and its sums then differ in the last bits. A file knows one layout only, and a pickle keeps some.
"""

from __future__ import annotations

import numpy as np


def in_one_layout(A: np.ndarray) -> np.ndarray:
    """Return A by rows without gaps, aligned and in native byte order; itself if it is so already.

    Sums over it then have the same bits wherever its numbers come from: a solver, a view, a file, another
    process. What only enters operations entry by entry may have any layout.
    """
    if A.flags.c_contiguous and A.flags.aligned and A.dtype.isnative:
        return A
    return np.array(A, A.dtype.newbyteorder("="), order="C")


def lay_out(made: object, *names: str) -> None:
    """Bring these fields of a frozen dataclass into the one layout; for its ``__post_init__``."""
    for name in names:
        object.__setattr__(made, name, in_one_layout(getattr(made, name)))
