"""Sweeps over raw data, before any machine is there."""
