"""Expressions over columns: the one implementation of operators and functions, in process and in Arrow tasks on Spark.

evaluate.py  three-valued logic, comparisons, case: an expression as a column
scalars.py   numbers, dates and times
text.py      texts and lists
"""
