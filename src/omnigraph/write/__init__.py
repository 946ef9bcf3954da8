"""Write: from what a caller wants changed to one published commit.

checks.py  what must be true of the graph for a write to be allowed, as values
stage.py   the physical part: detached table versions, all tables at once
commit.py  the whole path: open, check, stage, publish
"""
