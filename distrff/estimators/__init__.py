"""Machines with scikit-learn's interface."""
