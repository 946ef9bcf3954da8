"""Reading and writing manifests, and finding the head of a branch.

manifest_store.py  reads and writes manifests and schemas, finds the newest manifest, notices a lost one
head_search.py     the highest number of a branch, by a listing or from the hint
stub_index.py      which manifests are stubs
inline_rows.py     the rows of small commits, decoded and cached
clock_check.py     compares this clock with the store's
"""
