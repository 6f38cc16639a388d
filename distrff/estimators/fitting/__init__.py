"""From rows to a fitted model: plan, context, and the solvers' passes over the rows."""
