"""How results are shown: numbers, charts, tables and pages as text, made of plain data."""
