"""What any room may use: checks of values, random streams, compiled loops, arrays, text."""
