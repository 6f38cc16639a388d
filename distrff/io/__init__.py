"""Places of rows and results: stores, formats, and the one dataset that everything above sees."""
