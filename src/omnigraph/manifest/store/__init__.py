"""Reading and writing manifests, and finding the head of a branch.

manifest_store.py  reads and writes single manifests, finds the newest; the hint
used_numbers.py    manifest numbers known to be used, to notice a lost head
stub_index.py      which manifests are stubs
schemas.py         content-addressed schemas
inline_rows.py     the rows of small commits, decoded and cached
clock_check.py     compares this clock with the store's
"""
