"""Tools for all rooms: checks of values, random streams, compiled loops, arrays, text."""
