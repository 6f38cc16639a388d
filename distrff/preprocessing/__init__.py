"""Steps from raw columns and targets to the numbers of a model, which carries them with it."""
