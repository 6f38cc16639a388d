"""Steps that a model carries: how raw columns and targets become what the machine sees."""
