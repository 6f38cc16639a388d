"""How raw columns and targets become what a model sees: what a model carries with it."""
