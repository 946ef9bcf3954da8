"""Matching patterns: bindings, expansion, joins, filters."""
