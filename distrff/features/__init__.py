"""Maps: a block of rows in, a block of Z out."""
