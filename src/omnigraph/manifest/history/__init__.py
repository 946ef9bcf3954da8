"""The commit log: listing, time travel, and lookup of transactions.

history.py     the log of a branch, and time travel
log_graph.py   the log through both parents
txn_lookup.py  searches the log for a transaction or a fence
"""
