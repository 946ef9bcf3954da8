"""Commands for branches, commits, changes and tags.

branch.py   branch create, list, delete, merge
commit.py   commit list, show, changes
changes.py  changes, feed
tag.py      tag, revert
"""
