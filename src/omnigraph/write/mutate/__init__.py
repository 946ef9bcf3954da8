"""Mutations in the query language."""
