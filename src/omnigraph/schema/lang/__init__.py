"""The schema language: grammar, parser, printer, compiler.

ast.py          declarations with their tokens
parser.py       text -> declarations
annotations.py  arguments of annotations
resolve.py      a declaration -> properties and rules
source_map.py   tokens of catalog entries, for errors
compile.py      text and the previous catalog -> the schema
printer.py      catalog -> text
"""
