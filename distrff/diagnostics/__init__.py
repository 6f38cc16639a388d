"""Reports and figures of fitted machines, and how good their kernels are."""
