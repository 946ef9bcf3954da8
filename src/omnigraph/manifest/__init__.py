"""The state of a graph, and the only way to change it.

repository.py  init and open: this package connected with a store
settings.py    what a user may tune
model/         manifests as values, their JSON and keys
store/         reading and writing manifests, the head of a branch, inline rows
commit/        the commit protocol: transaction, plan, conflicts, group commit, publish
branch/        branches, tags, merge bases
history/       the log and time travel
intent/        intents of long writes
"""
