"""Names and lives of branches, tags, and merge bases.

branches.py    create, find, list, delete
refs.py        branch names, and which branch id has one
tags.py        names of commits
merge_base.py  merge bases from ancestry vectors
"""
