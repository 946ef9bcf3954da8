"""Schema changes applied to the stored rows.

migrate.py           schema plan, schema apply
migration_checks.py  checks of a schema change that depend on data
reshape.py           a table in the columns of another definition
"""
