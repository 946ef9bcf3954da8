"""The query language `.gq`, from text to a typed IR. Pure code, no I/O.

ast.py                the syntax tree, with positions for errors
parser.py             text -> AST; the grammar is at its top
expression_parser.py  types, values and expressions of the grammar
functions.py          what functions take and return
printer.py            AST -> text
check/                AST and catalog -> IR: the type checker
ir/                   the typed IR: all that executors see
values.py             user values -> typed values
compile.py            text -> IR, cached by text and schema; binds parameters
lint.py               checks a whole file offline, and warns
"""
