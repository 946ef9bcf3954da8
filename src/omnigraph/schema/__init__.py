"""Schema: what types a graph has. Pure code, no I/O.

types.py    the types of properties
catalog.py  types and properties with stable ids, and their stored form
arrow.py    the columns that a type's rows have
"""
