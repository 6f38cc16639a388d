"""One file a raw format: what is read in order is cut into blocks, and blocks are decoded in parallel."""
