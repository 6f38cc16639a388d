"""Raw files into a Zarr group of rows."""
