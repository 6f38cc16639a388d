"""Solvers, one algorithm a file: they see Grams and other sums, never rows."""
