"""What applying a map costs, as a polynomial in the number of its features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MapCost:
    """Flops of a row and numbers kept, of a map of D features; cosines are counted apart.

    Parameters
    ----------
    row_flops, product_flops, feature_flops : float
        A row takes row_flops + (product_flops + feature_flops)·D + triangle_share·D² flops. Of a sparse map D
        is the number of entries of a row. Those of rows and products are in proportion to the entries of a
        row of X, and given for a dense one.
    fixed_numbers, feature_numbers : float
        Of its arrays, without triangular factors: fixed_numbers + feature_numbers·D, at most.
    triangle_share : float
        Share of D² that the numbers in its triangular factors are, half of which are zero: each row is solved
        against them.
    """

    row_flops: float = 0.0
    product_flops: float = 0.0
    feature_flops: float = 0.0
    fixed_numbers: float = 0.0
    feature_numbers: float = 0.0
    triangle_share: float = 0.0

    @property
    def least_tile_rows(self) -> int:
        """Rows of a tile below which reading the map's arrays takes as long as computing with them.

        Kernel values of 128 rows with 8192 landmarks in 784 columns take half as long again a row as of 512.
        """
        return 512 if self.triangle_share else 128

    def flops(self, n_features: int, column_share: float = 1.0) -> float:
        """Return the flops of a row that has entries in a share of the columns."""
        of_entries = column_share * (self.row_flops + self.product_flops * n_features)
        return of_entries + self.feature_flops * n_features + self.triangle_numbers(n_features)

    def numbers(self, n_features: int) -> float:
        """Return the numbers in its arrays, without triangular factors."""
        return self.fixed_numbers + self.feature_numbers * n_features

    def triangle_numbers(self, n_features: int) -> float:
        """Return the numbers in its triangular factors."""
        return self.triangle_share * float(n_features) ** 2


def product_cost(n_columns: int, *, triangle_share: float = 0.0) -> MapCost:
    """Return the cost of a product with a column of the rows' length for each feature."""
    return MapCost(
        product_flops=2.0 * n_columns, feature_numbers=float(n_columns), triangle_share=triangle_share
    )


def cost_of_parts(parts: Iterable[tuple[MapCost, int]]) -> MapCost:
    """Return the cost of maps of D_i features side by side; their shares of D are taken as they are."""
    costs = list(parts)
    n_features = sum(n for _, n in costs)
    return MapCost(
        row_flops=sum(cost.row_flops for cost, _ in costs),
        product_flops=sum(cost.product_flops * n for cost, n in costs) / n_features,
        feature_flops=sum(cost.feature_flops * n for cost, n in costs) / n_features,
        fixed_numbers=sum(cost.fixed_numbers for cost, _ in costs),
        feature_numbers=sum(cost.feature_numbers * n for cost, n in costs) / n_features,
        triangle_share=sum(cost.triangle_numbers(n) for cost, n in costs) / float(n_features) ** 2,
    )
