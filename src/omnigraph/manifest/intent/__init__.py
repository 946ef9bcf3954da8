"""Intents of long writes: their value, their storage, and the check before each put.

intent.py            the value and its JSON
intent_store.py      intents on the store
guard.py             the check before each put of a long write
process_liveness.py  whether the process that owns a job is alive
"""
