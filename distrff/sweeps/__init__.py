"""Passes over the rows: the engine, then one file a sweep, and the plan."""
