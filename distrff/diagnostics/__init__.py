"""Reports and figures of fitted models, and how good their kernels are."""
