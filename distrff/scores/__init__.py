"""How far predictions are from the truth, as sums over rows that merge; pure NumPy."""
