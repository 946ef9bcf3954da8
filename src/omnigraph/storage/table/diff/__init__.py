"""What differs between two versions of a table.

content_diff.py   two contents, each a version with an overlay
fragment_diff.py  two versions, by their fragments
row_diff.py       two sets of rows, by id and content
equality.py       equality of two columns, row by row
"""
