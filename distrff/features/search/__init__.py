"""The search for maps, kernels, widths and metrics on a sample of the rows."""
