"""The frozen machine: used, stored and scored without its estimator."""
