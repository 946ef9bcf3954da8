"""Schema: what types a graph has. Pure code, no I/O.

types.py        the types of properties
values.py       values written in a schema, and whether they fit a type
patterns.py     the regular expressions of @check
definitions.py  properties, types and interfaces as frozen values
consistency.py  what a catalog must fulfil
catalog.py      types and properties with stable ids, and their stored form

ast.py          what a schema file says, as it is written
parser.py       text → declarations
annotations.py  what annotations and their arguments mean
bodies.py       a declaration → properties and rules, interfaces copied in
places.py       which token stands for which place of a catalog
compile.py      text and the previous catalog → the schema
printer.py      the way back: catalog → text

constraints.py  what must hold for rows, derived from the catalog as values
identity.py     ids derived from keys
indexes.py      the indexes that a type declares
arrow.py        the columns that a type's rows have
"""
