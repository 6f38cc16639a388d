"""A machine or a Gram as a Zarr group that is there whole or not at all; no pickle."""
