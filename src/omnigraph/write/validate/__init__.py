"""The one validator of all writes.

validate.py      what a delta must fulfil, derived from constraints
row_checks.py    constraints of single rows
graph_checks.py  constraints between rows and the graph
checks.py        checks as values
row_images.py    rows before and after
violations.py    all violations as one error
"""
