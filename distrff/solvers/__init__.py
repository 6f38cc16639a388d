"""Solvers, one algorithm a file: they see sums, points and tiles of features, never stored rows."""
