"""Kernels as values: the exact kernel and its spectral measure side by side."""
