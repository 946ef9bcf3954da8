"""The types of a graph. Pure code, no I/O.

types.py        property types
literals.py     literals in a schema, and whether they fit a type
definitions.py  properties, types and interfaces as frozen values
catalog.py      types and properties with stable ids, and their stored form
consistency.py  what a catalog must fulfil
regex.py        the patterns of a schema, matched by RE2
constraints.py  what must hold for rows
identity.py     ids derived from keys
indexes.py      the indexes of a type
arrow.py        the Arrow columns of a type
ipc_row.py      one row as an Arrow IPC message, without Arrow
lang/           the schema language: parser, printer, compiler
evolve/         migration plans, and merges of two schemas
"""
