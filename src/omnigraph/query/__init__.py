"""Query: the language `.gq`, from text to a typed IR. Pure code, no I/O.

ast.py        what a text says, with places for errors
parser.py     text to AST; the grammar is at its top
printer.py    AST to text
ir.py         what a query means: all that executors see
checker.py    AST and catalog to IR, split into
  scope.py      names: variables, parameters, types, properties, edges
  comparing.py  types: what may be compared with or assigned to what
  patterns.py   match and not
  outputs.py    return, order, limit
  mutations.py  insert, update, delete
values.py     values as in load data to typed ones
bind.py       parameter values into a query
compile.py    text to IR, kept by text and schema
lint.py       the checker over a whole file, and warnings
"""
