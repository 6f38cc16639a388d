"""The frozen model: used, stored and scored without its estimator."""
