"""From rows to a fitted machine: plan, context, and the solvers' passes over the rows."""
