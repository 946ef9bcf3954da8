"""What differs between two versions of a table.

content_diff.py  two contents: by fragments, then by overlays
row_diff.py      two sets of rows, by id and content
equality.py      equality of two columns, row by row
"""
