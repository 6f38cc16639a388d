"""What is summed over rows, one pass a reduction."""
