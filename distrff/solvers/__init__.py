"""Solvers, one algorithm a file: they see sums and points, never rows."""
