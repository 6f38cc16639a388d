"""Reports and figures of fitted machines."""
