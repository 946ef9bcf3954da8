"""From bindings to results: grouping, order, limit, columns."""
