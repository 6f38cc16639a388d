"""The benchmark book: everything side by side in one go, `python -m tests.benchmarks book [--full]`."""
