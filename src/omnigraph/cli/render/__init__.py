"""Rendering of results as text, as far as commands share it.

commit.py     a published commit, row counts and costs
migration.py  the steps of a schema change
"""
