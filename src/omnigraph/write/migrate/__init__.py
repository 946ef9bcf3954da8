"""Schema changes applied to the stored rows.

migrate.py  schema plan, schema apply, and their checks against the stored rows
reshape.py  a table in the columns of another definition
"""
