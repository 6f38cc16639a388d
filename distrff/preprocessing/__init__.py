"""How raw columns and targets become what a machine sees: what a model carries with it."""
