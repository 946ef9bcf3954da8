"""The type checker: from AST to IR.

checker.py      the entry; insert, update, delete
scope.py        names: variables, parameters, types, properties, edges
type_rules.py   which types may be compared or assigned
expressions.py  operators, functions, case
patterns.py     match and not
projection.py   return, order, limit
"""
