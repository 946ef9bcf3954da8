"""The schema language `.pg`: grammar, parser, printer, compiler.

ast.py         declarations with their tokens
parser.py      text -> declarations; the grammar is at its top
resolve.py     a declaration and its annotations -> properties and rules
source_map.py  tokens of catalog entries, for errors
compile.py     text and the previous catalog -> the schema
printer.py     catalog -> text
"""
