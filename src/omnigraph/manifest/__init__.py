"""Manifest: what the graph is, and the one way it changes.

model.py      Manifest, Commit, TableRef: frozen values
codec.py      their JSON
keys.py       where they are kept, and how commits and branches are named
store.py      reading single manifests and finding the newest
schemas.py    schemas on storage
txn.py        WriteTxn, Snapshot: all that a write or a read may know about its base
plan.py       PublishPlan: all that a write will change
compose.py    base + plan -> the next manifest, pure
conflicts.py  the conflict table of the design, row for row, as one pure function
publish.py    the loop: put N+1, or read what won and decide
turns.py      how a writer that keeps losing gets through
landed.py     looking back: has this transaction landed, did the fences honour this intent
refs.py       the lives of branch names
branches.py   create, find, list, delete
history.py    the commit log and time travel
repository.py init and open: everything above wired together
"""
