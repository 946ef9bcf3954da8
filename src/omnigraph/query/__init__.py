"""The query language `.gq`, from text to a typed IR. Pure code, no I/O.

ast.py      what a text says, with positions for errors
parser.py   text -> AST; the grammar is at its top
printer.py  AST -> text
check/      AST and catalog -> IR: the type checker
ir/         the typed IR: all that executors see
values.py   given values -> typed values
bind.py     parameter values into a query
compile.py  text -> IR, cached by text and schema
lint.py     checks a whole file offline, and warns
"""
